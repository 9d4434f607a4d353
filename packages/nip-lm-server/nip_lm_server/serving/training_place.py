"""The place where the jobs of a base model are trained, and the interface of trainers.

Trainer         runs a `job.TrainingJob`: in a process of its own, or without a model
TrainingPlace   the device and the trainer of a base model's jobs

Both stand below the pool, which has the places, and below the jobs, which train in them.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from nip_base.spec import Capabilities
from nip_lm_server.training.job import Report, TrainingJob, TrainingResult


class Trainer(Protocol):
    """Runs trainings, each until it is done, stopped, cancelled or failed."""

    async def train(
        self,
        job: TrainingJob,
        report: Report,
        started: Callable[[int, str], None],
        stop: asyncio.Event,
    ) -> TrainingResult:
        """Train, from the task's last checkpoint if it has one, and leave the weights in
        `job.output_dir`. It is emptied first.

        `report` gets events: {"type": "progress", "step", "total_steps", "loss", ...} and
        {"type": "message", "level", "message"}. It need not get the progress of every step where
        METRICS_FILE, with lines of the same fields, is left in `job.job_dir`. `started` gets pid
        and identity of every child process, before anything is awaited.

        There are two ways to end it early, and after both nothing that it started is alive:

        - `stop` is set (a pause, the server's end): it finishes its optimizer step, writes a
          checkpoint and raises TrainingStopped, within seconds to minutes. If it is done or
          fails before it notices, it returns or raises as if `stop` had not been set. Where it
          has no checkpoint it begins again next time.
        - The await is cancelled (the job was cancelled, or there is no more time to stop): it
          ends at once, without a checkpoint; CancelledError goes on up.

        Raises TrainingError if the training can't be done: the job has failed for good.
        """


@dataclass(frozen=True)
class TrainingPlace:
    """The place where the jobs of one base model are trained, and the limits of its engine."""

    base_model: str
    base_model_path: str  # a directory, or a name on the model hub
    device: str  # jobs with the same device are trained one after the other
    trainer: Trainer
    capabilities: Capabilities  # of the engine
    max_model_len: int
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
