"""Showing a run: its summary.

Runs of all versions are shown: only the settings that are needed here are read, with the defaults
of this version where they are missing.
"""

from typing import Any

from nip_core.costs.spent_and_estimated import read_costs, read_expected_by
from nip_core.evaluation.baseline_words import remarks
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.records.intervals import find_help_on_record, find_rate_alone
from nip_core.records.iterations import IterationRecord, Records
from nip_core.records.left_out import read_left_out
from nip_core.records.status import find_status
from nip_core.records.untrained_attack import encode_section
from nip_core.rollouts.plan import TEST, TRAIN
from nip_core.run_store.run import RunStore

_IN_SUMMARY = (
    *("accuracy", "accuracy_ci95", "completeness", "completeness_ci95"),
    *("soundness", "soundness_ci95", "episodes", "distinct_problems", "questions"),
)
_IN_LEAGUE = (
    *(
        "opponent",
        "opponent_iteration",
        "opponent_run",
        "model",
        "episodes",
        "accuracy",
        "accuracy_ci95",
    ),
    *("completeness", "completeness_ci95", "soundness", "soundness_ci95"),
)
_OF_BELIEVED = (
    *("accuracy", "accuracy_ci95", "completeness", "soundness"),
    *("episodes", "without_prover"),
)


def summarise_run(
    run: RunStore, records: Records | None = None, *, with_control: bool = True
) -> dict[str, Any]:
    """A run as JSON: ``run``, ``status``, ``iterations``, and ``remarks`` on the last test.

    Entry k of ``iterations`` tests the models that play iteration k; entry 0 is untrained, and a
    last entry without jobs tests the final models. `with_control` looks for the same attack on the
    untrained models among the runs beside an attack.
    """
    records = (records or Records(run)).look_again()
    run_shown = records.shown
    iterations = records.all()
    tests = [test for record in iterations if (test := record.metrics(TEST)) is not None]
    parameters = run_shown.record.parameters
    rate_alone, helps = find_rate_alone(parameters), find_help_on_record(parameters)
    return {
        "run": run.name,
        "status": find_status(run, records),
        "created_at": run_shown.record.created_at,
        "code_version": run_shown.record.code_version,
        "report": find_report(run),
        "costs": read_costs(records),
        "expected_by": read_expected_by(records),
        "left_out": {
            split: len(problems) for split, problems in (read_left_out(run) or {}).items()
        },
        "iterations": [_entry(record) for record in iterations],
        "remarks": remarks(tests[-1], rate_alone, helps) if tests else [],
        **encode_section(records, _IN_SUMMARY, with_control=with_control),
    }


def _entry(record: IterationRecord) -> dict[str, Any]:
    test, train = record.metrics(TEST), record.stored_metrics(TRAIN)
    rows = [row.as_json() for row in train.by_opponent] if train else []
    league = [{key: row[key] for key in _IN_LEAGUE} for row in rows]
    return {
        "iteration": record.iteration,
        "test": None if test is None else _test(test),
        "models": record.served,
        "seconds": record.stage_s,
        "promotion": None if record.promotion is None else record.promotion.to_document(),
        "jobs": {
            group: {"id": job.id, "status": job.state, "reason": job.reason}
            for group, job in record.jobs.items()
        },
        **({"league": league} if league else {}),
    }


def _test(metrics: SplitMetrics) -> dict[str, Any]:
    test = metrics.as_json()
    believed = test.get("believe_the_prover")
    baselines = (
        {}
        if believed is None
        else {"believe_the_prover": {k: believed.get(k) for k in _OF_BELIEVED}}
    )
    if test.get("any_of") is not None:
        baselines["any_of"] = test["any_of"]
    invalid = test.get("invalid_answers")
    counts = {"invalid_answers": invalid} if invalid else {}
    return {key: test.get(key) for key in _IN_SUMMARY} | baselines | counts


def find_report(run: RunStore) -> str | None:
    """Return where the report lies, or None if there is none yet."""
    path = f"{run.root}/report.html"
    if not run.store.exists(path):
        return None
    local = run.store.local_path(path)
    return str(local) if local is not None else f"{run.store.url}/{path}"
