"""Objects by the address in a setting, and classes of our own by a name.

import_object  a user's: ``package.module:Class`` or ``path/to/file.py:Class``
find_line      where in a file an error was raised
find_class     the class of a package that has the name of its module; find_classes: all of them
"""

import functools
import importlib
import pkgutil
from typing import Any, TypeVar

from nip_lm_server.client import find_line, import_object

__all__ = ["find_class", "find_classes", "find_line", "import_object"]

Kind = TypeVar("Kind")


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
