"""Classes of our own by a name, and of other distributions by their entry points."""

import contextlib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from nip_base.importing import import_object

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


def find_class(package: str, name: str, base: type[Kind], group: str = "") -> type[Kind] | None:
    """Find the subclass of `base` called `name` in the package's module `name`, if any.

    With `group`, also in the module that an entry point of this group and name gives. Raises
    ValueError for such a module that can't be imported.
    """
    place = _list_modules(package, group).get(name)
    if place is None:
        return None
    try:
        module = importlib.import_module(place)
    except Exception as error:  # whatever a module of others raises
        if place.startswith(f"{package}."):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name!r} of {place}, which can't be imported ({reason})") from error
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, base) and vars(value).get("name") == name:
            return value
    return None


def find_classes(package: str, base: type[Any], group: str = "") -> tuple[str, ...]:
    """List the names with a class for `find_class`, sorted.

    A module of another distribution that can't be imported has none: a user who names it gets its
    error.
    """
    names = []
    for name in sorted(_list_modules(package, group)):
        with contextlib.suppress(ValueError):
            if find_class(package, name, base, group) is not None:
                names.append(name)
    return tuple(names)


@functools.cache
def load_bridge(group: str, name: str) -> ModuleType | None:
    """Load the module of the entry point `name`; None where no distribution has one."""
    for point in entry_points(group=group, name=name):
        module: ModuleType = point.load()
        return module
    return None


@functools.cache
def _list_modules(package: str, group: str) -> dict[str, str]:
    """Map names to modules: a package's own before those of entry points."""
    path = importlib.import_module(package).__path__
    addresses = {point.name: point.value for point in entry_points(group=group)} if group else {}
    return addresses | {
        module.name: f"{package}.{module.name}" for module in pkgutil.iter_modules(path)
    }
