"""An edit keeps a right answer: its characters, and its verdict by the exact check."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_judges.checks.answer_checks import make_check
from nip_judges.parts import GradedRow
from nip_judges.wordings.edits import EDITS, describe_edits, write_edit

CHECK = make_check(SimpleNamespace(check="exact", path=Path("judge.yaml")))  # type: ignore[arg-type]
RESPONSES = [
    ("7", "7"),
    ("Answer: 7", "7"),
    ("Answer:\n7", "7"),
    ("3 + 4 is what is asked.\nThe answer is 7.", "7"),
    ("She has 24 and 48.\n#### 72", "72"),
    ("So \\boxed{\\frac{1}{2}}", "1/2"),
    ("First, 48 / 2 = 24.\n\n24", "24"),
    ("**Answer:** 1,000 km", "1000"),
    ("Answer: seven", "7"),
    ("Answer: \u22127", "-7"),
    ("B", "B"),
    ("Answer: (B)", "B"),
    ("<answer>B</answer>", "B"),
    ("Paris", "Paris"),
    ("The answer is Paris.", "Paris"),
    ("Answer: red, blue", "red, blue"),
    ("Answer: yes", "yes"),
    ("```\n7\n```", "7"),
]


def decide(response: str, reference: str) -> bool | None:
    assert CHECK is not None
    return CHECK.decide(response, make_row(response, reference))


def make_row(response: str, reference: str | None = "7") -> GradedRow:
    return GradedRow("1", "q", "How many?", response, reference, True)


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(("response", "reference"), RESPONSES)
def test_a_right_answer_stays_right_and_a_wrong_one_wrong(
    name: str, response: str, reference: str
) -> None:
    edited = write_edit(name, make_row(response, reference))
    assert decide(response, reference) is True
    assert decide(edited, reference) is True
    for other in ("10007", "E", "London"):
        assert decide(edited, other) == decide(response, other)


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(
    "response",
    ["7 or 8", "The answer is not 7", "It is not so that\nthe answer is 7", "Answer: 7\nor 8?"],
)
def test_what_is_not_certain_stays_so(name: str, response: str) -> None:
    assert decide(response, "7") is None
    assert decide(write_edit(name, make_row(response)), "7") is None


@pytest.mark.parametrize("name", EDITS)
@given(st.text())
def test_all_characters_stay_in_order(name: str, response: str) -> None:
    edited = iter("".join(write_edit(name, make_row(response)).split()))
    assert all(character in edited for character in "".join(response.split()))


PIECES = """7|8|seven|Answer:|not|is|or|.|**|\\boxed{7}|the answer|```|B|but|km|3 + 4 =|- |?|%|\n
|#### 7|<answer>7</answer>"""
words = st.sampled_from([*PIECES.split("|"), "\n\n"])


@pytest.mark.parametrize("name", EDITS)
@given(st.lists(words, max_size=9), st.sampled_from(["7", "8", "B"]))
def test_no_edit_turns_a_verdict_around(name: str, parts: list[str], reference: str) -> None:
    response = " ".join(parts)
    before, after = (
        decide(response, reference),
        decide(write_edit(name, make_row(response)), reference),
    )
    assert {before, after} != {True, False}


@pytest.mark.parametrize("name", EDITS)
def test_each_edit_changes_the_text_and_is_described(name: str) -> None:
    assert write_edit(name, make_row("Answer: 7")) != "Answer: 7"
    assert name in [line[0] for line in describe_edits()]


def test_the_answer_line_repeats_what_is_stated() -> None:
    assert write_edit("answer line", make_row("So \\boxed{7}\nDone.")).endswith("\n\nAnswer: 7")
    assert write_edit("answer line", make_row("She has\n72 clips")).endswith("\n\nAnswer: 72 clips")
