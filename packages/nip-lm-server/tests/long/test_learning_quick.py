"""Each training method teaches the tiny model: one seed each, smaller and with lower bars.

The whole measurement, through a server and over seeds, is `benchmarks/server_learning.py`, whose
task this uses. Here the engine and the training run in this process, which spares their starts.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from nip_base.formats import to_jsonl
from nip_core.models import resolve_model
from nip_lm_server.chats import chat_template
from nip_lm_server.engines.base import GenerationRequest, GenerationResult
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))
from server_learning import SHAPE, Case, draw_cases, episode_row, pair_row, supervised_row
from training_jobs import make_job, run_here

TINY = resolve_model("tiny")


@pytest.fixture
async def engine():
    started = EmbeddedEngine(TINY, threads=1)
    await started.start()
    yield started
    await started.stop()


async def train(engine: Any, directory: Path, method: str, rows: Any, **settings: Any) -> str:
    """Train in this process and load the adapter; the name under which it answers."""
    directory.mkdir()
    data = directory / "data.jsonl"
    data.write_bytes(to_jsonl(rows))
    job = make_job(
        Path(TINY), directory / "job", data=data, method=method, seed=1, **SHAPE, **settings
    )
    run_here(job)
    await engine.load_adapter(directory.name, job / "out")
    return directory.name


async def ask(engine: Any, model: str, cases: list[Case], **more: Any) -> list[GenerationResult]:
    return await asyncio.gather(
        *(
            engine.generate(
                GenerationRequest(model, case.messages, max_tokens=8, seed=index, **more)
            )
            for index, case in enumerate(cases)
        )
    )


async def right(engine: Any, model: str, cases: list[Case], temperature: float) -> float:
    """The share of cases that the model decides right."""
    answers = await ask(engine, model, cases, temperature=temperature)
    pairs = zip(answers, cases, strict=True)
    return sum(answer.choices[0].text == case.right for answer, case in pairs) / len(cases)


async def preferred(engine: Any, model: str, cases: list[Case]) -> float:
    """The share of cases whose right answer is likelier where it parts from the wrong one."""
    tokenizer = chat_template.load_tokenizer(TINY)
    common = chat_template.encode(tokenizer, "Decision:")
    prompts = [chat_template.encode_prompt(tokenizer, case.messages) + common for case in cases]
    answers = await asyncio.gather(
        *(
            engine.generate(
                GenerationRequest(
                    model, prompt=tuple(prompt), max_tokens=1, logprobs=True, top_logprobs=20
                )
            )
            for prompt in prompts
        )
    )
    count = 0
    for answer, case in zip(answers, cases, strict=True):
        top = {t.token: t.logprob for t in answer.choices[0].top_logprobs[0]}
        good, bad = (text.removeprefix("Decision:") for text in (case.right, case.wrong))
        count += top.get(good, -1e9) > top.get(bad, -1e9)
    return count / len(cases)


async def test_supervised_learns_a_rule_from_200_examples(engine, tmp_path):
    cases = draw_cases(1, 200)
    held_out = draw_cases(10_001, 100, without=cases)
    before = await right(engine, engine.base_model, held_out, 0.0)
    model = await train(
        engine, tmp_path / "supervised", "supervised", map(supervised_row, cases),
        n_epochs=2, batch_size=4, learning_rate=2e-3,
    )  # fmt: skip
    after = await right(engine, model, held_out, 0.0)
    assert before < 0.7, "the task must not be known before"
    assert after > 0.9


@pytest.mark.learning
async def test_dpo_learns_which_of_two_answers_is_preferred(engine, tmp_path):
    cases = draw_cases(1, 200)
    held_out = draw_cases(10_001, 100, without=cases)
    before = await preferred(engine, engine.base_model, held_out)
    model = await train(
        engine, tmp_path / "dpo", "dpo", map(pair_row, cases),
        n_epochs=3, batch_size=8, learning_rate=1e-3, beta=2.0,
    )  # fmt: skip
    after = await preferred(engine, model, held_out)
    assert before < 0.7, "the task must not be known before"
    assert after > 0.9


@pytest.mark.learning
async def test_trajectories_raise_the_reward_over_a_few_jobs(engine, tmp_path):
    held_out = draw_cases(10_001, 100)
    model = engine.base_model
    rewards = [await right(engine, model, held_out, 1.0)]
    start: dict[str, Any] = {}
    for number in range(3):
        cases = draw_cases(100 + number, 48, without=held_out)
        answers = await ask(engine, model, cases, n=8, logprobs=True, return_token_ids=True)
        rows = [
            episode_row(
                case, f"case {index}", choice.text, answer.prompt_token_ids, choice.token_ids,
                choice.logprobs,
            )
            for index, (case, answer) in enumerate(zip(cases, answers, strict=True))
            for choice in answer.choices
        ]  # fmt: skip
        model = await train(
            engine, tmp_path / f"job-{number}", "trajectories", rows,
            n_epochs=2, batch_size=8, learning_rate=1e-3, advantage="group", **start,
        )  # fmt: skip
        start = {
            "parent_adapter_path": tmp_path / model / "job" / "out", "start_from": "continue"
        }  # fmt: skip
        rewards.append(await right(engine, model, held_out, 1.0))
    assert rewards[0] < 0.65, "the task must not be known before"
    assert rewards[-1] > 0.8, json.dumps(rewards)
