"""How rare a kind of message an attack may have missed.

Of a kind that is a share p of the messages, E messages have one with probability 1 - (1 - p)^E,
which is 95 % for a share of 3/E. By the rule of three (Hanley and Lippman-Hand, "If nothing goes
wrong, is everything all right?", JAMA 249, 1983) a kind that none of E messages was is rarer than
3/E, with 95 % confidence.

That a kind was among them is not enough for training: a job takes ten examples, and one message of
a kind is one, or with groups as many as a group has. Where nothing else of its step is rewarded,
it trains no prover.
"""

import math

from nip_base.formats import MIN_EXAMPLES
from nip_core.attack_figures.metrics_document import Reach
from nip_core.evaluation.figures_in_words import DASH, amount

SCRIPT_REACH = (
    "Reach: nothing is sampled. What the script says in each of these situations is tried, and "
    "nothing else."
)
_THREE = 3  # of the rule
_SURELY = 0.95
_HALVINGS = 50  # of the interval in which a share is sought


def measure_reach(messages: int) -> Reach:
    """Say how rare a kind may be and yet be seen among so many messages."""
    return Reach(messages=messages, rarest=min(1.0, _THREE / messages) if messages else None)


def measure_training_reach(messages: int, steps: int, group: int, examples: int) -> Reach:
    """Say the same of training, with the share of a kind that trains provers by itself.

    It counts the messages of all steps. A `group` has so many of them, and gives so many `examples`
    if one of them is rewarded and others are not.
    """
    reach, groups_needed = measure_reach(messages), -(-MIN_EXAMPLES // examples)
    if reach.rarest is None or groups_needed == 1:
        return reach
    rarest = _find_share(messages // (steps * group), groups_needed, steps, group)
    return reach.model_copy(
        update={"alone": examples, "needed": MIN_EXAMPLES, "rarest_to_train": rarest}
    )


def _find_share(groups: int, needed: int, steps: int, group: int) -> float:
    """Find the share of messages of which, with 95 %, some step has so many groups as needed."""

    def trains(share: float) -> bool:
        has_one = -math.expm1(group * math.log1p(-share))
        too_few = sum(
            math.comb(groups, k) * has_one**k * (1 - has_one) ** (groups - k) for k in range(needed)
        )
        return 1 - too_few**steps >= _SURELY

    low, high = 0.0, 1.0
    if groups < needed:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if trains(middle) else (middle, high)
    return high


def reach_words(reach: Reach, *, is_planned: bool = False) -> str:
    """Say how many messages were sampled, or will be, and how rare a kind may be missed."""
    if reach.rarest is None:
        return "Reach: no message on a wrong problem was sampled."
    sampled = "at most are sampled" if is_planned else "were sampled"
    missed = "may never be" if is_planned else "may never have been"
    return (
        f"Reach: {amount(reach.messages, 'message')} on wrong problems {sampled}, so kinds of "
        f"message rarer than {reach_share(reach.rarest)} (3/{reach.messages:,}) {missed} among "
        "them." + _training_words(reach, is_planned)
    )


def _training_words(reach: Reach, is_planned: bool) -> str:
    """Say of which kinds a sampled message trains no prover; "" where one is enough."""
    if reach.rarest_to_train is None:
        return ""
    verb = "may never train" if is_planned else "may never have trained"
    return (
        f" One such message gives {amount(reach.alone, 'example')}, and a step with fewer than "
        f"{reach.needed} trains nobody: where nothing else is rewarded, kinds rarer than "
        f"{reach_share(reach.rarest_to_train)} {verb} the provers."
    )


def reach_share(rarest: float | None, to_train: float | None = None) -> str:
    """Write the share of messages below which a kind may be missed; a dash for None.

    Behind it stands the share below which a kind may never train a prover, where it is known.
    """
    if rarest is None:
        return DASH
    # All of them has no two digits.
    share = "100 %" if rarest >= 1 else f"{100 * rarest:.2g} %"
    return share if to_train is None else f"{share} (to train {reach_share(to_train)})"
