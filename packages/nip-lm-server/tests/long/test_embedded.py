"""The embedded engine: batching changes nothing, adapters come and go, errors are clear."""

import asyncio
import json
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("peft")

from served_here import KEY, serve
from tiny_model import TEMPLATE, make_adapter, make_model, make_tokenizer, peft_logprobs

from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint
from nip_core.rollouts.client.joined_calls import EngineHangsError
from nip_lm_server.engines.base import EngineError, EngineRequestError, GenerationRequest
from nip_lm_server.engines.embedded.decoding.answers import may_begin
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

MODELS = ("tiny", "ft:tiny:a:1", "ft:tiny:b.x:2", "ft:tiny:c:3")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def adapters(base):
    """Adapters of different rank, modules and scaling, by served name."""
    where = base.parent
    return {
        MODELS[1]: make_adapter(base, where / "a", seed=1),
        MODELS[2]: make_adapter(base, where / "b", seed=2, rank=8, use_rslora=True),
        MODELS[3]: make_adapter(base, where / "c", seed=3, target_modules=["q_proj", "down_proj"]),
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(base, adapters):
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    for name, path in adapters.items():
        await engine.load_adapter(name, path)
    yield engine
    await engine.stop()


pytestmark = pytest.mark.asyncio(loop_scope="module")


def ask(text="hello", model="tiny", **settings):
    messages = ({"role": "user", "content": text},)
    settings = {"max_tokens": 12, "seed": 7, "return_token_ids": True, "logprobs": True, **settings}
    return GenerationRequest(model=model, messages=messages, **settings)


def outcome(result):
    return [(c.text, c.token_ids, c.finish_reason, c.completion_tokens) for c in result.choices]


MIXED = [
    ask("short", MODELS[0]),
    ask("a much longer message " * 6, MODELS[1], temperature=0.0),
    ask("third", MODELS[2], top_p=0.8, temperature=0.7),
    ask("fourth one", MODELS[3], repetition_penalty=1.5, temperature=0.0),
    ask("fifth", MODELS[1], seed=8, n=3),
    ask("sixth " * 20, MODELS[3], seed=9, max_tokens=40),
    ask("seventh", MODELS[0], temperature=0.0, max_tokens=1),
    ask("eighth", MODELS[2], temperature=0.0, max_tokens=30, repetition_penalty=1.1),
]


async def test_a_row_gets_in_a_mixed_batch_what_it_gets_alone(engine):
    alone = [await engine.generate(request) for request in MIXED]
    together = await asyncio.gather(*(engine.generate(request) for request in MIXED))
    assert [outcome(r) for r in together] == [outcome(r) for r in alone]
    for one, other in zip(alone, together, strict=True):
        for left, right in zip(one.choices, other.choices, strict=True):
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)


async def test_requests_that_join_a_running_batch_change_nobody(engine):
    alone = [await engine.generate(request) for request in MIXED]
    running = []
    for request in MIXED:
        running.append(asyncio.create_task(engine.generate(request)))
        await asyncio.sleep(0.006)  # several tokens later
    assert [outcome(await task) for task in running] == [outcome(r) for r in alone]


async def test_log_probabilities_are_those_of_peft_with_the_same_adapter(engine, base, adapters):
    for name in MODELS:
        result = await engine.generate(ask("compare", name, max_tokens=10, temperature=0.9))
        choice = result.choices[0]
        ids = [*result.prompt_token_ids, *choice.token_ids]
        expected = peft_logprobs(base, adapters.get(name), ids)[-len(choice.token_ids) :]
        assert choice.logprobs == pytest.approx(expected, abs=1e-4)
        assert len(choice.tokens) == len(choice.token_ids) == choice.completion_tokens


async def test_greedy_takes_the_likeliest_token(engine, base):
    import torch
    from transformers import AutoModelForCausalLM

    result = await engine.generate(ask("greedy", temperature=0.0, max_tokens=15))
    prompt = list(result.prompt_token_ids)
    model = AutoModelForCausalLM.from_pretrained(base)
    expected = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=15, pad_token_id=0
    )[0, len(prompt) :]
    assert list(result.choices[0].token_ids) == expected.tolist()


async def test_the_adapters_answer_differently(engine):
    answers = {
        (await engine.generate(ask("who", m, temperature=0.0))).choices[0].text for m in MODELS
    }
    assert len(answers) == 4


async def test_the_ith_choice_is_what_its_own_seed_gives(engine):
    many = await engine.generate(ask("n", seed=100, n=4))
    single = [(await engine.generate(ask("n", seed=100 + i))).choices[0] for i in range(4)]
    assert [c.token_ids for c in many.choices] == [c.token_ids for c in single]
    assert len({c.token_ids for c in many.choices}) == 4


async def test_equal_seeds_give_equal_answers_and_no_seed_gives_different_ones(engine):
    first, second = [await engine.generate(ask("s", seed=5)) for _ in range(2)]
    assert outcome(first) == outcome(second)
    free = [await engine.generate(ask("s", seed=None)) for _ in range(3)]
    assert len({r.choices[0].token_ids for r in free}) == 3


async def test_a_stop_string_ends_the_answer_and_is_not_in_it(engine):
    whole = (await engine.generate(ask("stop", max_tokens=40, seed=1))).choices[0]
    stop = whole.text[10:12]
    cut = (await engine.generate(ask("stop", max_tokens=40, seed=1, stop=(stop,)))).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.token_ids == whole.token_ids[: cut.completion_tokens]
    assert cut.completion_tokens < whole.completion_tokens


async def test_the_stop_token_ends_the_answer(engine):
    end = engine._worker.loaded.tokenizer.eos_token_id
    for seed in range(300):
        result = await engine.generate(ask("end", seed=seed, max_tokens=50))
        choice = result.choices[0]
        assert (choice.finish_reason == "stop") == (choice.token_ids[-1] == end)
        assert end not in choice.token_ids[:-1]
        if choice.finish_reason == "stop":
            assert "<|end|>" not in choice.text
            return
        assert choice.completion_tokens == 50
    pytest.fail("no answer of 300 ended by itself")


async def test_a_prompt_that_outgrows_the_context_is_refused_with_counts(engine):
    with pytest.raises(EngineRequestError, match=r"512 tokens.*600.*Shorten") as caught:
        await engine.generate(ask("x" * 597, max_tokens=None))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(EngineRequestError, match="503 and 20 for the answer"):
        await engine.generate(ask("x" * 500, max_tokens=20))
    result = await engine.generate(ask("x" * 500, max_tokens=None))
    assert result.prompt_tokens == 503
    assert result.choices[0].completion_tokens <= 9


async def test_an_unknown_model_is_refused(engine):
    with pytest.raises(EngineRequestError, match="known: tiny, ft:tiny:a:1") as caught:
        await engine.generate(ask(model="nobody"))
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_prompts_of_one_body_are_read_in_turn_and_no_further_than_the_first_wrong_one(engine):
    texts = ["one", "two" * 2000, *["three"] * 20]
    prompts = [GenerationRequest("tiny", prompt=text, max_tokens=1) for text in texts]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    with pytest.raises(EngineRequestError, match="context"):
        await engine.read_prompts(prompts)
    assert turns < 10
    read = await engine.read_prompts([prompts[0], *prompts[2:]])
    counting.cancel()
    assert turns > 20
    assert read[0].prompt == tuple(engine._worker.loaded.tokenizer("one")["input_ids"])


async def test_tokenize_gives_the_prompt_that_is_served(engine):
    request = ask("count me")
    ids = await engine.tokenize(request)
    assert ids == (await engine.generate(request)).prompt_token_ids
    assert engine._worker.loaded.tokenizer.decode(ids) == "<|user|>count me<|end|><|assistant|>"


async def test_a_cancelled_request_leaves_the_batch(engine):
    slow = asyncio.create_task(engine.generate(ask("x", max_tokens=480, stop=("never in it",))))
    await asyncio.sleep(0.03)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    await asyncio.wait_for(engine.generate(ask("y", max_tokens=3)), 10)
    assert engine._worker.decoder.rows == 0
    before = engine.status()["generated_tokens"]
    await asyncio.sleep(0.03)
    assert engine.status()["generated_tokens"] == before


async def test_counters_tell_every_token_that_is_computed_when_it_is(engine):
    decoder = engine._worker.decoder
    before, reused = await engine.measure_work(), decoder.prompt_tokens_reused
    slow = asyncio.create_task(engine.generate(ask("z", max_tokens=480, stop=("never in it",))))
    seen = before
    while seen.generated_tokens < before.generated_tokens + 5:
        await asyncio.sleep(0.001)
        seen = await engine.measure_work()
    assert not slow.done()
    result = await slow
    after = await engine.measure_work()
    computed = after.prompt_tokens - before.prompt_tokens
    assert computed == result.prompt_tokens - (decoder.prompt_tokens_reused - reused) > 0
    generated = result.choices[0].completion_tokens
    assert after.generated_tokens - before.generated_tokens == generated


async def test_a_thread_that_hangs_is_told_by_counters_that_stand_still(base, tmp_path):
    hangs, hung = threading.Event(), threading.Event()
    engine = EmbeddedEngine(str(base), "sim", threads=1)

    def hang():
        hung.set()
        hangs.wait(60)

    async with serve(tmp_path, engine) as here:
        hanging = asyncio.create_task(engine._worker.run(hang))
        await asyncio.to_thread(hung.wait, 60)
        at = Endpoint(f"{here.url}/v1", KEY, joins=True)
        body = {
            "model": engine.base_model,
            "messages": [{"role": "user", "content": "x"}],
            "seed": 1,
        }
        async with ChatClient(concurrency=1, timeout_s=0.6, retries=9) as chats:
            with pytest.raises(EngineHangsError, match=r"\(embedded\) hangs"):
                await chats.complete(at, body)
        hangs.set()
        await hanging


async def test_more_requests_than_rows_are_all_answered(base):
    engine = EmbeddedEngine(str(base), threads=1, max_batch=4, cache_bytes=400_000)
    await engine.start()
    requests = [ask("x" * i, seed=i, max_tokens=5 + i % 7) for i in range(40)]
    results = await asyncio.gather(*(engine.generate(request) for request in requests))
    assert [r.prompt_tokens for r in results] == [3 + i for i in range(40)]
    with pytest.raises(EngineRequestError, match="at most 4"):
        await engine.generate(ask(n=5))
    await engine.stop()
    with pytest.raises(EngineError, match="stopped"):
        await engine.generate(ask())


async def test_adapters_are_loaded_and_unloaded_while_others_are_served(engine, base, tmp_path):
    path = make_adapter(base, tmp_path / "d", seed=4)
    busy = [asyncio.create_task(engine.generate(ask("b", m, max_tokens=100))) for m in MODELS]
    before = [await engine.generate(ask("still", m)) for m in MODELS]
    await engine.load_adapter("d", path)
    await engine.load_adapter("d", path)  # the same again is no error
    assert engine.loaded_adapters() == (*MODELS[1:], "d")
    assert (await engine.generate(ask("d", "d"))).model == "d"
    with pytest.raises(EngineError, match="other weights already"):
        await engine.load_adapter("d", make_adapter(base, tmp_path / "e", seed=5))
    last = asyncio.create_task(engine.generate(ask("d", "d", max_tokens=60)))
    await asyncio.sleep(0.01)
    await engine.unload_adapter("d")
    assert (await last).choices[0].completion_tokens > 0
    with pytest.raises(EngineRequestError, match="no model answers to 'd'"):
        await engine.generate(ask("d", "d"))
    await engine.unload_adapter("d")  # it isn't there: no error
    after = [await engine.generate(ask("still", m)) for m in MODELS]
    assert [outcome(r) for r in after] == [outcome(r) for r in before]
    await asyncio.gather(*busy)


async def test_what_is_no_adapter_of_this_base_is_refused(engine, adapters, base, tmp_path):
    good = adapters[MODELS[1]]

    def copy(name, **config):
        path = shutil.copytree(good, tmp_path / name)
        settings = json.loads((path / "adapter_config.json").read_text())
        (path / "adapter_config.json").write_text(json.dumps({**settings, **config}))
        return path

    (copy("pickle") / "adapter_model.safetensors").unlink()
    (tmp_path / "pickle" / "adapter_model.bin").write_bytes(b"\x80\x04.")
    (copy("torn") / "adapter_model.safetensors").write_bytes(b"\x10")
    larger = make_model(tmp_path / "large")
    config = json.loads((larger / "config.json").read_text())
    (larger / "config.json").write_text(json.dumps({**config, "intermediate_size": 256}))
    (larger / "model.safetensors").unlink()
    from transformers import AutoConfig, AutoModelForCausalLM

    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(larger)).save_pretrained(larger)
    cases = [
        (tmp_path / "pickle", "adapter_model.safetensors is missing"),
        (tmp_path / "torn", "can't be read"),
        (copy("dora", use_dora=True), "use_dora=True can't be served"),
        (copy("ia3", peft_type="IA3"), "expected peft_type LORA, got 'IA3'"),
        (make_adapter(larger, tmp_path / "other", seed=1), "belongs to another base"),
    ]
    for path, message in cases:
        with pytest.raises(EngineError, match=message):
            await engine.load_adapter("bad", path)
    assert "bad" not in engine.loaded_adapters()


@pytest.mark.parametrize(
    ("path", "message"),
    [("/no/such/model", "no such directory"), ("./nothing", "no such directory")],
)
async def test_a_model_that_is_not_there_is_refused(path, message):
    engine = EmbeddedEngine(path)
    with pytest.raises(EngineError, match=message):
        await engine.start()
    assert engine.status()["state"] == "failed"


async def test_a_model_without_a_chat_template_is_refused(base, tmp_path):
    path = shutil.copytree(base, tmp_path / "bare")
    (path / "chat_template.jinja").unlink()
    with pytest.raises(EngineError, match="has no chat template"):
        await EmbeddedEngine(str(path)).start()


async def test_a_template_that_refuses_a_system_message_is_reported_and_refuses(base, tmp_path):
    path = shutil.copytree(base, tmp_path / "strict")
    refuses = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    )
    make_tokenizer(refuses + TEMPLATE).save_pretrained(path)
    engine = EmbeddedEngine(str(path), threads=1)
    await engine.start()
    shapes = engine.status()["chat_template"]
    assert (shapes["user"], shapes["system_user"]) == (True, False)
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"})
    with pytest.raises(EngineRequestError, match=r"refuses .*\[system, user\]: no system"):
        await engine.generate(GenerationRequest(model=engine.base_model, messages=messages))
    await engine.stop()


async def test_each_start_is_a_new_epoch(base):
    engine = EmbeddedEngine(str(base), "mine", threads=1)
    engine.epoch = 4
    assert (engine.base_model, engine.epoch) == ("mine", 4)
    for expected in (5, 6):
        await engine.start()
        assert engine.epoch == expected
        assert engine.max_model_len == 512
        await engine.stop()
    json.dumps(engine.status())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wide_engine(base, adapters):
    engine = EmbeddedEngine(str(base), threads=1, dtype="float64")
    await engine.start()
    for name, path in adapters.items():
        await engine.load_adapter(name, path)
    yield engine
    await engine.stop()


async def test_in_float64_company_and_what_is_kept_change_no_bit(wide_engine):
    requests = [replace(request, top_logprobs=3) for request in MIXED]
    alone = [(await wide_engine.generate(request)).choices for request in requests]
    again = [(await wide_engine.generate(request)).choices for request in requests]
    together = await asyncio.gather(*(wide_engine.generate(request) for request in requests))
    assert again == alone == [result.choices for result in together]
    assert wide_engine.status()["prompt_tokens_reused"] > 0


async def test_alternatives_are_the_same_where_a_chosen_word_may_begin_and_else_there_are_none(
    wide_engine,
):
    request = ask("compare", max_tokens=60, top_logprobs=3)
    [every] = (await wide_engine.generate(request)).choices
    [some] = (await wide_engine.generate(replace(request, top_at=("t", "a")))).choices
    assert (some.tokens, some.logprobs) == (every.tokens, every.logprobs)
    begins = [may_begin(token, ("t", "a")) for token in every.tokens]
    assert [bool(top) for top in some.top_logprobs] == begins and True in begins
    assert all(a == b for a, b in zip(some.top_logprobs, every.top_logprobs, strict=True) if a)
    # Where these alone are listed, the tokens between are one, of no log-probability.
    [alone] = (await wide_engine.generate(replace(request, listed_at=("t", "a")))).choices
    listed = list(zip(alone.tokens, alone.logprobs, alone.top_logprobs, strict=True))
    assert (alone.text, "".join(alone.tokens)) == (every.text, "".join(every.tokens))
    wanted = zip(every.tokens, every.logprobs, every.top_logprobs, begins, strict=True)
    assert [entry for entry in listed if entry[2]] == [(*e,) for *e, begin in wanted if begin]
    assert all(logprob == 0.0 for _, logprob, top in listed if not top)
    assert len(listed) <= 2 * sum(begins) + 1


async def test_in_float64_log_probabilities_are_numbers_of_float32_near_those_of_peft(
    wide_engine, base, adapters
):
    for name in MODELS:
        result = await wide_engine.generate(ask("compare", name, max_tokens=10))
        choice = result.choices[0]
        assert [float(np.float32(value)) for value in choice.logprobs] == list(choice.logprobs)
        ids = [*result.prompt_token_ids, *choice.token_ids]
        expected = peft_logprobs(base, adapters.get(name), ids)[-len(choice.token_ids) :]
        assert choice.logprobs == pytest.approx(expected, abs=1e-4)
        assert (await wide_engine.prove(name, adapters.get(name, base))).matches


async def test_a_precision_that_is_none_is_refused_by_name(base):
    with pytest.raises(ValueError, match="dtype is 'float63', expected one of auto, float32"):
        EmbeddedEngine(str(base), dtype="float63")


async def test_float64_is_refused_for_a_model_that_its_library_computes(base, tmp_path):
    other = shutil.copytree(base, tmp_path / "gelu")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    with pytest.raises(EngineError, match="a forward pass of ours, and this LlamaForCausalLM"):
        await EmbeddedEngine(str(other), threads=1, dtype="float64").start()
