"""How the CPU build of vLLM is told to compute on a machine of few processors.

share_processors   what its environment is given for that

As it comes vLLM has one process that schedules and one that computes. The first polls, awake, for
what the second has done, and the second is bound to all processors but one. With two processors a
poller that is put on the same one as the worker waits for the time that it takes from it, and a
worker of two threads that is not bound waits for one of them in every operation.
"""

from collections.abc import Mapping
from pathlib import Path

from nip_base.machine.processors import SMALL_BYTES

FEW_PROCESSORS = 4
"""Up to here. Measured on two; with more, a bound worker leaves room for the process that polls."""
_PROCESSES, _BINDING = "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_OMP_THREADS_BIND"


def share_processors(environment: Mapping[str, str], model: str, processors: int) -> dict[str, str]:
    """Return the variables that let one process of vLLM schedule and compute, and nobody poll.

    None where there are more processors, and none for who has bound vLLM's threads or chosen its
    processes: bound threads need a process of their own. `model` is a directory or a hub's name.
    """
    if processors > FEW_PROCESSORS or {_PROCESSES, _BINDING} & environment.keys():
        return {}
    shared = {_PROCESSES: "0", _BINDING: "nobind"}
    if "OMP_NUM_THREADS" not in environment and _is_small(model):
        shared["OMP_NUM_THREADS"] = "1"
    return shared


def _is_small(model: str) -> bool:
    """Say whether a model is known to be small: one that is not on the disk yet is not."""
    files = list(Path(model).expanduser().glob("*.safetensors"))
    return bool(files) and sum(file.stat().st_size for file in files) < SMALL_BYTES
