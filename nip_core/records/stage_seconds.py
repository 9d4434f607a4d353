"""The seconds that the stages of an iteration have taken so far, as they are on record.

seconds_so_far  by stage, of an iteration that is not over
times_path      where they stand
"""

from pydantic import ConfigDict, RootModel

from nip_core.errors import CorruptionError
from nip_core.run_store.run import RunStore, read_document


class StageSeconds(RootModel[dict[str, float]]):
    """``times.json`` and ``times-so-far.json``: by stage of an iteration, seconds."""

    model_config = ConfigDict(frozen=True)


def seconds_so_far(run: RunStore, iteration: int) -> dict[str, float]:
    """Read by stage the seconds on record; {} where nothing, or damage, is."""
    try:
        times = read_document(run, times_path(run, iteration), StageSeconds)
        return {} if times is None else dict(times.root)
    except CorruptionError:  # which `nip verify` tells; nothing but estimates goes by them
        return {}


def times_path(run: RunStore, iteration: int) -> str:
    """Name the file in which they stand until the iteration is over."""
    return f"{run.iteration(iteration)}/times-so-far.json"
