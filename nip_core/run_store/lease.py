"""One runner per run: its owner, the sign of its life, and the epoch of its commits.

Two runners of one run would pay twice for the same answers and jobs. `open_session` of
`nip_core.session.opening` takes the lease before it starts or pays for anything.

Owner          who a runner is: host, process with its identity, a random identifier
LeaseDocument  the content of ``lease.json``; `read_lease` reads it
Lease          held by this process: renewed in a thread, checked before commits, released
acquire        take the lease of a run, or raise LeaseError with the owner's name
borrow         the lease of another process, to commit under it
refuse_if_held raise it without taking the lease
ThisMachine    how a process looks at itself and at others of its machine

The lease is a JSON document, ``lease.json``, that changes only by conditional replacement. Its
heartbeat is a counter; no time of day is compared. A lease is stale when its heartbeat was seen
not to change for the time to live, on this process's monotonic clock; if its owner was a process
of this machine that is gone, at once. Every takeover raises the epoch.

Commits name the lease's fence (see `nip_core.run_store.store`). A takeover drops the fences of all
earlier epochs before it returns, so a runner that was suspended, replaced and continued can publish
nothing, even if it had checked its lease before.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter

from nip_base.machine.processes import process_identity
from nip_core.errors import CorruptionError, LeaseError
from nip_core.run_store.documents import decode, encode, validate_document
from nip_core.run_store.store import MissingFileError, Store

# Higher with a change of the rules by which a run is held: `read_lease` refuses what it doesn't
# know.
FORMAT_VERSION = 1
# A runner that died on another machine keeps the next one waiting for so long; in a shorter time a
# live one that stands still for a moment would be taken for dead.
DEFAULT_TTL_S = 30.0
_log = logging.getLogger(__name__)
# Some renewals may fail, for a full disk say, before another runner may take the run. More of them
# would be so many more requests to an object store.
_BEATS_PER_TTL = 10


@dataclass(frozen=True)
class Owner:
    """A runner. `machine` tells hosts of one name apart, and containers of one host."""

    host: str
    machine: str
    pid: int
    process: str = ""  # its identity, which no clock moves; "": written by an earlier version
    id: str = field(kw_only=True)  # drawn anew for every attempt to acquire

    @classmethod
    def read(cls, document: object) -> "Owner":
        """Read an owner as this version or an earlier one wrote it. Raises ValueError."""
        return _OWNER.validate_python(document)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


_OWNER = TypeAdapter(Owner)


class LeaseDocument(BaseModel):
    """``lease.json``: the owner of the run, its epoch, and the count of its heartbeats."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format_version: int = FORMAT_VERSION
    state: Literal["held", "released"]
    epoch: int
    heartbeat: int
    ttl_s: float
    owner: Owner


class Machine(Protocol):
    """A view of processes; tests bring their own."""

    def owner(self) -> Owner:
        """This process, with a new identifier."""

    def is_gone(self, owner: Owner) -> bool:
        """Tell whether `owner` ran on this machine and certainly no longer does."""


class ThisMachine:
    """The processes of this machine, as its operating system shows them."""

    def owner(self) -> Owner:
        pid = os.getpid()
        # A new identifier for each try to acquire: an earlier lease of the same process has lost.
        identity = process_identity(pid) or ""
        return Owner(socket.gethostname(), _machine_id(), pid, identity, id=uuid.uuid4().hex)

    def is_gone(self, owner: Owner) -> bool:
        # Processes of another machine can't be seen from here: of those only silence tells.
        if owner.machine != _machine_id():
            return False
        identity = process_identity(owner.pid)
        if identity is None:
            # In a container with hidden processes another user's looks like none.
            return not _is_hidden(owner.pid)
        # Its number may be another process's by now. Without an identity, as an earlier version
        # wrote an owner, a process of that number counts as the owner: better to wait than two.
        return owner.process not in ("", identity)


def _is_hidden(pid: int) -> bool:
    """Tell whether another user has a process of this number, hidden from this one."""
    try:
        # Signal 0 reaches no process: it only asks whether it might.
        os.kill(pid, 0)
    except PermissionError:
        return True
    # No process has this number; or no process could, as a document may name any.
    except (OSError, OverflowError):
        return False
    # One that may be signalled is this user's and not hidden: it has ended, and its parent has not
    # yet asked how.
    return False


def _machine_id() -> str:
    """Name this boot and process namespace on Linux; elsewhere the hardware address."""
    try:
        # Process numbers mean nothing after another boot, nor in another container.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # Not the name of the host, which machines that were set up alike have in common.
        return f"{uuid.getnode():x}"


class Lease:
    """A held lease. Use as a context manager; leaving it releases the run."""

    def __init__(
        self,
        store: Store,
        directory: str,
        document: LeaseDocument,
        etag: str,
        *,
        ttl_s: float,
    ) -> None:
        """`acquire` makes one, after it has written `document` to the store."""
        self._store, self._path = store, f"{directory}/lease.json"
        self._document, self._etag = document, etag
        self._ttl_s = ttl_s
        self._lost: str | None = None
        # The renewing thread and threads that check replace the same tag.
        self._mutex = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.epoch = document.epoch
        self.fence = _fence(directory, self.epoch)

    @property
    def owner(self) -> Owner:
        """This runner."""
        return self._document.owner

    def start_renewing(self) -> None:
        """Renew in a daemon thread, ten times per time to live."""
        if self._thread is None:
            # A thread: a stage that holds the event loop for longer than the time to live must not
            # look dead. A daemon, so that a process that ends by an error ends.
            self._thread = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)
            self._thread.start()

    def renew(self) -> None:
        """Raise the heartbeat once. Raises LeaseError if the lease was lost."""
        with self._mutex:
            self._raise_if_lost()
            # A counter and no time of day: clocks of two machines differ, and a watcher measures
            # silence on its own.
            heartbeat = self._document.heartbeat + 1
            document = self._document.model_copy(update={"heartbeat": heartbeat})
            etag = self._store.put_if_match(self._path, _encode(document), self._etag)
            if etag is None:
                # Another runner took over, or a renewal of this one was written and its answer
                # lost. In that case the lease is held, and the tag that stands there is taken over,
                # but not the count: the next beat writes the same one again. For a watcher
                # that is one beat left out, of ten before the run may be taken.
                self._notice_loss()
                self._raise_if_lost()
                return
            self._document, self._etag = document, etag

    def lend(self) -> LeaseDocument:
        """Give the document for `borrow` to a process of this runner's, for its commits."""
        with self._mutex:
            return self._document

    def check(self) -> None:
        """Raise LeaseError if another runner has taken over, or the run was released."""
        with self._mutex:
            self._notice_loss()
            self._raise_if_lost()

    def release(self) -> None:
        """Stop renewing and let the next runner in at once. A lost lease is left alone."""
        # No more beats first: one between the look and the writing below would change the tag, and
        # the release would fail.
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._mutex:
            self._notice_loss()
            if self._lost is None:
                # The fence first: who reads "released" may commit at once. A kill after it leaves a
                # run that is taken over like that of any runner that has died.
                self._store.drop_fence(self.fence)
                released = self._document.model_copy(update={"state": "released"})
                # If another runner has taken over since the look, its lease stands, as it should.
                self._store.put_if_match(self._path, _encode(released), self._etag)
                self._lost = "it was released"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _keep_renewing(self) -> None:
        while not self._stop.wait(self._ttl_s / _BEATS_PER_TTL):
            try:
                self.renew()
            except LeaseError:
                return  # code that works under it learns so at the next check or commit
            except Exception as error:
                # A full disk, say. Without renewal another runner may take over; commits then fail.
                _log.warning("%s: not renewed: %s: %s", self._path, type(error).__name__, error)

    def _notice_loss(self) -> None:
        """Compare the document in the store with the one that this process wrote there."""
        # For good: another runner may have committed since, even if this one stands there.
        if self._lost is not None:
            return
        try:
            document, etag = read_lease(self._store, self._path)
        except MissingFileError:
            # The next runner finds no owner and takes the run at once, so this one counts as
            # replaced.
            self._lost = "its file was deleted"
            return
        mine = document.owner.id == self._document.owner.id
        # The epoch as well: the fence of these commits goes by it.
        if not mine or document.epoch != self.epoch:
            self._lost = f"{document.owner} took over (epoch {document.epoch})"
        elif document.state != "held":
            # By its holder, if this process has it on loan; or by this one, if the answer to its
            # release was lost.
            self._lost = "it was released"
        else:
            self._etag = etag  # a renewal without its answer, which was lost

    def _raise_if_lost(self) -> None:
        """Stop a runner that is no more the owner: further answers would be paid for in vain."""
        if self._lost is not None:
            raise LeaseError(
                f"{self._path}: the lease of epoch {self.epoch} is gone, {self._lost}; this "
                "runner commits nothing more"
            )


def acquire(
    store: Store,
    directory: str,
    *,
    ttl_s: float = DEFAULT_TTL_S,
    machine: Machine | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    renew: bool = True,
) -> Lease:
    """Take the lease of the run in `directory` and, if `renew`, keep renewing it in a thread.

    Waits while an owner may be dead: until its heartbeat changes (then LeaseError names it) or
    has stood still for that owner's time to live (then it is replaced). No new try begins later
    than 2 * `ttl_s` + 60 s after the first; one that has begun ends, which takes as long as the
    owner that it watches has promised to live.
    """
    machine = machine or ThisMachine()
    path = f"{directory}/lease.json"
    # A silent owner is watched for one time to live, and for another if it beats just before it is
    # replaced. The minute, a rule of thumb, is for the requests: a few for each race with another
    # taker, which on a slow object store takes seconds. Without an end, a store on which every
    # replacement fails would be asked for ever.
    give_up_at_s = clock() + 2 * ttl_s + 60.0
    while clock() < give_up_at_s:
        # 1. Put this runner's name into the document, if no live owner stands in it.
        try:
            current, etag = read_lease(store, path)
        except MissingFileError:
            # A lease that was deleted had an epoch, of which a fence may stand.
            epoch = max(_epochs_of_fences(store, directory), default=0) + 1
            document = _document(machine.owner(), epoch=epoch, ttl_s=ttl_s)
            if not store.put_if_absent(path, _encode(document)):
                continue  # another taker was faster
            new_etag = _read_own(store, path, document)
        else:
            # A released one is free at once.
            if current.state == "held":
                _await_stale(store, path, current, machine, clock, sleep)
            # Every takeover has an epoch of its own, by which its fence and its commits are told
            # from those of the runner before.
            document = _document(machine.owner(), epoch=current.epoch + 1, ttl_s=ttl_s)
            # A heartbeat or another taker since the reading makes this fail.
            new_etag = store.put_if_match(path, _encode(document), etag)
        # The document there now is another's, so that one is looked at.
        if new_etag is None:
            continue
        # 2. Shut out the earlier holder, even if that runner has checked already. A kill just
        #    before leaves the earlier fence up, which the next taker drops with all others.
        _move_fence(store, directory, document.epoch)
        # 3. Look once more: the next runner may have done all this since step 1.
        lease = Lease(store, directory, document, new_etag, ttl_s=ttl_s)
        try:
            lease.check()
        except LeaseError:
            # The fence that was just raised too: this runner is none, and must not be able to
            # commit by it later.
            store.drop_fence(lease.fence)
            raise
        # 4. Show that this runner is alive.
        if renew:
            lease.start_renewing()
        return lease
    raise LeaseError(f"{path}: other runners kept changing it; run again")


def refuse_if_held(
    store: Store,
    directory: str,
    *,
    machine: Machine | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Raise LeaseError if a live runner holds the run in `directory`; nothing is written.

    Waits as `acquire` does while its owner may be dead.
    """
    path = f"{directory}/lease.json"
    try:
        current, _ = read_lease(store, path)
    except MissingFileError:
        return  # no runner has taken it yet
    if current.state == "held":
        _await_stale(store, path, current, machine or ThisMachine(), clock, sleep)


def _await_stale(
    store: Store,
    path: str,
    first_look: LeaseDocument,
    machine: Machine,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Return when the owner of `seen` is dead or silent; raise LeaseError when it is alive."""
    # The time to live that the owner has promised, which may be another than this process's own.
    watched_ttl_s = first_look.ttl_s
    silent_since_s = clock()
    while not machine.is_gone(first_look.owner) and clock() - silent_since_s < watched_ttl_s:
        # Twice as often as it beats, so that a live one is named within about one beat.
        sleep(watched_ttl_s / _BEATS_PER_TTL / 2)
        try:
            now, _ = read_lease(store, path)
        except MissingFileError:
            return  # its owner has lost it, see `_notice_loss`
        if now.state != "held":
            return  # it ended well while it was watched
        # It beats; or another taker was faster, who is alive.
        if now.owner != first_look.owner or now.heartbeat != first_look.heartbeat:
            raise LeaseError(f"{path}: {now.owner} holds this run; wait for it or stop it")


def _move_fence(store: Store, directory: str, epoch: int) -> None:
    """Drop every fence of an earlier epoch, then raise the one of `epoch`."""
    # In this order: while both stood, a commit of the earlier runner could follow one of this one.
    # Not those of later epochs: a runner that has taken over from this one commits by one.
    for number in _epochs_of_fences(store, directory):
        if number < epoch:
            store.drop_fence(_fence(directory, number))
    store.raise_fence(_fence(directory, epoch))


def _epochs_of_fences(store: Store, directory: str) -> list[int]:
    names = [name.rstrip("/") for name in store.list(f"{directory}/fences")]
    return [int(name) for name in names if name.isdigit()]


def _fence(directory: str, epoch: int) -> str:
    return f"{directory}/fences/{epoch:06d}"


def _document(owner: Owner, *, epoch: int, ttl_s: float) -> LeaseDocument:
    return LeaseDocument(state="held", epoch=epoch, heartbeat=0, ttl_s=ttl_s, owner=owner)


def _encode(document: LeaseDocument) -> bytes:
    return encode(document.model_dump())


def borrow(store: Store, directory: str, lent: LeaseDocument) -> Lease:
    """Take a lease on loan from its holder: to commit with, not to renew or to release."""
    # Without a tag, and with any time to live: only its holder replaces the document and renews it.
    return Lease(store, directory, lent, "", ttl_s=DEFAULT_TTL_S)


def read_lease(store: Store, path: str) -> tuple[LeaseDocument, str]:
    """Read the lease at `path`, with its tag. Raises MissingFileError or CorruptionError."""
    data, etag = store.get_with_etag(path)
    try:
        document = validate_document(decode(data, path), LeaseDocument, path)
        # A version that isn't known may hold a run by other rules, so its run is not taken over.
        if document.format_version != FORMAT_VERSION:
            raise ValueError(f"format version {document.format_version}")
    except (CorruptionError, ValueError) as error:
        # Not taken for a missing one: whether its owner is alive only a person can say now.
        raise CorruptionError(
            f"{path}: damaged, or not a lease that this version can read ({error}); if no runner "
            "is alive, delete it"
        ) from error
    return document, etag


def _read_own(store: Store, path: str, document: LeaseDocument) -> str | None:
    """Read the tag of the document just written; None if it was replaced meanwhile."""
    # Putting a file that was absent gives no tag.
    current, etag = read_lease(store, path)
    return etag if current == document else None
