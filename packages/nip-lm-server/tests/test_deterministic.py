"""The engine without a model: stable, driven by rules, refusing what it does not have."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_lm_server.engines.base import (
    Delta,
    EngineError,
    EngineRequestError,
    GenerationRequest,
)
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine, InjectedFault
from nip_lm_server.engines.scripted.reply_rules import (
    DEFAULT_FILE,
    ReplyFile,
    Template,
    Weight,
    load_replies,
)


def ask(engine: DeterministicEngine, *contents: str, system: str = "", **arguments: Any) -> Any:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": content} for content in contents]
    return run(engine, GenerationRequest("sim", tuple(messages), **arguments))


def run(engine: DeterministicEngine, request: GenerationRequest) -> Any:
    async def answer() -> Any:
        await engine.start()
        return await engine.generate(request)

    return asyncio.run(answer())


def engine_of(**replies: Any) -> DeterministicEngine:
    return DeterministicEngine("sim", ReplyFile.model_validate(replies))


def test_the_same_request_gets_the_same_answer_in_another_process() -> None:
    program = (
        "import asyncio;from nip_lm_server.engines.base import GenerationRequest;"
        "from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine as E;"
        "from nip_lm_server.engines.scripted.reply_rules import load_replies;"
        "m=({'role':'user','content':'hello ä'},);"
        "e=E('sim',load_replies(None));asyncio.run(e.start());"
        "r=asyncio.run(e.generate(GenerationRequest('sim',m,n=3,seed=5)));"
        "print([c.text for c in r.choices])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        for seed in ("0", "17")
    }
    here = ask(DeterministicEngine("sim", load_replies(None)), "hello ä", n=3, seed=5)
    assert outputs == {f"{[choice.text for choice in here.choices]}\n"}


def test_an_answer_never_changes_between_versions() -> None:
    result = ask(engine_of(default=[{"text": "{letters:8} {digits:3}"}]), "hello", seed=1)
    assert result.choices[0].text == GOLDEN


GOLDEN = "yjqjeych 085"


def test_model_messages_seed_and_index_each_change_the_answer() -> None:
    engine = engine_of(default=[{"text": "{letters:12}"}])
    texts = [c.text for c in ask(engine, "a", seed=1, n=3).choices]
    texts += [ask(engine, "a", seed=2).choices[0].text, ask(engine, "b", seed=1).choices[0].text]
    texts += [ask(engine, "a", "", seed=1).choices[0].text]
    texts += [
        ask(engine_of(seed=1, default=[{"text": "{letters:12}"}]), "a", seed=1).choices[0].text
    ]
    assert len(set(texts)) == 7
    assert ask(engine, "a", seed=1).choices[0].text == texts[0]


def test_the_first_rule_that_holds_is_used() -> None:
    engine = engine_of(
        rules=[
            {"when": {"system_contains": "Decide now"}, "replies": [{"text": "decide"}]},
            {"when": {"last_contains": ["x", "y"]}, "replies": [{"text": "last"}]},
            {"when": {"any_contains": "z", "min_messages": 2}, "replies": [{"text": "any"}]},
            {"when": {"last_role": "system"}, "replies": [{"text": "role"}]},
            {"when": {"min_generation": 1}, "replies": [{"text": "trained"}]},
            {"when": {"model_matches": "^other"}, "replies": [{"text": "model"}]},
        ],
        default=[{"text": "default"}],
    )
    told = [
        ask(engine, "x", system="Decide now.").choices[0].text,
        ask(engine, "an y").choices[0].text,
        ask(engine, "z", "w").choices[0].text,
        ask(engine, "z").choices[0].text,
        ask(engine, system="hello").choices[0].text,
    ]
    assert told == ["decide", "last", "any", "default", "role"]


def test_replies_are_drawn_by_weight() -> None:
    engine = engine_of(
        default=[{"text": "a", "weight": 3}, {"text": "b"}, {"text": "c", "weight": 0}]
    )
    counts = Counter(ask(engine, "q", seed=seed).choices[0].text for seed in range(2000))
    assert counts["c"] == 0
    assert 1400 < counts["a"] < 1600


def test_a_weight_can_grow_with_training() -> None:
    weight = Weight(base=1, per_generation=2, max=4)
    assert [weight.at(generation) for generation in range(4)] == [1, 3, 4, 4]
    assert Weight(base=1, per_generation=-2).at(3) == 0


@pytest.mark.parametrize(
    ("system", "starts"),
    [
        ("You are the verifier. Decide now.", {"Decision:"}),
        ("You are the verifier. Decide at once.", {"Decision:"}),
        ("You are the verifier.", {"Question:", "Decision:"}),
        ("You are the prover.", {"Answer:"}),
    ],
)
def test_the_packaged_replies_know_the_roles(system: str, starts: set[str]) -> None:
    engine = DeterministicEngine("sim", load_replies(None))
    texts = [ask(engine, "go", system=system, seed=seed).choices[0].text for seed in range(300)]
    assert {text.split()[0] for text in texts} == starts
    if starts == {"Decision:"}:
        assert set(texts) == {"Decision: accept", "Decision: reject"}


def test_generators_give_the_size_that_was_asked_for() -> None:
    random = Random(0)
    assert len(Template("{words:8}").render(random, 0).split()) == 8
    assert {len(Template("{words:2-4}").render(random, 0).split()) for _ in range(100)} == {2, 3, 4}
    assert len(Template("{filler:4001}").render(random, 0)) == 4001
    assert Template("{digits:2}").render(random, 0).isdigit()
    assert Template("{choice:a b|c}").render(random, 0) in ("a b", "c")
    assert Template("{{x}} {generation}").render(random, 3) == "{x} 3"


@pytest.mark.parametrize(
    "text", ["{word", "}", "{nothing}", "{words}", "{words:5-2}", "{choice:}", "\ud800"]
)
def test_a_template_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"generator|single|half a surrogate"):
        Template(text)


def test_an_unknown_key_in_a_replies_file_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "replies.yaml"
    path.write_text("rules:\n- when: {last_rol: user}\n  replies: [{text: a}]\n")
    with pytest.raises(ValueError, match=r"replies\.yaml: rules\.0\.when\.last_rol: Extra [^\n]*$"):
        load_replies(path)
    path.write_text("default: [{text: '{nothing}'}]")
    with pytest.raises(ValueError, match="unknown generator"):
        load_replies(path)
    assert load_replies(DEFAULT_FILE) == load_replies(None)


def test_an_answer_is_cut_at_a_stop_text_and_at_the_limit() -> None:
    engine = engine_of(default=[{"text": "one two; three; four"}])
    choice = ask(engine, "q", stop=("; f", ";")).choices[0]
    assert (choice.text, choice.finish_reason) == ("one two", "stop")
    choice = ask(engine, "q", max_tokens=2, return_token_ids=True).choices[0]
    assert (choice.text, choice.finish_reason, choice.completion_tokens) == ("one tw", "length", 2)
    assert len(choice.token_ids) == 2


def test_token_ids_agree_with_usage_and_fit_in_32_bits() -> None:
    engine = engine_of(default=[{"text": "größer als 🙂 null"}])
    result = ask(engine, "wie groß?", system="System ä", return_token_ids=True)
    assert len(result.prompt_token_ids) == result.prompt_tokens
    choice = result.choices[0]
    assert len(choice.token_ids) == choice.completion_tokens
    assert max(choice.token_ids) < 2**31
    raw = b"".join((i & 0xFFFFFF).to_bytes(i >> 24, "big") for i in choice.token_ids)
    assert raw.decode() == choice.text


def test_what_the_engine_does_not_have_is_refused() -> None:
    engine = engine_of(max_model_len=20)
    with pytest.raises(EngineRequestError) as caught:
        ask(engine, "q", logprobs=True)
    assert caught.value.param == "logprobs"
    with pytest.raises(EngineRequestError) as caught:
        ask(engine, "q" * 100)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(EngineRequestError) as caught:
        ask(engine, "q", max_tokens=30)
    assert caught.value.code == "context_length_exceeded"


def test_faults_come_at_their_rates_and_another_try_helps() -> None:
    engine = engine_of(
        faults={"server_error": 0.2, "rate_limited": 0.2, "dropped": 0.1, "retry_after_s": 0.5},
        default=[{"text": "ok"}],
    )
    kinds: Counter[str] = Counter()
    for seed in range(400):
        for _ in range(50):
            try:
                text = ask(engine, "q", seed=seed).choices[0].text
            except InjectedFault as fault:
                kinds[fault.kind] += 1
            else:
                kinds[text] += 1
                break
    assert kinds["ok"] == 400
    total = sum(kinds.values())
    assert 0.15 < kinds["server_error"] / total < 0.25
    assert 0.15 < kinds["rate_limited"] / total < 0.25
    assert 0.06 < kinds["dropped"] / total < 0.14


def test_faults_of_the_answer_stay_the_same_for_the_same_request() -> None:
    engine = engine_of(
        faults={
            "empty": 0.2, "malformed": 0.2, "malformed_text": "???", "wrong_finish_reason": 0.2
        },
        default=[{"text": "ok"}],
    )  # fmt: skip
    first = [ask(engine, "q", seed=seed).choices[0] for seed in range(300)]
    again = [ask(engine, "q", seed=seed).choices[0] for seed in range(300)]
    assert first == again
    counts = Counter((choice.text, choice.finish_reason) for choice in first)
    assert set(counts) == {("", "stop"), ("???", "stop"), ("ok", "length"), ("ok", "stop")}
    assert min(counts.values()) > 30


def test_latency_is_waited_for() -> None:
    engine = engine_of(latency_s={"min": 0.05, "mean": 0.05})

    async def timed() -> float:
        await engine.start()
        loop = asyncio.get_running_loop()
        begin = loop.time()
        messages = ({"role": "user", "content": "q"},)
        await asyncio.gather(
            *[engine.generate(GenerationRequest("sim", messages, seed=i)) for i in range(20)]
        )
        return loop.time() - begin

    assert 0.05 <= asyncio.run(timed()) < 0.5


# Streams, prompts, sleep

REPLIES = {"default": [{"text": "größe {words:0-6} 🙂{letters:3}"}, {"text": ""}]}


def collect(engine: DeterministicEngine, request: GenerationRequest) -> list[Delta]:
    async def read() -> list[Delta]:
        await engine.start()
        return [delta async for delta in engine.stream(request)]

    return asyncio.run(read())


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    n=st.integers(1, 3),
    max_tokens=st.integers(1, 12),
    stop=st.sampled_from([(), ("🙂",), ("e", "l"), ("größe ",)]),
    ids=st.booleans(),
    prompt=st.sampled_from([None, "größe", (0x03617A65, 2)]),
)
def test_the_pieces_of_a_stream_joined_are_the_answer(seed, n, max_tokens, stop, ids, prompt):
    engine = engine_of(**REPLIES)
    request = GenerationRequest(
        "sim", ({"role": "user", "content": "q"},), prompt,
        seed=seed, n=n, max_tokens=max_tokens, stop=stop, return_token_ids=ids,
    )  # fmt: skip
    result, deltas = run(engine, request), collect(engine, request)
    assert deltas[0].prompt_tokens == result.prompt_tokens
    assert deltas[0].prompt_token_ids == result.prompt_token_ids
    assert all(delta.prompt_tokens is None for delta in deltas[1:])
    for index, choice in enumerate(result.choices):
        own = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason
        assert all(delta.finish_reason is None for delta in own[:-1])
        assert sum(delta.completion_tokens for delta in own) == choice.completion_tokens
        assert choice.completion_tokens <= max_tokens
        if ids:
            assert sum((delta.token_ids for delta in own), ()) == choice.token_ids


def test_a_prompt_is_for_the_rules_a_message_of_a_user_and_another_draw() -> None:
    engine = engine_of(
        rules=[
            {
                "when": {"last_role": "user", "last_contains": "x"},
                "replies": [{"text": "{letters:9}"}],
            }
        ]
    )
    chat = ask(engine, "axe", seed=1)
    by_text = run(engine, GenerationRequest("sim", prompt="axe", seed=1, return_token_ids=True))
    by_ids = run(
        engine,
        GenerationRequest("sim", prompt=by_text.prompt_token_ids, seed=1, return_token_ids=True),
    )
    assert by_text == by_ids
    assert by_text.prompt_tokens == 1 < chat.prompt_tokens
    assert len(by_text.choices[0].text) == len(chat.choices[0].text) == 9
    assert by_text.choices[0].text != chat.choices[0].text
    # The tokens of a conversation are in the vocabulary too.
    ids = asyncio.run(
        engine.tokenize(GenerationRequest("sim", ({"role": "user", "content": "axe"},)))
    )
    again = run(engine, GenerationRequest("sim", prompt=ids, seed=1))
    assert (again.prompt_tokens, again.choices[0].text) == (len(ids), by_text.choices[0].text)


@pytest.mark.parametrize("prompt", ["", (), (77,), (-1,), (4 << 24,), (0x01000100,)])
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    with pytest.raises(EngineRequestError) as caught:
        run(engine_of(), GenerationRequest("sim", prompt=prompt))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "prompt")


def test_it_answers_while_it_runs_and_not_else(tmp_path: Path) -> None:
    (tmp_path / "adapter.json").write_text('{"generation": 3}')

    async def live() -> None:
        engine = engine_of(default=[{"text": "{generation}"}], max_lora_rank=24)
        request = GenerationRequest("a", ({"role": "user", "content": "q"},))
        assert engine.state == "stopped"
        with pytest.raises(EngineError, match="stopped"):
            await engine.generate(request)
        await engine.start()
        await engine.load_adapter("a", tmp_path)
        assert (await engine.generate(request)).choices[0].text == "3"
        assert engine.capabilities.sleep and engine.capabilities.max_lora_rank == 24
        await engine.sleep()
        assert engine.state == engine.status()["state"] == "sleeping"
        with pytest.raises(EngineError, match="sleeping"):
            await engine.generate(request)
        with pytest.raises(EngineError, match="sleeping"):
            await anext(engine.stream(request))
        await engine.wake()
        assert (await engine.generate(request)).choices[0].text == "3"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.wait_dead(), 0.01)
        await engine.unload_adapter("a")
        await engine.unload_adapter("a")
        await engine.stop()
        with pytest.raises(EngineError, match="stopped"):
            await engine.sleep()
        assert engine.epoch == 1

    asyncio.run(live())


def test_a_base_model_that_is_none_is_refused(tmp_path: Path) -> None:
    engine = DeterministicEngine("sim", ReplyFile(), path=tmp_path)
    with pytest.raises(EngineError, match=r"base\.json"):
        asyncio.run(engine.start())
    assert engine.state == "failed"
