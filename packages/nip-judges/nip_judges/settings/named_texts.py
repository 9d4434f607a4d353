"""The files that a judge.yaml names: their texts, and the bytes that its digest covers.

read_named_text    a prompt: a file's, or a text in an installed package
hash_named         SHA-256 of a file, or of a package's module
find_placeholders  the names in braces in a prompt

Nothing is copied out of packages: their texts are read in place.
"""

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from nip_base.formats.bounds import ReadError
from nip_base.formats.untrusted import read_text
from nip_base.importing import import_object
from nip_core.nearest import did_you_mean

MOST_PROMPT_BYTES = 1 << 20
_ADDRESS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OF_FILE = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
# Text in braces after a command of LaTeX, or after its first argument, is an argument.
_PLACEHOLDER = re.compile(
    r"(\\[A-Za-z]+|(?<=[}^_$]))?(?:\{\{\s*([A-Za-z_]\w*)\s*\}\}|\{([A-Za-z_]\w*)\})", re.ASCII
)


def read_named_text(folder: Path, name: str) -> str:
    """Read the text of a file in `folder`, or at "package.module:NAME" or "file.py:NAME".

    Raises ValueError with the reason in words.
    """
    name = str(Path(name).expanduser())
    if (folder / name).exists() or not is_address(name):
        return _read_file(folder, name)
    of_file = _OF_FILE.fullmatch(name)
    address = f"{(folder / of_file[1]).resolve()}:{of_file[2]}" if of_file else name
    try:
        value = import_object(address)
    except ValueError as error:
        module, _, variable = name.rpartition(":")
        names = [n for n, v in vars(sys.modules.get(module, object)).items() if type(v) is str]
        if names and variable not in names:
            hint = did_you_mean(variable, names).replace("'", '"')
            raise ValueError(f"{module} has no text {variable!r}{hint}") from None
        raise ValueError(str(error)) from None
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text (got {type(value).__name__}); name a text or a file")
    return value


def is_address(name: str) -> bool:
    """Return whether a name is an address in a package or a Python file, and no plain file."""
    return bool(_ADDRESS.fullmatch(name) or _OF_FILE.fullmatch(name))


def _read_file(folder: Path, name: str) -> str:
    path = folder / name
    if not path.exists():
        raise ValueError(f"there is no {name}{suggest_file(path)}")
    try:
        text = read_text(path, MOST_PROMPT_BYTES)
    except ReadError as error:
        raise ValueError(f"{name} {error}") from None
    if not text.strip():
        raise ValueError(f"{name} is empty")
    return text.removeprefix("\ufeff")


def suggest_file(path: Path) -> str:
    """Suggest the nearest name beside a missing file; "" if none is near."""
    try:
        names = sorted(other.name for other in path.parent.iterdir())
    except OSError:
        return f"; there is no folder {path.parent}"
    return did_you_mean(path.name, names).replace("'", '"')


def hash_named(folder: Path, name: str) -> str:
    """Hash the file in `folder`, or the file of a module; "" where there is neither.

    Raises OSError for a file that can't be read.
    """
    path: Path | None = folder / name
    assert path is not None
    if not path.is_file():
        path = _find_source(folder, name)
    return "" if path is None else hash_file(path)


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file, in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_source(folder: Path, address: str) -> Path | None:
    if of_file := _OF_FILE.fullmatch(address):
        path = folder / of_file[1]
        return path if path.is_file() else None
    if not _ADDRESS.fullmatch(address):
        return None
    try:
        spec = importlib.util.find_spec(address.partition(":")[0])
    except (ImportError, ValueError):
        return None
    place = Path(spec.origin) if spec and spec.origin else None
    return place if place and place.is_file() else None


def check_function(folder: Path, address: str) -> None:
    """Check that a function's file or module is there; it is not imported.

    Raises ValueError with the reason in words.
    """
    if not is_address(address):
        raise ValueError(
            f"{address!r} names no function; write file.py:name or package.module:name"
        )
    if _find_source(folder, address) is not None:
        return
    if of_file := _OF_FILE.fullmatch(address):
        raise ValueError(f"there is no {of_file[1]}{suggest_file(folder / of_file[1])}")
    module = address.partition(":")[0]
    if not _has_module(module):
        raise ValueError(f"there is no module {module} here; is its package installed?")


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def find_placeholders(prompt: str, filled: set[str]) -> Iterator[str]:
    """Find each name in braces, {name} or {{name}}, once.

    Of single letters and arguments of LaTeX only those in `filled` count: those are placeholders.
    """
    names: set[str] = set()
    for match in _PLACEHOLDER.finditer(prompt):
        before, name = match[1], match[2] or match[3]
        if name not in names and ((before is None and len(name) > 1) or name in filled):
            names.add(name)
            yield name
