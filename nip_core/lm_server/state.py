"""The state directory from outside: its lock, and the card of the server that holds it.

lock            held for as long as a server lives (flock: gone with the process)
owner.lock      held while somebody starts or stops a server here
server.json     who serves, where, configured how; written when ready, removed at the end
api_key         key of servers that were started by `owner` (mode 0600)
jobs.sqlite3, files/, models/, jobs/, logs/     the server's own

Standard library only.
"""

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from nip_core.lm_server.processes import is_alive

LOCK = "lock"
OWNER_LOCK = "owner.lock"
CARD = "server.json"
KEY_FILE = "api_key"
LOG = "logs/server.log"
DATABASE = "jobs.sqlite3"
MODELS = "models"


@dataclass(frozen=True)
class ServerCard:
    """What a server that is ready tells about itself."""

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
        """Whether the server's process still runs."""
        return is_alive(self.pid, self.identity)

    def is_orphaned(self) -> bool:
        """Whether the process that it ends with is gone, so that it is about to end."""
        return self.owner_pid is not None and not is_alive(
            self.owner_pid, self.owner_identity or ""
        )


def write_card(state_dir: Path, card: ServerCard) -> None:
    """Publish the card by one rename."""
    part = state_dir / f"{CARD}.part"
    part.write_text(json.dumps(asdict(card), indent=1) + "\n")
    part.rename(state_dir / CARD)


def read_card(state_dir: Path) -> ServerCard | None:
    """The card, or None if there is none that can be read."""
    try:
        return ServerCard(**json.loads((state_dir / CARD).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remove_card(state_dir: Path, pid: int) -> None:
    """Remove the card if it is that of `pid`."""
    card = read_card(state_dir)
    if card is None or card.pid == pid:
        with contextlib.suppress(FileNotFoundError):
            (state_dir / CARD).unlink()


def try_lock(path: Path) -> int | None:
    """Take a lock file; the descriptor holds it until closed. None if somebody else has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
