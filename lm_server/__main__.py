"""``python -m nip_lm_server``: the command line, the socket, the signals, the end.

Exit status: 0 after a stop that was asked for, 2 if the server could not start (one line on
standard error says why).
"""

import argparse
import asyncio
import errno
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nip_lm_server.processes import process_identity, watch_parent
from nip_lm_server.spec import (
    DEFAULT_LOADED_ADAPTERS,
    DEFAULT_MAX_UPLOAD_BYTES,
    ENGINES,
    SHARING,
    EngineSpec,
    ServerSpec,
)
from nip_lm_server.state.directory import (
    CARD,
    LOCK,
    ServerCard,
    StateError,
    check_state_dir,
    remove_card,
    try_lock,
    write_card,
)
from nip_lm_server.version import SERVER_VERSION

if TYPE_CHECKING:
    from nip_lm_server.api.auth import KeyRing

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
DRAIN_S = 1.0
"""How long requests in flight may go on after a stop was asked for."""
GONE = {"idempotency-ttl-s": "answers to chats are not kept any more: leave it out"}
"""Options of earlier servers."""
LAST_RESORT_S = 10.0
"""After a parent's death the process ends after this long, whatever hangs."""

_log = logging.getLogger("nip.lm_server")


class StartError(Exception):
    """The server can't start; the message is all that a user needs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server until SIGTERM, SIGINT or the parent's end. Returns the exit status."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=LOG_FORMAT)
    try:
        return _run(arguments)
    except StartError as error:
        print(f"lm_server: {error}", file=sys.stderr)
        return 2
    finally:
        # The interpreter looks through all objects at its end: 1.5 s of processor time with torch.
        gc.freeze()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nip_lm_server",
        description="The OpenAI fine-tuning and chat API over a local engine.",
        epilog="API keys come from NIP_API_KEYS (comma-separated) or from --api-keys-file.",
    )
    parser.add_argument("--engine", required=True, choices=ENGINES)
    parser.add_argument("--model", required=True, help="name or path of the base model")
    parser.add_argument("--served-model-name", help="the name clients use; default: from --model")
    parser.add_argument("--replies", help="replies file of the deterministic engine (YAML)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=JSON", help="argument of the engine"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: the system chooses one")
    parser.add_argument("--state", required=True, type=Path, help="directory for everything kept")
    parser.add_argument("--api-keys-file", type=Path, help="one key per line")
    parser.add_argument(
        "--no-auth", action="store_true", help="let all of this machine in, but no web pages"
    )
    parser.add_argument(
        "--add-engine",
        action="append",
        default=[],
        metavar="JSON",
        help='another engine, for example \'{"engine": "embedded", "model": "PATH"}\'',
    )
    parser.add_argument(
        "--training-device", default="auto", help="where jobs train: auto, cpu, cuda, cuda:0,1"
    )
    parser.add_argument(
        "--share-device",
        default="auto",
        choices=SHARING,
        help="whether the engine leaves the device while a job trains",
    )
    parser.add_argument(
        "--loaded-adapters",
        type=int,
        default=DEFAULT_LOADED_ADAPTERS,
        help="adapters that the engine keeps loaded; others are loaded when asked for",
    )
    parser.add_argument(
        "--bases-at-once",
        type=int,
        default=1,
        help="base models that run beside each other, once full training has made more",
    )
    parser.add_argument("--max-upload-bytes", type=int, default=DEFAULT_MAX_UPLOAD_BYTES)
    for name, why in GONE.items():
        parser.add_argument(f"--{name}", type=_refuse(why), help=argparse.SUPPRESS)
    parser.add_argument(
        "--die-with-parent",
        nargs="?",
        type=int,
        const=os.getppid(),
        metavar="PID",
        help="stop when this process, the parent, ends",
    )
    parser.add_argument("--parent-pipe", type=int, help=argparse.SUPPRESS)
    return parser


def _refuse(why: str) -> Callable[[str], None]:
    def refuse(value: str) -> None:
        raise argparse.ArgumentTypeError(why)

    return refuse


def _run(arguments: argparse.Namespace) -> int:
    from nip_lm_server.api.auth import is_loopback, load_keys
    from nip_lm_server.api.connections import raise_open_files

    try:
        spec = _spec(arguments)
        configuration_digest = spec.digest()
        keys = load_keys(arguments.api_keys_file, arguments.no_auth, os.environ)
    except (OSError, ValueError) as error:
        raise StartError(str(error)) from None
    if arguments.no_auth and not is_loopback(arguments.host):
        raise StartError(
            f"--no-auth is for this machine alone, and --host {arguments.host} is for others too: "
            "give keys, or name localhost"
        )
    state_dir: Path = arguments.state.expanduser().resolve()
    try:
        check_state_dir(state_dir, spec.replies, arguments.api_keys_file)
        os.umask(0o077)  # what the server keeps is nobody else's
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = try_lock(state_dir / LOCK)
    except StateError as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"the state directory {state_dir} can't be used: {error}") from None
    if lock is None:
        raise StartError(f"another server uses the state directory {state_dir}")
    raise_open_files()
    listener = _listen(arguments.host, arguments.port)
    try:
        asyncio.run(
            _serve(arguments, spec, keys, state_dir, listener, configuration_digest),
        )
    finally:
        remove_card(state_dir, os.getpid())
        os.close(lock)
    return 0


def _spec(arguments: argparse.Namespace) -> ServerSpec:
    options = {}
    for option in arguments.option:
        name, separator, value = option.partition("=")
        if not separator or not name.isidentifier():
            raise ValueError(f"--option {option!r}: expected KEY=JSON")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return ServerSpec(
        engine=arguments.engine,
        model=arguments.model,
        replies=arguments.replies,
        served_model_name=arguments.served_model_name,
        options=options,
        training_device=arguments.training_device,
        share_device=arguments.share_device,
        loaded_adapters=arguments.loaded_adapters,
        bases_at_once=arguments.bases_at_once,
        more_engines=tuple(map(EngineSpec.from_json, arguments.add_engine)),
        max_upload_bytes=arguments.max_upload_bytes,
    )


def _listen(host: str, port: int) -> socket.socket:
    from nip_lm_server.api.connections import BACKLOG

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # At once: between two sockets that are merely bound, the system sees no conflict.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "the port is in use: choose another one, or 0" if used else str(error)
        raise StartError(f"can't listen on {host}:{port}: {reason}") from None
    return listener


async def _serve(
    arguments: argparse.Namespace,
    spec: ServerSpec,
    keys: "KeyRing",
    state_dir: Path,
    listener: socket.socket,
    configuration_digest: str,
) -> None:
    from aiohttp import web

    from nip_lm_server.api.connections import ACCEPTED_AT_ONCE, BACKLOG, make_runner, quiet_loop
    from nip_lm_server.app import close_server, make_app, open_server
    from nip_lm_server.engines.base import EngineError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sent in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sent, stop.set)
    if arguments.die_with_parent is not None:
        watch_parent(arguments.die_with_parent, arguments.parent_pipe, _stopper(loop, stop))
    _log.info("starting the engine %s with %s; state in %s", spec.engine, spec.model, state_dir)
    opening = asyncio.ensure_future(open_server(state_dir, spec, keys, os.environ))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not opening.done():
        _log.info("stopping before the engine is ready")
        opening.cancel()
    try:
        services = await opening
    except asyncio.CancelledError:
        return
    except (ValueError, EngineError, StateError) as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"can't start with the state directory {state_dir}: {error}") from None
    if keys.open_to_all:
        _log.warning(
            "--no-auth: every program and user of this machine may use, train and stop this server"
        )
    for problem in services.models.problems():
        _log.error("adapter not served: %s", problem)
    loop.set_exception_handler(quiet_loop)
    runner = make_runner(make_app(services), DRAIN_S)
    try:
        await runner.setup()
        await web.SockSite(runner, listener, backlog=ACCEPTED_AT_ONCE).start()
        listener.listen(BACKLOG)  # what waits is more than what is accepted in one go
        card = _card(arguments, services.pool.base_models()[0], listener, configuration_digest)
        if not stop.is_set():
            try:
                write_card(state_dir, card)
            except OSError as error:
                reason = error.strerror or str(error)
                raise StartError(f"{state_dir / CARD} can't be written: {reason}") from None
            _log.info(
                "ready: OpenAI clients find %s at %s/v1 (engine %s)",
                " and ".join(services.pool.base_models()),
                card.url,
                spec.engine,
            )
        await stop.wait()
        _log.info("stopping")
        remove_card(state_dir, os.getpid())
    finally:
        await runner.cleanup()
        await close_server(services)


def _card(
    arguments: argparse.Namespace,
    model: str,
    listener: socket.socket,
    configuration_digest: str,
) -> ServerCard:
    host, port = listener.getsockname()[:2]
    owner: int | None = arguments.die_with_parent
    return ServerCard(
        pid=os.getpid(),
        identity=process_identity(os.getpid()) or "",
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        configuration_digest=configuration_digest,
        version=SERVER_VERSION,
        engine=arguments.engine,
        model=model,
        owner_pid=owner,
        owner_identity=process_identity(owner) if owner is not None else None,
    )


def _stopper(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Callable[[], None]:
    def on_death() -> None:
        timer = threading.Timer(LAST_RESORT_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        loop.call_soon_threadsafe(stop.set)

    return on_death


if __name__ == "__main__":
    sys.exit(main())
