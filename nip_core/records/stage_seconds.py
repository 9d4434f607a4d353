"""The seconds that the stages of an iteration have taken so far, as they are on record.

seconds_so_far  by stage, of an iteration that is not over
times_path      where they stand
"""

from nip_core.errors import CorruptionError
from nip_core.run_store.run import RunStore


def seconds_so_far(run: RunStore, iteration: int) -> dict[str, float]:
    """By stage that has been begun, the seconds on record; {} where nothing, or damage, is."""
    try:
        return dict(run.read_json_or_none(times_path(run, iteration)) or {})
    except CorruptionError:  # which `nip verify` tells; nothing but estimates goes by them
        return {}


def times_path(run: RunStore, iteration: int) -> str:
    return f"{run.iteration(iteration)}/times-so-far.json"
