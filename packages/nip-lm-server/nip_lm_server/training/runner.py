"""The steps around the trainer of any method: continue, train, stop, evaluate, write.

run                 all steps
ProgressCallback    reports the progress, and ends the training at a broken loss

A method's module (`sft`, `dpo`, `rl`) has ``prepare(job, text, events)``, which

1. reads its data with `encoding`,
2. loads the model with `loading.load_start`,
3. builds its trainer, a class with `checkpoints.CheckpointedTrainer` first among its bases, from
   `arguments.common_arguments`,
4. returns `loading.Prepared` for `run`.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from nip_base.machine.processors import Threads, count_processors, usual_threads
from nip_lm_server.training.job import Events, TrainingError, TrainingJob, TrainingStopped
from nip_lm_server.training.methods import checkpoints
from nip_lm_server.training.methods.arguments import effective_arguments
from nip_lm_server.training.model import loading, output
from nip_lm_server.training.model.device import choose_device

_PASSED_ON = ("rewards/", "logps/", "policy/", "kl", "mean_token_accuracy", "entropy")
"""Progress events have a method's own figures whose names begin with these."""


def run(
    prepared: loading.Prepared,
    job: TrainingJob,
    text: loading.Text,
    events: Events,
    started_s: float,
) -> None:
    """Train from the newest checkpoint on, and write all results of the job.

    `started_s` is `time.monotonic()` at the job's beginning. Raises TrainingError, or
    `TrainingStopped` after SIGTERM. The trainer can't be used afterwards.
    """
    settings, trainer = job.settings, prepared.trainer
    if trainer is None:
        _write_unchanged(prepared.unchanged, job, text, started_s)
        return
    # 1. Turn adapters to float32: TRL takes bfloat16 over a quantized base, and small updates would
    #    vanish in it.
    trained_parameters = [p for p in trainer.model.parameters() if p.requires_grad]
    for parameter in trained_parameters:
        parameter.data = parameter.data.float()
    if trainer.args.device.type == "cpu":
        fixed = usual_threads(os.environ)
        trainer.threads = Threads(count_processors(), torch.set_num_threads, fixed=fixed)
    # 2. Add the callbacks: one for checkpoints and SIGTERM, one for progress.
    stopper = _listen(trainer, job, events)
    events.message(
        "effective arguments " + json.dumps(effective_arguments(trainer), sort_keys=True)
    )
    # 3. Train, from the newest checkpoint on.
    checkpoint = checkpoints.find_newest(job, events)
    begin = None if checkpoint is None else int(checkpoint.name.removeprefix("step-"))
    if checkpoint is not None:
        events.message(f"continues from step {begin}")
    ready_s = time.monotonic()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    train_s = time.monotonic() - ready_s
    if stopper.stopped_at is not None:
        raise TrainingStopped(stopper.stopped_at)
    # 4. Collect the figures.
    figures = {
        **_losses(trainer),
        **_validation(trainer, events),
        "steps": trainer.state.global_step,
        "tokens": settings.n_epochs * prepared.tokens_per_epoch,
        "startup_s": round(ready_s - started_s, 3),
        "train_s": round(train_s, 3),
        "trainable_parameters": sum(p.numel() for p in trained_parameters),
        "continued_from_step": begin,
    }
    if not all(math.isfinite(float(p.detach().sum())) for p in trained_parameters):
        raise TrainingError(
            "loss_not_finite", "the trained weights are not finite", "learning_rate"
        )
    del trained_parameters, parameter  # or the device's memory is held by them
    # 5. Write, in one process. The trainer's memory is freed first, because writing loads a model.
    if trainer.args.should_save:
        _write_metrics(trainer, job)
        weights = output.save_trained(job, trainer.model)
        base = output.base_in_memory(job, trainer.model)
        _free(trainer)
        if settings.result == "base":
            events.message("everything is merged; a whole model is written")
        figures["wall_s"] = round(time.monotonic() - started_s, 3)
        output.write_output(job, text, weights, figures, base)
    else:
        _free(trainer)


def _listen(trainer: Any, job: TrainingJob, events: Events) -> checkpoints.CheckpointCallback:
    trainer.checkpoints_dir = job.checkpoints_dir
    steps = job.settings.checkpoint_steps
    stopper = checkpoints.CheckpointCallback(steps, agree=_agree(trainer))
    stopper.listen()
    trainer.add_callback(stopper)
    trainer.add_callback(ProgressCallback(events))
    trainer.remove_callback(PrinterCallback)
    return stopper


def _write_unchanged(model: Any, job: TrainingJob, text: loading.Text, started_s: float) -> None:
    """Write the start model, without training."""
    from accelerate import PartialState

    if not PartialState(cpu=choose_device(job) == "cpu").is_main_process:
        return
    figures: dict[str, Any] = {
        "final_loss": None,
        "mean_loss": None,
        "validation_loss": None,
        "steps": 0,
        "tokens": 0,
    }
    weights = output.save_trained(job, model)
    figures["wall_s"] = round(time.monotonic() - started_s, 3)
    output.write_output(job, text, weights, figures)


def _write_metrics(trainer: Any, job: TrainingJob) -> None:
    """Write every step's figures. Checkpoints have the log, so it has the steps of all attempts."""
    lines = [
        json.dumps({"step": entry["step"], **step_figures(entry)})
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    part = job.metrics_path.with_suffix(".part")
    part.write_text("".join(line + "\n" for line in lines))
    os.replace(part, job.metrics_path)


def _losses(trainer: Any) -> dict[str, float | None]:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "final_loss": losses[-1] if losses else None,
        "mean_loss": sum(losses) / len(losses) if losses else None,
    }


def _validation(trainer: Any, events: Events) -> dict[str, float | None]:
    """Loss and the method's own figures on the validation file, named ``validation_...``."""
    if trainer.eval_dataset is None:
        return {"validation_loss": None}
    left_out = ("runtime", "samples_per_second", "steps_per_second", "num_tokens", "epoch")
    figures = {name.removeprefix("eval_"): value for name, value in trainer.evaluate().items()}
    events.message(f"validation loss {figures['loss']:.4f}")
    return {
        f"validation_{name}": float(value)
        for name, value in figures.items()
        if name not in left_out
    }


def _agree(trainer: Any) -> Any:
    """Return a function by which processes stop and save at the same step.

    Without it they would wait for each other for ever.
    """
    if trainer.args.world_size == 1:
        return lambda stop, save: (stop, save)

    def agree(stop: bool, save: bool) -> tuple[bool, bool]:
        flags = torch.tensor([int(stop), int(save)], device=trainer.args.device)
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        return bool(flags[0]), bool(flags[1])

    return agree


def _free(trainer: Any) -> None:
    """Free the device's memory, although callers still hold the trainer."""
    trainer.model = trainer.model_wrapped = trainer.optimizer = trainer.lr_scheduler = None
    trainer.ref_model = None
    trainer.callback_handler.model = trainer.callback_handler.optimizer = None
    trainer.callback_handler.lr_scheduler = None
    trainer.accelerator.free_memory()  # drops its references, then collects garbage


class ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Writes `events`, and raises TrainingError if the loss or the gradient's norm isn't finite."""

    def __init__(self, events: Events, clock: Callable[[], float] = time.monotonic):
        self._events, self._clock = events, clock
        self._first: tuple[int, float] = (0, clock())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the step that training begins with; a continued one begins with the checkpoint's."""
        self._first = (state.global_step, self._clock())

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Check and report a step. transformers calls this after every step, with its loss."""
        if not logs or "loss" not in logs:
            return
        for name in ("loss", "grad_norm"):
            value = float(logs.get(name, 0.0))
            if not math.isfinite(value):
                raise TrainingError(
                    "loss_not_finite",
                    f"the {name} became {value} at step {state.global_step} of {state.max_steps}: "
                    "lower the learning rate, or look for broken examples",
                    "learning_rate",
                )
        step, since_s = self._first
        per_step_s = (self._clock() - since_s) / max(1, state.global_step - step)
        self._events.progress(
            state.global_step,
            state.max_steps,
            {
                **step_figures(logs),
                "remaining_s": round(per_step_s * (state.max_steps - state.global_step), 1),
            },
        )


def step_figures(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one step, from the trainer's log."""
    return {
        "loss": float(logs["loss"]),
        "learning_rate": float(logs.get("learning_rate", 0.0)),
        "epoch": logs.get("epoch"),
        "tokens": int(logs.get("num_tokens", 0)),
        **{k: float(v) for k, v in logs.items() if k.startswith(_PASSED_ON)},
    }
