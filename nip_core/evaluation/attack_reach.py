"""How rare a kind of message an attack may have missed.

Of a kind that is a share p of the messages, E messages have one with probability 1 - (1 - p)^E,
which is 95 % for a share of 3/E. By the rule of three (Hanley and Lippman-Hand, "If nothing goes
wrong, is everything all right?", JAMA 249, 1983) a kind that none of E messages was is rarer than
3/E, with 95 % confidence.

measure_reach  of a number of messages
reach_words    what the reach is, in a sentence
"""

from nip_core.evaluation.attack_metrics import Reach
from nip_core.evaluation.figures_in_words import amount

SCRIPT_REACH = (
    "Reach: nothing is sampled. What the script says in each of these situations is tried, and "
    "nothing else."
)
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
    share = f"{100 * reach.rarest:.2g} %"
    return (
        f"Reach: {amount(reach.messages, 'message')} on wrong problems {sampled}, so kinds of "
        f"message rarer than {share} (3/{reach.messages:,}) {missed} among them."
    )
