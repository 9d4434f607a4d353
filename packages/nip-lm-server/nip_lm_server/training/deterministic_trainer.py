"""Training without a model: `DeterministicTrainer` for the deterministic engine.

It reads and checks the dataset for real and writes a digest of its examples in place of a model. It
sleeps through its steps (`training.seconds` of the replies file) and does nothing else in them; a
continued training does not sleep through the steps of its checkpoint again.
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

from nip_base import formats
from nip_base.disk import find_damage, seal_directory
from nip_lm_server.engines.scripted.deterministic_engine import (
    ADAPTER_FILE,
    BASE_FILE,
    hash_fraction,
)
from nip_lm_server.engines.scripted.pseudo_tokens import count_pseudo_tokens
from nip_lm_server.engines.scripted.reply_rules import ReplyFile
from nip_lm_server.training.job import (
    Report,
    TrainingError,
    TrainingJob,
    TrainingResult,
    TrainingStopped,
)

TRAINING_RESULT = "training_result.json"
_REPORTS = 10  # progress reports of a training


@dataclass(frozen=True)
class _Inputs:
    """The data of a job. `learned_tokens` counts one epoch's pseudo tokens to learn."""

    examples: tuple[Any, ...]
    content_digest: str
    learned_tokens: int
    parent_digest: str | None
    generation: int  # the generation of the model that the training starts from


class DeterministicTrainer:
    """Trains nothing and says so: the model is a digest of its training examples."""

    def __init__(self, replies: ReplyFile):
        self.follow(replies)

    def follow(self, replies: ReplyFile) -> None:
        """Train by these rules from here on."""
        self._rules = replies.training

    async def train(
        self,
        job: TrainingJob,
        report: Report,
        started: Callable[[int, str], None],
        stop: asyncio.Event,
    ) -> TrainingResult:
        """See `Trainer.train`. There is no child process, so `started` is not called."""
        del started
        begin = time.monotonic()
        inputs = await asyncio.to_thread(_read_inputs, job)
        settings = job.settings
        total = settings.n_epochs * math.ceil(len(inputs.examples) / settings.batch_size)
        last_step = _find_newest_checkpoint(job, total)
        if last_step:
            report([_message(f"Continuing from the checkpoint of step {last_step}")])
        elif self._rules.seconds:
            report([_message(f"No model: {total} steps are slept through, not computed")])
        # A tenth of the steps at a time: sleep, write a checkpoint, report.
        for step in sorted({math.ceil(total * part / _REPORTS) for part in range(1, _REPORTS + 1)}):
            if step <= last_step:
                continue
            last_step = await self._sleep_through(job, last_step, step, total, stop)
            report([_progress(job, step, total, inputs.learned_tokens)])
        if hash_fraction(f"fail {job.key}") < self._rules.fail_rate:
            raise TrainingError("injected_failure", "The replies file asked for a failure here")
        result = TrainingResult(
            steps=total,
            tokens=inputs.learned_tokens * settings.n_epochs,
            wall_s=time.monotonic() - begin,
            unchanged=settings.learning_rate == 0 or _has_no_signal(job, inputs.examples),
            final_loss=None,
            examples=len(inputs.examples),
        )
        await asyncio.to_thread(_write_model, job, inputs, result)
        return result

    async def _sleep_through(
        self, job: TrainingJob, first_step: int, step: int, total: int, stop: asyncio.Event
    ) -> int:
        """Sleep from step `first_step` to `step`; returns `step`. Raises TrainingStopped."""
        step_s = self._rules.seconds / total
        begin = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), step_s * (step - first_step))
        if stop.is_set():
            reached = first_step + math.floor((time.monotonic() - begin) / step_s if step_s else 0)
            if reached < step:
                _write_checkpoint(job, reached, total)
                raise TrainingStopped
        if step_s:  # a training that takes no time needs none
            _write_checkpoint(job, step, total)
        return step


def _read_inputs(job: TrainingJob) -> _Inputs:
    try:
        examples = _read(job.method, job.training_file)
        if job.validation_file is not None:
            _read(job.method, job.validation_file)
    except (formats.FormatError, formats.JsonlError) as error:
        raise TrainingError("invalid_file", str(error), "training_file") from error
    parent = None
    if job.parent_adapter_path is not None:
        parent = (job.parent_adapter_path / ADAPTER_FILE).read_bytes()
    elif (base := Path(job.base_model_path) / BASE_FILE).is_file():
        parent = base.read_bytes()
    return _Inputs(
        examples=examples,
        content_digest=hashlib.sha256(formats.to_jsonl(examples)).hexdigest(),
        learned_tokens=sum(map(_count_learned, examples)),
        parent_digest=hashlib.sha256(parent).hexdigest() if parent else None,
        generation=int(json.loads(parent)["generation"]) if parent else 0,
    )


def _read(method: str, path: Path) -> tuple[Any, ...]:
    return tuple(example for _, example in formats.read_examples(method, path))


def _count_learned(example: Any) -> int:
    """Count the pseudo tokens of an example to learn."""
    messages: Sequence[formats.Message]
    if isinstance(example, formats.PreferenceExample):
        messages = (example.preferred, example.rejected)
    elif isinstance(example, formats.Trajectory) and example.turns:
        return sum(len(turn.completion_token_ids) for turn in example.turns)
    else:
        messages = [m for m in example.messages if m.role == "assistant" and m.weight]
    texts = [text for m in messages for text in (m.reasoning_content, m.content) if text]
    return sum(map(count_pseudo_tokens, texts))


def _has_no_signal(job: TrainingJob, examples: Sequence[Any]) -> bool:
    """Say whether every advantage is zero; a policy gradient is then zero too."""
    if job.method != "trajectories":
        return False
    mode = job.settings.advantage
    if mode == "given" or (mode is None and examples[0].advantage is not None):
        return all(example.advantage == 0 for example in examples)
    rewards: dict[str, set[float]] = {}
    for example in examples:
        rewards.setdefault(example.group_id, set()).add(example.reward)
    return all(len(group_rewards) == 1 for group_rewards in rewards.values())


def _write_model(job: TrainingJob, inputs: _Inputs, result: TrainingResult) -> None:
    """Write an adapter or a base. A model that has learned nothing keeps its generation."""
    model = {
        "generation": inputs.generation + (0 if result.unchanged else 1),
        "unchanged": result.unchanged,
        "job_key": job.key,
        "parent_digest": inputs.parent_digest,
        "method": job.method,
        "examples": len(inputs.examples),
        "examples_digest": inputs.content_digest,
        "settings": job.settings.model_dump(),
        "seed": job.seed,
    }
    shutil.rmtree(job.output_dir, ignore_errors=True)
    job.output_dir.mkdir(parents=True)
    name = BASE_FILE if job.settings.result == "base" else ADAPTER_FILE
    (job.output_dir / name).write_text(json.dumps(model, sort_keys=True, indent=1))
    (job.output_dir / TRAINING_RESULT).write_text(
        result.model_dump_json(indent=1, exclude={"examples"})
    )


def _write_checkpoint(job: TrainingJob, step: int, total: int) -> None:
    """Write a checkpoint, and remove the one before it."""
    path = job.checkpoints_dir / f"step-{step:08}"
    with seal_directory(path) as part:
        (part / "state.json").write_text(json.dumps({"step": step, "total_steps": total}))
    for old in path.parent.glob("step-*"):
        if old != path:
            shutil.rmtree(old, ignore_errors=True)


def _find_newest_checkpoint(job: TrainingJob, total: int) -> int:
    """Return the step of the newest whole checkpoint; 0 if there is none."""
    for path in sorted(job.checkpoints_dir.glob("step-*"), reverse=True):
        if find_damage(path, {"state.json"}) is None:
            state = json.loads((path / "state.json").read_text())
            if state["total_steps"] == total:
                return int(state["step"])
    return 0


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "level": "info", "message": text}


def _progress(job: TrainingJob, step: int, total: int, learned_tokens: int) -> dict[str, Any]:
    epochs = job.settings.n_epochs
    return {
        "type": "progress",
        "step": step,
        "total_steps": total,
        "loss": None,
        "learning_rate": job.settings.learning_rate,
        "epoch": round(epochs * step / total, 3),
        "tokens": learned_tokens * epochs * step // total,
    }
