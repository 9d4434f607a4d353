"""The `vllm serve` child: its environment, its start, its calls and its end.

child_environment the environment of the child, without our own secrets
VllmProcess       one child from start to end, behind `guard`

The child trusts nothing remote: no code from models, usage statistics off, an API key on every
path, loopback only. The key goes by environment, never on the command line.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import aiohttp

from nip_base.machine.devices import compile_caches
from nip_base.machine.processes import read_tail, working_environment
from nip_base.machine.processors import count_processors
from nip_lm_server.engines.base import EngineError, EngineRequestError
from nip_lm_server.engines.vllm.guard import GRACE_S, end_recorded
from nip_lm_server.engines.vllm.installation import without_ours
from nip_lm_server.engines.vllm.threads import share_processors

HOST = "127.0.0.1"
HEALTH_TIMEOUT_S = 5.0
"""Short: a single missing answer is no fault yet, see `vllm_engine.UNRESPONSIVE_S`."""
ANSWER_TIMEOUT_S = 600.0
"""For the tokens of a proof, which wait behind other requests. A rule of thumb: far less would fail
proofs on a busy engine, far more would keep a job waiting for an engine that hangs."""
MOVE_TIMEOUT_S = 300.0
"""For sleeping, waking, and loading an adapter. The first sleep of a model of 8 billion parameters
was seen to take 11 s (vLLM issue 48337); larger models on slower machines must not time out."""
KEEP_ALIVE_S = 600
"""Longer than any of our clients of vLLM keeps an idle connection, see `child_environment`."""
PROGRESS_INTERVAL_S = 15.0
"""The time between two reports of a slow start in the server's log: its progress is seen, and
minutes of it don't fill a screen."""
LOG_LIMIT_BYTES = 16 * 1024 * 1024
"""A log longer than this is moved aside at the next start. A rule of thumb: some starts fit into
it, and an editor can still open it. One old log is kept."""

_KEYS_DIRECTORY = Path(__file__).parents[2] / "vllm_keys"

_log = logging.getLogger("nip.lm_server.vllm")


def child_environment(
    environment: Mapping[str, str],
    python: Path,
    *,
    model: str,
    cpu: bool,
    kv_cache_gib: int,
    sleep: bool,
    caches: Path,
) -> dict[str, str]:
    """The environment of the child: ours without secrets and Python settings, plus vLLM's own.

    A token for the model hub stays, since a base model may need it. Compiled code is kept in
    `caches`, unless the environment names a folder. On a CPU the size of `model` decides the number
    of threads (`threads`).
    """
    child = {
        **compile_caches(caches),
        **working_environment(without_ours(environment)),
        "PATH": os.pathsep.join([str(python.parent), environment.get("PATH", os.defpath)]),
        "VLLM_API_KEY": secrets.token_urlsafe(32),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        # Longer than any client of it keeps a connection: a request fails if vLLM closes the
        # connection while it is on its way.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Only this mode has sleep and wake; its other paths need the key as well.
        "VLLM_SERVER_DEV_MODE": "1" if sleep else "0",
    }
    if cpu:
        child["VLLM_TARGET_DEVICE"] = "cpu"
        child["VLLM_CPU_KVCACHE_SPACE"] = str(kv_cache_gib)
        child |= share_processors(child, model, count_processors())
    return child


class VllmProcess:
    """One child. Call `start` once; `exited` is done when the child has ended."""

    def __init__(self, log_path: Path, environment: Mapping[str, str]):
        self.log_path = log_path
        self.url = ""
        self.key = environment["VLLM_API_KEY"]
        self.port = 0
        self.exited: asyncio.Future[int]
        self._environment = dict(environment)
        self._record = log_path.with_suffix(".process.json")
        self._guard: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def pid(self) -> int | None:
        """The first process of vLLM, the leader of its group."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            # The guard writes the record after the start, and removes it at the end.
            return int(json.loads(self._record.read_text())["group"])
        return None

    async def start(self, python: Path, arguments: Sequence[str], timeout_s: float) -> None:
        """Start and wait until it answers. Raises EngineError with the log's end if it doesn't."""
        # 1. End the processes that a killed server has left: they hold the device's memory, so a
        #    start beside them would fail later and say less.
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        if not await asyncio.to_thread(end_recorded, self._record):
            raise EngineError(f"processes of an earlier vLLM can't be ended, see {self._record}")
        # 2. Move a long log aside, now that no process has it open.
        with contextlib.suppress(FileNotFoundError):  # it was never started before
            if self.log_path.stat().st_size > LOG_LIMIT_BYTES:
                self.log_path.replace(self.log_path.with_suffix(self.log_path.suffix + ".1"))
        # 3. Reserve a port, and start the child behind its guard.
        with socket.socket() as reserved:
            # Kept bound, not listening, until the child listens: it sets the same option, so it
            # gets the port all the same, and the system gives it to no other program.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((HOST, 0))
            self.port = reserved.getsockname()[1]
            self.url = f"http://{HOST}:{self.port}"
            # The guard has the server's own path, vLLM has our middleware alone.
            command = ["env", f"PYTHONPATH={_KEYS_DIRECTORY}", "PYTHONSAFEPATH=1"]
            command += [str(python), "-m", "vllm.entrypoints.cli.main", "serve", *arguments]
            command += ["--host", HOST, "--port", str(self.port)]
            with self.log_path.open("ab") as log:
                self._guard = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "nip_lm_server.engines.vllm.guard"),
                    *(str(os.getpid()), str(self._record), *command),
                    stdin=asyncio.subprocess.PIPE,  # its end shows the guard that we are gone
                    stdout=log,
                    stderr=log,
                    env={**self._environment, "PYTHONPATH": os.pathsep.join(sys.path)},
                    start_new_session=True,
                )
            # 4. Wait until it answers.
            self.exited = asyncio.ensure_future(self._guard.wait())
            await self._until_healthy(timeout_s)

    async def _until_healthy(self, timeout_s: float) -> None:
        start_s = report_s = time.monotonic()
        while await self.health() != "ok":
            now_s = time.monotonic()
            # After the health check: the log of an ended child has the reason.
            if self.exited.done():
                raise EngineError(
                    f"vLLM {self.describe_end()}. End of {self.log_path}:\n{self._tail()}"
                )
            if now_s - start_s > timeout_s:
                raise EngineError(
                    f"vLLM did not answer within {timeout_s:g} s (start_timeout_s). End of "
                    f"{self.log_path}:\n{self._tail()}"
                )
            # The last line of its log shows the user the slow step.
            if now_s - report_s > PROGRESS_INTERVAL_S:
                report_s = now_s
                last_line = self._tail().rpartition("\n")[2]
                _log.info(
                    "vLLM is starting, %.0f s so far; its log: %s", now_s - start_s, last_line[:300]
                )
            await asyncio.wait({self.exited}, timeout=0.2)

    async def health(self) -> Literal["ok", "dead", "silent"]:
        """Check for an answer; "dead" is its own report of an ended engine process."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
        # No answer is no error here: a starting child does not listen yet, and a busy one may be
        # late. The callers count the time of its silence.
        try:
            async with self._connections().get(self.url + "/health", timeout=timeout) as response:
                return "ok" if response.status == 200 else "dead"
        except (aiohttp.ClientError, TimeoutError, OSError):
            return "silent"

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Any:
        """Its answer, JSON or else a text. Raises EngineRequestError or EngineError."""
        # The child listens already, so only the answer may take long.
        timeout = aiohttp.ClientTimeout(None, sock_connect=10, sock_read=timeout_s)
        try:
            url = self.url + path
            async with self._connections().request(
                method, url, json=body, timeout=timeout
            ) as response:
                answer: Any = await response.text()
        # vLLM may have done it all the same; callers that change vLLM handle that.
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"vLLM does not answer {path}: {error!r}") from error
        # Loading and sleeping are answered with a text, or with nothing.
        with contextlib.suppress(ValueError):
            answer = json.loads(answer)
        if response.status != 200:
            raise read_error(response.status, answer)
        return answer

    async def sleep(self) -> None:
        """Put it to sleep: its weights go to the host's memory. Running answers are aborted."""
        await self.call("POST", "/sleep?level=1&mode=abort", timeout_s=MOVE_TIMEOUT_S)

    async def wake(self) -> None:
        """Undo `sleep`."""
        await self.call("POST", "/wake_up", timeout_s=MOVE_TIMEOUT_S)

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make it answer to `name` with an adapter. After an EngineError it does not answer."""
        try:
            await self._load(name, path)
        except BaseException:
            # Cancellation included: vLLM may have loaded it all the same, and would refuse to do so
            # again. If this fails too, the first error is raised.
            with contextlib.suppress(EngineError):
                await self.unload_adapter(name)
            raise

    async def _load(self, name: str, path: Path) -> None:
        body = {"lora_name": name, "lora_path": str(path)}
        # Twice: an adapter in the way is removed once. If it comes back, another process loads it.
        for attempt in (1, 2):
            try:
                await self.call("POST", "/v1/load_lora_adapter", body, MOVE_TIMEOUT_S)
                return
            except EngineRequestError as error:
                if attempt == 2 or "already been loaded" not in str(error):
                    raise EngineError(f"vLLM can't load {path}: {error}") from error
                # A load whose answer was lost has left it, maybe with another path.
                await self.unload_adapter(name)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; no error if it has none of this name."""
        # vLLM refuses to unload an adapter that it doesn't have: that is the wanted state.
        with contextlib.suppress(EngineRequestError):
            body = {"lora_name": name}
            await self.call("POST", "/v1/unload_lora_adapter", body, MOVE_TIMEOUT_S)

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit on connections: a load or a health check must not wait behind a proof.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                headers={"Authorization": f"Bearer {self.key}"},
            )
        return self._session

    def describe_end(self) -> str:
        """The way it ended, in words."""
        status = self.exited.result() if self.exited.done() else 0
        if status > 128:
            with contextlib.suppress(ValueError):  # its own status, of no signal
                return f"was ended by {signal.Signals(status - 128).name}"
        return f"exited with status {status}"

    async def stop(self) -> None:
        """End it with all its children. No error if it has ended."""
        guard = self._guard
        if guard is None:  # the start failed before a process ran
            return
        try:
            if not self.exited.done():
                with contextlib.suppress(ProcessLookupError):
                    # The guard alone: it passes the signal to vLLM, which closes down its own
                    # workers, and kills the group when that takes too long.
                    guard.terminate()
                # The guard may take its grace twice: before it kills, and until all killed
                # processes are gone.
                await asyncio.wait({self.exited}, timeout=2 * GRACE_S + 1)
        finally:
            # A guard that outlasts its own graces hangs. Its processes are ended by its record.
            with contextlib.suppress(ProcessLookupError):
                guard.kill()
            # Also where this is cancelled: a vLLM that goes on holds the device's memory. A process
            # that can't be ended keeps its record, and the next start refuses because of it.
            await asyncio.shield(asyncio.to_thread(end_recorded, self._record))
        await asyncio.wait({self.exited}, timeout=GRACE_S)
        if guard.stdin is not None:
            guard.stdin.close()
        if self._session is not None:
            await self._session.close()

    def _tail(self) -> str:
        return read_tail(self.log_path)


def read_error(status: int, body: Any) -> EngineError:
    """The exception for an error of vLLM's: 4xx is the request's fault."""
    error = body.get("error") if isinstance(body, Mapping) else None
    error = error if isinstance(error, Mapping) else {"message": str(error or body)}
    message = str(error.get("message") or f"status {status}")
    # A refused key, or too many requests, is this server's own fault.
    if 400 <= status < 500 and status not in (401, 403, 429):
        return EngineRequestError(message, param=error.get("param"))
    return EngineError(f"vLLM answered with {status}: {message}")
