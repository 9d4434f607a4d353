"""The seconds that the phases of an iteration have taken, as they are on record.

StageSeconds    ``times.json`` and ``times-so-far.json``; `nip_core.progress.phases` has the phases
divide_stages   the stages with their parts, by the records of an iteration that is over
read_seconds_so_far, name_times_file   of an iteration that is not
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from nip_core.errors import CorruptionError
from nip_core.jobs.document import read_job
from nip_core.progress.phases import sort_phases, sum_stage
from nip_core.rollouts.plan import TEST, TRAIN
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore, read_document

if TYPE_CHECKING:  # a command that looks at seconds does not wait for it
    import numpy as np

    Moments = np.ndarray[Any, np.dtype[np.float64]]

_SPLIT_PLAYED = {"test": TEST, "play": TRAIN}
_BY_PROGRESS = ("train/queue", "train/save", "train/load", "train")
"""Of jobs that go on at once, the last of these counts."""
_WINDOWS = 20  # of equally many answers, in which their pace is looked at
_SLOW = 0.5  # of the usual pace


class StageSeconds(RootModel[dict[str, float]]):
    """``times.json`` and ``times-so-far.json``: by phase of an iteration, seconds."""

    model_config = ConfigDict(frozen=True)


def divide_stages(
    run: RunStore, iteration: int, seconds: Mapping[str, float], groups: Iterable[str]
) -> dict[str, float]:
    """Divide the stages of a finished iteration by its records.

    The slow part of playing is its end, from when answers came at less than half of their usual
    pace. A training is divided where its server has told the seconds of its job; jobs of several
    `groups` at once count as training where one of them trains.
    """
    parts = dict(seconds)
    for stage, split in _SPLIT_PLAYED.items():
        if stage in parts and is_committed(run.store, run.rollouts(iteration, split)):
            whole_s = sum_stage(parts, stage)
            slow_s = min(_find_slow_end(run, iteration, split), whole_s)
            parts |= {stage: whole_s - slow_s, f"{stage}/slow": slow_s}
    jobs = [job for g in groups if (job := _read_job_seconds(run, iteration, g)) is not None]
    if "train" in parts and jobs:
        trained = divide_jobs(jobs)
        # The queue begins by the clock of the run, and ends by the server's.
        at_work_s = sum(trained.values()) - trained["train/queue"]
        trained["train/queue"] = min(trained["train/queue"], max(parts["train"] - at_work_s, 0.0))
        # A training that went on while no process of the run did takes more than the run has seen.
        told_s = sum(trained.values())
        seen = min(1.0, parts["train"] / told_s) if told_s else 0.0
        trained = {phase: seen * spent_s for phase, spent_s in trained.items()}
        parts |= {**trained, "train/poll": parts["train"] - sum(trained.values())}
    return {phase: parts[phase] for phase in sort_phases(parts)}


def _find_slow_end(run: RunStore, iteration: int, split: str) -> float:
    """Measure the slow end of playing a split, in seconds; 0 of few answers."""
    import numpy as np

    from nip_core.rollouts.storage.tables import StoredRollouts

    rollouts = StoredRollouts(run.store, [run.rollouts(iteration, split)])
    table = rollouts.timings(("started_at", "latency_s"))
    asked = table["started_at"].to_numpy().astype("datetime64[us]").astype(np.float64) / 1e6
    return measure_slow_end(asked, asked + table["latency_s"].to_numpy())


def measure_slow_end(asked: "Moments", ended: "Moments") -> float:
    """Measure the last seconds with less than half of the usual pace of answers.

    `asked`, `ended`: when each call was made, and when it was answered, in seconds; in any order.
    Pauses without a call in flight, as of a run that was stopped, do not count.
    """
    import numpy as np

    if not len(asked):
        return 0.0
    order = np.argsort(asked)
    asked, ended = asked[order], ended[order]
    pauses = np.maximum(asked[1:] - np.maximum.accumulate(ended)[:-1], 0.0)
    ends = np.sort(ended - np.concatenate([[0.0], np.cumsum(pauses)]))
    window = len(ends) // _WINDOWS
    if not window:
        return 0.0
    # The seconds that so many answers took, by the last of them; a pace is one over that.
    took_s = ends[window:] - ends[:-window]
    usual = np.flatnonzero(took_s * _SLOW <= np.median(took_s))
    return float(ends[-1] - ends[window + usual[-1]])


class _Training(BaseModel):
    """The seconds of a job's training, as its server tells them."""

    startup_s: float
    train_s: float
    wall_s: float
    swap_s: float = 0.0


class _Step(BaseModel):
    at: float
    """Of the last step; seconds since 1970."""


class JobSeconds(BaseModel):
    """The seconds of a job, as the server tells them that trained it."""

    result: _Training
    progress: _Step
    submitted_at: float

    def list_phases(self) -> list[tuple[str, float, float]]:
        """List the phases of the job with their ends, in seconds since 1970"""
        steps_end, training = self.progress.at, self.result
        steps_begin = steps_end - training.train_s
        load = steps_begin - training.startup_s
        rest_s = max(training.wall_s - training.startup_s - training.train_s, 0.0)
        saved = steps_end + rest_s + training.swap_s
        return [
            ("train/queue", self.submitted_at, load),
            ("train/save", steps_end, saved),
            ("train/load", load, steps_begin),
            ("train", steps_begin, steps_end),
        ]


def _read_job_seconds(run: RunStore, iteration: int, group: str) -> JobSeconds | None:
    """Read the seconds of a group's job; None where its service does not tell them."""
    job = read_job(run, run.job(iteration, group))
    if job is None or job.submitted_at is None:
        return None
    facts = (job.effective or {}).get("nip") or {}
    try:
        return JobSeconds.model_validate({**facts, "submitted_at": job.submitted_at})
    except ValidationError:
        return None


def divide_jobs(jobs: Sequence[JobSeconds]) -> dict[str, float]:
    """Add up the phases of overlapping jobs; no second counts twice."""
    spans = [span for job in jobs for span in job.list_phases()]
    moments = sorted({moment for _, begin, end in spans for moment in (begin, end)})
    seconds = dict.fromkeys(_BY_PROGRESS, 0.0)
    for begin, end in pairwise(moments):
        going_on = [phase for phase, since, until in spans if since <= begin and end <= until]
        if going_on:
            seconds[max(going_on, key=_BY_PROGRESS.index)] += end - begin
    return seconds


def read_seconds_so_far(run: RunStore, iteration: int) -> dict[str, float]:
    """Read by phase the seconds on record; {} where nothing, or damage, is."""
    try:
        times = read_document(run, name_times_file(run, iteration), StageSeconds)
        return {} if times is None else dict(times.root)
    except CorruptionError:  # which `nip verify` tells; nothing but estimates goes by them
        return {}


def name_times_file(run: RunStore, iteration: int) -> str:
    """Name the file of the seconds of an iteration in progress."""
    return f"{run.iteration(iteration)}/times-so-far.json"
