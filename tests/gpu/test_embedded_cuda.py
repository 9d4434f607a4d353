"""The engine `embedded` on CUDA: batches, proofs, sleep, and a whole server with jobs on one card.

Needs a CUDA device and no vLLM. Models are made here; nothing skips.
"""

import asyncio
import json

import pytest
import torch
from gpu_server import ANSWERED, Server, chat_while
from tiny_model import make_adapter, make_model, peft_logprobs
from training_jobs import make_job, run_here

from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MODELS = ("base", "ft:1", "ft:2", "ft:3")
SCHEMA = {
    "type": "object",
    "properties": {"right": {"type": "boolean"}},
    "required": ["right"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def adapters(tiny):
    """Adapters of different rank, modules and scaling, by served name."""
    return {
        "ft:1": make_adapter(tiny, tiny.parent / "a", seed=1),
        "ft:2": make_adapter(tiny, tiny.parent / "b", seed=2, rank=8, use_rslora=True),
        "ft:3": make_adapter(tiny, tiny.parent / "c", seed=3, target_modules=["q_proj"]),
    }


def ask(text, model="base", **settings):
    messages = ({"role": "user", "content": text},)
    settings = {"max_tokens": 12, "seed": 7, "return_token_ids": True, "logprobs": True, **settings}
    return GenerationRequest(model=model, messages=messages, **settings)


MIXED = [
    ask("short"),
    ask("a much longer message " * 6, "ft:1", temperature=0.0),
    ask("third", "ft:2", top_p=0.8, temperature=0.7),
    ask("fourth one", "ft:3", repetition_penalty=1.5, temperature=0.0),
    ask("fifth", "ft:1", seed=8, n=3),
    ask("sixth " * 20, "ft:3", seed=9, max_tokens=100),
    ask("eighth", "ft:2", temperature=0.0, max_tokens=30, repetition_penalty=1.1),
]


def on_the_card(base, adapters, work, **options):
    """Run `work(engine)` with an engine that has these adapters; returns what it gives."""

    async def serve():
        engine = EmbeddedEngine(str(base), "base", **options)
        await engine.start()
        try:
            for name, path in adapters.items():
                await engine.load_adapter(name, path)
            return await work(engine)
        finally:
            await engine.stop()

    return asyncio.run(serve())


def outcomes(results):
    return [[(c.text, c.token_ids, c.finish_reason) for c in r.choices] for r in results]


def test_by_itself_it_takes_the_card_in_bfloat16(tiny):
    async def facts(engine):
        return engine.status()

    status = on_the_card(tiny, {}, facts)
    assert status["device"].startswith("cuda") and status["dtype"] == "bfloat16"


def test_a_row_gets_in_a_mixed_batch_what_it_gets_alone(tiny, adapters):
    async def twice(engine):
        alone = [await engine.generate(request) for request in MIXED]
        together = await asyncio.gather(*(engine.generate(request) for request in MIXED))
        return alone, list(together)

    alone, together = on_the_card(tiny, adapters, twice, dtype="float32")
    assert outcomes(together) == outcomes(alone)


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-3), ("bfloat16", 0.5)])
def test_log_probabilities_are_those_of_peft_on_the_processor(tiny, adapters, dtype, near):
    async def compare(engine):
        return [await engine.generate(ask("compare", name, temperature=0.9)) for name in MODELS]

    for result in on_the_card(tiny, adapters, compare, dtype=dtype):
        choice = result.choices[0]
        ids = [*result.prompt_token_ids, *choice.token_ids]
        expected = peft_logprobs(tiny, adapters.get(result.model), ids)[-len(choice.token_ids) :]
        assert choice.logprobs == pytest.approx(expected, abs=near)


def test_an_answer_follows_its_schema(tiny):
    async def guided(engine):
        requests = [
            ask(f"question {i}", seed=i, max_tokens=40, schema=SCHEMA, temperature=1.0)
            for i in range(8)
        ]
        return await asyncio.gather(*map(engine.generate, requests))

    for result in on_the_card(tiny, {}, guided):
        assert isinstance(json.loads(result.choices[0].text)["right"], bool)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_job_on_the_card_trained_is_proved_and_other_weights_are_not(tiny, tmp_path, dtype):
    paths = {}
    for seed in (1, 2):
        job_dir = make_job(tiny, tmp_path / str(seed), seed=seed, precision=dtype)
        run_here(job_dir)
        paths[f"ft:{seed}"] = job_dir / "out"

    async def prove(engine):
        right = [await engine.prove(name, path) for name, path in paths.items()]
        return right, await engine.prove("ft:1", paths["ft:2"])

    right, wrong = on_the_card(tiny, paths, prove, dtype=dtype)
    for proof in right:
        print(proof.detail)
        assert proof.matches and proof.detail["probe_file_matches"], proof.detail
    assert not wrong.matches, wrong.detail


def test_asleep_it_leaves_the_card_and_wakes_with_its_adapters(larger, tmp_path):
    path = make_adapter(larger, tmp_path / "adapter", seed=1)

    async def nap(engine):
        questions = [ask("who", name, temperature=0.0) for name in ("base", "ft:1")]
        before = [await engine.generate(question) for question in questions]
        awake = torch.cuda.memory_allocated()
        await engine.sleep()
        asleep = torch.cuda.memory_allocated()
        await engine.wake()
        proof = await engine.prove("ft:1", path)
        after = [await engine.generate(question) for question in questions]
        return before, after, awake, asleep, proof

    before, after, awake, asleep, proof = on_the_card(larger, {"ft:1": path}, nap)
    assert outcomes(after) == outcomes(before)
    # What stays are workspaces of cuBLAS, 32 MiB for each thread.
    weights = (larger / "model.safetensors").stat().st_size
    assert awake - asleep > 0.95 * weights, (awake, asleep, weights)
    assert proof.matches, proof.detail


@pytest.mark.parametrize("share_device", ["auto", "no"])
def test_a_server_trains_and_answers_on_one_card(base, tmp_path, share_device):
    server = Server("embedded", base, tmp_path / "state", share_device=share_device)

    def train():
        ids = [server.create(answer, seed) for seed, answer in enumerate(("accept", "reject"))]
        models.extend(server.wait(id).fine_tuned_model for id in ids)

    models = []
    try:
        ended = chat_while(server, train)
        allowed = ANSWERED if share_device == "no" else {*ANSWERED, "engine_training"}
        assert ended.keys() <= allowed and ended["length"] + ended["stop"], ended
        engine = server.engine()
        assert (engine["state"], engine["epoch"], engine["restarts"]) == ("running", 1, 0)
        assert engine["status"]["device"].startswith("cuda")
        for name in models:
            assert server.client.models.retrieve(name).nip["proof"]["matches"] is True
            assert server.ask(name, temperature=0) in ANSWERED
    finally:
        server.stop()
