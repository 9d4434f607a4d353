"""The estimate of a run, beside its spending."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, StrictFloat

from nip_core.parameters.stored import read_costing_settings
from nip_core.records.iterations import Records
from nip_core.records.spent_in_all import add_up_spending
from nip_core.run_store.documents import encode
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore, read_document

if TYPE_CHECKING:  # reading an estimate needs none of the code that makes one
    from nip_core.costs.estimate import Estimate

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


class EstimateOnRecord(BaseModel):
    """``estimate.json``, as far as it is shown: a field that a version did not write is None."""

    model_config = ConfigDict(frozen=True)

    prompt_tokens: StrictFloat | None = None
    completion_tokens: StrictFloat | None = None
    training_tokens: StrictFloat | None = None
    usd: StrictFloat | None = None
    expected_prompt_tokens: StrictFloat | None = None
    expected_completion_tokens: StrictFloat | None = None
    expected_training_tokens: StrictFloat | None = None
    expected_usd: StrictFloat | None = None
    expected_by: str | None = None
    """The runs or guesses that it was reckoned by, in words."""

    @property
    def at_most(self) -> dict[str, float | None]:
        """Give the upper bounds by name, of all tokens together as well."""
        tokens = (self.prompt_tokens, self.completion_tokens, self.training_tokens)
        return _by_name(*tokens, self.usd)

    @property
    def expected(self) -> dict[str, float | None]:
        """Give the expected figures by name, in the same way."""
        prompt, completion = self.expected_prompt_tokens, self.expected_completion_tokens
        return _by_name(prompt, completion, self.expected_training_tokens, self.expected_usd)


def _by_name(
    prompt: float | None, completion: float | None, training: float | None, usd: float | None
) -> dict[str, float | None]:
    parts = [part for part in (prompt, completion, training) if part is not None]
    tokens = sum(parts) if len(parts) == 3 else None
    return dict(zip(_NAMES, (prompt, completion, training, tokens, usd), strict=True))


def record_estimate(run: RunStore, estimate: "Estimate", is_new: bool, lease: Lease) -> None:
    """Write the run's estimate if it `is_new`, because settings have changed, or is not there."""
    path = f"{run.root}/{ESTIMATE}"
    if is_new or not run.store.exists(path):
        run.store.put(path, encode(asdict(estimate)), fence=lease.fence)


def read_costs(records: Records) -> dict[str, dict[str, float | None]]:
    """Return the costs of the whole run by kind of tokens, of all ``tokens`` and in ``usd``.

    Each has the ``expected`` figure, the one ``at_most``, the one ``spent`` and the ``budget``;
    None for a figure that is not known. Raises CorruptionError for a record it can't read.
    """
    parameters = read_costing_settings(records.shown.record.parameters)
    spending, budget = add_up_spending(records), parameters.budget
    estimate = _read_estimate(records.run)
    values = {
        "prompt_tokens": spending.prompt_tokens,
        "completion_tokens": spending.generated_tokens,
        "training_tokens": spending.trained_tokens,
        "tokens": spending.tokens,
        "usd": spending.usd(parameters),
    }
    return {
        name: {
            "spent": value,
            "expected": estimate.expected[name],
            "at_most": estimate.at_most[name],
            "budget": getattr(budget, name, None),
        }
        for name, value in values.items()
    }


def read_expected_by(records: Records) -> str:
    """Say in words how the run's estimate was reckoned; "" where nothing is on record."""
    return _read_estimate(records.run).expected_by or ""


def _read_estimate(run: RunStore) -> EstimateOnRecord:
    """Read the run's estimate; one without figures where there is none."""
    path = f"{run.root}/{ESTIMATE}"
    return read_document(run, path, EstimateOnRecord) or EstimateOnRecord()


def make_cost_rows(
    costs: Mapping[str, Mapping[str, float | None]],
) -> dict[str, list[float | None]]:
    """The same by words for people, without dollars where nothing has a price: spent, expected, at
    most, and the budget."""
    rows = {
        _NAMES[name]: [costs_by_column[column] for column in COLUMNS]
        for name, costs_by_column in costs.items()
    }
    return {name: row for name, row in rows.items() if name != USD or any(row)}
