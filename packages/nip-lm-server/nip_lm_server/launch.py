"""Starting, attaching to and stopping a server, from the process in need of one.

start_or_attach   a server for this specification, from this state directory
is_running        whether it is still alive
stop              end a server that this process started
stop_state_dir    end the server of a state directory

A server that is started here ends with this process, after a kill too, and so do the server's own
children. The files of a killed server are recognised by pid and start time and replaced. Standard
library only.
"""

import contextlib
import functools
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from nip_base.disk import want_of_space
from nip_base.machine.processes import end_process, read_tail, working_environment
from nip_base.spec import ServerSpec, Start
from nip_base.version import OWN_VERSION
from nip_lm_server.auth import make_key_file, without_secrets
from nip_lm_server.state.directory import (
    KEY_FILE,
    LOCK,
    LOG,
    OWNER_LOCK,
    ServerCard,
    StateError,
    check_state_dir,
    read_card,
    remove_card,
    try_lock,
)

STOP_GRACE_S = 20.0
"""More than the server itself gives trainings, requests and engines to end."""
REFUSED_STATUS = 2
REFUSAL = "lm_server: "
_POLL_S = 0.01
_CHILD_ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
_HEALTH_TIMEOUT_S = 5.0

Late = Callable[[], bool]
"""True once it is too late to go on waiting."""


class OwnerError(Exception):
    """There is no server; the message has the reason and the end of its log.

    `reason` is one line about a lasting problem: the server's own word where it refused to start,
    or a problem of its disk.
    """

    def __init__(self, message: str, reason: str | None = None):
        super().__init__(message, reason)
        self.message, self.reason = message, reason

    def __str__(self) -> str:
        return self.message


class ServerConflictError(OwnerError):
    """A live server in the state directory is configured otherwise."""


@dataclass(frozen=True)
class ServerHandle:
    """A server known to answer. `api_key` stays out of the repr."""

    url: str  # without /v1
    api_key: str = field(repr=False)
    pid: int
    owned: bool  # whether this call started it
    state_dir: Path


@dataclass
class _OwnProcess:
    process: subprocess.Popen[bytes]
    pipe: int  # write end; the server stops when it closes


_owned: dict[int, _OwnProcess] = {}


def start_or_attach(
    spec: ServerSpec,
    state_dir: Path,
    *,
    timeout_s: float = 120.0,
    env: Mapping[str, str] | None = None,
    given_up: Callable[[], bool] = lambda: False,
) -> ServerHandle:
    """Return a healthy server for `spec`, starting one if the state directory has none.

    A live server there is used if it is configured alike. A server whose owner is dead is ended
    first, because it is about to end by itself. `env` is the environment of a started server
    (default: this process's); keys, tokens and passwords are taken out of it, but for HF_TOKEN.
    The wait for the server ends once `given_up` returns true, in any thread.

    Raises ServerConflictError if a live server is configured otherwise or has another version,
    OwnerError if none answers within `timeout_s`, and at once for a lasting problem.
    """
    state_dir = state_dir.expanduser().resolve()
    deadline = time.monotonic() + timeout_s

    def late() -> bool:
        return given_up() or time.monotonic() > deadline

    # 1. A directory that is a server's, or is to be one, with room for its files.
    try:
        if (problem := want_of_space(state_dir)) is not None:
            raise StateError(f"no room for a server in {state_dir}: {problem}; free space there")
        check_state_dir(state_dir, spec.replies)
        state_dir.mkdir(parents=True, exist_ok=True)
        state_dir.chmod(0o700)
        (state_dir / "logs").mkdir(0o700, exist_ok=True)
        key = make_key_file(state_dir / KEY_FILE)
        configuration_digest = spec.digest()
    except StateError as error:
        raise OwnerError(str(error), str(error)) from None
    except (OSError, ValueError) as error:
        raise _unusable_error(state_dir, error) from None
    # 2. The server that it has, or a new one; one caller at a time.
    try:
        with _exclusive(state_dir, late):
            while (card := _find_live_card(state_dir, late)) is not None:
                handle = _attach(card, configuration_digest, key, state_dir, late)
                if handle is not None:
                    return handle
            return _start(spec, state_dir, key, late, os.environ if env is None else env)
    except OSError as error:
        raise _unusable_error(state_dir, error) from None


def _unusable_error(state_dir: Path, error: Exception) -> OwnerError:
    message = f"the state directory {state_dir} can't be used: {error}"
    return OwnerError(message, message)


def is_running(handle: ServerHandle) -> bool:
    """Tell if the server's process is alive."""
    owned = _owned.get(handle.pid)
    if owned is not None:
        return owned.process.poll() is None
    card = read_card(handle.state_dir)
    return card is not None and card.pid == handle.pid and card.is_alive()


def stop(handle: ServerHandle, *, grace_s: float = STOP_GRACE_S) -> None:
    """End a server that this process started; one that it merely attached to goes on.

    Raises OwnerError if it can't be ended.
    """
    owned = _owned.pop(handle.pid, None)
    if owned is None:
        return
    os.close(owned.pipe)
    if owned.process.poll() is None:
        owned.process.terminate()
        try:
            owned.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            owned.process.kill()
            try:
                owned.process.wait(5.0)
            except subprocess.TimeoutExpired:
                raise OwnerError(f"the server {handle.pid} can't be ended") from None
    remove_card(handle.state_dir, handle.pid)


def stop_state_dir(state_dir: Path, *, grace_s: float = STOP_GRACE_S) -> bool:
    """End the server of a state directory, whichever process started it; False if there was none.

    Raises OwnerError if it can't be ended.
    """
    state_dir = state_dir.expanduser().resolve()
    # A card without a living process is the rest of a killed server.
    card = read_card(state_dir)
    if card is None:
        return False
    if not card.is_alive():
        remove_card(state_dir, card.pid)
        return False
    _end(card, state_dir, grace_s)
    return True


@contextlib.contextmanager
def _exclusive(state_dir: Path, late: Late):  # type: ignore[no-untyped-def]
    """One caller at a time decides about a state directory."""
    while (lock := try_lock(state_dir / OWNER_LOCK)) is None:
        if late():
            raise OwnerError(f"another process has been starting a server in {state_dir} too long")
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(lock)


def _find_live_card(state_dir: Path, late: Late) -> ServerCard | None:
    """Return the card of the live server, or None once it is certain there is none."""
    while True:
        card = read_card(state_dir)
        if card is not None and card.is_alive():
            if not card.is_orphaned():
                return card
            _end(card, state_dir, STOP_GRACE_S)
        # A server that is starting or stopping holds the lock and shows no card.
        lock = try_lock(state_dir / LOCK)
        if lock is not None:
            if card is not None:
                remove_card(state_dir, card.pid)
            os.close(lock)
            return None
        if late():
            raise OwnerError(
                f"a server holds {state_dir / LOCK} and does not become ready.\n"
                + _log_tail(state_dir)
            )
        time.sleep(_POLL_S)


def _attach(
    card: ServerCard, configuration_digest: str, key: str, state_dir: Path, late: Late
) -> ServerHandle | None:
    """Return a handle on a live server of the same configuration; None if it died meanwhile."""
    server = f"the server {card.pid} at {card.url} (state {state_dir})"
    # Not ended and replaced: another process may be using it.
    if card.version != OWN_VERSION:
        raise ServerConflictError(
            f"{server} has version {card.version}, this is {OWN_VERSION}: stop it first"
        )
    if card.configuration_digest != configuration_digest:
        raise ServerConflictError(
            f"{server} runs engine {card.engine!r} with model {card.model!r} and is configured "
            "otherwise than asked: stop it first, or use another state directory"
        )
    problem, lasting = _wait_healthy(card, key, late)
    if problem is not None:
        if not card.is_alive():
            return None
        raise _unhealthy_error(server, problem, lasting, state_dir)
    return ServerHandle(card.url, key, card.pid, False, state_dir)


def _start(
    spec: ServerSpec, state_dir: Path, key: str, late: Late, env: Mapping[str, str]
) -> ServerHandle:
    # 1. The pipe that ends with this process.
    read_end, write_end = os.pipe()
    start = Start(
        spec=spec,
        state=state_dir,
        port=0,
        api_keys_file=state_dir / KEY_FILE,
        parent=os.getpid(),
        parent_pipe=read_end,
    )
    # 2. The process, in a session of its own: Ctrl-C in the terminal is for its owner. With -P no
    #    file in the working directory is a module to it.
    try:
        with open(state_dir / LOG, "ab", opener=functools.partial(os.open, mode=0o600)) as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "nip_lm_server", "--spec", start.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**_CHILD_ENVIRONMENT, **working_environment(without_secrets(env))},
                pass_fds=(read_end,),
                start_new_session=True,
            )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    _owned[process.pid] = _OwnProcess(process, write_end)
    # 3. Its card, then its health; a server that comes to neither is ended again.
    handle = ServerHandle("", key, process.pid, True, state_dir)
    try:
        card = _wait_card(process, state_dir, late)
        problem, lasting = _wait_healthy(card, key, late)
        if problem is not None:
            raise _unhealthy_error("the server", problem, lasting, state_dir)
    except BaseException:
        stop(handle, grace_s=1.0)
        raise
    return ServerHandle(card.url, key, process.pid, True, state_dir)


def _wait_card(process: "subprocess.Popen[bytes]", state_dir: Path, late: Late) -> ServerCard:
    while True:
        card = read_card(state_dir)
        if card is not None and card.pid == process.pid:
            return card
        if process.poll() is not None:
            raise OwnerError(
                f"the server exited with status {process.returncode} before it was ready.\n"
                + _log_tail(state_dir),
                _read_refusal(state_dir) if process.returncode == REFUSED_STATUS else None,
            )
        if late():
            raise OwnerError(f"the server was not ready in time.\n{_log_tail(state_dir)}")
        time.sleep(_POLL_S)


def _unhealthy_error(server: str, problem: str, lasting: bool, state_dir: Path) -> OwnerError:
    message = f"{server} is not healthy: {problem}"
    # A lasting problem is known by now, and the log has nothing more about it.
    reason = f"{message} (its state is in {state_dir})" if lasting else None
    return OwnerError(f"{message}\n{_log_tail(state_dir)}", reason)


def _wait_healthy(card: ServerCard, key: str, late: Late) -> tuple[str | None, bool]:
    """Wait until the server is healthy and takes our key.

    Returns its last problem, or None, and whether that lasts, so that there is no use in waiting.
    """
    while True:
        problem, lasting = _health_problem(card.url, key)
        if problem is None or lasting or not card.is_alive() or late():
            return problem, lasting
        time.sleep(10 * _POLL_S)


def _health_problem(url: str, key: str) -> tuple[str | None, bool]:
    try:
        status, body = _get(url, "/health", key)
        if status != 200:
            health = json.loads(body)
            if lasting := health.get("lasting"):
                return "; ".join(lasting), True
            problems = health.get("problems", [])
            # An engine that leaves its device to a training comes back by itself.
            if not problems or len(problems) > len(health.get("lent_to_training", [])):
                return "; ".join(problems) or f"HTTP {status}", False
        status, _ = _get(url, "/nip/status", key)
        if status == 401:
            return "it does not take the key in its state directory", True
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{type(error).__name__}: {error}", False
    return None, False


def _get(url: str, path: str, key: str) -> tuple[int, bytes]:
    # Not urllib's opener: it would ask a proxy for a server on this machine.
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=_HEALTH_TIMEOUT_S
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _end(card: ServerCard, state_dir: Path, grace_s: float) -> None:
    owned = _owned.pop(card.pid, None)
    if owned is not None:
        os.close(owned.pipe)
    if not end_process(card.pid, card.identity, grace_s=grace_s):
        raise OwnerError(f"the server {card.pid} of {state_dir} can't be ended")
    if owned is not None:
        owned.process.wait()
    remove_card(state_dir, card.pid)


def _read_refusal(state_dir: Path) -> str | None:
    lines = read_tail(state_dir / LOG).splitlines()
    refusals = [line.removeprefix(REFUSAL) for line in lines if line.startswith(REFUSAL)]
    return refusals[-1] if refusals else None


def _log_tail(state_dir: Path) -> str:
    path = state_dir / LOG
    return f"End of {path}:\n{read_tail(path) or '(empty)'}"
