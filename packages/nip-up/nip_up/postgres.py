"""A PostgreSQL server from the system's packages, as a process of `nip up`."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nip_core.errors import ServerError, SettingsError
from nip_up.parts import keep_secret

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
_INSTALL = (
    "PostgreSQL is not installed: apt-get install postgresql (Debian, Ubuntu), dnf install "
    "postgresql-server (Fedora), brew install postgresql (macOS); or --database sqlite"
)
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")
_USER, _DATABASE = "nip", "postgres"


def find_binaries() -> Path:
    """The newest directory with `initdb` and `postgres`. Raises SettingsError with the remedy."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    for place in _PLACES:
        folders += sorted(Path("/").glob(place[1:]), reverse=True)
    for folder in folders:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    raise SettingsError(_INSTALL)


def start_postgres(directory: Path, start: Callable[..., Any], deadline_s: float = 60.0) -> str:
    """Start the server over the files in `directory`; returns the URL for Prefect.

    It listens on the loopback device at a port that the system chooses, and wants a password. Run
    by root it becomes the user postgres, as it refuses to be root.
    """
    binaries = find_binaries()
    as_user = _as_user()
    password = _create(directory, binaries, as_user)
    port = _free_port()
    process = start(
        "postgresql",
        [str(binaries / "postgres"), "-D", str(directory / "data"), "-p", str(port), "-h",
         "127.0.0.1", "-c", "unix_socket_directories="],
        _environment(),
        **as_user,
    )  # fmt: skip
    ready = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    end_s = time.monotonic() + deadline_s
    while subprocess.run(ready, check=False, env=_environment()).returncode != 0:
        if process.poll() is not None or time.monotonic() > end_s:
            raise ServerError(
                f"PostgreSQL does not answer; see {directory.parent / 'logs' / 'postgresql.log'}"
            )
        time.sleep(0.2)
    return f"postgresql+asyncpg://{_USER}:{password}@127.0.0.1:{port}/{_DATABASE}"


def _create(directory: Path, binaries: Path, as_user: dict[str, Any]) -> str:
    """Create the database's files if there are none; returns its password."""
    password_file, data = directory / "password", directory / "data"
    directory.mkdir(mode=0o700, exist_ok=True)
    if as_user:
        shutil.chown(directory, as_user["user"], as_user["group"])
    if (data / "PG_VERSION").exists():
        return password_file.read_text()
    # That of files which are away is kept.
    password = keep_secret(password_file, lambda: secrets.token_urlsafe(24))
    if as_user:
        shutil.chown(password_file, as_user["user"], as_user["group"])
    if data.exists() and any(data.iterdir()):
        raise ServerError(f"{data}: not empty, and not PostgreSQL's; move it away")
    # Under another name until it is whole: a killed initdb leaves what looks so.
    part = directory / "data.part"
    shutil.rmtree(part, ignore_errors=True)
    process = subprocess.run(
        [binaries / "initdb", "-D", part, "-U", _USER, "-E", "UTF8", "--locale=C.UTF-8",
         "--auth=scram-sha-256", f"--pwfile={password_file}"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=_environment(),
        **as_user,
    )  # fmt: skip
    if process.returncode != 0:
        shutil.rmtree(part, ignore_errors=True)
        hint = ""
        if as_user:
            hint = f"; its user, postgres, has to reach {directory}, or run `nip up` as yourself"
        raise ServerError(f"initdb: {process.stderr.strip()[-1000:]}{hint}")
    part.rename(data)
    return password


def _environment() -> dict[str, str]:
    """Return what PostgreSQL's programs need: run by root they are another user's, who could read
    every key in the rest."""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {**variables, "LC_ALL": "C.UTF-8"}


def _as_user() -> dict[str, Any]:
    """Arguments for a child's user: postgres, if this is root."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        raise SettingsError("run by root, PostgreSQL needs the user postgres; add it") from None
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
