"""The embedded engine sleeps, wakes, dies and comes back; prompts that are no conversation."""

import asyncio
import ctypes
import resource
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("peft")

from tiny_model import make_adapter, make_model

from nip_lm_server.engines.base import (
    EngineError,
    EngineRequestError,
    GenerationRequest,
)
from nip_lm_server.engines.embedded import embedded_engine as embedded
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

DEADLINE_S = 20.0

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def adapter(base):
    return make_adapter(base, base.parent / "a", seed=1)


@pytest_asyncio.fixture(loop_scope="module")
async def engine(base, adapter):
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    await engine.load_adapter("a", adapter)
    yield engine
    await engine.stop()


def ask(text: str = "hello", model: str = "a", **more: Any) -> GenerationRequest:
    messages = ({"role": "user", "content": text},)
    return GenerationRequest(
        model=model, messages=messages, **{"max_tokens": 12, "seed": 7, **more}
    )


async def test_a_text_of_megabytes_is_refused(engine):
    with pytest.raises(EngineRequestError, match=r"more than \d{6}"):
        await engine.generate(ask("hello world " * 3_000_000))
    with pytest.raises(EngineRequestError, match="context is"):
        await engine.generate(ask("hello world " * 3_000))
    with pytest.raises(EngineRequestError, match="context is"):
        await engine.generate(GenerationRequest(model="a", prompt="hello " * 3_000))


LONG = {"max_tokens": 480, "stop": ("\0never",)}


async def begin(engine: EmbeddedEngine, request: GenerationRequest) -> "asyncio.Task[Any]":
    """Ask, and return once the answer is being generated."""
    task = asyncio.create_task(engine.generate(request))
    async with asyncio.timeout(DEADLINE_S):
        while engine._worker.decoder.rows == 0:
            await asyncio.sleep(0.001)
    return task


# Sleeping


async def test_an_engine_that_slept_answers_as_before_with_its_adapters(engine, adapter):
    before = [await engine.generate(ask(model=model)) for model in ("tiny", "a")]
    epoch = engine.epoch
    await engine.sleep()
    assert engine.state == engine.status()["state"] == "sleeping"
    assert engine.max_model_len == 512
    for answer in (engine.generate(ask()), anext(engine.stream(ask()))):
        with pytest.raises(EngineError, match="the engine is sleeping"):
            await answer
    for refused in (engine.load_adapter("b", adapter), engine.prove("a", adapter)):
        with pytest.raises(EngineError, match="sleeping"):
            await refused
    await engine.sleep()  # it does already
    await engine.wake()
    await engine.wake()
    assert (engine.state, engine.epoch, engine.loaded_adapters()) == ("running", epoch, ("a",))
    assert [await engine.generate(ask(model=model)) for model in ("tiny", "a")] == before
    assert (await engine.prove("a", adapter)).matches


async def test_what_runs_is_finished_before_the_engine_sleeps(engine):
    expected = await engine.generate(ask(**LONG))
    running = await begin(engine, ask(**LONG))
    sleeping = asyncio.create_task(engine.sleep())
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="sleeping"):
        await engine.generate(ask())
    assert not running.done()
    await asyncio.wait_for(sleeping, DEADLINE_S)
    assert (await running) == expected
    assert engine._worker.decoder.rows == 0


async def test_what_takes_too_long_fails_when_the_engine_sleeps(engine, monkeypatch):
    monkeypatch.setattr(embedded, "SLEEP_TIMEOUT_S", 0.0)
    running = await begin(engine, ask(**LONG))
    await asyncio.wait_for(engine.sleep(), DEADLINE_S)
    with pytest.raises(EngineError, match="went to sleep before the answer"):
        await running
    await engine.wake()
    assert (await engine.generate(ask())).choices[0].completion_tokens > 0


async def test_only_an_engine_that_runs_can_sleep(base):
    engine = EmbeddedEngine(str(base), threads=1)
    assert engine.capabilities.sleep
    for refused in (engine.sleep(), engine.wake()):
        with pytest.raises(EngineError, match="stopped"):
            await refused


async def test_a_start_that_is_given_up_leaves_nothing_behind(base):
    import threading

    engine = EmbeddedEngine(str(base), threads=1)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    thread = engine._worker._thread
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not thread.is_alive() and thread not in threading.enumerate()
    await engine.start()
    assert engine.state == "running"
    await engine.stop()


# Dying


async def kill_thread(engine: EmbeddedEngine) -> None:
    """Raise SystemExit in the model's thread, between any two of its instructions."""
    number = ctypes.c_ulong(engine._worker._thread.ident)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(SystemExit)) == 1


async def test_an_engine_whose_thread_dies_says_so_and_can_be_started_again(engine, adapter):
    expected = await engine.generate(ask())
    watching = asyncio.create_task(engine.wait_dead())
    running = await begin(engine, ask(**LONG))
    streaming = asyncio.create_task(_drain(engine.stream(ask(**LONG))))
    await asyncio.sleep(0)
    assert not watching.done()
    await kill_thread(engine)
    for failing in (running, streaming):
        with pytest.raises(EngineError, match="the engine died: SystemExit"):
            await asyncio.wait_for(failing, DEADLINE_S)
    assert engine.state == "failed"
    assert "SystemExit" in await asyncio.wait_for(watching, DEADLINE_S)
    with pytest.raises(EngineError, match="the engine is failed"):
        await engine.generate(ask())
    await engine.unload_adapter("a")  # nothing is loaded: no error
    assert engine.loaded_adapters() == ()
    epoch = engine.epoch
    await engine.stop()
    assert engine.state == "stopped"
    await engine.start()
    assert (engine.state, engine.epoch) == ("running", epoch + 1)
    await engine.load_adapter("a", adapter)
    assert await engine.generate(ask()) == expected
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.wait_dead(), 0.05)


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_a_command_that_ends_the_thread_fails_at_once_and_ends_the_engine(engine):
    with pytest.raises(EngineError, match="died: SystemExit"):
        await asyncio.wait_for(engine._worker.run(lambda: sys.exit(3)), DEADLINE_S)
    assert "SystemExit(3)" in await asyncio.wait_for(engine.wait_dead(), DEADLINE_S)
    await engine.start()  # also without a stop in between
    assert engine.state == "running"


async def test_an_engine_that_is_stopped_has_not_died(engine):
    watching = asyncio.create_task(engine.wait_dead())
    running = await begin(engine, ask(**LONG))
    await engine.stop()
    with pytest.raises(EngineError, match="the engine was stopped"):
        await running
    await asyncio.sleep(0.05)
    assert not watching.done()
    watching.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
async def test_an_engine_without_memory_is_dead_and_comes_back(base):
    """The keys and values of 512 rows take 300 MB; the process may take 100 MB more."""
    engine = EmbeddedEngine(str(base), threads=1, max_batch=512)
    await engine.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, hard))
    try:
        with pytest.raises(EngineError, match="died: out of memory"):
            request = ask("x" * 480, "tiny", n=512, max_tokens=2)
            await asyncio.wait_for(engine.generate(request), DEADLINE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert "out of memory" in await asyncio.wait_for(engine.wait_dead(), DEADLINE_S)
    await engine.stop()
    await engine.start()
    assert (await engine.generate(ask(model="tiny"))).choices[0].completion_tokens > 0
    await engine.stop()


async def test_a_command_without_memory_is_refused_and_the_engine_goes_on(engine):
    import torch

    with pytest.raises(EngineError, match="memory is too small"):
        await engine._worker.run(lambda: torch.empty(1 << 60, dtype=torch.uint8))
    assert (await engine.generate(ask())).choices[0].completion_tokens > 0


# What can be asked


async def test_a_prompt_is_continued_as_it_is(engine):
    chat = await engine.generate(ask("hi", "tiny", return_token_ids=True))
    as_ids = await engine.generate(
        GenerationRequest(
            "tiny", prompt=chat.prompt_token_ids, max_tokens=12, seed=7, return_token_ids=True
        )
    )
    assert as_ids == chat
    as_text = await engine.generate(
        GenerationRequest(
            "tiny", prompt="<|user|>hi<|end|><|assistant|>", max_tokens=12, seed=7,
            return_token_ids=True,
        )
    )  # fmt: skip
    assert as_text == chat


async def test_a_text_has_what_the_tokenizer_puts_around_plain_texts(base, tmp_path):
    import json
    import shutil

    path = shutil.copytree(base, tmp_path / "with-begin")
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|system|>", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|system|>": {"id": "<|system|>", "ids": [2], "tokens": ["<|system|>"]}
        },
    }  # fmt: skip
    file.write_text(json.dumps(tokenizer))
    engine = EmbeddedEngine(str(path), "b", threads=1)
    await engine.start()
    plain = GenerationRequest("b", prompt="x", max_tokens=1, return_token_ids=True)
    assert (await engine.generate(plain)).prompt_token_ids[0] == 2
    messages = ({"role": "user", "content": "x"},)
    chat = GenerationRequest("b", messages, max_tokens=1, return_token_ids=True)
    assert (await engine.generate(chat)).prompt_token_ids[0] == 3  # the template writes its own
    await engine.stop()


async def test_the_likeliest_tokens_are_those_of_the_model(engine, base):
    import torch
    from transformers import AutoModelForCausalLM

    request = ask(
        "top", "tiny", max_tokens=8, logprobs=True, top_logprobs=20, return_token_ids=True,
        temperature=0.5, repetition_penalty=1.3,
    )  # fmt: skip
    result = await engine.generate(request)
    choice = result.choices[0]
    ids = [*result.prompt_token_ids, *choice.token_ids]
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.inference_mode():
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    tokenizer = engine._worker.loaded.tokenizer
    for position, found in enumerate(choice.top_logprobs):
        best = scores[len(result.prompt_token_ids) - 1 + position].topk(20)
        assert [top.token for top in found] == [tokenizer.decode([i]) for i in best.indices]
        assert [top.logprob for top in found] == pytest.approx(best.values.tolist(), abs=1e-4)
        own = [top.logprob for top in found if top.token == choice.tokens[position]]
        assert not own or choice.logprobs[position] in own
    less = await engine.generate(GenerationRequest(**{**vars(request), "top_logprobs": 2}))
    for two, found in zip(less.choices[0].top_logprobs, choice.top_logprobs, strict=True):
        assert [top.token for top in two] == [top.token for top in found[:2]]
        # Up to rounding: what is kept of the prompt is not computed again.
        expected = [top.logprob for top in found[:2]]
        assert [top.logprob for top in two] == pytest.approx(expected, abs=1e-4)
    assert engine.capabilities.max_top_logprobs == 20


async def test_an_adapter_of_a_higher_rank_than_the_engine_takes_is_refused(base, tmp_path):
    engine = EmbeddedEngine(str(base), threads=1, max_lora_rank=8)
    assert engine.capabilities.max_lora_rank == 8
    await engine.start()
    await engine.load_adapter("eight", make_adapter(base, tmp_path / "8", seed=1, rank=8))
    with pytest.raises(EngineError, match="rank 9, but this engine takes at most 8"):
        await engine.load_adapter("nine", make_adapter(base, tmp_path / "9", seed=1, rank=9))
    await engine.stop()


async def test_an_engine_that_is_stopped_leaves_no_weights_behind(base, adapter):
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    await engine.load_adapter("ft", adapter)
    assert (await engine.prove("ft", adapter)).matches
    await engine.generate(ask("once", "ft"))
    weights = [weakref.ref(p) for p in engine._worker.loaded.model.parameters()]
    await engine.stop()
    # At once, not when somebody happens to look for garbage: a training waits for the card.
    assert not any(weight() is not None for weight in weights)
