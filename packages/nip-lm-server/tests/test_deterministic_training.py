"""Training without a model: real data, real checkpoints, honest about what it changed."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from training_jobs import SETTINGS

from nip_base import formats
from nip_base.wire import EffectiveSettings
from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine
from nip_lm_server.engines.scripted.reply_rules import ReplyFile
from nip_lm_server.training.deterministic_trainer import DeterministicTrainer
from nip_lm_server.training.job import TrainingError, TrainingJob, TrainingStopped

USER = {"role": "user", "content": "q"}


def say(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


ROWS: dict[str, list[dict[str, Any]]] = {
    "supervised": [{"messages": [USER, say("abcdef", weight=i % 2), say("x")]} for i in range(10)],
    "dpo": [
        {
            "input": {"messages": [USER]},
            "preferred_output": [say("good")],
            "non_preferred_output": [say(f"bad {i}")],
        }
        for i in range(10)
    ],
    "trajectories": [
        {"messages": [USER, say("abc")], "group_id": str(i // 2), "reward": i % 2} for i in range(9)
    ]
    + [
        {
            "turns": [{"prompt_token_ids": [1], "completion_token_ids": [5, 6]}],
            "group_id": "4",
            "reward": 0.5,
        }
    ],
}
LEARNED = {"supervised": 5 * 2 + 10, "dpo": 10 * 2 + 10 * 2, "trajectories": 9 + 2}


def make_task(
    directory: Path, method: str = "supervised", rows: Any = None, **more: Any
) -> TrainingJob:
    directory.mkdir(exist_ok=True)
    (directory / "train.jsonl").write_bytes(formats.to_jsonl(rows or ROWS[method]))
    settings = {**SETTINGS, "learning_rate": 0.1, **more.pop("settings", {})}
    return TrainingJob(
        **{
            "key": "k",
            "job_dir": directory,
            "output_dir": directory / "output",
            "method": method,
            "base_model_path": "sim",
            "parent_adapter_path": None,
            "training_file": directory / "train.jsonl",
            "validation_file": None,
            "hyperparameters": EffectiveSettings.model_validate(settings),
            "seed": 5,
            **more,
        }
    )


def train(
    task: TrainingJob, events: Any = None, stop_after_s: float | None = None, **rules: Any
) -> Any:
    async def run() -> Any:
        stop = asyncio.Event()
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, stop.set)
        trainer = DeterministicTrainer(ReplyFile.model_validate({"training": rules}))
        report = (events if events is not None else []).extend
        return await trainer.train(task, report, lambda pid, identity: None, stop)

    return asyncio.run(run())


def written(task: TrainingJob, name: str = "adapter.json") -> dict[str, Any]:
    return json.loads((task.output_dir / name).read_text())


def steps(events: list[dict[str, Any]]) -> list[int]:
    return [event["step"] for event in events if event["type"] == "progress"]


@pytest.mark.parametrize("method", list(ROWS))
def test_every_method_reads_its_own_format(tmp_path: Path, method: str) -> None:
    task = make_task(tmp_path, method)
    events: list[dict[str, Any]] = []
    result = train(task, events)
    assert (result.steps, result.tokens, result.unchanged) == (6, 2 * LEARNED[method], False)
    assert result.model_dump()["examples"] == 10
    assert steps(events) == [1, 2, 3, 4, 5, 6]
    assert written(task)["generation"] == 1
    assert written(task)["method"] == method
    assert written(task, "training_result.json")["unchanged"] is False


@pytest.mark.parametrize("method", list(ROWS))
def test_a_file_of_another_method_is_refused(tmp_path: Path, method: str) -> None:
    other = next(name for name in ROWS if name != method)
    with pytest.raises(TrainingError) as caught:
        train(make_task(tmp_path, method, ROWS[other]))
    assert (caught.value.code, caught.value.param) == ("invalid_file", "training_file")
    assert "line 1" in caught.value.message


def test_what_is_trained_upon_counts(tmp_path: Path) -> None:
    first = make_task(tmp_path / "1")
    train(first)
    second = make_task(tmp_path / "2", parent_adapter_path=first.output_dir)
    train(second)
    assert written(second)["generation"] == 2
    again = make_task(tmp_path / "3", parent_adapter_path=first.output_dir)
    train(again)
    assert written(again) == written(second)
    assert written(again)["parent_digest"] != written(first)["parent_digest"] is None


def test_a_base_is_served_with_its_generation_and_trained_upon(tmp_path: Path) -> None:
    base = make_task(tmp_path / "base", settings={"result": "base"})
    train(base)
    assert not (base.output_dir / "adapter.json").exists()
    adapter = make_task(tmp_path / "adapter", base_model_path=str(base.output_dir))
    train(adapter)

    async def serve() -> list[str]:
        replies = ReplyFile.model_validate({"default": [{"text": "{generation}"}]})
        engine = DeterministicEngine("made", replies, path=base.output_dir)
        await engine.start()
        await engine.load_adapter("a", adapter.output_dir)
        requests = [GenerationRequest(name, (USER,)) for name in ("made", "a")]
        return [(await engine.generate(request)).choices[0].text for request in requests]

    assert asyncio.run(serve()) == ["1", "2"]


def commit(directory: Path) -> Path:
    """The manifest that the server adds."""
    import hashlib

    files = {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in directory.iterdir()
        if path.name != "manifest.json"
    }
    (directory / "manifest.json").write_text(json.dumps({"files": files}))
    return directory


def test_models_of_both_kinds_are_proved_by_their_digest(tmp_path: Path) -> None:
    base = make_task(tmp_path / "base", settings={"result": "base"})
    one = make_task(tmp_path / "1")
    two = make_task(tmp_path / "2", settings={"learning_rate": 0})
    for task in (base, one, two):
        train(task)
        commit(task.output_dir)

    async def prove() -> list[Any]:
        engine = DeterministicEngine("made", ReplyFile(), path=base.output_dir)
        await engine.start()
        await engine.load_adapter("1", one.output_dir)
        await engine.load_adapter("2", two.output_dir)
        pairs = [("made", base), ("1", one), ("2", two), ("1", two)]
        return [await engine.prove(name, task.output_dir) for name, task in pairs]

    proofs = asyncio.run(prove())
    assert [proof.matches for proof in proofs] == [True, True, True, False]
    assert [proof.detail["unchanged"] for proof in proofs] == [False, False, True, False]


@pytest.mark.parametrize(
    ("method", "rows", "settings"),
    [
        ("supervised", None, {"learning_rate": 0}),
        ("trajectories", [{**row, "advantage": 0} for row in ROWS["trajectories"]], {}),
        ("trajectories", [{**row, "reward": 1} for row in ROWS["trajectories"]], {}),
    ],
)
def test_what_changed_nothing_says_so(tmp_path, method, rows, settings) -> None:
    task = make_task(tmp_path, method, rows, settings=settings)
    assert train(task).unchanged
    assert written(task)["generation"] == 0
    assert written(task, "training_result.json")["unchanged"] is True


def test_advantages_that_are_given_are_not_looked_for_in_the_rewards(tmp_path: Path) -> None:
    rows = [{**row, "reward": 1, "advantage": i} for i, row in enumerate(ROWS["trajectories"])]
    assert not train(make_task(tmp_path / "1", "trajectories", rows)).unchanged
    grouped = {"advantage": "group"}
    assert train(make_task(tmp_path / "2", "trajectories", rows, settings=grouped)).unchanged


def test_a_training_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    task = make_task(tmp_path, settings={"n_epochs": 10})  # 30 steps
    straight = make_task(tmp_path / "straight", settings={"n_epochs": 10})
    first: list[dict[str, Any]] = []
    begin = time.monotonic()
    with pytest.raises(TrainingStopped):
        train(task, first, stop_after_s=0.6, seconds=1.0)
    assert 0.6 <= time.monotonic() - begin < 1.0
    assert not (task.output_dir / "adapter.json").exists()
    assert "slept through" in first[0]["message"]
    second: list[dict[str, Any]] = []
    begin = time.monotonic()
    result = train(task, second, seconds=1.0)
    assert time.monotonic() - begin < 1.0
    assert result.steps == 30
    assert "Continuing from the checkpoint of step" in second[0]["message"]
    assert steps(first) + steps(second) == list(range(3, 31, 3))
    train(straight, seconds=0.0)
    assert written(task) == written(straight)


def test_a_checkpoint_that_is_damaged_counts_for_nothing(tmp_path: Path) -> None:
    task = make_task(tmp_path, settings={"n_epochs": 10})
    with pytest.raises(TrainingStopped):
        train(task, stop_after_s=0.2, seconds=0.4)
    (state,) = (task.job_dir / "checkpoints").glob("*/state.json")
    state.write_text(state.read_text() + " ")
    events: list[dict[str, Any]] = []
    train(task, events, seconds=0.01)
    assert steps(events)[0] == 3


def test_a_training_that_is_cancelled_ends_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        trainer = DeterministicTrainer(ReplyFile.model_validate({"training": {"seconds": 60}}))
        task = make_task(tmp_path)
        training = trainer.train(task, lambda events: None, lambda p, i: None, asyncio.Event())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(training, 0.1)

    begin = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - begin < 2
    assert not (tmp_path / "output").exists()


def test_failures_are_injected_by_the_key_of_the_job(tmp_path: Path) -> None:
    outcomes = []
    for number in range(40):
        try:
            train(make_task(tmp_path, key=f"k{number}"), fail_rate=0.5)
        except TrainingError as failure:
            outcomes.append(failure.code)
        else:
            outcomes.append("done")
    assert set(outcomes) == {"injected_failure", "done"}
    assert 10 < outcomes.count("done") < 30
