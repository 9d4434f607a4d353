"""The device of a training, and the processes on it.

take                   what a process does first: the job's device is there, and is this rank's
choose_device          cuda or cpu
choose_precision       the precision in which the model computes
require_bitsandbytes   refuses what only that package can do, without it
process_count          how many processes train together
processes_of_this_run  how many do

A job says where it is to be trained (`TrainingJob.device`). Where that device can't be used the job
ends: a model that was meant for a GPU is never trained on the processors instead. A job that says
nothing, as one that is written by hand, takes CUDA where there is some.
"""

import importlib.util
import os

from nip_base.machine.devices import driver_version
from nip_base.wire import EffectiveSettings
from nip_lm_server.training.job import TrainingError, TrainingJob


def take(job: TrainingJob) -> None:
    """Make the device of this rank the current one, before anything is put on a device.

    Raises TrainingError, code ``gpu_required``, where the job's device can't be used.
    """
    rank = os.environ.get("LOCAL_RANK")
    if job.device == "cpu" or (job.device is None and rank is None):
        return
    import torch

    if torch.cuda.is_available():
        if rank is not None:  # else every process would load its model on the first device
            torch.cuda.set_device(int(rank))
    elif job.device == "cuda":
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        raise TrainingError(
            "gpu_required",
            f"the job is to be trained on CUDA, but torch {torch.__version__} (built {built}) "
            f"finds no device; the driver is {driver_version() or 'not there'}. Install a torch "
            "that is built for CUDA and for this driver, or start the server with "
            "--training-device cpu",
        )


def choose_device(job: TrainingJob) -> str:
    """Choose ``cuda`` if a device is usable and the job doesn't say cpu, else ``cpu``."""
    import torch

    return "cuda" if job.device != "cpu" and torch.cuda.is_available() else "cpu"


def choose_precision(settings: EffectiveSettings, device: str) -> str:
    """float32, bfloat16 or float16. Raises TrainingError where `device` can't compute in it."""
    import torch

    asked = settings.precision
    if asked == "auto":
        bfloat16 = device == "cuda" and torch.cuda.is_bf16_supported()
        return "bfloat16" if bfloat16 else "float32"
    if asked == "float16" and device != "cuda":
        raise TrainingError(
            "precision_unsupported",
            "float16 training needs a CUDA device (its loss scaling), and there is none: take "
            '"float32" or "bfloat16"',
            "precision",
        )
    if asked == "bfloat16" and device == "cuda" and not torch.cuda.is_bf16_supported():
        raise TrainingError(
            "precision_unsupported",
            f"{torch.cuda.get_device_name()} can't compute in bfloat16: take float16 or float32",
            "precision",
        )
    return asked


def require_bitsandbytes(device: str, param: str, value: str) -> None:
    """Raise TrainingError unless there are a CUDA device and bitsandbytes."""
    if device != "cuda":
        raise TrainingError(
            "gpu_required", f"{param} {value!r} needs a CUDA device, and there is none", param
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise TrainingError(
            "bitsandbytes_missing",
            f"{param} {value!r} needs the package bitsandbytes: pip install bitsandbytes",
            param,
        )


def process_count(settings: EffectiveSettings, devices: int) -> int:
    """Count the `devices` to train on together: the most to share the batch evenly, or 1."""
    return max(
        (n for n in range(1, devices + 1) if settings.batch_size % n == 0),
        default=1,
    )


def processes_of_this_run(job: TrainingJob) -> int:
    """Return how many processes this one trains together with, itself included."""
    from accelerate import PartialState

    return int(PartialState(cpu=choose_device(job) == "cpu").num_processes)
