"""Streams of the embedded engine: the same answer in pieces, in the same batch, free to leave."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("peft")

from tiny_model import make_adapter, make_model

from nip_lm_server.engines.base import Delta, EngineRequestError, GenerationRequest
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

MODELS = ("tiny", "a")
DEADLINE_S = 20.0

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory):
    base = make_model(tmp_path_factory.mktemp("models") / "tiny")
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    await engine.load_adapter("a", make_adapter(base, base.parent / "a", seed=1))
    yield engine
    await engine.stop()


def ask(text: str = "hello", model: str = "tiny", **more: Any) -> GenerationRequest:
    messages = ({"role": "user", "content": text},)
    return GenerationRequest(
        model=model, messages=messages, **{"max_tokens": 12, "seed": 7, **more}
    )


def join(deltas: list[Any], request: GenerationRequest) -> tuple[Delta, ...]:
    """The choices that a stream told."""
    choices = []
    for index in range(request.n):
        own = [delta for delta in deltas if delta.index == index]
        assert [delta.finish_reason is not None for delta in own] == [False] * (len(own) - 1) + [
            True
        ]

        def joined(name: str, asked: Any, own: list[Any] = own) -> Any:
            return tuple(v for d in own for v in getattr(d, name)) if asked else ()

        choices.append(
            Delta(
                index,
                text="".join(delta.text for delta in own),
                finish_reason=own[-1].finish_reason,
                completion_tokens=sum(delta.completion_tokens for delta in own),
                tokens=joined("tokens", request.logprobs),
                token_ids=joined("token_ids", request.return_token_ids),
                logprobs=joined("logprobs", request.logprobs),
                top_logprobs=joined("top_logprobs", request.top_logprobs),
            )
        )
    return tuple(choices)


def choices_of(result: Any) -> tuple[Delta, ...]:
    """The choices, without what is said of the prompt."""
    return tuple(replace(c, prompt_tokens=None, prompt_token_ids=None) for c in result.choices)


def assert_alike(told: tuple[Delta, ...], whole: tuple[Delta, ...]) -> None:
    """Compare answers: figures up to rounding, as what is kept of a prompt is not read again."""
    figures = {"logprobs": (), "top_logprobs": ()}
    assert [replace(one, **figures) for one in told] == [replace(one, **figures) for one in whole]
    for left, right in zip(told, whole, strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)
        for ours, theirs in zip(left.top_logprobs, right.top_logprobs, strict=True):
            values = ([top.logprob for top in side] for side in (ours, theirs))
            assert next(values) == pytest.approx(next(values), abs=1e-4)


async def read(engine: EmbeddedEngine, request: GenerationRequest) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        return [delta async for delta in engine.stream(request)]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_the_pieces_joined_are_the_answer(engine, data):
    request = ask(
        data.draw(st.text(max_size=8)),
        data.draw(st.sampled_from(MODELS)),
        seed=data.draw(st.integers(0, 2**40)),
        n=data.draw(st.integers(1, 3)),
        max_tokens=data.draw(st.integers(1, 40)),
        temperature=data.draw(st.sampled_from([0.0, 0.7, 1.0])),
        logprobs=data.draw(st.booleans()),
        top_logprobs=data.draw(st.sampled_from([0, 3])),
        return_token_ids=data.draw(st.booleans()),
    )
    if data.draw(st.booleans()):
        # Stop strings that occur, and some that only begin.
        text = (await engine.generate(request)).choices[0].text
        start = data.draw(st.integers(0, max(0, len(text) - 1)))
        found = text[start : start + data.draw(st.integers(1, 4))]
        stops = tuple(filter(None, [found + data.draw(st.sampled_from(["", "\0"])), "e", "\x07"]))
        stops = stops[: data.draw(st.integers(1, 3))]
        request = GenerationRequest(**{**vars(request), "stop": stops})
    whole = await engine.generate(request)
    deltas = await read(engine, request)
    assert_alike(join(deltas, request), choices_of(whole))
    assert [delta.prompt_tokens for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    assert deltas[0].prompt_tokens == whole.prompt_tokens
    assert deltas[0].prompt_token_ids == whole.prompt_token_ids
    for choice in whole.choices:
        assert all(stop not in choice.text for stop in request.stop)


async def test_an_answer_comes_while_it_is_being_generated(engine):
    request = ask(max_tokens=400, stop=("\0never",))
    stream = engine.stream(request)
    first = await anext(stream)
    assert engine._worker.decoder.rows == 1
    rest = [delta async for delta in stream]
    assert len(rest) > 20
    assert join([first, *rest], request) == choices_of(await engine.generate(request))


async def test_streams_run_in_the_batch_of_the_others(engine):
    requests = [ask(str(i), MODELS[i % 2], seed=i, max_tokens=60, stop=("\0",)) for i in range(8)]
    alone = [(await engine.generate(request)).choices[0].text for request in requests]
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, engine._worker.decoder.rows)
            await asyncio.sleep(0.001)  # without a pause it would keep the engine's thread waiting

    watching = asyncio.create_task(watch())
    told = await asyncio.gather(
        *(read(engine, request) for request in requests[:4]),
        *(engine.generate(request) for request in requests[4:]),
    )
    watching.cancel()
    assert most == 8
    texts = ["".join(d.text for d in deltas) for deltas in told[:4]]
    assert [*texts, *(result.choices[0].text for result in told[4:])] == alone


async def test_a_stream_that_is_closed_leaves_the_batch(engine):
    stream = engine.stream(ask(max_tokens=480, stop=("\0never",)))
    await anext(stream)
    await stream.aclose()
    result = await asyncio.wait_for(engine.generate(ask("y", max_tokens=3)), DEADLINE_S)
    assert result.choices[0].completion_tokens <= 3
    assert engine._worker.decoder.rows == 0


async def test_a_cancelled_reader_leaves_the_batch(engine):
    reading = asyncio.create_task(read(engine, ask(max_tokens=480, stop=("\0never",))))
    while engine._worker.decoder.rows == 0:
        await asyncio.sleep(0.001)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.wait_for(engine.generate(ask("y", max_tokens=3)), DEADLINE_S)
    assert engine._worker.decoder.rows == 0


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (ask(model="nobody"), "model_not_found", "model"),
        (ask("x" * 600), "context_length_exceeded", "messages"),
        (ask(n=65), "invalid_value", "n"),
        (ask(logprobs=True, top_logprobs=21), "invalid_value", "top_logprobs"),
        (GenerationRequest("tiny", prompt=""), "invalid_value", "prompt"),
        (GenerationRequest("tiny", prompt=(1, 261)), "invalid_value", "prompt"),
        (GenerationRequest("tiny", prompt=(-1,)), "invalid_value", "prompt"),
        (GenerationRequest("tiny", prompt="x" * 513), "context_length_exceeded", "prompt"),
    ],
)
async def test_what_is_wrong_with_a_request_is_raised_before_the_first_piece(
    engine, request_, code, param
):
    for answer in (engine.generate(request_), anext(engine.stream(request_))):
        with pytest.raises(EngineRequestError) as caught:
            await answer
        assert (caught.value.code, caught.value.param) == (code, param)
