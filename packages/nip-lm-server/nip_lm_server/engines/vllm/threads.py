"""Settings with which the CPU build of vLLM computes on a machine of few processors.

share_processors   the variables of its environment for that

By default vLLM has one process that schedules and one that computes. The first polls, awake, for
the results of the second, and the second is bound to all processors but one. With two processors, a
poller on the worker's processor waits for the time that it takes from the worker. A worker of two
unbound threads waits for one of them in every operation.
"""

from collections.abc import Mapping

from nip_base.machine.processors import SMALL_BYTES, weights_bytes

FEW_PROCESSORS = 4
"""The most for this. Measured on two; with more, a bound worker leaves room for the poller."""
_PROCESSES, _BINDING = "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_OMP_THREADS_BIND"


def share_processors(environment: Mapping[str, str], model: str, processors: int) -> dict[str, str]:
    """The variables to let one process of vLLM schedule and compute, without polling.

    There are none with more processors, and none where the environment binds vLLM's threads or sets
    its processes: bound threads need a process of their own. `model` is a directory or a hub's
    name.
    """
    if processors > FEW_PROCESSORS or {_PROCESSES, _BINDING} & environment.keys():
        return {}
    variables = {_PROCESSES: "0", _BINDING: "nobind"}
    weights = weights_bytes(model)  # without files on disk it is unknown
    if "OMP_NUM_THREADS" not in environment and weights is not None and weights < SMALL_BYTES:
        variables["OMP_NUM_THREADS"] = "1"
    return variables
