"""The training process of one job: the command line, the method, several GPUs, the exit status.

``python -m nip_lm_server.training.main --job-dir DIR`` reads ``DIR/job.json``, appends to
``DIR/events.jsonl``, keeps checkpoints in ``DIR/checkpoints`` and fills the job's output directory.

job           job.json and events.jsonl
sft, dpo, rl  one method each: ``prepare(job, text, events)``
policy_gradient, policy_trainer   the loss of trajectories, and its loop
loading       tokenizer, base model, parent adapter      encoding      conversations -> token ids
device        the job's device, and the processes that share it
arguments     settings and device -> trainer arguments
memory        the tokens that go through the model at a time micro_batches    steps in passes
head          log-probabilities without the logits of all tokens
runner        the steps around any method's trainer      checkpoints   saved, found, loaded
output        adapter or base, probe, figures
resident      not for jobs: models that are trained step by step, by calls

Methods know these parts; the parts know no method.

Exit status: 0 when everything is written, 143 after SIGTERM (a checkpoint was written and the
same command continues from it), 1 after an ``error`` event. With more than one GPU the process
starts itself again and waits: under ``accelerate launch``, where only the first process writes, or,
where no number of GPUs divides the batch, with the first GPU alone.
"""

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from nip_base.machine.devices import has_cuda
from nip_base.machine.processes import die_with_parent_process
from nip_lm_server.terminal import say
from nip_lm_server.training.job import (
    Events,
    TrainingError,
    TrainingJob,
    TrainingStopped,
    read_job,
)
from nip_lm_server.training.model import device, loading

STOPPED = 143
"""Exit status after SIGTERM: 128 and the signal's number, as in shells."""
_METHODS = {
    "supervised": "nip_lm_server.training.methods.sft",
    "dpo": "nip_lm_server.training.methods.dpo",
    "trajectories": "nip_lm_server.training.methods.rl",
}
_NO_SPACE = (27, 28, 122)  # EFBIG, ENOSPC, EDQUOT


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the job of ``--job-dir`` and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--job-dir", type=Path, required=True)
    job_dir: Path = parser.parse_args(arguments).job_dir
    path = job_dir / "events.jsonl"
    events = Events(path if os.environ.get("RANK", "0") == "0" else Path(os.devnull))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        job = read_job(job_dir)
        devices = 0 if _is_launched() or job.device == "cpu" else _cuda_devices()
        command = launch_command(job, devices)
        if command is not None:
            return _launch(command, launch_environment(job, devices, os.environ))
        return _train(job, events)
    except Exception as error:
        if isinstance(error, TrainingError):
            say(error, file=sys.stderr)
        else:
            traceback.print_exc()
        failed = Events(path)  # any process writes it: the first may hang in a wait for this one
        failed.error(explain_error(error))
        failed.close()
        return 1
    finally:
        signal.signal(signal.SIGTERM, handler)
        events.close()


def _train(job: TrainingJob, events: Events) -> int:
    # A SIGTERM before the training begins finds nothing worth a checkpoint.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(STOPPED))
    started_s = time.monotonic()
    if job.settings.packing and job.method != "supervised":
        message = f"{job.method} can't be trained with packing"
        raise TrainingError("packing_unsupported", message, "packing")
    # 1. Read and check: device, tokenizer and data, before anything heavy is imported.
    device.take(job)
    text = loading.load_text(job)
    if not job.settings.use_lora:
        from nip_lm_server.training.model.memory import check_full_training

        check_full_training(job)
    # 2. The method loads the model and builds its trainer.
    prepared = importlib.import_module(_METHODS[job.method]).prepare(job, text, events)
    # 3. Train and write, in the same way for all methods.
    from nip_lm_server.training.runner import run

    try:
        run(prepared, job, text, events, started_s)
    except TrainingStopped as stopped:
        events.message(f"stopped after step {stopped.step}; a checkpoint was written")
        return STOPPED
    return 0


def explain_error(error: Exception) -> TrainingError:
    """The error to report for any exception."""
    if isinstance(error, TrainingError):
        return error
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return TrainingError(
            "out_of_memory",
            f"the training ran out of memory: {error}. Lower tokens_per_pass or max_length, or "
            "turn gradient_checkpointing on",
            "tokens_per_pass",
        )
    # safetensors has its own exception, with the number in its text
    if (isinstance(error, OSError) and error.errno in _NO_SPACE) or any(
        f"(os error {number})" in str(error) for number in _NO_SPACE
    ):
        return TrainingError("disk_full", f"there is no space left to write: {error}")
    return TrainingError("training_failed", f"{type(error).__name__}: {error}")


def launch_command(job: TrainingJob, devices: int) -> list[str] | None:
    """Return the command to train on `devices` GPUs; None: this process can do it.

    A process alone that sees several GPUs would spread every batch over them, which the methods
    can't do. So where it has to train on one, it is started again and sees only one.
    """
    if devices < 2:
        return None
    training = ["-m", "nip_lm_server.training.main", "--job-dir", str(job.job_dir)]
    processes = device.process_count(job.settings, devices)
    if processes < 2:
        return [sys.executable, *training]
    return [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--multi_gpu", "--num_machines", "1", "--num_processes", str(processes)),
        *("--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no"),
        *training,
    ]


def launch_environment(
    job: TrainingJob, devices: int, environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment of `launch_command`; one process sees only the first visible GPU."""
    if device.process_count(job.settings, devices) > 1:
        return dict(environment)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    return {**environment, "CUDA_VISIBLE_DEVICES": visible}


def _launch(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run the launcher in this process group and translate its end into an exit status.

    SIGTERM must go to the whole group. The launcher passes it on to its processes, waits for their
    checkpoint, and must not get it twice. They die with it.
    """
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    status = subprocess.call(command, env=environment)
    if status == 0:
        return 0
    if stopped:
        return STOPPED
    return 128 - status if status < 0 else 1  # a signal's status is the one of shells


def _cuda_devices() -> int:
    """Count the GPUs. Torch is not loaded where there is none."""
    if not has_cuda(os.environ):
        return 0
    import torch

    return int(torch.cuda.device_count())


def _is_launched() -> bool:
    """Return whether a launcher has started this process as one of several."""
    return "RANK" in os.environ


def run_as_child() -> int:
    """Run `main` in a process bound to the life of its parent."""
    # `die_with_parent` has done this already for its own process, but not for the processes of the
    # launcher, which come here directly.
    die_with_parent_process(os.getppid())
    status = main()
    if not _is_launched():
        # All files are on disk, and the server waits: tearing torch down takes half a second.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(run_as_child())
