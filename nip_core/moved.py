"""Packages under the names that they had here before they became distributions of their own."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def alias_package(name: str, target: str) -> None:
    """Make `name` and the modules in it those in `target`: the same objects, loaded once."""
    sys.meta_path.insert(0, _Finder(f"{name}.", f"{target}."))
    sys.modules[name] = import_module(target)


class _Finder(MetaPathFinder, Loader):
    def __init__(self, prefix: str, target: str) -> None:
        self._prefix, self._target = prefix, target

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the package; None for all others."""
        return ModuleSpec(fullname, self) if fullname.startswith(self._prefix) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Give the target's module; it stands in `sys.modules` under both names."""
        return import_module(self._target + spec.name.removeprefix(self._prefix))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is loaded."""
