"""The command `nip up`: everything that deployments/compose.yaml has, as processes on this machine.

PostgreSQL, a Prefect server with basic auth on it, work pools and deployments, a worker for each
pool that this machine can serve, and, if asked for, an lm_server. A part that ends is started again
(see `parts`). Ctrl-C ends all of it; a killed `nip up` takes its processes along on Linux. Their
files lie in the state directory, and so do their keys. Workers work in the directory in which
the command was started: a run store that is given as a relative path lies there.
"""

import contextlib
import fcntl
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

import nip_prefect
from nip_base.machine.devices import has_cuda
from nip_cli.printing.terminal import say
from nip_core.errors import ServerError
from nip_core.redaction import read_key
from nip_up.parts import Parts, keep_secret, open_private
from nip_up.postgres import start_postgres

_LEASES = "prefect.server.concurrency.lease_storage.filesystem"
_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
_DEPLOYMENTS = Path(nip_prefect.__file__).with_name(
    "prefect.yaml"
)  # also where there is no checkout
POOLS = ("nip-cpu", "nip-gpu")
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
        str | None,
        typer.Option(help="Start an lm_server, too. Runs that name none start one of their own."),
    ] = None,
    model: Annotated[str, typer.Option(help="Of the lm_server.")] = "tiny",
) -> None:
    """Start PostgreSQL, Prefect and workers, and an lm_server if asked for; Ctrl-C ends them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    state = state.absolute()
    if not state.exists():
        state.mkdir(parents=True)
        # PostgreSQL does not run as root: its user has to reach its own directory below.
        state.chmod(0o711 if os.geteuid() == 0 else 0o700)
    _keep_private(state / "prefect")
    # 1. Nothing is started that would stand in the way of something that runs.
    for used_port in (port, *([lm_server_port] if engine else [])):
        _refuse_taken(used_port)
    with _only_one(state), Parts(state) as parts:
        environment = _environment(state, port)
        if engine:
            environment["NIP_API_KEY"] = _lm_server_key(state)
        server = dict(environment)
        # 2. The server, on its database.
        if database == "postgresql":
            say("starting PostgreSQL", flush=True)
            server["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = start_postgres(
                state / "postgresql", parts.start
            )
        say("starting the Prefect server", flush=True)
        program = [sys.executable, "-P", "-m", "nip_cli.launching.queued_database"]
        parts.start("prefect-server", [*program, "server", "start"], server, umask=0o077)
        url = f"http://127.0.0.1:{port}"
        parts.until(lambda: _is_up(f"{url}/api/health"), "the Prefect server answers", 300)
        # 3. The pools and deployments that its UI shows.
        _register(environment)
        # 4. Who does the work.
        if engine:
            _start_lm_server(parts, state, environment, engine, model, lm_server_port)
        say("starting the worker", flush=True)
        for pool in _pools_here():
            parts.start(
                f"worker-{pool}",
                [*_prefect(), "worker", "start", "--pool", pool],
                environment,
                # It ends by itself without the server, which may take longer to come back.
                may_start=lambda: _is_up(f"{url}/api/health"),
            )
        say(_how_to_use(state, url, lm_server_port if engine else None), flush=True)
        parts.watch()


def _start_lm_server(
    parts: Parts, state: Path, environment: Mapping[str, str], engine: str, model: str, port: int
) -> None:
    say("starting the lm_server", flush=True)
    parts.start(
        "lm-server",
        [sys.executable, "-P", "-m", "nip_cli.cli", "serve", "--engine", engine,
         "--model", model, "--port", str(port), "--state", str(state / "lm_server")],
        {**environment, "NIP_API_KEYS": environment["NIP_API_KEY"]},
    )  # fmt: skip
    parts.until(lambda: _is_up(f"http://127.0.0.1:{port}/health"), "the lm_server answers", 300)


def _lm_server_key(state: Path) -> str:
    return read_key(os.environ, "NIP_API_KEY") or keep_secret(
        state / "lm_server_key", lambda: secrets.token_urlsafe(24)
    )


def _environment(state: Path, port: int) -> dict[str, str]:
    """Collect the variables for the server's clients. A missing password is drawn once and kept."""
    auth = os.environ.get(_AUTH) or keep_secret(
        state / "prefect_auth", lambda: f"nip:{secrets.token_urlsafe(24)}"
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
        # Where it copies its pages to; without it that is inside of the installed package.
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": os.environ.get("PREFECT_UI_STATIC_DIRECTORY")
        or os.environ.get("PREFECT_SERVER_UI_STATIC_DIRECTORY")
        or str(state / "prefect-ui"),
        # In memory they would be lost with the server, and the slots of its flow runs with them.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": _LEASES,
        "DO_NOT_TRACK": "1",
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


def _keep_private(directory: Path) -> None:
    """Make a directory for its owner alone, or make an existing one so: it holds keys and logs."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o700)


def _pools_here() -> list[str]:
    """List the pools for this machine to serve."""
    return list(POOLS) if has_cuda(os.environ) else [POOLS[0]]


def _register(environment: Mapping[str, str]) -> None:
    """Make missing work pools, and bring deployments up to date."""
    for pool in POOLS:
        if _ask(["work-pool", "inspect", pool], environment).returncode == 0:
            continue  # people may have changed it
        _run(["work-pool", "create", pool, "--type", "process"], environment)
        if pool == POOLS[1]:
            _run(["work-pool", "set-concurrency-limit", pool, "1"], environment)
    with_home = {**environment, "NIP_HOME": str(Path.cwd())}
    _run(["--no-prompt", "deploy", "--all", "--prefect-file", str(_DEPLOYMENTS)], with_home)


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    process = _ask(command, environment)
    if process.returncode != 0:
        output = (process.stdout + process.stderr).strip()[-2000:]
        raise ServerError(f"prefect {' '.join(command)}: {output}")


def _ask(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*_prefect(), *command],
            env=dict(environment),
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
    return [sys.executable, "-P", "-m", "prefect"]


def _prefect_command() -> str:
    """Prefect's command as a terminal anywhere takes it."""
    neighbour = Path(sys.executable).with_name("prefect")
    return shlex.quote(str(neighbour)) if neighbour.exists() else shlex.join(_prefect())


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
            return bool(answer.status < 400)
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)  # it is there, and wants a key
    except OSError:
        return False


def _how_to_use(state: Path, url: str, lm_server_port: int | None) -> str:
    def secret(variable: str, file: Path) -> tuple[str, str]:
        """Return where it is, in words and for a shell."""
        if os.environ.get(variable):
            return f"${variable}", f"${variable}"
        return str(file), f"$(cat {shlex.quote(str(file))})"

    in_words, for_shell = secret(_AUTH, state / "prefect_auth")
    lines = [f"Prefect     {url}  (user and password, as one line user:password: {in_words})"]
    if lm_server_port is not None:
        address = f"http://127.0.0.1:{lm_server_port}"
        key, _ = secret("NIP_API_KEY", state / "lm_server_key")
        lines += [
            f"lm_server   {address}/v1  (key: {key})",
            f"            runs use it with the override lm_server.url={address}",
        ]
    lines += [
        f"logs        {state / 'logs'}",
        "In another terminal:",
        f'  export PREFECT_API_URL={url}/api PREFECT_API_AUTH_STRING="{for_shell}"',
        f"  {_prefect_command()} deployment run train/quickstart",
        "Ctrl-C ends everything.",
    ]
    return "\n".join(lines)


@contextlib.contextmanager
def _only_one(state: Path) -> Iterator[None]:
    """Refuse a second `nip up` in one state directory."""
    with open_private(state / "lock", "ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerError(f"{state}: another `nip up` runs there; stop it first") from None
        yield
