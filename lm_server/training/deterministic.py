"""Training without a model: `DeterministicTrainer` for the deterministic engine.

It reads and checks the dataset for real and writes a digest of what would have been trained on.
Its steps are slept through (`training.seconds` of the replies file), and nothing else happens in
them; a step that a checkpoint has is not slept through again.
"""

import asyncio
import contextlib
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_lm_server import formats
from nip_lm_server.engines.pseudo_tokens import token_count
from nip_lm_server.engines.reply_rules import ReplyFile
from nip_lm_server.training.trainers import (
    CHECKPOINTS,
    Report,
    TrainingFailed,
    TrainingResult,
    TrainingStopped,
    TrainingTask,
)

ADAPTER_FILE = "adapter.json"
BASE_FILE = "base.json"
TRAINING_RESULT = "training_result.json"
_REPORTS = 10  # progress reports of a training


@dataclass(frozen=True)
class _Inputs:
    """What a task is about. `learned` counts the pseudo tokens that one epoch would learn."""

    examples: tuple[Any, ...]
    content_digest: str
    learned: int
    parent_digest: str | None
    generation: int  # of what the training starts from


class DeterministicTrainer:
    """Trains nothing and says so: the model is a digest of what it would be trained on."""

    def __init__(self, replies: ReplyFile):
        self._rules = replies.training

    async def train(
        self,
        task: TrainingTask,
        report: Report,
        started: Callable[[int, str], None],
        stop: asyncio.Event,
    ) -> TrainingResult:
        """See `Trainer.train`. There is no child process, so `started` is not called."""
        del started
        begin = time.monotonic()
        inputs = await asyncio.to_thread(_read_inputs, task)
        epochs, batch = int(task.settings["n_epochs"]), int(task.settings["batch_size"])
        total = epochs * math.ceil(len(inputs.examples) / batch)
        done = _newest_checkpoint(task, total)
        if done:
            report([_message(f"Continuing from the checkpoint of step {done}")])
        elif self._rules.seconds:
            report([_message(f"No model: {total} steps are slept through, not computed")])
        for step in sorted({math.ceil(total * part / _REPORTS) for part in range(1, _REPORTS + 1)}):
            if step <= done:
                continue
            done = await self._sleep_through(task, done, step, total, stop)
            report([_progress(task, step, total, inputs.learned)])
        if fraction(f"fail {task.job_key}") < self._rules.fail_rate:
            raise TrainingFailed("injected_failure", "The replies file asked for a failure here")
        result = TrainingResult(
            steps=total,
            tokens=inputs.learned * epochs,
            wall_s=time.monotonic() - begin,
            unchanged=task.settings["learning_rate"] == 0 or _has_no_signal(task, inputs.examples),
            detail={"examples": len(inputs.examples)},
        )
        await asyncio.to_thread(_write_model, task, inputs, result)
        return result

    async def _sleep_through(
        self, task: TrainingTask, done: int, step: int, total: int, stop: asyncio.Event
    ) -> int:
        """Sleep from step `done` to `step`; returns `step`. Raises TrainingStopped."""
        step_s = self._rules.seconds / total
        begin = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), step_s * (step - done))
        if stop.is_set():
            reached = done + math.floor((time.monotonic() - begin) / step_s if step_s else 0)
            if reached < step:
                _write_checkpoint(task, reached, total)
                raise TrainingStopped
        if step_s:  # a training that takes no time needs none
            _write_checkpoint(task, step, total)
        return step


def fraction(text: str) -> float:
    """A number in [0, 1) by a stable hash of `text`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _read_inputs(task: TrainingTask) -> _Inputs:
    try:
        examples = _read(task.method, task.training_file)
        if task.validation_file is not None:
            _read(task.method, task.validation_file)
    except (formats.FormatError, formats.JsonlError) as error:
        raise TrainingFailed("invalid_file", str(error), "training_file") from error
    parent = None
    if task.parent_path is not None:
        parent = (task.parent_path / ADAPTER_FILE).read_bytes()
    elif (base := Path(task.base_model_path) / BASE_FILE).is_file():
        parent = base.read_bytes()
    return _Inputs(
        examples=examples,
        content_digest=hashlib.sha256(formats.to_jsonl(examples)).hexdigest(),
        learned=sum(map(_learned, examples)),
        parent_digest=hashlib.sha256(parent).hexdigest() if parent else None,
        generation=int(json.loads(parent)["generation"]) if parent else 0,
    )


def _read(method: str, path: Path) -> tuple[Any, ...]:
    readers: dict[str, Callable[[Path], tuple[Any, ...]]] = {
        "supervised": formats.read_supervised,
        "dpo": formats.read_preferences,
        "trajectories": formats.read_trajectories,
    }
    return readers[method](path)


def _learned(example: Any) -> int:
    """Pseudo tokens that an example would teach."""
    messages: Sequence[formats.Message]
    if isinstance(example, formats.PreferenceExample):
        messages = (example.preferred, example.rejected)
    elif isinstance(example, formats.Trajectory) and example.turns:
        return sum(len(turn.completion_token_ids) for turn in example.turns)
    else:
        messages = [m for m in example.messages if m.role == "assistant" and m.weight]
    return sum(token_count(message.content) for message in messages)


def _has_no_signal(task: TrainingTask, examples: Sequence[Any]) -> bool:
    """Whether every advantage is zero, so that a policy gradient would be too."""
    if task.method != "trajectories":
        return False
    mode = task.settings.get("advantage")
    if mode == "given" or (mode is None and examples[0].advantage is not None):
        return all(example.advantage == 0 for example in examples)
    rewards: dict[str, set[float]] = {}
    for example in examples:
        rewards.setdefault(example.group_id, set()).add(example.reward)
    return all(len(found) == 1 for found in rewards.values())


def _write_model(task: TrainingTask, inputs: _Inputs, result: TrainingResult) -> None:
    """Write an adapter or a base; one that learned nothing is of the same generation."""
    model = {
        "generation": inputs.generation + (0 if result.unchanged else 1),
        "unchanged": result.unchanged,
        "job_key": task.job_key,
        "parent_digest": inputs.parent_digest,
        "method": task.method,
        "examples": len(inputs.examples),
        "examples_digest": inputs.content_digest,
        "settings": dict(task.settings),
        "seed": task.seed,
    }
    figures = {
        "steps": result.steps,
        "tokens": result.tokens,
        "wall_s": result.wall_s,
        "final_loss": None,
        "unchanged": result.unchanged,
    }
    shutil.rmtree(task.output_dir, ignore_errors=True)
    task.output_dir.mkdir(parents=True)
    name = BASE_FILE if task.settings.get("result") == "base" else ADAPTER_FILE
    (task.output_dir / name).write_text(json.dumps(model, sort_keys=True, indent=1))
    (task.output_dir / TRAINING_RESULT).write_text(json.dumps(figures, indent=1))


# Checkpoints: a directory for each, whose manifest has the digest of its one file.


def _write_checkpoint(task: TrainingTask, step: int, total: int) -> None:
    """Publish a checkpoint by one rename, and remove the one before it."""
    directory = task.job_dir / CHECKPOINTS
    path, part = directory / f"step-{step:08}", directory / ".part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    state = json.dumps({"step": step, "total_steps": total}).encode()
    manifest = {"files": {"state.json": hashlib.sha256(state).hexdigest()}}
    (part / "state.json").write_bytes(state)
    (part / "manifest.json").write_text(json.dumps(manifest))
    before = [old for old in directory.glob("step-*") if old != path]
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)
    for old in before:
        shutil.rmtree(old, ignore_errors=True)


def _newest_checkpoint(task: TrainingTask, total: int) -> int:
    """The step of the newest checkpoint that is whole; 0 if there is none."""
    for path in sorted((task.job_dir / CHECKPOINTS).glob("step-*"), reverse=True):
        try:
            listed = json.loads((path / "manifest.json").read_text())["files"]["state.json"]
            state = (path / "state.json").read_bytes()
            found = json.loads(state)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if hashlib.sha256(state).hexdigest() == listed and found["total_steps"] == total:
            return int(found["step"])
    return 0


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "level": "info", "message": text}


def _progress(task: TrainingTask, step: int, total: int, learned: int) -> dict[str, Any]:
    epochs = int(task.settings["n_epochs"])
    return {
        "type": "progress",
        "step": step,
        "total_steps": total,
        "loss": None,
        "learning_rate": task.settings["learning_rate"],
        "epoch": round(epochs * step / total, 3),
        "tokens": learned * epochs * step // total,
    }
