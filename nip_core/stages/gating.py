"""The gate: new models play on only if they do not play validation problems worse.

After the jobs of an iteration have ended, the models that play it (split `validation`) and the new
models of all groups together (split `candidate`) play the same validation problems with the same
seeds. The old ones play anew each time: the figure at which they were chosen is the highest of
several and would flatter them. Test problems are never looked at here.

Covered: new models that are worse by more than the margin, on the problems played, stay out. Not
covered: the difference has an interval, and a margin of 0 also refuses models that are as good as
the old ones in about half of all cases.
"""

from collections.abc import Sequence

import pyarrow as pa

from nip_core.evaluation.metrics import mean_by_problem, paired_difference
from nip_core.parameters.derived.hosting import takes_turns
from nip_core.records.models import Decision
from nip_core.rollouts.plan import CANDIDATE, VALIDATION
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.session.session import Session
from nip_core.stages.served import find_new_models
from nip_core.tolerance import at_least


def is_due(session: Session, iteration: int) -> bool:
    """Say whether the iteration's models have to pass the gate.

    They do if it is on, there is a new model, and who serves next is not on record yet.

    To be asked when the jobs of the iteration have ended.
    """
    if not session.parameters.promotion.enabled:
        return False
    # A decision on record is not made again: both sides would play for nothing.
    is_swapped = session.run.store.exists(session.run.models(iteration))
    return not is_swapped and bool(find_new_models(session, iteration))


def takes_turns_in(session: Session) -> bool:
    """Say whether old and new models of a group can't play at the same time."""
    parameters = session.parameters
    groups = parameters.trainable_groups
    return any(takes_turns(parameters, parameters.group_parameters(group)) for group in groups)


def decide(session: Session, iteration: int) -> Decision:
    """Compare the episodes of both sides. Raises MissingFileError if one has not played."""
    run, settings = session.run, session.parameters.promotion
    old, new = (
        read_rollouts(run.store, run.rollouts(iteration, split)).episodes
        for split in (VALIDATION, CANDIDATE)
    )
    split_by = session.game.scenario.split_by
    return compare_sides(
        old, new, settings.metric, settings.margin, session.parameters.seed, split_by
    )


def compare_sides(
    old: pa.Table,
    new: pa.Table,
    metric: str,
    margin: float,
    seed: int,
    split_by: Sequence[str] = (),
) -> Decision:
    """Decide by the episodes of both sides on the same problems.

    The new models are taken if their metric is at least the old ones' less `margin`; the interval
    is for the reader, and by question (see `paired_difference`). A failed
    episode counts as wrong and earns nothing. Raises DatasetError if the problems differ.
    """
    reward_of = "verifier" if metric == "verifier_reward" else None
    # By problem and not by two averages: most differences between problems fall out.
    paired = paired_difference(old, new, seed, reward_of=reward_of, split_by=split_by)
    old_mean, new_mean = (mean_by_problem(side, reward_of) for side in (old, new))
    assert old_mean is not None and new_mean is not None  # there are problems, or no gate
    assert paired.difference is not None
    return Decision(
        promoted=at_least(paired.difference, -margin),
        metric=metric,
        validation=old_mean,
        candidate=new_mean,
        difference=paired.difference,
        ci95=paired.ci95,
        problems=paired.problems,
        margin=margin,
    )
