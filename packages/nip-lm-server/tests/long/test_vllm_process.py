"""A guarded command ends with everything it started, and vLLM is called as it should be."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from nip_lm_server.engines.base import EngineError, EngineRequestError
from nip_lm_server.engines.vllm.adapter_proof import VllmProver
from nip_lm_server.engines.vllm.guard import end_recorded
from nip_lm_server.engines.vllm.installation import find_executable
from nip_lm_server.engines.vllm.options import VllmOptions
from nip_lm_server.engines.vllm.process import VllmProcess, child_environment
from nip_lm_server.engines.vllm.vllm_engine import VllmEngine

# A first process and one that it started; both ignore SIGTERM if told to.
FAMILY = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" not in sys.argv: subprocess.Popen([sys.executable, *sys.orig_argv[1:], "child"])
open(os.path.join(os.environ["VLLM_RPC_BASE_PATH"], str(os.getpid())), "w").close()
print(os.getpid(), flush=True)
time.sleep(60)
"""

# Its child, in a group of its own, joins the family's once that was killed: the group lives as long
# as the ended grandchild that nobody waits for.
LATECOMER = """
import os, sys, time
group = os.getpgid(0)
print(os.getpid(), flush=True)
if os.fork() == 0:
    stays = os.fork()
    if stays == 0: time.sleep(60)
    os.setpgid(0, 0)
    print(os.getpid(), flush=True)
    os.waitid(os.P_PID, stays, os.WEXITED | os.WNOWAIT)
    os.setpgid(0, group)
time.sleep(60)
"""


class Guarded:
    """A guard with the family above, as the server starts it."""

    def __init__(self, directory: Path, *arguments: str, script: str = FAMILY):
        self.record = directory / "family.json"
        command = [sys.executable, "-c", script, *arguments]
        self.guard = subprocess.Popen(
            [sys.executable, "-m", "nip_lm_server.engines.vllm.guard", str(os.getpid()),
             str(self.record), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            cwd=Path(__file__).parents[4],
        )  # fmt: skip
        pids = [int(self.guard.stdout.readline()) for _ in range(2)]
        self.family = [psutil.Process(pid) for pid in pids]

    def first(self) -> psutil.Process:
        deadline = time.monotonic() + 10
        while not self.record.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return psutil.Process(json.loads(self.record.read_text())["group"])

    def sockets(self) -> Path:
        """The folder of what vLLM's processes talk through."""
        self.first()
        return Path(json.loads(self.record.read_text())["sockets"])

    def alive(self, timeout_s: float = 5.0) -> list[psutil.Process]:
        _, alive = psutil.wait_procs(self.family, timeout=timeout_s)
        return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def close(self) -> None:
        self.guard.kill()
        self.guard.wait(10)
        self.guard.stdin.close()
        self.guard.stdout.close()
        end_recorded(self.record)


@pytest.fixture
def guarded(tmp_path):
    made = []

    def make(*arguments, **options):
        made.append(Guarded(tmp_path, *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_family_ends_when_the_pipe_of_the_server_does(guarded):
    family = guarded("stubborn")
    family.guard.stdin.close()
    assert family.alive() == []
    assert family.guard.wait(5) == 1


def test_the_family_ends_when_its_first_process_is_killed(guarded):
    family = guarded("stubborn")
    family.first().kill()
    assert family.alive() == []
    assert family.guard.wait(5) == 128 + signal.SIGKILL
    assert not family.record.exists()


def test_who_joins_the_family_after_it_was_killed_is_ended_too(guarded):
    family = guarded(script=LATECOMER)
    family.first().kill()
    assert family.guard.wait(20) == 128 + signal.SIGKILL
    assert family.alive() == []
    assert not family.record.exists()


def test_sigterm_ends_it_in_peace(guarded):
    family = guarded()
    family.first()
    sockets = family.sockets()
    assert len([*sockets.iterdir()]) == 2 and sockets.stat().st_mode & 0o077 == 0
    family.guard.terminate()
    assert family.alive() == []
    assert family.guard.wait(5) == 128 + signal.SIGTERM
    assert not sockets.exists()


def test_what_a_killed_guard_leaves_is_ended_by_its_record(guarded):
    family = guarded("stubborn")
    sockets = family.sockets()
    family.guard.kill()
    family.guard.wait(5)
    assert len(family.alive(0.2)) == 2
    assert end_recorded(family.record)
    assert family.alive() == [] and not family.record.exists() and not sockets.exists()


def test_a_folder_for_sockets_that_the_user_named_stays(guarded, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path / "named"))
    (tmp_path / "named").mkdir()
    family = guarded()
    family.first()
    assert json.loads(family.record.read_text())["sockets"] is None
    family.guard.terminate()
    assert family.guard.wait(5) == 128 + signal.SIGTERM
    assert len([*(tmp_path / "named").iterdir()]) == 2


def test_a_record_that_can_not_be_read_does_not_count_as_none(tmp_path):
    assert end_recorded(tmp_path / "no-record.json")
    record = tmp_path / "record.json"
    record.mkdir()  # as good as one of another user's, for a test that may run as root
    assert not end_recorded(record)


def test_a_record_of_others_ends_nobody(tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        record = tmp_path / "record.json"
        record.write_text(json.dumps({"group": os.getpgid(sleeper.pid), "session": 999_999_999}))
        assert end_recorded(record)
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait(10)


@pytest.mark.parametrize(
    "argument",
    [
        "--trust-remote-code", "--trust_remote_code", "--trust-remote", "--host=0.0.0.0", "--port",
        "--config", "--api-key", "--middleware=x", "--lora-modules", "--enable-lora", "-tp=2",
        "--model-config.trust_remote_code=true", "--", "--served-model-name", "--uds",
    ],
)  # fmt: skip
def test_extra_arguments_can_not_undo_ours(argument):
    with pytest.raises(ValueError, match="extra_arguments"):
        VllmOptions(extra_arguments=["--block-size", "16", argument])


def test_other_extra_arguments_are_taken():
    extra = ["--block-size", "16", "--kv-cache-dtype=fp8", "--enable-prefix-caching"]
    assert VllmOptions(extra_arguments=extra).arguments()[-4:] == extra


def test_the_child_gets_a_new_key_and_none_of_our_secrets():
    given = {
        "NIP_API_KEYS": "a", "OPENAI_API_KEY": "b", "PYTHONPATH": "c", "DB_PASSWORD": "d",
        "HF_TOKEN": "e", "HOME": "/home", "VLLM_API_KEY": "f", "HF_HUB_OFFLINE": "1",
        "TRITON_CACHE_DIR": "/mine",
    }  # fmt: skip
    made = [
        child_environment(
            given,
            Path("/env/bin/python"),
            model="/m",
            cpu=cpu,
            kv_cache_gib=2,
            sleep=not cpu,
            caches=Path("/c"),
        )
        for cpu in (True, False)
    ]
    for child in made:
        assert not {"NIP_API_KEYS", "OPENAI_API_KEY", "PYTHONPATH", "DB_PASSWORD"} & child.keys()
        assert child["HF_TOKEN"] == "e" and child["HF_HUB_OFFLINE"] == "1"
        assert child["VLLM_NO_USAGE_STATS"] == child["DO_NOT_TRACK"] == "1"
        assert child["PATH"].startswith("/env/bin")
        assert child["VLLM_CACHE_ROOT"] == "/c/vllm" and child["TRITON_CACHE_DIR"] == "/mine"
    assert len({child["VLLM_API_KEY"] for child in made} | {"f"}) == 3
    assert made[0]["VLLM_CPU_KVCACHE_SPACE"] == "2" and made[0]["VLLM_SERVER_DEV_MODE"] == "0"
    assert "VLLM_TARGET_DEVICE" not in made[1] and made[1]["VLLM_SERVER_DEV_MODE"] == "1"


def test_the_executable_is_found_by_option_variable_or_path(tmp_path):
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("vllm", "python"):
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    python = directory / "python"
    assert find_executable(str(directory / "vllm"), {}) == python
    assert find_executable(str(python), {}) == python
    assert find_executable(None, {"NIP_VLLM": str(directory / "vllm")}) == python
    assert find_executable(None, {"PATH": str(directory)}) == python
    with pytest.raises(EngineError, match="nip doctor --vllm"):
        find_executable(None, {"PATH": ""})
    with pytest.raises(EngineError, match="no executable"):
        find_executable(str(tmp_path / "vllm"), {})


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int4"},
        {"enable_sleep_mode": "sometimes"},
        {"max_lora_rank": 1000},
        {"max_loras": 8, "max_cpu_loras": 4},
        {"extra_arguments": ["--host", "0.0.0.0"]},
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(tmp_path, options):
    with pytest.raises(ValueError, match=next(iter(options)).split("_loras")[0]):
        VllmEngine("model", "name", state_dir=tmp_path, **options)


async def test_a_rank_is_rounded_up_and_a_stopped_engine_says_so(tmp_path):
    engine = VllmEngine("model", "name", state_dir=tmp_path, max_lora_rank=33)
    assert engine.capabilities.max_lora_rank == 64 and not engine.capabilities.sleep
    assert engine.state == "stopped" and engine.upstream is None
    with pytest.raises(EngineError, match="stopped"):
        await engine.prove("name", tmp_path)
    await engine.unload_adapter("nobody")
    await engine.stop()


async def test_a_start_that_fails_says_why_and_can_be_tried_again(tmp_path):
    engine = VllmEngine("model", "name", state_dir=tmp_path, executable=sys.executable)
    for epoch in (1, 2):
        with pytest.raises(EngineError, match="vLLM is not installed"):
            await engine.start()
        assert engine.state == "failed" and engine.epoch == epoch
    assert json.dumps(engine.status())


class Child:
    """A server that answers as vLLM does, in the place of the child of an engine."""

    def __init__(self, engine: VllmEngine):
        self.engine, self.bodies = engine, []
        self.status, self.answer = 200, {}

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        assert request.headers["Authorization"] == "Bearer secret"
        return web.json_response(self.answer, status=self.status)


@pytest_asyncio.fixture
async def child(tmp_path):
    engine = VllmEngine("model", "tiny", state_dir=tmp_path, dtype="float32")
    child = Child(engine)
    app = web.Application()
    app.router.add_post("/{path:.*}", child.handle)
    async with TestServer(app) as server:
        process = engine._process = VllmProcess(tmp_path / "log", {"VLLM_API_KEY": "secret"})
        process.url = str(server.make_url("")).rstrip("/")
        engine._prover = VllmProver(
            "tiny", process.call, has_cuda=False, dtype="float32", quantization="none"
        )
        engine._state = "running"
        yield child
        await process._connections().close()


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (404, "The model `x` does not exist.", EngineRequestError),
        (400, "greater than max_model_len=1024", EngineRequestError),
        (400, "temperature must be non-negative", EngineRequestError),
        (500, "EngineCore encountered an issue", EngineError),
        (401, "Wrong or missing key", EngineError),
    ],
)
async def test_errors_say_whose_fault_it_is(child, status, message, kind):
    child.status, child.answer = status, {"error": {"message": message, "param": "p"}}
    with pytest.raises(EngineError, match=re.escape(message)) as raised:
        await child.engine._process.call("POST", "/v1/completions", {})
    assert type(raised.value) is kind
    if isinstance(raised.value, EngineRequestError):
        assert raised.value.param == "p"


async def test_a_load_that_failed_leaves_no_name_behind_by_which_the_next_would_fail(tmp_path):
    names, calls = {"left"}, []

    async def load(request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        calls.append(("load", name))
        if name in names:
            error = {"message": f"The lora adapter '{name}' has already been loaded."}
            return web.json_response({"error": error}, status=400)
        names.add(name)
        return web.Response(status=500 if name == "broken" else 200)

    async def unload(request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        calls.append(("unload", name))
        names.discard(name)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/load_lora_adapter", load)
    app.router.add_post("/v1/unload_lora_adapter", unload)
    async with TestServer(app) as server:
        process = VllmProcess(tmp_path / "log", {"VLLM_API_KEY": "secret"})
        process.url = str(server.make_url("")).rstrip("/")
        await process.load_adapter("left", tmp_path)
        assert calls == [("load", "left"), ("unload", "left"), ("load", "left")]
        with pytest.raises(EngineError, match="500"):
            await process.load_adapter("broken", tmp_path)
        assert calls[-1] == ("unload", "broken") and names == {"left"}
        await process._connections().close()


async def test_a_forced_token_must_be_the_one_that_came_from_the_model_that_was_asked(
    child, tmp_path
):
    choice = {"token_ids": [3], "logprobs": {"token_logprobs": [-1.25]}}
    answer = child.answer = {"model": "tiny", "choices": [choice]}
    saved = {"tokens": [1, 3], "logprobs": [-1.25], "base_logprobs": [-1.0], "dtype": "float32"}
    (tmp_path / "probe.json").write_text(json.dumps(saved))
    child.engine._max_model_len = 1024
    assert (await child.engine.prove("tiny", tmp_path)).matches
    (body,) = child.bodies
    assert body["prompt"] == [1] and body["allowed_token_ids"] == [3]
    for wrong in (
        {**answer, "model": "other"},
        {**answer, "choices": [{**choice, "token_ids": [4]}]},
        {**answer, "choices": [{**choice, "logprobs": None}]},
    ):
        child.answer = wrong
        with pytest.raises(EngineError, match="no log-probability"):
            await child.engine.prove("tiny", tmp_path)
