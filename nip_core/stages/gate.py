"""The gate before a swap: new models play on only if they do not play validation problems worse.

is_due   whether old and new models are compared in an iteration
decide   what came of it, for the record of the swap

After the jobs of an iteration have ended, the models that play it (split `validation`) and the new
models of all groups together (split `candidate`) play the same validation problems with the same
seeds. The old ones play anew each time: the figure at which they were chosen is the highest of
several and would flatter them. Test problems are never looked at here.

What is covered: new models that are worse by more than the margin, on the problems played, stay
out. What is not: the difference has an interval, and a margin of 0 also refuses models that are as
good as the old ones in about half of all cases.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from nip_core.evaluation.metrics import mean_by_problem, paired_difference
from nip_core.rewards import at_least
from nip_core.rollouts.plan import CANDIDATE, VALIDATION
from nip_core.rollouts.tables import read_rollouts
from nip_core.stages.models import candidates
from nip_core.stages.session import Session


@dataclass(frozen=True)
class Decision:
    """Whether new models are taken, and why."""

    promoted: bool
    metric: str  # what is compared: accuracy or verifier_reward
    validation: float  # of the models that played the iteration
    candidate: float  # of the new ones
    difference: float  # new minus old, mean over problems
    ci95: tuple[float, float]  # of the difference
    problems: int
    margin: float


def is_due(session: Session, iteration: int) -> bool:
    """Whether the iteration's models have to pass the gate: it is on, there is a new model, and
    who serves next is not on record yet.

    To be asked when the jobs of the iteration have ended.
    """
    if not session.parameters.promotion.enabled:
        return False
    is_swapped = session.run.store.exists(session.run.models(iteration))
    return not is_swapped and bool(candidates(session, iteration))


def compare(old: pa.Table, new: pa.Table, metric: str, margin: float, seed: int) -> Decision:
    """The decision from the episodes of both sides, which cover the same problems.

    The new models are taken if their metric is at least the old ones' less `margin`. A failed
    episode counts as wrong and earns nothing. Raises DatasetError if the problems differ.
    """
    reward_of = "verifier" if metric == "verifier_reward" else None
    found = paired_difference(old, new, seed, reward_of=reward_of)
    before, after = (mean_by_problem(side, reward_of) for side in (old, new))
    assert before is not None and after is not None  # there are problems, or no gate
    low, high = found["ci95"]
    return Decision(
        promoted=at_least(found["difference"], -margin),
        metric=metric,
        validation=before,
        candidate=after,
        difference=found["difference"],
        ci95=(low, high),
        problems=found["problems"],
        margin=margin,
    )


def decide(session: Session, iteration: int) -> Decision:
    """Compare what both sides have played. Raises MissingFileError if one has not."""
    run, settings = session.run, session.parameters.promotion
    old, new = (
        read_rollouts(run.store, run.rollouts(iteration, split)).episodes
        for split in (VALIDATION, CANDIDATE)
    )
    return compare(old, new, settings.metric, settings.margin, session.parameters.seed)


def record(decision: Decision, models: Mapping[str, Any]) -> dict[str, Any]:
    """The decision as it stands in ``models.json``, with the `models` that it was about by group,
    so that those which were not taken can be found again, too."""
    return {
        **asdict(decision),
        "ci95": list(decision.ci95),
        "candidates": {group: asdict(model) for group, model in models.items()},
    }
