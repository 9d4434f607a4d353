"""Objects of a user's own by their address: ``package.module:Class`` or ``path/to/file.py:Class``.

import_object  the object at an address
find_file      the Python file of an address, if it names one
find_line      the line of a file in which an error was raised
"""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


def import_object(address: str, kind: type = type) -> Any:
    """Import the object at an address.

        A file's path is relative to the working directory; the file is imported once, under a name
        that no other module has. Its own imports must be importable. `kind` is the wanted kind,
    a class (`type`) or a function, so that an error can name those that are there.

        Raises ValueError, with the reason, where there is no such module, file or name in it.
    """
    place, _, name = address.rpartition(":")
    try:
        file = find_file(address)
        module = importlib.import_module(place) if file is None else _module_of_file(file)
        if not hasattr(module, name):
            defined = [n for n, v in vars(module).items() if _is_defined_in(v, kind, module)]
            none = "no class" if kind is type else "no function"
            raise ImportError(f"it has no {name!r}; it defines {', '.join(defined) or none}")
        return getattr(module, name)
    except SyntaxError as error:
        raise ValueError(f"{address!r} can't be imported ({error})") from None
    except Exception as error:  # any error of the module
        raised = "" if isinstance(error, ImportError | OSError) else f"{type(error).__name__}: "
        message = " ".join(str(error).split()) + find_line(error, place)
        raise ValueError(f"{address!r} can't be imported ({raised}{message})") from None


def find_file(address: str) -> Path | None:
    """The Python file that an address names; None where it names a module, or is none."""
    place, _, _ = address.rpartition(":")
    return Path(place).expanduser().resolve() if place.endswith(".py") else None


def _is_defined_in(value: object, kind: type, module: ModuleType) -> bool:
    return isinstance(value, kind) and value.__module__ == module.__name__


def find_line(error: BaseException, file: str) -> str:
    """Say ", line N": the last line of a file on an error's way; "" if it passed none."""
    if not os.path.isfile(os.path.expanduser(file)):  # perhaps no name of a file at all
        return ""
    path = Path(file).expanduser().resolve()
    passed = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in passed if Path(frame.filename) == path]
    return f", line {lines[-1]}" if lines else ""


@functools.cache
def _module_of_file(path: Path) -> ModuleType:
    name = f"nip_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if path.exists() and not path.is_file():  # a pipe or a device would be read without an end
        raise ImportError(f"{path} is no file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and inspect look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
