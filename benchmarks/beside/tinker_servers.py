"""Servers of Tinker's API beside each other: nip's, and SkyRL's on the processor.

Served     a server with a client of it; both sleep while another one is measured
serve_nip, serve_skyrl   how each is started, on the same model directory
DoubledPosts   a proxy that sends each gradient and each step twice, or each step with other content

SkyRL 0.4.0 asks for the SDK 0.25, and nip is made
for a later one, so each server is asked with the SDK that its own tests have, by the same client
(peers/tinker_loop.py).
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from beside import serving
from beside.players import GAMES, ROOT, Peer
from beside.runs import Failed

KEY = "tml-local"
START_S, ANSWER_S = 600.0, 900.0
NIP, SKYRL = "nip", "SkyRL"
SDK = Path(os.environ.get("TINKER_ENV", ROOT / ".tinker-env")) / "bin" / "python"
"""The environment of scripts/build_tinker.sh, with the SDK that nip speaks."""


class Skyrl(Peer):
    """Its environment. It plays no game."""

    name, folder = SKYRL, "skyrl"
    packages = ("skyrl", "tinker", "jax", "flax", "optax", "transformers")

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """It plays no game."""
        raise NotImplementedError

    go_on = start


@dataclass
class Served:
    """A server's process, and the process of its client, of which there may be none yet."""

    name: str
    command: list[str]
    environment: dict[str, str]
    place: Path
    url: str
    base: str
    python: Path
    health: str
    process: "subprocess.Popen[bytes] | None" = None
    client: "subprocess.Popen[str] | None" = None
    sdk: str = ""
    asleep: list[psutil.Process] = field(default_factory=list)

    def start(self) -> None:
        """Start the server, and wait until it answers. Raises Failed."""
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.place,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while serving.call(f"{self.url}{self.health}", KEY, most_s=5)[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{self.name} does not answer: {self._tail('log')}")
            time.sleep(0.2)

    def connect(self, url: str | None = None) -> None:
        """Start a client of it, by way of another address perhaps."""
        self.disconnect()
        with (self.place / "client.log").open("ab") as log:
            self.client = subprocess.Popen(
                [self.python, GAMES / "tinker_loop.py", url or self.url, KEY, self.base],
                env=_bare_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.sdk = self.read()["sdk"]

    def disconnect(self) -> None:
        """End the client."""
        if self.client is not None:
            self.client.kill()
            self.client.wait()
            self.client = None

    def __call__(self, do: str, most_s: float = ANSWER_S, **arguments: Any) -> dict[str, Any]:
        """Have the client do something, and wait for what comes of it. Raises Failed."""
        self.order(do, **arguments)
        return self.read(most_s)

    def order(self, do: str, **arguments: Any) -> None:
        """Have the client do something."""
        assert self.client is not None and self.client.stdin is not None
        self.client.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.client.stdin.flush()

    def read(self, most_s: float = ANSWER_S) -> dict[str, Any]:
        """Wait for what the client says next. Raises Failed."""
        assert self.client is not None and self.client.stdout is not None
        if not select.select([self.client.stdout], [], [], most_s)[0]:
            raise Failed(f"nothing came for {most_s:g} s")
        line = self.client.stdout.readline()
        if not line:
            raise Failed(f"the client ended: {self._tail('client.log')}")
        done: dict[str, Any] = json.loads(line)
        if "error" in done:
            raise Failed(" ".join(str(done["error"]).split())[:400])
        return done

    def sleep(self) -> None:
        """Stop all of its processes where they are, so that they take no time from others."""
        self.asleep = [*self._processes()]
        for each in self.asleep:
            with suppress(psutil.NoSuchProcess):
                each.suspend()

    def wake(self) -> None:
        """Let them go on."""
        for each in self.asleep:
            with suppress(psutil.NoSuchProcess):
                each.resume()
        self.asleep = []

    def processor_s(self) -> float:
        """Count the processor seconds that the server's processes have taken so far."""
        assert self.process is not None
        seconds = 0.0
        for each in _family(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                seconds += times.user + times.system
        return seconds

    def kill(self) -> None:
        """Kill the server and its children, as a machine that fails does."""
        if self.process is not None:
            for each in _family(self.process.pid):
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def end(self) -> None:
        """End both."""
        self.wake()
        self.disconnect()
        self.kill()

    def _processes(self) -> Iterator[psutil.Process]:
        for process in (self.process, self.client):
            if process is not None:
                yield from _family(process.pid)

    def _tail(self, name: str) -> str:
        return " ".join((self.place / name).read_text(errors="replace")[-600:].split())


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def _bare_environment() -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**inherited, "HF_HUB_OFFLINE": "1", "TINKER_TELEMETRY": "0"}


@contextmanager
def serve_nip(
    place: Path, model: Path, tree: Path = ROOT, settings: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """nip's server by the code of a tree, with a client. Raises Failed.

    `settings` are further variables of the server's environment; an empty one is not set.
    """
    if not SDK.exists():
        raise Failed("not built: scripts/build_tinker.sh")
    place.mkdir(parents=True)
    port = serving.free_port()
    command = [sys.executable, "-P", "-m", "nip_lm_server", "--engine", "embedded"]
    command += ["--model", str(model), "--served-model-name", "base"]
    command += ["--state", str(place / "state"), "--port", str(port)]
    packages = [str(path.parent) for path in sorted(tree.glob("packages/*/pyproject.toml"))]
    paths = os.pathsep.join([str(tree), *packages])
    given = {**os.environ, "NIP_API_KEYS": KEY, "PYTHONPATH": paths, **(settings or {})}
    environment = {name: value for name, value in given.items() if value}
    url = f"http://127.0.0.1:{port}"
    served = Served(NIP, command, environment, place, url, "base", SDK, "/health")
    yield from _run(served)


@contextmanager
def serve_skyrl(
    place: Path, model: Path, rank: int, at_once: int, adapters: int = 1
) -> Iterator[Served]:
    """SkyRL's server over JAX, with a client. Raises Failed.

    It has room for so many adapters, as each costs time in all layers, and pads what it samples to
    so many sequences; with 0 to none, and compiles for each number of them that comes.
    """
    peer = Skyrl()
    if reason := peer.absent():
        raise Failed(reason)
    place.mkdir(parents=True)
    port, python = serving.free_port(), peer.python()
    folder = python.parent
    environment = _bare_environment() | {
        "PATH": f"{folder}:{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(folder.parent),
        "JAX_PLATFORMS": "cpu",
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
    }
    settings = {"max_lora_adapters": adapters + 1, "max_lora_rank": rank}
    settings["sample_max_num_sequences"] = at_once
    # It reads from its parent's command line how to start its engine: by `uv run`.
    command = [str(folder / "uv"), "run", "--active", "--no-project", "-m", "skyrl.tinker.api"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--base-model", str(model)]
    command += ["--backend", "jax"]
    command += ["--session-timeout-sec", "-1", "--backend-config", json.dumps(settings)]
    command += ["--checkpoints-base", str(place / "checkpoints")]
    command += ["--database-url", f"sqlite:///{place / 'tinker.db'}"]
    url = f"http://127.0.0.1:{port}"
    health = "/api/v1/healthz"
    yield from _run(Served(SKYRL, command, environment, place, url, str(model), python, health))


def _run(served: Served) -> Iterator[Served]:
    try:
        served.start()
        served.connect()
        yield served
    finally:
        served.end()


class DoubledPosts:
    """A proxy before a server that sends it each gradient and each step twice.

    The client gets the answer to the second, as one does that sends again what it got no answer to.
    With `altered` only steps come twice, the second time with another learning rate under the same
    number, and the client gets the answer to the first.
    """

    TWICE = ("/forward_backward", "/optim_step")

    def __init__(self, url: str, *, altered: bool = False):
        self.doubled: list[int] = []
        """The status of each second answer."""
        self.refusals: list[str] = []
        """The text of each second answer that is a refusal."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self._read()
                answer = self._ask(body)
                if altered and self.path.endswith("/optim_step"):
                    self._note(self._ask(_with_other_rate(body)))
                elif not altered and self.path.endswith(proxy.TWICE):
                    answer = self._ask(body)
                    self._note(answer)
                self._give(*answer)

            def _note(self, answer: tuple[int, str, bytes]) -> None:
                proxy.doubled.append(answer[0])
                if answer[0] >= 400:
                    proxy.refusals.append(answer[2].decode(errors="replace")[:300])

            def do_GET(self) -> None:
                self._give(*self._ask(None))

            def _read(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _ask(self, body: bytes | None) -> tuple[int, str, bytes]:
                left_out = {"host", "content-length", "connection", "accept-encoding"}
                left_out.add("transfer-encoding")
                headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
                request = urllib.request.Request(f"{url}{self.path}", body, headers)
                try:
                    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                        return answer.status, answer.headers["Content-Type"], answer.read()
                except urllib.error.HTTPError as error:
                    return error.code, error.headers.get("Content-Type", ""), error.read()

            def _give(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind or "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "DoubledPosts":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()


def _with_other_rate(body: bytes) -> bytes:
    """The same step, with twice the learning rate."""
    order = json.loads(body)
    order["adam_params"]["learning_rate"] *= 2
    return json.dumps(order).encode()
