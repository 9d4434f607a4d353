"""The state directory from outside: its lock, and the card of the server in it.

lock            held for as long as a server lives (flock: gone with the process)
owner.lock      held while a process starts or stops a server here
server.json     the server's process, address and configuration; written when it is ready, removed
                at its end
api_key         key of servers that were started by `launch` (mode 0600)
jobs.sqlite3, files/, models/, jobs/, logs/     the server's own
tinker.sqlite3, tinker/                         the same for Tinker's API, once it was used
caches          compiled code of vLLM and of trainings; may be deleted while no server runs

check_state_dir refuses a directory that is no state directory. Standard library only.
"""

import contextlib
import fcntl
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from nip_base.machine.processes import is_alive

LOCK = "lock"
OWNER_LOCK = "owner.lock"
CARD = "server.json"
KEY_FILE = "api_key"
LOG = "logs/server.log"
DATABASE = "jobs.sqlite3"
FILES = "files"
MODELS = "models"
JOBS = "jobs"
_BEFORE_THE_DATABASE = re.compile(
    r"lost\+found|lock|owner\.lock|api_key(\..*)?|logs|fetched-.*|jobs\.sqlite3.*"
)
"""Names on a new disk, and names that the start of a server writes before it has its database."""
_BESIDE_THE_DATABASE = re.compile(
    r"files|models|jobs|engines|caches|set_aside|tinker|tinker\.sqlite3.*|adopted\.part"
    r"|responses\.sqlite3.*|server\.json.*"
)


class StateError(Exception):
    """The state directory can't be used: in use, no server's, damaged, or of another format."""


def check_state_dir(state_dir: Path, *callers_files: str | Path | None) -> None:
    """Raise StateError unless the directory is a server's, or empty. Writes nothing.

    `callers_files` may lie in the directory, too. A database is not read here: `Database` checks it
    when it opens it.
    """
    database = state_dir / DATABASE
    if not state_dir.exists() or (database.exists() and database.stat().st_size):
        return
    if read_card(state_dir) is not None:
        callers_files += (state_dir / CARD,)
    callers_paths = {
        Path(path).expanduser().resolve() for path in callers_files if path is not None
    }
    unknown = sorted(
        path.name
        for path in state_dir.iterdir()
        if not _BEFORE_THE_DATABASE.fullmatch(path.name) and path.resolve() not in callers_paths
    )
    if all(map(_BESIDE_THE_DATABASE.fullmatch, unknown)):
        refuse_lost_database(state_dir)
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise StateError(
            f"{state_dir} is no server's state directory and not empty (it has "
            f"{', '.join(unknown[:3])}{more}): name another directory"
        )


def refuse_lost_database(state_dir: Path) -> None:
    """Raise StateError if the directory has files of a server but no database."""
    database = state_dir / DATABASE
    log = database.with_name(f"{DATABASE}-wal")
    leftovers = [log.name] if log.exists() and log.stat().st_size else []
    for folder in (state_dir / name for name in (FILES, MODELS, JOBS)):
        if folder.is_dir() and any(folder.iterdir()):
            leftovers.append(f"{folder.name}/")
    if leftovers:
        state = "is empty" if database.exists() else "is missing"
        raise StateError(
            f"{database} {state}, but {', '.join(leftovers)} beside it is not: put the database "
            f"back from a copy, or move what is in {state_dir} to another place and start anew; "
            "nothing was changed"
        )


@dataclass(frozen=True)
class ServerCard:
    """The facts a ready server publishes about itself."""

    pid: int
    identity: str
    url: str
    configuration_digest: str
    version: str
    engine: str
    model: str
    owner_pid: int | None = None  # the server ends with this process
    owner_identity: str | None = None

    def is_alive(self) -> bool:
        """Return whether the server's process still runs."""
        return is_alive(self.pid, self.identity)

    def is_orphaned(self) -> bool:
        """Say whether the server's owner is gone; the server is then about to end."""
        return self.owner_pid is not None and not is_alive(
            self.owner_pid, self.owner_identity or ""
        )


def write_card(state_dir: Path, card: ServerCard) -> None:
    """Publish the card by one rename."""
    part = state_dir / f"{CARD}.part"
    part.write_text(json.dumps(asdict(card), indent=1) + "\n")
    part.rename(state_dir / CARD)


def read_card(state_dir: Path) -> ServerCard | None:
    """Read the card, or return None if there is no readable one."""
    try:
        return ServerCard(**json.loads((state_dir / CARD).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remove_card(state_dir: Path, pid: int) -> None:
    """Remove the card if it is the card of the process `pid`."""
    card = read_card(state_dir)
    if card is not None and card.pid == pid:
        with contextlib.suppress(FileNotFoundError):
            (state_dir / CARD).unlink()


def try_lock(path: Path) -> int | None:
    """Take a lock file; the descriptor holds it until closed. None if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # The kernel's lock goes with its process, however that ends, so no kill leaves a directory
        # locked. A file with a process id would stay.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
