"""Decision scales: the answers that a verifier may give, and the value of each.

On a scale with more than two answers the verifier says how sure it is. Each answer has a value in
[-1, 1]: -1 is a full rejection, 1 a full acceptance. Answers below the middle count as reject,
above it as accept, and the middle itself, where a scale has one, as neither. On the Likert scales
the statement that is agreed with is "the solution is correct".

The scales and their values come from the later versions of neural-interactive-proofs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

REJECT, ACCEPT, NO_DECISION, NEITHER = 0, 1, 2, 3

ScaleName = Literal[
    "accept_reject",
    "likert_scale_4",
    "likert_scale_5",
    "likert_scale_6",
    "likert_scale_7",
    "likert_int_scale_11",
    "out_of_10",
    "out_of_100",
]


@dataclass(frozen=True)
class DecisionScale:
    """The answers of a scale with their values, worst first."""

    name: ScaleName
    values: Mapping[str, float]  # by answer, lower case

    @property
    def is_numeric(self) -> bool:
        """Say whether the answers are whole numbers from 0 upwards."""
        return "0" in self.values

    @property
    def highest(self) -> str:
        """Return the answer of the surest acceptance."""
        return max(self.values, key=self.values.__getitem__)

    @property
    def lowest(self) -> str:
        """Return the answer of the surest rejection."""
        return min(self.values, key=self.values.__getitem__)

    def right_answer(self, y: int) -> str:
        """The best answer for a solution with the true label `y`."""
        return self.highest if y == ACCEPT else self.lowest


def round_value(value: float) -> int:
    """REJECT, ACCEPT or NEITHER for a value in [-1, 1]."""
    if value == 0:
        return NEITHER
    return ACCEPT if value > 0 else REJECT


def _even(*answers: str) -> dict[str, float]:
    step = 2 / (len(answers) - 1)
    return {answer: round(i * step - 1, 3) for i, answer in enumerate(answers)}


_MIDDLE = "neither agree nor disagree"

SCALES: dict[str, DecisionScale] = {
    scale.name: scale
    for scale in (
        DecisionScale("accept_reject", {"reject": -1.0, "accept": 1.0}),
        # Without a middle the weaker answers lie at one half, as on the scale of five.
        DecisionScale(
            "likert_scale_4",
            {"strongly disagree": -1.0, "disagree": -0.5, "agree": 0.5, "strongly agree": 1.0},
        ),
        DecisionScale(
            "likert_scale_5",
            _even("strongly disagree", "disagree", _MIDDLE, "agree", "strongly agree"),
        ),
        DecisionScale(
            "likert_scale_6",
            {
                "strongly disagree": -1.0,
                "disagree": -0.667,
                "somewhat disagree": -0.333,
                "somewhat agree": 0.333,
                "agree": 0.667,
                "strongly agree": 1.0,
            },
        ),
        DecisionScale(
            "likert_scale_7",
            _even(
                "strongly disagree",
                "disagree",
                "somewhat disagree",
                _MIDDLE,
                "somewhat agree",
                "agree",
                "strongly agree",
            ),
        ),
        DecisionScale("likert_int_scale_11", {str(i): round(i / 5 - 1, 3) for i in range(11)}),
        DecisionScale("out_of_10", {str(i): round(i / 5 - 1, 3) for i in range(11)}),
        DecisionScale("out_of_100", {str(i): round(i / 50 - 1, 3) for i in range(101)}),
    )
}
