"""The device of a training, and the processes on it.

take                   check the job's device and take this rank's, before anything else
choose_device          cuda or cpu
choose_precision       the precision in which the model computes
require_bitsandbytes   refuse a setting that needs that package or CUDA, where it is missing
process_count          the number of processes that should train together
processes_of_this_run  the number of processes that do

A job has the kind of its device (`TrainingJob.device`). If that can't be used, the job ends: a
model that was meant for a GPU is never trained on the processors instead. A job without a device,
such as one that is written by hand, takes CUDA where there is some.
"""

import importlib.util
import os

from nip_base.machine.devices import driver_version
from nip_base.wire import EffectiveSettings
from nip_lm_server.training.job import TrainingError, TrainingJob


def take(job: TrainingJob) -> None:
    """Make the device of this rank the current one, before any data is put on a device.

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
    """Choose ``cuda`` if a device is usable and the job's device isn't cpu, else ``cpu``."""
    import torch

    return "cuda" if job.device != "cpu" and torch.cuda.is_available() else "cpu"


def choose_precision(settings: EffectiveSettings, device: str) -> str:
    """Choose float32, bfloat16 or float16. Raises TrainingError if `device` can't compute in it."""
    import torch

    precision = settings.precision
    if precision == "auto":
        bfloat16 = device == "cuda" and torch.cuda.is_bf16_supported()
        return "bfloat16" if bfloat16 else "float32"
    if precision == "float16" and device != "cuda":
        raise TrainingError(
            "precision_unsupported",
            "float16 training needs a CUDA device (its loss scaling), and there is none: take "
            '"float32" or "bfloat16"',
            "precision",
        )
    if precision == "bfloat16" and device == "cuda" and not torch.cuda.is_bf16_supported():
        raise TrainingError(
            "precision_unsupported",
            f"{torch.cuda.get_device_name()} can't compute in bfloat16: take float16 or float32",
            "precision",
        )
    return precision


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
    """Return the largest number of `devices` that shares the batch evenly, at least 1."""
    return max(
        (n for n in range(1, devices + 1) if settings.batch_size % n == 0),
        default=1,
    )


def processes_of_this_run(job: TrainingJob) -> int:
    """Return the number of processes in this training, with this one."""
    from accelerate import PartialState

    return int(PartialState(cpu=choose_device(job) == "cpu").num_processes)
