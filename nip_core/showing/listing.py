"""The runs of a store, each in a line: state, iterations, newest accuracy, cost, age."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from nip_core.costs.spent_and_estimated import read_costs
from nip_core.errors import StoreError
from nip_core.records.iterations import Records
from nip_core.records.status import find_status
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store

DAMAGED = "damaged"
"""The status of a run that can't be read."""


def list_summaries(store: Store, on_damaged: Callable[[str], None]) -> list[dict[str, Any]]:
    """Summarise each run, the newest first; give a damaged one with name and status alone.

    ``accuracy`` and ``accuracy_ci95`` come from the newest test, which was held by the models
    that play iteration ``tested``; ``usd`` and ``tokens`` are the spending of the run, ``usd`` null
    where a price is missing. `on_damaged` is told why a run can't be read.
    """
    summaries = []
    for name in list_runs(store):
        try:
            summaries.append(_summary(RunStore(store, name)))
        except StoreError as error:  # one of another format version, too
            on_damaged(str(error))
            summaries.append({"run": name, "status": DAMAGED})
    return sorted(summaries, key=lambda s: str(s.get("created_at", "")), reverse=True)


def _summary(run: RunStore) -> dict[str, Any]:
    records = Records(run)
    run_shown = records.shown
    # 1. The newest test, from the end on: one document of a run of any length.
    newest = next(
        (i for i in reversed(records.iterations()) if records.of(i).stored_metrics(TEST)), None
    )
    test = records.of(newest).metrics(TEST) if newest is not None else None
    # 2. The spending.
    costs = read_costs(records)
    return {
        "run": run.name,
        "status": find_status(run, records),
        "finished": records.finished(),
        "iterations": run_shown.last,
        "tested": newest,
        "accuracy": test and test.accuracy,
        "accuracy_ci95": test and test.accuracy_ci95 and list(test.accuracy_ci95),
        "problems": test and test.distinct_problems,
        "usd": costs["usd"]["spent"],
        "tokens": costs["tokens"]["spent"],
        "created_at": run_shown.record.created_at,
    }


def describe_age(created_at: str, now: datetime) -> str:
    """Time since then in its largest unit: "40 s", "12 min", "5 h", "3 d"."""
    passed_s = (now - datetime.fromisoformat(created_at).astimezone(UTC)).total_seconds()
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if passed_s >= length_s:
            return f"{passed_s // length_s:.0f} {unit}"
    return f"{max(passed_s, 0):.0f} s"
