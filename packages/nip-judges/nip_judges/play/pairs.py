"""Judges that compare two responses: both orders are asked, and a text must win in both.

judge_pair    one answer of the answers in both orders
pair_outcome  how a text fared in both orders
BY_POSITION   the outcome of a text that wins in one order alone

In the first order the judged text is A, in the second B; "accept" says that A wins.
"""

from dataclasses import replace
from typing import Literal

from nip_judges.figures.as_they_are import BY_POSITION
from nip_judges.parts import JudgeAnswer, Verdict

__all__ = ["BY_POSITION", "judge_pair", "pair_outcome"]

PairOutcome = Literal["wins", "loses", "by position", "no verdict"]


def pair_outcome(first: Verdict, second: Verdict) -> PairOutcome:
    """Tell how a text fared that was A in the first order and B in the second."""
    if "none" in (first, second):
        return "no verdict"
    wins = (first == "accept", second == "reject")
    if all(wins):
        return "wins"
    return "by position" if any(wins) else "loses"


def judge_pair(first: JudgeAnswer, second: JudgeAnswer) -> JudgeAnswer:
    """Make one answer of the answers in both orders: a text is accepted if it wins in both.

    A text that wins in one order alone gets no verdict, and the outcome "by position". P(accept) is
    the mean of both orders, in the judged text's favour.
    """
    outcome = pair_outcome(first.verdict, second.verdict)
    verdicts: dict[PairOutcome, Verdict] = {"wins": "accept", "loses": "reject"}
    reasons = [answer.reason for answer in (first, second) if answer.reason]
    reason = "wins in one order alone" if outcome == BY_POSITION else " | ".join(reasons) or None
    favour = None
    if first.p_accept is not None and second.p_accept is not None:
        favour = (first.p_accept + 1 - second.p_accept) / 2
    return replace(
        first,
        verdict=verdicts.get(outcome, "none"),
        words=f"{first.words}\n\n--- the other order ---\n\n{second.words}",
        reason=reason,
        position_outcome=BY_POSITION if outcome == BY_POSITION else None,
        score=None,
        p_accept=favour,
        has_both=first.has_both or second.has_both,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
        calls=first.calls + second.calls,
    )
