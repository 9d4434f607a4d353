"""A third party's word that a declaration existed at a time: a token of RFC 3161 beside it.

check_authority  before anything is declared: its address, and the program openssl
stamp            ask the authority for a token over the declaration, and put it beside it
read_stamp       the token that is there
read_token       what a token says: the file that it is about, and the time

The program ``openssl`` makes the query and reads the reply. Looked at is that the token was granted
and is about the declaration; who signed it, whoever doubts it looks up with ``openssl ts -verify``
and the certificate of an authority that they trust.
"""

import hashlib
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nip_core.errors import CorruptionError, NipError, ServerError, SettingsError
from nip_core.proxies import plain_http_client
from nip_core.redaction import is_address, printable, show_address
from nip_core.run_store.store import Store
from nip_study.declare.declaration import declaration_path, timestamp_path

_OPTION = "--timestamp"
_TYPE = "application/timestamp-query"
_TIMEOUT_S = 30.0
_LARGEST = 1 << 20  # bytes of a reply; one with certificates has some thousand
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = re.compile(r"^Time stamp: (\w{3}) +(\d+) (\d+):(\d+):(\d+)(?:\.\d+)? (\d{4}) GMT$", re.M)
_BYTES = re.compile(r"^ +[0-9a-f]{4} - (.{47})", re.M)


@dataclass(frozen=True)
class Stamp:
    """What a token says."""

    at: datetime
    """UTC, by the clock of the authority."""
    sha256: str
    """Of the file that it is about."""
    nonce: str | None
    """Of the query that it answers."""

    @property
    def time(self) -> str:
        """Return when the file existed: UTC, ISO 8601."""
        return self.at.isoformat(timespec="seconds")


def check_authority(url: str) -> None:
    """Raise SettingsError for an address that can't be asked, and where openssl is missing."""
    if not is_address(url):
        raise SettingsError(
            f"{_OPTION} {show_address(url)}: give the address of a time-stamping authority "
            "(RFC 3161) that begins with http:// or https://"
        )
    _find_openssl()


def stamp(
    store: Store, sweep: str, url: str, environment: Mapping[str, str] = os.environ
) -> tuple[Stamp, bool]:
    """Put a token over the declaration of a sweep beside it; return it, and whether it is new.

    One that is there already and is about this declaration stays, since the older one says more.

    Raises:
        SettingsError: the address can't be asked, or openssl is missing.
        ServerError: no answer, or one that is no token over this declaration.
    """
    check_authority(url)
    content = store.get(declaration_path(sweep))
    try:
        before = read_stamp(store, sweep)
    except CorruptionError:  # of no use to anybody
        before = None
    if before is not None:
        return before, False
    with tempfile.TemporaryDirectory(prefix="nip-") as folder:
        file = Path(folder) / "declaration.json"
        file.write_bytes(content)
        query = _call_openssl("-query", "-data", str(file), "-sha256", "-cert")
    reply = _post(url, query, environment)
    try:
        token = read_token(reply)
    except CorruptionError as error:
        raise ServerError(f"{_OPTION} {show_address(url)}: {error}") from None
    if token.sha256 != hashlib.sha256(content).hexdigest() or token.nonce != _find_nonce(query):
        raise ServerError(
            f"{_OPTION} {show_address(url)}: the token is about something else than the "
            f"declaration (SHA-256 {token.sha256[:16]}); ask again, or another authority"
        )
    store.put(timestamp_path(sweep), reply)
    return token, True


def read_stamp(store: Store, sweep: str) -> Stamp | None:
    """Read the token that is beside the declaration of a sweep; None where there is none.

    Raises CorruptionError for one that is about another file, or can't be read, and SettingsError
    where openssl is missing.
    """
    path = timestamp_path(sweep)
    if not store.exists(path):
        return None
    return check_token(store.get(path), store.get(declaration_path(sweep)), path)


def check_token(token: bytes, content: bytes, path: str) -> Stamp:
    """Read the token at `path`, which is to be about a file with this content.

    Raises what `read_stamp` raises.
    """
    try:
        read = read_token(token)
    except CorruptionError as error:
        raise CorruptionError(f"{path}: {error}") from None
    if read.sha256 != hashlib.sha256(content).hexdigest():
        raise CorruptionError(f"{path}: is about another file than the declaration beside it")
    return read


def read_token(token: bytes) -> Stamp:
    """Read a reply of an authority. Raises CorruptionError for one that holds no granted token."""
    try:
        text = _show("-reply", token)
    except _OpensslError:
        raise CorruptionError("no reply of a time-stamping authority (RFC 3161)") from None
    status = _find_line(text, "Status")
    if not status.startswith("Granted"):
        why = f"{_find_line(text, 'Status description')}; {_find_line(text, 'Failure info')}"
        raise CorruptionError(printable(f"no token was granted: {status} {why}"))
    # Behind the status; a description could say what it likes.
    _, _, info = text.rpartition("\nTST info:\n")
    moment = _read_time(info)
    if moment is None or _find_line(info, "Hash Algorithm") != "sha256":
        raise CorruptionError("a token without a time, or without a digest by SHA-256")
    return Stamp(moment, _read_bytes(info), _find_line(info, "Nonce") or None)


def _find_line(text: str, name: str) -> str:
    found = re.search(rf"^{name}: (.*)$", text, re.M)
    return "" if found is None else found[1].strip()


def _read_time(info: str) -> datetime | None:
    if (shown := _TIME.search(info)) is None:
        return None
    month, *numbers = shown.groups()
    day, hour, minute, second, year = map(int, numbers)
    try:
        return datetime(year, _MONTHS.index(month) + 1, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None


def _read_bytes(info: str) -> str:
    """Read the digest of the file, which is shown as lines of 16 bytes, as hex digits."""
    return re.sub(r"[ -]", "", "".join(_BYTES.findall(info)[:2]))


def _find_nonce(query: bytes) -> str | None:
    return _find_line(_show("-query", query), "Nonce") or None


def _post(url: str, query: bytes, environment: Mapping[str, str]) -> bytes:
    """Ask an authority. Raises ServerError for anything but an answer in time."""
    ended: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            ended.put(_receive(url, query, environment))
        except BaseException as error:  # raised below, for the caller
            ended.put(error)

    # The client's deadlines are for one piece each, and headers may come byte by byte for ever. A
    # thread that nobody waits for any more ends with the process.
    threading.Thread(target=ask, name="time stamp", daemon=True).start()
    try:
        got = ended.get(timeout=_TIMEOUT_S)
    except queue.Empty:
        raise _too_late(url) from None
    if isinstance(got, BaseException):
        raise got
    return got


def _too_late(url: str) -> ServerError:
    return ServerError(
        f"{_OPTION} {show_address(url)}: no answer within {_TIMEOUT_S:g} s; ask again later"
    )


def _receive(url: str, query: bytes, environment: Mapping[str, str]) -> bytes:
    import httpx

    place = f"{_OPTION} {show_address(url)}"
    headers = {"content-type": _TYPE, "accept": "application/timestamp-reply"}
    content = b""
    try:
        with (
            plain_http_client(url, environment) as client,
            client.stream(
                "POST", url, content=query, headers=headers, timeout=_TIMEOUT_S
            ) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise ServerError(
                    f"{place}: answered with status {answer.status_code} in the place of a token; "
                    "is this the address of a time-stamping authority?"
                )
            for part in answer.iter_bytes():
                content += part
                if len(content) > _LARGEST:
                    raise ServerError(f"{place}: its answer is too long for a token")
    except httpx.TimeoutException:
        raise _too_late(url) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(
            f"{place}: can't be reached ({str(error) or type(error).__name__}); where there is no "
            "network, leave it out and ask later: the same command does"
        ) from None
    return content


class _OpensslError(NipError):
    """It did not do what it was asked."""


def _show(kind: str, content: bytes) -> str:
    """Let openssl write out a query or a reply."""
    with tempfile.TemporaryDirectory(prefix="nip-") as folder:
        file = Path(folder) / "asked"
        file.write_bytes(content)
        return _call_openssl(kind, "-in", str(file), "-text").decode(errors="replace")


def _call_openssl(*arguments: str) -> bytes:
    command: Sequence[str] = [_find_openssl(), "ts", *arguments]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SettingsError(f"openssl: can't be run ({error})") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise _OpensslError(f"openssl {arguments[0]}: {(said or ['it said nothing'])[-1]}")
    return done.stdout


def _find_openssl() -> str:
    """Find the program. Raises SettingsError where it is not installed."""
    program = shutil.which("openssl")
    if program is None:
        raise SettingsError(
            "a time stamp needs the program openssl, which is not there; install it (apt-get "
            "install openssl)"
        )
    return program
