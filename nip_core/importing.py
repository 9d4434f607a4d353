"""Objects by the address in a setting, and classes of our own by a name.

import_object    a user's: ``package.module:Class`` or ``path/to/file.py:Class``
import_function  a user's function of one argument, by such an address
find_line        where in a file an error was raised
find_source      the file in which a function stands
find_class       the class of a package that has the name of its module; find_classes: all of them
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from nip_lm_server.client import find_line, import_object

__all__ = [
    "find_class",
    "find_classes",
    "find_line",
    "find_source",
    "import_function",
    "import_object",
]

Kind = TypeVar("Kind")


def import_function(setting: str, address: str, does: str) -> Callable[..., Any]:
    """Import the function at an address. `does` says in an error how it is called.

    Raises ValueError, naming the setting, where there is no plain function.
    """
    try:
        function: Callable[..., Any] = import_object(address, FunctionType)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}; name a function that is there") from None
    if not callable(function) or isinstance(function, type):
        raise ValueError(
            f"{setting}: {address!r} is no function (got {function!r:.80}); name one that {does}"
        )
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"{setting}: {address!r} is async; write it as a plain function")
    return function


def find_source(function: Callable[..., Any]) -> str:
    """Find the file in which a function stands."""
    try:
        return inspect.getfile(inspect.unwrap(function))
    except TypeError:  # an object that can be called
        return inspect.getfile(type(function))


def find_class(package: str, name: str, base: type[Kind]) -> type[Kind] | None:
    """Find the subclass of `base` called `name` in the package's module `name`, if any."""
    if name not in _modules(package):
        return None
    for value in vars(importlib.import_module(f"{package}.{name}")).values():
        if isinstance(value, type) and issubclass(value, base) and vars(value).get("name") == name:
            return value
    return None


def find_classes(package: str, base: type[Any]) -> tuple[str, ...]:
    """List the names with a class for `find_class`, sorted."""
    return tuple(n for n in sorted(_modules(package)) if find_class(package, n, base) is not None)


@functools.cache
def _modules(package: str) -> frozenset[str]:
    """List the names of the modules of a package."""
    path = importlib.import_module(package).__path__
    return frozenset(module.name for module in pkgutil.iter_modules(path))
