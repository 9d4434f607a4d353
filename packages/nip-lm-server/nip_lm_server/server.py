"""The process of a server: its lock, its socket, the signals, the end.

run    `spec.Start` -> exit status: 0 after a stop on request, 2 if the server could not start (one
       line on standard error says why)
"""

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from aiohttp import web

from nip_base.machine.open_files import raise_open_files
from nip_base.machine.processes import process_identity, watch_parent
from nip_base.spec import Start
from nip_base.version import OWN_VERSION
from nip_lm_server.api.app import close_server, make_app, open_server
from nip_lm_server.api.connections import (
    ACCEPTED_AT_ONCE,
    BACKLOG,
    make_runner,
    quiet_loop,
)
from nip_lm_server.auth import TINKER_PREFIX, KeyRing, is_loopback, load_keys
from nip_lm_server.engines.base import EngineError
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
from nip_lm_server.terminal import log_here, say

DRAIN_S = 1.0
"""Seconds that requests in flight may go on after a request to stop."""
LAST_RESORT_S = 10.0
"""Seconds after a parent's death at which the process ends, even if a part of it hangs."""

_log = logging.getLogger("nip.lm_server")


class StartError(Exception):
    """The server can't start; a user needs no more than the message."""


def run(start: Start) -> int:
    """Run a server until SIGTERM, SIGINT or the parent's end. Returns the exit status."""
    log_here()
    try:
        _run(replace(start, state=start.state.expanduser().resolve()))
    except StartError as error:
        say(f"lm_server: {error}", file=sys.stderr)
        return 2
    finally:
        # The interpreter looks through all objects at its end: 1.5 s of processor time with torch.
        gc.freeze()
    return 0


def _run(start: Start) -> None:
    # 1. The keys, and the host that clients come by.
    try:
        digest = start.spec.digest()
        keys = load_keys(start.api_keys_file, start.no_auth, os.environ)
    except (OSError, ValueError) as error:
        raise StartError(str(error)) from None
    if start.no_auth and not is_loopback(start.host):
        raise StartError(
            f"--no-auth is for this machine alone, and --host {start.host} is for others too: "
            "give keys, or name localhost"
        )
    # 2. The state directory, for this process alone.
    mask = os.umask(0o077)  # The server's files are its owner's alone, and a caller's are not.
    try:
        _run_private(start, keys, digest)
    finally:
        os.umask(mask)


def _run_private(start: Start, keys: KeyRing, digest: str) -> None:
    try:
        check_state_dir(start.state, start.spec.replies, start.api_keys_file)
        start.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = try_lock(start.state / LOCK)
    except StateError as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"the state directory {start.state} can't be used: {error}") from None
    if lock is None:
        raise StartError(f"another server uses the state directory {start.state}")
    # 3. The socket, and the server behind it.
    raise_open_files()
    listener = _listen(start.host, start.port)
    try:
        asyncio.run(_serve(start, keys, listener, digest))
    finally:
        remove_card(start.state, os.getpid())
        os.close(lock)


def _listen(host: str, port: int) -> socket.socket:
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


async def _serve(start: Start, keys: KeyRing, listener: socket.socket, digest: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if start.parent is not None:
        watch_parent(start.parent, start.parent_pipe, _make_stopper(loop, stop))
    # 1. The engines, unless a stop comes first.
    spec, state_dir = start.spec, start.state
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
    # The objects of the start stay. To look through all of them for garbage takes a quarter of a
    # second with torch, in which no client is answered, and a large body would cause such a look.
    gc.freeze()
    if keys.open_to_all:
        _log.warning(
            "--no-auth: every program and user of this machine may use, train and stop this server"
        )
    for problem in services.models.problems():
        _log.error("adapter not served: %s", problem)
    # 2. The routes.
    loop.set_exception_handler(quiet_loop)
    runner = make_runner(make_app(services), DRAIN_S)
    try:
        await runner.setup()
        await web.SockSite(runner, listener, backlog=ACCEPTED_AT_ONCE).start()
        listener.listen(BACKLOG)  # more connections may wait than are accepted in one go
        # 3. The card, by which other processes find this server, until the stop.
        card = _make_card(start, services.pool.base_models()[0], listener, digest)
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
            if services.tinker.is_served:
                _log.info("Tinker's SDK finds it with TINKER_BASE_URL=%s", card.url)
                _log.info("and TINKER_API_KEY=%s", _tinker_key(keys))
        await stop.wait()
        _log.info("stopping")
        remove_card(state_dir, os.getpid())
    finally:
        await runner.cleanup()
        await close_server(services)


def _tinker_key(keys: KeyRing) -> str:
    if keys.open_to_all:
        return f"{TINKER_PREFIX}anything"
    if keys.has_tinker_key:
        return f"the key of this server that begins with {TINKER_PREFIX}"
    return f"a key that begins with {TINKER_PREFIX}, as the SDK asks: this server has none yet"


def _make_card(start: Start, model: str, listener: socket.socket, digest: str) -> ServerCard:
    host, port = listener.getsockname()[:2]
    return ServerCard(
        pid=os.getpid(),
        identity=process_identity(os.getpid()) or "",
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        configuration_digest=digest,
        version=OWN_VERSION,
        engine=start.spec.engine,
        model=model,
        owner_pid=start.parent,
        owner_identity=process_identity(start.parent) if start.parent is not None else None,
    )


def _make_stopper(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Callable[[], None]:
    def on_death() -> None:
        timer = threading.Timer(LAST_RESORT_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        loop.call_soon_threadsafe(stop.set)

    return on_death
