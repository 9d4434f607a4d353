"""The distribution for pip: its name, its version, and the command to install it or a part of nip.

A module of its own, since the package `nip_core` also names the reader of runs, which lies above
everything that asks for a version here.
"""

import importlib.metadata
import importlib.util
import json
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

__version__ = "0.1.0"

DISTRIBUTION = "nip-loop"
"""The name for pip; the name `nip` on the package index belongs to another tool."""


def how_to_install(extra: str = "", name: str = DISTRIBUTION) -> str:
    """Give the command to install nip, with one of its extras, from where this nip is from.

    That is the checkout, the wheel or the address that pip noted when it installed it (PEP 610);
    the name for a package index where it noted none. A checkout's script installs all its
    distributions in place, and the others of a wheel lie beside it. Where the wheel is gone, the
    command installs the packages of the extra. It is for the interpreter that runs. `name` is
    another distribution of nip's repository.
    """
    source, extras = _find_source(), f"[{extra}]" if extra else ""
    if source is None:
        return how_to_install_packages(f"{name}{extras}")
    if source.is_gone:
        return how_to_install_packages(*(_list_requirements(name, extra) or [name]))
    if source.is_in_place:
        script = str(Path(source.place) / "scripts" / "install.py")
        return shlex.join([sys.executable or "python3", script, *filter(None, [extra])])
    part = "" if name == DISTRIBUTION else f"packages/{name}"
    if "://" in source.place:
        return how_to_install_packages(f"{name}{extras}{_say_address(source.place, part)}")
    if Path(source.place).is_dir():
        return how_to_install_packages(f"{Path(source.place) / part}{extras}")
    return how_to_install_packages("--find-links", str(Path(source.place).parent), name + extras)


def how_to_install_packages(*packages: str) -> str:
    """Give the command to install packages beside nip, quoted for a shell."""
    prepare, installer = _find_installer()
    return prepare + shlex.join([*installer, *packages])


@dataclass(frozen=True)
class _Source:
    """A path or an address that this nip was installed from."""

    place: str
    is_in_place: bool = False
    """It is a checkout that Python imports as it stands."""
    is_gone: bool = False


def _find_source() -> _Source | None:
    """Find the source that this nip was installed from; None for a package index."""
    noted = _read_direct_url()
    if noted is None:
        return _find_checkout()
    url = str(noted.get("url", ""))
    parts = urlsplit(url)
    if parts.scheme == "file":
        path, directory = Path(unquote(parts.path)), noted.get("dir_info")
        in_place = isinstance(directory, dict) and directory.get("editable") is True
        return _Source(str(path), in_place, is_gone=not path.exists())
    # An address with a password in it is no text for a message.
    if parts.scheme not in ("http", "https") or parts.username is not None:
        return None
    version_control = noted.get("vcs_info")
    if isinstance(version_control, dict):
        kind, commit = version_control.get("vcs"), version_control.get("commit_id")
        return _Source(f"{kind}+{url}@{commit}")
    return _Source(url)


def _read_direct_url() -> dict[str, object] | None:
    """Read pip's note on the source of this distribution; None where there is none."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        noted = json.loads(text) if text is not None else None
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return None
    return noted if isinstance(noted, dict) else None


def _find_checkout() -> _Source | None:
    """Find the checkout that this module is in; None for an installed one."""
    root = Path(__file__).resolve().parents[1]
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return _Source(str(root), is_in_place=True) if project.get("name") == DISTRIBUTION else None


def _say_address(address: str, part: str) -> str:
    """Return the address of a part of nip as pip takes it behind a name.

    A wheel has no other parts: "" for these, so that the name stands alone.
    """
    if not part:
        return f" @ {address}"
    return f" @ {address}#subdirectory={part}" if "+" in urlsplit(address).scheme else ""


def _list_requirements(name: str, extra: str) -> list[str]:
    """List the packages that an extra needs; an extra of another part of nip stands for its own."""
    try:
        needed = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    belongs = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    packages: list[str] = []
    for line in needed:
        package, _, marker = line.partition(";")
        if not belongs.search(marker):
            continue
        part = re.match(r"(nip-[a-z-]+)\[([a-z-]+)\]", package)
        packages += _list_requirements(part[1], part[2]) if part else [package.strip()]
    return packages


def _find_installer() -> tuple[str, list[str]]:
    """Return a command to run before, and the words that install packages for this interpreter."""
    python = sys.executable or "python3"
    by_pip = [python, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:
        # As in an environment that uv made.
        if shutil.which("uv") is not None:
            return "", ["uv", "pip", "install", "--python", python]
        return f"{shlex.join([python, '-m', 'ensurepip'])} && ", by_pip
    on_path = shutil.which("pip")
    # The plain word only where it means this interpreter.
    is_ours = on_path is not None and Path(on_path).parent == Path(python).parent
    return "", ["pip", "install"] if is_ours else by_pip
