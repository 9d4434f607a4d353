"""A server as a test double, for tests of programs that use OpenAI's API or Tinker's.

    pytest_plugins = ["nip_lm_server.testing"]   # in the conftest.py of the tests

lm_server              a server that answers by script, as a test sets it; it fails as a test says
tiny_lm_server         one with the bundled model, which really trains (extra `local`)
lm_server_environment  the variables that point clients to `lm_server`, set for a test
lm_server_models       the served names; a fixture of this name in a conftest.py has others
serve_double           the same without pytest

The server runs in a thread of the test's process, over real sockets, with its real state in a
temporary directory, so it ends with that process. Not covered: a server's start, watch and end as a
process of its own. This module needs pytest, and no other package than the server does.
"""

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from nip_base.api_errors import ApiError
from nip_base.spec import EngineSpec, ServerSpec
from nip_lm_server.api.app import close_server, make_app, open_server
from nip_lm_server.api.connections import make_runner
from nip_lm_server.api.plumbing import Services, error_response
from nip_lm_server.auth import TINKER_PREFIX, KeyRing
from nip_lm_server.bundled import TINY
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine
from nip_lm_server.engines.scripted.reply_rules import Reply, ReplyFile, Rule, When
from nip_lm_server.state.directory import LOCK, StateError, check_state_dir, try_lock
from nip_lm_server.training.deterministic_trainer import DeterministicTrainer

START_S = 120.0
"""Longest wait for a start, and for an end."""
RETRY_AFTER_S = 0.01
_DRAIN_S = 0.5
_HERE = "127.0.0.1"


class ServerThread:
    """A server in a thread, from the lock of its state directory to its release.

    Raises the errors of `open_server`, and StateError for a directory that is in use.
    """

    def __init__(
        self, spec: ServerSpec, state: Path, key: str, environment: Mapping[str, str] = os.environ
    ):
        check_state_dir(state, spec.replies)
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.url, self.api_key = "", key
        self._spec, self._state, self._environment = spec, state, environment
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="nip_lm_server", daemon=True)
        self.thread.start()
        if not self._is_ready.wait(START_S):
            raise StateError(f"the server in {state} is not ready after {START_S:g} s")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the server; requests in flight have half a second. Raises StateError if it hangs."""
        self._loop.call_soon_threadsafe(self._end.set)
        self.thread.join(START_S)
        if self.thread.is_alive():
            raise StateError(f"the server in {self._state} does not end")

    def _prepare(self, services: Services, app: web.Application) -> None:
        """Add to the server, before its first answer."""

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            lock = try_lock(self._state / LOCK)
            if lock is None:
                raise StateError(f"another server uses the state directory {self._state}")
            try:
                await self._serve_locked()
            finally:
                os.close(lock)
        except BaseException as error:
            if self._is_ready.is_set():
                raise
            self._error = error
            self._is_ready.set()

    async def _serve_locked(self) -> None:
        keys = KeyRing([self.api_key])
        services = await open_server(self._state, self._spec, keys, self._environment)
        app = make_app(services)
        self._prepare(services, app)
        runner = make_runner(app, _DRAIN_S)
        try:
            await runner.setup()
            await web.TCPSite(runner, _HERE, 0).start()
            self.url = f"http://{_HERE}:{runner.addresses[0][1]}"
            self._is_ready.set()
            await self._end.wait()
        finally:
            await runner.cleanup()
            await close_server(services)


@dataclass(frozen=True)
class SeenRequest:
    """A request that was answered."""

    method: str
    path: str
    status: int
    """0: its connection was dropped."""


@dataclass
class _Fault:
    status: int  # 0 drops the connection
    path: str
    count: int  # of the requests that it still meets


class ServerDouble(ServerThread):
    """A server that a test has in its hands."""

    def __init__(self, spec: ServerSpec, state: Path):
        self.requests: list[SeenRequest] = []
        """All requests so far, in the order of their answers."""
        self.models = tuple(engine.served_model_name or engine.model for engine in spec.engines())
        self._faults: list[_Fault] = []
        self._delay_s, self._replies = 0.0, ReplyFile()
        super().__init__(spec, state, TINKER_PREFIX + secrets.token_hex(16), dict(os.environ))

    @property
    def base_url(self) -> str:
        """The address for an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point unmodified programs here, past any proxy."""
        names = os.environ.get("NO_PROXY", "").split(",")
        spared = ",".join([*(name for name in names if name not in ("", _HERE)), _HERE])
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "TINKER_BASE_URL": self.url,
            "TINKER_API_KEY": self.api_key,
            "NO_PROXY": spared,
            "no_proxy": spared,
        }

    def reply(self, *texts: str, **conditions: Any) -> None:
        """Answer by one of `texts`, where the conditions hold; without any, where no rule does.

        Conditions are those of a rule (`reply_rules.When`), such as ``last_contains="even"`` and
        ``min_generation=1``, of models that were trained. The first rule that holds counts. Braces
        are generators, ``{words:3}``, and are doubled where they are meant.
        """
        replies = tuple(Reply(text=text) for text in texts)
        if conditions:
            rule = Rule(when=When(**conditions), replies=replies)
            changes: dict[str, Any] = {"rules": (*self._replies.rules, rule)}
        else:
            changes = {"default": replies}
        self._follow(self._replies.model_copy(update=changes))

    def script(self, **settings: Any) -> None:
        """Follow a replies file from here on; `settings` are its keys (`reply_rules.ReplyFile`).

        An example is ``training={"fail_rate": 1}``. Raises ValueError for other keys and values.
        """
        self._follow(ReplyFile.model_validate(settings))

    def fail_next(self, status: int = 500, *, times: int = 1, path: str = "/") -> None:
        """Answer the next requests whose path begins with `path` by an error, and no others.

        429 comes with Retry-After.
        """
        if not 400 <= status < 600:
            raise ValueError(f"status is {status}, expected 400 to 599; see drop_next")
        self._faults.append(_Fault(status, path, times))

    def drop_next(self, *, times: int = 1, path: str = "/") -> None:
        """Close the connections of the next such requests without an answer."""
        self._faults.append(_Fault(0, path, times))

    def slow_down(self, delay_s: float) -> None:
        """Let each request wait before it is taken."""
        self._delay_s = delay_s

    def reset(self) -> None:
        """Forget scripts, faults and requests. Files, jobs and models stay, as at a service."""
        self.requests.clear()
        self._faults.clear()
        self._delay_s = 0.0
        self._follow(ReplyFile())

    def _follow(self, replies: ReplyFile) -> None:
        async def follow() -> None:
            for base in self._services.pool.bases():
                for part in (base.engine, base.slot.trainer):
                    if isinstance(part, DeterministicEngine | DeterministicTrainer):
                        part.follow(replies)

        self._replies = replies
        asyncio.run_coroutine_threadsafe(follow(), self._loop).result(START_S)

    def _prepare(self, services: Services, app: web.Application) -> None:
        self._services = services
        app.middlewares.append(self._answer)

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        fault = self._take_fault(request.path)
        await asyncio.sleep(self._delay_s)
        if fault is None:
            answer = await handler(request)
        else:
            answer = _fail(request, fault.status)
        status = 0 if fault is not None and not fault.status else answer.status
        self.requests.append(SeenRequest(request.method, request.path, status))
        return answer

    def _take_fault(self, path: str) -> _Fault | None:
        for fault in self._faults:
            if fault.count > 0 and path.startswith(fault.path):
                fault.count -= 1
                return fault
        return None


def _fail(request: web.Request, status: int) -> web.StreamResponse:
    if not status and request.transport is not None:
        request.transport.abort()
    headers = {"Retry-After": f"{RETRY_AFTER_S:g}"} if status == 429 else None
    code = "rate_limit_exceeded" if status == 429 else "injected_fault"
    error = ApiError(status or 500, "The test asked for this error", code=code, headers=headers)
    return error_response(request, error)


@contextlib.contextmanager
def serve_double(
    state: Path, models: Sequence[str] = ("gpt-4.1-mini",), *, has_weights: bool = False
) -> Iterator[ServerDouble]:
    """Run a server in the directory `state` that answers under the names `models`.

    It answers by script; if it `has_weights`, all names mean the bundled model, on the processor.
    Raises ValueError where the packages for that are missing.
    """
    if has_weights:
        first, *more = [
            EngineSpec("embedded", str(TINY), served_model_name=name, options={"device": "cpu"})
            for name in models
        ]
    else:
        first, *more = [EngineSpec("deterministic", name) for name in models]
    spec = ServerSpec(
        first.engine,
        first.model,
        served_model_name=first.served_model_name,
        options=first.options,
        training_device="cpu",
        more_engines=tuple(more),
    )
    double = ServerDouble(spec, state)
    try:
        double.reset()
        yield double
    finally:
        double.stop()


@pytest.fixture(scope="session")
def lm_server_models() -> tuple[str, ...]:
    """Names of the models that are served; define a fixture of this name to have others."""
    return ("gpt-4.1-mini",)


@pytest.fixture(scope="session")
def _scripted_lm_server(
    lm_server_models: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerDouble]:
    with serve_double(tmp_path_factory.mktemp("lm_server"), lm_server_models) as double:
        yield double


@pytest.fixture
def lm_server(_scripted_lm_server: ServerDouble) -> ServerDouble:
    """A server that answers by script: one for all tests, reset for each."""
    _scripted_lm_server.reset()
    return _scripted_lm_server


@pytest.fixture
def lm_server_environment(
    lm_server: ServerDouble, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The variables that point OpenAI's and Tinker's clients to `lm_server`, set for this test."""
    for name, value in lm_server.environment.items():
        monkeypatch.setenv(name, value)
    return lm_server.environment


@pytest.fixture(scope="session")
def tiny_lm_server(
    lm_server_models: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerDouble]:
    """A server with the bundled model of 0.98 million weights, one for all tests."""
    folder = tmp_path_factory.mktemp("tiny_lm_server")
    with serve_double(folder, lm_server_models, has_weights=True) as double:
        yield double
