"""The command `nip up`: everything that deployments/compose.yaml has, as processes on this machine.

PostgreSQL, a Prefect server with basic auth on it, work pools and deployments, a worker for each
pool that this machine can serve, and an lm_server. Ctrl-C ends all of it; a killed `nip up` takes
its processes along on Linux. What they keep lies in the state directory, and so do their keys.
"""

import contextlib
import ctypes  # noqa: F401 - a child that has become another user may not be able to read it
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nip_core.errors import ServerError, SettingsError
from nip_core.lm_server.processes import die_with_parent_process, read_tail
from nip_core.redaction import read_key
from nip_prefect.flows.postgres import start_postgres

_LEASES = "prefect.server.concurrency.lease_storage.filesystem"
POOLS = ("nip-cpu", "nip-gpu")
_GRACE_S = 40.0
_LOOK_S = 0.5
_COMMAND_S = 300.0  # longest that a command of Prefect's may take


def up(
    state: Annotated[Path, typer.Option(help="Directory for everything that is kept.")] = Path(
        ".nip"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the Prefect server.")] = 4200,
    lm_server_port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    database: Annotated[
        Literal["postgresql", "sqlite"], typer.Option(help="Where Prefect keeps its state.")
    ] = "postgresql",
    engine: Annotated[
        Literal["embedded", "deterministic", "vllm"], typer.Option(help="Of the lm_server.")
    ] = "embedded",
    model: Annotated[str, typer.Option(help="Of the lm_server.")] = "tiny",
) -> None:
    """Start PostgreSQL, Prefect, workers and an lm_server; Ctrl-C ends them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    checkout = Path.cwd()
    if not (checkout / "prefect.yaml").is_file():
        raise SettingsError(f"{checkout}: there is no prefect.yaml; run `nip up` in the checkout")
    state = state.absolute()
    state.mkdir(parents=True, exist_ok=True)
    for taken in (port, lm_server_port):
        _refuse_taken(taken)
    with _only_one(state), _Parts(state) as parts:
        environment = _environment(state, port)
        server = dict(environment)
        if database == "postgresql":
            print("starting PostgreSQL", flush=True)
            server["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = start_postgres(
                state / "postgresql", parts.start
            )
        print("starting the Prefect server", flush=True)
        parts.start("prefect-server", [*_prefect(), "server", "start"], server)
        url = f"http://127.0.0.1:{port}"
        parts.until(lambda: _is_up(f"{url}/api/health"), "the Prefect server answers", 300)
        _register(environment, checkout)
        print("starting the lm_server and the worker", flush=True)
        parts.start(
            "lm-server",
            [sys.executable, "-m", "nip_prefect.flows.cli", "serve", "--engine", engine,
             "--model", model, "--port", str(lm_server_port), "--state", str(state / "lm_server")],
            {**environment, "NIP_API_KEYS": environment["NIP_API_KEY"]},
        )  # fmt: skip
        parts.until(
            lambda: _is_up(f"http://127.0.0.1:{lm_server_port}/health"),
            "the lm_server answers",
            300,
        )
        for pool in _pools_here():
            parts.start(f"worker-{pool}", [*_prefect(), "worker", "start", "--pool", pool],
                        environment)  # fmt: skip
        print(_how_to_use(state, url, lm_server_port), flush=True)
        parts.watch()


def _environment(state: Path, port: int) -> dict[str, str]:
    """What clients of the server need. Keys that are not set are drawn once, and kept."""
    auth = os.environ.get("PREFECT_SERVER_API_AUTH_STRING") or _kept(
        state / "prefect_auth", lambda: f"nip:{secrets.token_urlsafe(24)}"
    )
    key = read_key(os.environ, "NIP_API_KEY") or _kept(
        state / "lm_server_key", lambda: secrets.token_urlsafe(24)
    )
    return {
        **os.environ,
        "PREFECT_HOME": str(state / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # In memory they would be lost with the server, and the slots of its flow runs with them.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": _LEASES,
        "DO_NOT_TRACK": "1",
        "NIP_API_KEY": key,
    }


def _refuse_taken(port: int) -> None:
    """Raise ServerError if something listens there: it would be taken for a part of this."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServerError(
                f"port {port} is taken ({error.strerror}); stop what listens there, or choose "
                "another with --port or --lm-server-port"
            ) from None


def _kept(path: Path, draw: Callable[[], str]) -> str:
    """The secret in a file that only its owner can read; drawn if there is none."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(draw())
        part.rename(path)
    secret = path.read_text().strip()
    if not secret:
        raise SettingsError(f"{path}: empty; delete it, and another secret is drawn")
    return secret


def _pools_here() -> list[str]:
    """The pools that this machine can serve."""
    return list(POOLS) if Path("/dev/nvidiactl").exists() else [POOLS[0]]


def _register(environment: Mapping[str, str], checkout: Path) -> None:
    """Work pools, unless they are there, and deployments, which are brought up to date."""
    for pool in POOLS:
        if _ask(["work-pool", "inspect", pool], environment, checkout).returncode == 0:
            continue  # people may have changed it
        _run(["work-pool", "create", pool, "--type", "process"], environment, checkout)
        if pool == POOLS[1]:
            _run(["work-pool", "set-concurrency-limit", pool, "1"], environment, checkout)
    with_home = {**environment, "NIP_HOME": str(checkout)}
    _run(["--no-prompt", "deploy", "--all"], with_home, checkout)


def _run(command: list[str], environment: Mapping[str, str], folder: Path) -> None:
    done = _ask(command, environment, folder)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise ServerError(f"prefect {' '.join(command)}: {said}")


def _ask(
    command: list[str], environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*_prefect(), *command],
            env=dict(environment),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(
            f"prefect {' '.join(command)}: no answer in {_COMMAND_S:g} s; look into the logs of "
            "the Prefect server and start again"
        ) from error


def _prefect() -> list[str]:
    return [sys.executable, "-m", "prefect"]


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
            return bool(answer.status < 400)
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)  # it is there, and wants a key
    except OSError:
        return False


def _how_to_use(state: Path, url: str, lm_server_port: int) -> str:
    return "\n".join(
        (
            f"Prefect     {url}  (user and password, as one line user:password: "
            f"{state / 'prefect_auth'})",
            f"lm_server   http://127.0.0.1:{lm_server_port}/v1  (key: {state / 'lm_server_key'})",
            f"logs        {state / 'logs'}",
            "In another terminal:",
            f"  export PREFECT_API_URL={url}/api "
            f'PREFECT_API_AUTH_STRING="$(cat {state / "prefect_auth"})"',
            "  prefect deployment run train/quickstart",
            "Ctrl-C ends everything.",
        )
    )


def _prepare(parent: int) -> None:
    """In a new process: end with the parent, and heed signals even where this runs behind a `&`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent_process(parent)


@contextlib.contextmanager
def _only_one(state: Path) -> Iterator[None]:
    """Refuse a second `nip up` in one state directory."""
    with (state / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerError(f"{state}: another `nip up` runs there; stop it first") from None
        yield


class _Parts:
    """The processes of one `nip up`. Leaving the block ends them, the last started first."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._logs = state / "logs"
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> "_Parts":
        self._logs.mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C must not leave half of them behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for name, process in reversed(self._processes):
            # PostgreSQL waits for its clients at SIGTERM, and ends them at SIGINT.
            process.send_signal(signal.SIGINT if name == "postgresql" else signal.SIGTERM)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                print(f"nip: {name} did not end, killed", file=sys.stderr)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it may have left behind
            process.wait()

    def start(
        self, name: str, command: list[str], environment: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a part in a process group of its own, its output in logs/<name>.log."""
        parent = os.getpid()
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Safe: this process has one thread.
                preexec_fn=lambda: _prepare(parent),  # noqa: PLW1509
                **options,
            )
        self._processes.append((name, process))
        pids = {name: process.pid for name, process in self._processes}
        (self._state / "processes.json").write_text(json.dumps(pids, indent=1))
        return process

    def until(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Wait for `condition`. Raises ServerError if a part ends or the time is over."""
        end_s = time.monotonic() + deadline_s
        while not condition():
            self._check()
            if time.monotonic() > end_s:
                raise ServerError(f"not within {deadline_s:g} s: {what}; see {self._logs}")
            time.sleep(_LOOK_S)

    def watch(self) -> None:
        """Return never. Raises ServerError as soon as a part ends."""
        while True:
            self._check()
            time.sleep(_LOOK_S)

    def _check(self) -> None:
        for name, process in self._processes:
            if process.poll() is not None:
                tail = read_tail(self._logs / f"{name}.log")
                raise ServerError(
                    f"{name} ended with {process.returncode}, so all is ended: {tail}"
                )
