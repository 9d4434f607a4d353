"""The numbers of a run that trackers are shown, from its commits.

PointRow    numbers of one place: an iteration, or a step of a group's fine-tune jobs
Part        what is committed together: the metrics of a split, a job, the times of an iteration
list_parts  the parts of an iteration that will not change any more
read_rows   the rows of one of them

An iteration's numbers have the iteration as their step. Those of jobs go on from one iteration to
the next: the first step of a group's second job follows the last of its first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from nip_core.evaluation.split_metrics import BREAKDOWNS
from nip_core.jobs.document import read_job
from nip_core.jobs.steps import read_step_figures
from nip_core.records.iterations import IterationRecord, Records
from nip_core.rollouts.plan import EVERY_SPLIT
from nip_core.run_store.run import RunStore

Part = str
"""The name of a split, "times", or "job-" and the name of a group."""

Steps = dict[str, int]
"""By group, the number of steps of its jobs so far."""

ITERATION = "iteration"
STEP = "step"
"""The axes: the number of an iteration, or of a step in all of a group's jobs."""

_SPLITS = EVERY_SPLIT
_JOB = "job-"
_TIMES = "times"
_WITH_INTERVAL = ("accuracy", "completeness", "soundness", "mean_reward")
_BREAKDOWNS = (*BREAKDOWNS, "bounds")  # one number for each kind of problem
_NO_FIGURE = ("step", "total_steps", "time_left_s")  # of a step of a job


@dataclass(frozen=True)
class PointRow:
    """The numbers of one place of one axis."""

    axis: str
    """`ITERATION` or `STEP`."""
    step: int
    at: float | None
    """Seconds since the epoch; None: when the batch was written."""
    values: Mapping[str, float]
    """By name, parts separated by "/"."""


def list_parts(record: IterationRecord) -> list[Part]:
    """List the final parts of an iteration, in its order.

    A job that has ended without a model may be tried again, until the iteration is over.
    """
    parts = [split for split in _SPLITS if record.stored_figures(split) is not None]
    for group, job in record.jobs.items():
        if job.is_due and (job.outcome == "succeeded" or record.swap is not None):
            parts.append(f"{_JOB}{group}")
    # The times of an iteration that is not over grow.
    return [*parts, *([_TIMES] if record.swap is not None and record.stage_s else [])]


def read_rows(
    run: RunStore, records: Records, iteration: int, part: Part, steps: Steps
) -> tuple[list[PointRow], Steps]:
    """Read the rows of a part, [] where it has no numbers; with them, `steps` after it."""
    if part.startswith(_JOB):
        return _read_job_rows(run, iteration, part.removeprefix(_JOB), steps)
    record = records.whole(iteration)
    if part == _TIMES:
        values = {f"seconds/{name}": float(s) for name, s in record.stage_s.items()}
    else:
        figures = record.figures(part)
        values = dict(_list_numbers(figures.as_json() if figures else {}, part))
    return ([PointRow(ITERATION, iteration, None, values)] if values else []), steps


def _read_job_rows(
    run: RunStore, iteration: int, group: str, steps: Steps
) -> tuple[list[PointRow], Steps]:
    job = read_job(run, run.job(iteration, group))
    if job is None:
        return [], steps
    # 1. Of a step that several attempts of the back-end have reported, the last counts.
    told: dict[int, tuple[float | None, dict[str, float]]] = {}
    for step, of_step in read_step_figures(job.backend_events).items():
        figures = {name: x for name, x in of_step.figures.items() if name not in _NO_FIGURE}
        told[step] = of_step.told_at, dict(_list_numbers(figures, f"training/{group}"))
    # 2. Steps go on where the group's job before has ended.
    earlier = steps.get(group, 0)
    rows = [
        PointRow(STEP, earlier + step, time, figures)
        for step, (time, figures) in told.items()
        if figures
    ]
    # 3. The job as a whole.
    whole = {"examples": job.examples, "trained_tokens": job.trained_tokens}
    values = {f"jobs/{group}/{k}": float(v) for k, v in whole.items() if v is not None}
    rows.append(PointRow(ITERATION, iteration, job.finished_at, values))
    return rows, {**steps, group: earlier + max(told, default=0)}


def _list_numbers(values: Mapping[str, JsonValue], place: str) -> Iterator[tuple[str, float]]:
    """List the numbers in a document, by path; of intervals only those in `_WITH_INTERVAL`."""
    for name, value in values.items():
        if isinstance(value, bool) or name in _BREAKDOWNS:
            continue
        if isinstance(value, int | float):
            yield f"{place}/{name}", float(value)
        elif isinstance(value, Mapping):
            yield from _list_numbers(value, f"{place}/{name}")
        elif name.removesuffix("_ci95") in _WITH_INTERVAL and isinstance(value, list | tuple):
            for end, bound in zip(("low", "high"), value, strict=True):
                if isinstance(bound, int | float):
                    yield f"{place}/{name}/{end}", float(bound)


Spans = dict[Part, list[list[int]]]
"""By part the iterations that are logged, as pairs of a first and a last."""


def is_logged(spans: Spans, part: Part, iteration: int) -> bool:
    """Tell whether the part of the iteration is logged."""
    return any(first <= iteration <= last for first, last in spans.get(part, ()))


def add_part(spans: Spans, part: Part, iteration: int) -> Spans:
    """Add a part of an iteration to `spans`."""
    numbers = sorted([*spans.get(part, ()), [iteration, iteration]])
    merged = numbers[:1]
    for first, last in numbers[1:]:
        if first <= merged[-1][1] + 1:
            merged[-1] = [merged[-1][0], max(last, merged[-1][1])]
        else:
            merged.append([first, last])
    return {**spans, part: merged}
