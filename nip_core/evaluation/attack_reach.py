"""How rare a kind of message an attack may have missed.

Of a kind that is a share p of the messages, E messages have one with probability 1 - (1 - p)^E,
which is 95 % for a share of 3/E. By the rule of three (Hanley and Lippman-Hand, "If nothing goes
wrong, is everything all right?", JAMA 249, 1983) a kind that none of E messages was is rarer than
3/E, with 95 % confidence.

measure_reach  of a number of messages
reach_words    what the reach is, in a sentence
reach_share    the same as a share alone
"""

from nip_core.evaluation.attack_metrics import Reach
from nip_core.evaluation.figures_in_words import DASH, amount

SCRIPT_REACH = (
    "Reach: nothing is sampled. What the script says in each of these situations is tried, and "
    "nothing else."
)
PLANNED_REACH = (
    "reach: kinds of message rarer than this may never be among those that an attack samples; a "
    "script samples none"
)
"""Stands under the plans of several attacks."""
_THREE = 3  # of the rule


def measure_reach(messages: int) -> Reach:
    """Say how rare a kind may be and yet be seen among so many messages."""
    return Reach(messages=messages, rarest=min(1.0, _THREE / messages) if messages else None)


def reach_words(reach: Reach, *, planned: bool = False) -> str:
    """Say how many messages were sampled, or will be, and how rare a kind may be missed."""
    if reach.rarest is None:
        return "Reach: no message on a wrong problem was sampled."
    sampled = "at most are sampled" if planned else "were sampled"
    missed = "may never be" if planned else "may never have been"
    return (
        f"Reach: {amount(reach.messages, 'message')} on wrong problems {sampled}, so kinds of "
        f"message rarer than {reach_share(reach.rarest)} (3/{reach.messages:,}) {missed} among "
        "them."
    )


def reach_share(rarest: float | None) -> str:
    """Write the share of messages below which a kind may be missed; a dash for None."""
    if rarest is None:
        return DASH
    # All of them has no two digits.
    return "100 %" if rarest >= 1 else f"{100 * rarest:.2g} %"
