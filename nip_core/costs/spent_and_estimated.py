"""What a run was estimated to take, beside what it has come to.

record_estimate  put the estimate on record
costs_of         expected, at most, spent, and the budget
expected_by      by what it was expected, in words
cost_rows        that in words for people
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nip_core.costs.estimate import Estimate
from nip_core.parameters.stored import priced
from nip_core.records.iterations import Records, document
from nip_core.records.shapes import AMOUNTS, checked
from nip_core.records.spent_in_all import spent_so_far
from nip_core.run_store.documents import encode
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore

ESTIMATE = "estimate.json"
"""At the root of a run: its `Estimate`, by the settings with which it was last opened."""

COLUMNS = ("spent", "expected", "at_most", "budget")
_NAMES = {
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "generated tokens",
    "training_tokens": "trained tokens",
    "tokens": "tokens",
    "usd": "US dollars",
}
USD = _NAMES["usd"]
_ESTIMATED = [f"{which}{name}" for which in ("", "expected_") for name in _NAMES]


def record_estimate(run: RunStore, estimate: Estimate, is_new: bool, lease: Lease) -> None:
    """Write the run's estimate if it `is_new`, because settings have changed, or is not there."""
    path = f"{run.root}/{ESTIMATE}"
    if is_new or not run.store.exists(path):
        run.store.put(path, encode(asdict(estimate)), fence=lease.fence)


def costs_of(records: Records) -> dict[str, dict[str, float | None]]:
    """By kind of tokens, of all ``tokens`` and in ``usd``, what the whole run was ``expected`` to
    take, ``at_most``, what it has ``spent``, and its ``budget``; None for what is not known.

    Raises CorruptionError for what can't be read.
    """
    parameters = priced(records.shown.record.parameters)
    spent, budget = spent_so_far(records), parameters.budget
    path = f"{records.run.root}/{ESTIMATE}"
    amounts = {k: v for k, v in (document(records.run, path) or {}).items() if k in _ESTIMATED}
    estimate = checked(amounts, AMOUNTS, path)
    values = {
        "prompt_tokens": spent.prompt_tokens,
        "completion_tokens": spent.generated_tokens,
        "training_tokens": spent.trained_tokens,
        "tokens": spent.tokens,
        "usd": spent.usd(parameters),
    }
    return {
        name: {
            "spent": value,
            "expected": _estimated(estimate, name, "expected_"),
            "at_most": _estimated(estimate, name, ""),
            "budget": getattr(budget, name, None),
        }
        for name, value in values.items()
    }


def expected_by(records: Records) -> str:
    """Return by what the run's estimate was reckoned, in words; "" where that is not on record."""
    estimate = document(records.run, f"{records.run.root}/{ESTIMATE}") or {}
    return str(estimate.get("expected_by") or "")


def _estimated(estimate: Mapping[str, Any], name: str, which: str) -> float | None:
    if name != "tokens":
        return estimate.get(f"{which}{name}")
    parts = [estimate.get(f"{which}{part}_tokens") for part in ("prompt", "completion", "training")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def cost_rows(costs: Mapping[str, Mapping[str, float | None]]) -> dict[str, list[float | None]]:
    """The same by words for people, without dollars where nothing has a price: spent, expected, at
    most, and the budget."""
    rows = {_NAMES[name]: [of[column] for column in COLUMNS] for name, of in costs.items()}
    return {name: row for name, row in rows.items() if name != USD or any(row)}
