"""The seconds that the stages of an iteration have taken so far, as they are on record."""

from pydantic import ConfigDict, RootModel

from nip_core.errors import CorruptionError
from nip_core.run_store.run import RunStore, read_document


class StageSeconds(RootModel[dict[str, float]]):
    """``times.json`` and ``times-so-far.json``: by stage of an iteration, seconds."""

    model_config = ConfigDict(frozen=True)


def read_seconds_so_far(run: RunStore, iteration: int) -> dict[str, float]:
    """Read by stage the seconds on record; {} where nothing, or damage, is."""
    try:
        times = read_document(run, name_times_file(run, iteration), StageSeconds)
        return {} if times is None else dict(times.root)
    except CorruptionError:  # which `nip verify` tells; nothing but estimates goes by them
        return {}


def name_times_file(run: RunStore, iteration: int) -> str:
    """Name the file of the seconds of an iteration in progress."""
    return f"{run.iteration(iteration)}/times-so-far.json"
