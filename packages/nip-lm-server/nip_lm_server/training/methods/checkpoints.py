"""Checkpoints, from which a training goes on as if it had never been interrupted.

CheckpointedTrainer   mixed into a trainer class, before it: saves and loads here, not by pickle
CheckpointCallback    decides when to write one; also after SIGTERM, which then ends the training
find_newest           the newest whole checkpoint

``DIR/checkpoints/step-00000042/`` has ``trained.safetensors`` (the weights that are trained),
``state.safetensors`` and ``state.json`` (optimizer, scheduler, loss scaler, random generators of
every process, trainer figures) and ``trainer_state.json`` (step, log, as transformers writes it).
``manifest.json`` has the SHA-256 of each of them and is written last; once all files are on disk,
one rename gives the directory its name. A directory without a right manifest is not used. The last
two are kept.

Covered: with the same machine, thread count and number of processes, a training continues bitwise.
Nothing is ever unpickled. Not covered: on another device, or with another number of processes, a
continued training is as good, but has other bits.
"""

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from nip_base.disk import find_damage, seal_directory
from nip_lm_server.training.job import Events, TrainingError, TrainingJob

TRAINED, TENSORS, STATE = "trained.safetensors", "state.safetensors", "state.json"
TRAINER_STATE = "trainer_state.json"
KEPT = 2
"""Newest checkpoints that stay; if the newest is damaged, the one before it is used."""
MIN_INTERVAL_S = 30.0
"""Least time between checkpoints if `checkpoint_steps` is not set."""
MIN_INTERVAL_OF_SAVE = 20.0
"""The same in durations of the last save, so that saving takes a twentieth of the time at most."""


def find_newest(job: TrainingJob, events: Events) -> Path | None:
    """Find the newest whole checkpoint. An event names each damaged one and its problem.

    The next write removes the leftovers of a broken one.
    """
    for path in sorted(job.checkpoints_dir.glob("step-*"), reverse=True):
        problem = find_damage(path, {TRAINED, TENSORS, STATE, TRAINER_STATE})
        if problem is None:
            return path
        events.message(
            f"checkpoint {path.name} is damaged ({problem}); using an older one", level="warn"
        )
    return None


class CheckpointCallback(TrainerCallback):  # type: ignore[misc]
    """Asks for a checkpoint when one is due, and for the end of the training after SIGTERM.

    `clock` is monotonic, in seconds. `agree` makes one decision from the wishes of all processes.
    """

    def __init__(
        self,
        checkpoint_steps: int | None,
        clock: Callable[[], float] = time.monotonic,
        agree: Callable[[bool, bool], tuple[bool, bool]] = lambda stop, save: (stop, save),
    ):
        self.stopped_at: int | None = None
        self._steps = checkpoint_steps
        self._clock = clock
        self._agree = agree
        self._saved_s = self._began_s = clock()
        self._interval_s = MIN_INTERVAL_S
        self._asked = False

    def listen(self) -> None:
        """Take SIGTERM from now on. Call it in the main thread."""
        signal.signal(signal.SIGTERM, lambda *_: self.stop())

    def stop(self) -> None:
        """Write a checkpoint after the current step and end there."""
        self._asked = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Decide about a checkpoint and the end. Called after every step, before it is logged."""
        stop, save = self._agree(self._asked, self._due(state.global_step, state.max_steps))
        if stop and state.global_step < state.max_steps:
            self.stopped_at = state.global_step
            control.should_training_stop = True
        control.should_save = save or self.stopped_at is not None
        self._began_s = self._clock()
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the duration of a save. Called after a checkpoint was written."""
        self._saved_s = self._clock()
        took_s = self._saved_s - self._began_s
        self._interval_s = max(MIN_INTERVAL_S, MIN_INTERVAL_OF_SAVE * took_s)

    def _due(self, step: int, total: int) -> bool:
        if step >= total:
            return False  # the result itself is written next
        if self._steps is not None:
            return step % self._steps == 0
        tenth = max(1, -(-total // 10))
        return step % tenth == 0 and self._clock() - self._saved_s >= self._interval_s


class CheckpointedTrainer:
    """Saves and loads for a subclass of transformers' Trainer; put it first among the bases.

    Set `checkpoints_dir` before training. Continue with ``train(resume_from_checkpoint=str(path))``
    where `path` comes from `find_newest`.
    """

    checkpoints_dir: Path

    def _save_checkpoint(self: Any, model: Any, trial: Any) -> None:
        # Every process has its own random generators; one process writes them all.
        generators = _gather(_generators(), self.accelerator)
        self.store_flos()  # all processes together
        if self.args.should_save:
            state = {
                "optimizer": _unwrap(self.optimizer).state_dict(),
                "scheduler": self.lr_scheduler.state_dict(),
                "scaler": self.accelerator.scaler and self.accelerator.scaler.state_dict(),
                "generators": generators,
                "tokens": getattr(self, "_total_train_tokens", 0),
            }
            write_checkpoint(
                self.checkpoints_dir / f"step-{self.state.global_step:08d}",
                {name: p.detach() for name, p in _list_trained(self.model)},
                state,
                self.state,
            )
        self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(self: Any, checkpoint: str, model: Any = None) -> None:
        from safetensors.torch import load_file

        saved = load_file(Path(checkpoint) / TRAINED)
        parameters = dict(_list_trained(model or self.model))
        if saved.keys() != parameters.keys():
            raise TrainingError(
                "checkpoint_differs",
                f"the checkpoint {checkpoint} has other weights than this job trains: remove the "
                "checkpoints to train from the beginning",
            )
        for name, parameter in parameters.items():
            parameter.data.copy_(saved[name])

    def _load_optimizer_and_scheduler(self: Any, checkpoint: str | None) -> None:
        if checkpoint is not None:
            state = read_checkpoint(Path(checkpoint))
            _unwrap(self.optimizer).load_state_dict(state["optimizer"])
            self.lr_scheduler.load_state_dict(state["scheduler"])
            if hasattr(self, "_total_train_tokens"):
                self._total_train_tokens = state["tokens"]

    def _load_scaler(self: Any, checkpoint: str | None) -> None:
        if checkpoint is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(read_checkpoint(Path(checkpoint))["scaler"])

    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        if checkpoint is not None:
            generators = read_checkpoint(Path(checkpoint))["generators"]
            if self.args.process_index < len(generators):
                _set_generators(generators[self.args.process_index])


def write_checkpoint(
    path: Path, weights: dict[str, Any], state: dict[str, Any], trainer_state: Any
) -> None:
    """Write a whole checkpoint to `path`, then remove all but the last KEPT.

    Raises OSError or SafetensorError if the disk refuses; older checkpoints then stay.
    """
    from safetensors.torch import save_file

    with seal_directory(path) as part:
        tensors: dict[str, Any] = {}
        packed = _pack(state, tensors, "")
        save_file({name: t.cpu().contiguous() for name, t in weights.items()}, part / TRAINED)
        save_file(tensors, part / TENSORS)
        (part / STATE).write_text(json.dumps(packed))
        trainer_state.save_to_json(str(part / TRAINER_STATE))
    for old in sorted(path.parent.glob("step-*"), reverse=True)[KEPT:]:
        shutil.rmtree(old)


def read_checkpoint(path: Path) -> Any:
    """Read back the state given to `write_checkpoint`."""
    from safetensors.torch import load_file

    return _unpack(json.loads((path / STATE).read_text()), load_file(path / TENSORS))


def _pack(value: Any, tensors: dict[str, Any], name: str) -> Any:
    """Turn `value` into JSON with its types; its tensors go to `tensors`, and JSON names them."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()  # safetensors wants no sharing
        return {"tensor": name}
    if isinstance(value, dict):
        pairs = [[key, _pack(item, tensors, f"{name}/{key}")] for key, item in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(item, tensors, f"{name}/{i}") for i, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint can't hold {name} of type {type(value).__name__}")


def _unpack(value: Any, tensors: dict[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "dict" in value:
        return {key: _unpack(item, tensors) for key, item in value["dict"]}
    if "list" in value:
        return [_unpack(item, tensors) for item in value["list"]]
    return tuple(_unpack(item, tensors) for item in value["tuple"])


def _generators() -> dict[str, Any]:
    """The random generators of this process, as JSON values."""
    import numpy
    import torch

    numpy_state: Any = numpy.random.get_state()
    name, keys, *rest = numpy_state
    return {
        "python": random.getstate(),
        "numpy": [name, keys.tolist(), *rest],
        "cpu": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state().tolist() if torch.cuda.is_available() else None,
    }


def _set_generators(state: dict[str, Any]) -> None:
    import numpy
    import torch

    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(torch.tensor(state["cpu"], dtype=torch.uint8))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8))


def _gather(value: Any, accelerator: Any) -> list[Any]:
    """Gather the JSON values of all processes, by rank. Call it in all of them."""
    if accelerator.num_processes == 1:
        return [value]
    import torch

    text = torch.tensor(list(json.dumps(value).encode()), device=accelerator.device)
    padded = accelerator.pad_across_processes(text, pad_index=ord(" "))
    rows = accelerator.gather(padded).reshape(accelerator.num_processes, -1)
    return [json.loads(bytes(row.tolist())) for row in rows]


def _list_trained(model: Any) -> list[tuple[str, Any]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def _unwrap(optimizer: Any) -> Any:
    """The optimizer inside accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)
