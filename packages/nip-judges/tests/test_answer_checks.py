"""A check's label is certain, or there is none: forms that are equal, and traps."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.errors import SettingsError
from nip_judges.checks.answer_checks import holds_reference, make_check
from nip_judges.parts import GradedRow

UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def decide(name: str, response: str, reference: str | None, question: str = "How many?", **c: Any):
    check = make_check(SimpleNamespace(check=name, path=Path("judge.yaml")))  # type: ignore[arg-type]
    assert check is not None
    return check.decide(response, GradedRow("1", "q", question, response, reference, False, c))


RIGHT = [
    ("7", "7"),
    ("7.", "7"),
    ("**7**", "7"),
    ("$7$", "7"),
    ("Answer: 7", "7"),
    ("**Answer:** 7", "7"),
    ("So 3+4=7.\nThe answer is 7.", "7"),
    ("\\boxed{7}", "7"),
    ("Thus $\\boxed{\\frac{1}{2}}$.", "0.5"),
    ("Answer: 1/2", "\\frac{1}{2}"),
    ("#### 72", "Natalia sold 48/2 = 24.\n#### 72"),
    ("Answer: seven", "7"),
    ("Answer: 1,000", "1000"),
    ("Answer: 1000.0", "1,000"),
    ("Answer: 1e3", "1000"),
    ("Answer: 1 \\times 10^{3}", "1000"),
    ("Answer: \u22127", "-7"),
    ("Answer: 7 km", "7"),
    ("Answer: 5 USD", "$5"),
    ("Answer: 7 hours", "7 hour"),
    ("Answer: $7", "7 dollars"),
    ("Answer: 7", "7%"),
    ("Answer: 7 %", "7%"),
    ("Answer: forty-two", "42"),
    ("Answer: x = 7", "7"),
    ("3 + 4 = 7", "7"),
    ("<answer>7</answer>", "7"),
    ("Answer: B", "B"),
    ("The correct answer is (B).", "B"),
    ("B)", "B"),
    ("Option B", "B"),
    ("Answer: Paris", "Paris"),
    ("The answer is paris.", "Paris"),
    ("Answer: 1, 2, 3", "1, 2, 3"),
    ("Answer: red and blue", "red, blue"),
    ('Answer: ["a1", "b2"]', '["a1", "b2"]'),
    ("Answer: No", "no"),
    ("First 5 + 2.\n\n7", "7"),
]


@pytest.mark.parametrize(("response", "reference"), RIGHT)
def test_equal_forms_are_right(response: str, reference: str) -> None:
    assert decide("exact", response, reference) is True


WRONG = [
    ("8", "7"),
    ("Answer: 8", "7"),
    ("\\boxed{8}", "7"),
    ("It is 7 at first sight. Answer: 8", "7"),
    ("Answer: -7", "7"),
    ("Thought process:", "7"),
    ("Thought process:", "0"),
    ("Answer:", "7"),
    ("Let me look at this with care, and find a way that leads there.", "7"),
    ("Solution", "7"),
    ("", "7"),
    (":", "Paris"),
    ("Answer: C", "B"),
    ("Answer: London", "Paris"),
    ("Answer: yes", "no"),
    ("Thought process:", "B"),
    ("Answer: 1, 2, 4", "1, 2, 3"),
]


@pytest.mark.parametrize(("response", "reference"), WRONG)
def test_another_answer_is_wrong(response: str, reference: str) -> None:
    assert decide("exact", response, reference) is False


TRAPS = [
    ("The answer is not 7", "7"),
    ("the answer is not 7", "8"),
    ("It is not true that the answer is 7.", "7"),
    ("Nobody knows whether the answer is 8", "7"),
    ("7 or 8", "7"),
    ("Answer: 7 or 8", "7"),
    ("Answer: 7\nAnswer: 8", "7"),
    ("Answer: 8\nAnswer: 7", "8"),
    ("Answer: 7\nNo, wait: 8.", "7"),
    ("Answer: 8\nThat is wrong.", "7"),
    ("Answer: 8. Seven would be right.", "7"),
    ("There were 4 of them in the yard when I came home, and nobody counted again.", "4"),
    ("There were 4 of them in the yard when I came home, and nobody counted again.", "5"),
    ("Answer: 8. Scratch that.", "7"),
    ("Answer: the number of days in a week", "7"),
    ("no apples", "0"),
    ("Answer: |-7|", "7"),
    ("Answer: >7", "7"),
    ("Answer: ~7", "7"),
    ("Answer: 5 euros", "$5"),
    ("Answer: 7 pears", "7 apples"),
    ("Answer: 84 inches", "7 feet"),
    ("Answer: 0x7", "7"),
    ("Answer: 8-1", "7"),
    ("Answer: log 8", "8"),
    ("A. B is wrong", "A"),
    ("Answer: 6*7", "42"),
    ("Answer: 2^3", "8"),
    ("Answer: 3!", "6"),
    ("Answer: 7²", "49"),
    ("Answer: \\sqrt{49}", "7"),
    ("Answer: 420 minutes", "7 hours"),
    ("Answer: 420 minutes", "7"),
    ("Answer: 700 cents", "7"),
    ("Answer: 7%", "0.07"),
    ("Answer: 3.14", "3.14159"),
    ("Answer: 0.333", "1/3"),
    ("Answer: 1.000", "1000"),
    ("Answer: 3,5", "3.5"),
    ("Answer: 7 thousand", "7000"),
    ("Answer: 7k", "7000"),
    ("Answer: half a dozen", "6"),
    ("Answer: about 7", "8"),
    ("Answer: 7-8", "8"),
    ("Answer: 7:30", "7"),
    ("Answer: 111 in binary", "7"),
    ("Sieben", "7"),
    ("VII", "7"),
    ("Answer: VII", "7"),
    ("семь", "7"),
    ("Answer: NYC", "New York City"),
    ("Answer: New York", "New York City"),
    ("Answer: colour", "color"),
    ("Answer: not Paris", "Paris"),
    ("Answer: Paris or London", "Paris"),
    ("Answer: x+1", "1+x"),
    ("Answer: \\frac{x}{2}", "x/2"),
    ("Answer: true", "yes"),
    ("Answer: B or C", "B"),
    ("A) and B) are wrong, so it can be C or D", "C"),
    ("Answer: A cat", "A"),
    ("Answer: 3, 2, 1", "1, 2, 3"),
    ("Answer: (2, 1)", "(1, 2)"),
    ("Answer: red", "red, blue"),
    ("Answer: 5 May", "May 5"),
    ("The dog that lives in our street barked again", "A long text of a criterion for graders"),
]


@pytest.mark.parametrize(("response", "reference"), TRAPS)
def test_what_can_be_read_in_two_ways_is_not_certain(response: str, reference: str) -> None:
    assert decide("exact", response, reference) is None


def test_an_options_text_stands_for_its_letter() -> None:
    question = "Capital of France?\nA) London\nB) Paris\nC) Rome"
    assert decide("option", "Answer: Paris", "B", question) is True
    assert decide("option", "Answer: Rome", "B", question) is False
    assert decide("option", "Answer: B) Paris", "B", question) is True
    assert decide("option", "Answer: B) Rome", "B", question) is None
    assert decide("option", "It must be Paris", "B", question) is None
    assert decide("option", "Madrid", "B", question) is False
    assert decide("option", "Madrid", "B", "Which?") is None  # it may be the text of an option
    assert decide("option", "Let's solve this problem step by step.", "B", "Which?") is False


def test_number_takes_no_text() -> None:
    assert decide("number", "Answer: Paris", "Paris") is None
    assert decide("number", "Answer: 1e3", "1,000") is True
    assert decide("exact", "7", None) is None


@given(st.integers(-(10**7), 10**7), st.integers(-(10**7), 10**7))
def test_numbers_decide_as_their_values(a: int, b: int) -> None:
    for text in (f"Answer: {a}", f"\\boxed{{{a:,}}}", f"{a}.0", f"So it is\n#### {a}"):
        verdict = decide("exact", text, f"{b:,}")
        assert verdict is True if a == b else verdict is not True
        assert decide("exact", text, str(a)) is True


@given(st.integers(0, 10), st.text(max_size=30), st.text(max_size=30))
def test_a_reference_is_seen_in_digits_words_and_latex(n: int, before: str, after: str) -> None:
    for form in (f"{n}", f"{n}.0", UNITS[n], f"\\boxed{{{n}}}", f"\\frac{{{2 * n}}}{{2}}", f"{n}%"):
        assert holds_reference(f"{before} ; {form} ; {after}", str(n))
        assert holds_reference(f"{before} ; {form} ; {after}", f"some words\n#### {n}")


@pytest.mark.parametrize(
    ("text", "reference"),
    [("category", "cat"), ("17", "7"), ("A colleague saw it", "A"), ("", "7")],
)
def test_what_only_resembles_a_reference_is_none(text: str, reference: str) -> None:
    assert not holds_reference(text, reference)


@given(st.text(), st.text(), st.text())
def test_any_text_is_decided_without_an_error(response: str, question: str, reference: str) -> None:
    for name in ("exact", "number", "option"):
        assert decide(name, response, reference, question) in (True, False, None)


def test_code_is_decided_by_its_tests() -> None:
    question = 'def double(n):\n    """Twice n."""\n'
    columns = {"test": "def check(f):\n    assert f(2) == 4\n", "entry_point": "double"}
    right, wrong = "    return 2 * n\n", "    return n\n"
    assert decide("tests", right, None, question, **columns) is True
    assert decide("tests", wrong, None, question, **columns) is False
    fenced = f"```python\n{question}{right}```\nI hope that this helps."
    assert decide("tests", fenced, None, question, **columns) is True
    assert decide("tests", "Thought process:", None, question, **columns) is False
    tests = json.dumps([{"call": "double", "args": [2], "expected": 4}])
    assert decide("tests", "def double(n):\n    return 2 * n", None, "Double.", tests=tests) is True
    asserts = json.dumps(["assert double(2) == 4"])
    assert decide("tests", "def double(n):\n    return n", None, "D", test_list=asserts) is False


def test_a_row_without_tests_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^check tests, row 1: no tests; give a column"):
        decide("tests", "x = 1", None)


def test_a_users_function_decides(tmp_path: Path) -> None:
    source = "def right(response, question, reference, **columns):\n    return {}\n"
    file = SimpleNamespace(check="mine.py:right", path=tmp_path / "judge.yaml")
    (tmp_path / "mine.py").write_text(source.format("None if not response else len(response) > 2"))
    check = make_check(file)  # type: ignore[arg-type]
    assert check is not None and check.name == "mine.py:right"
    row = GradedRow("5", "q", "Q", "R", "abc", False, {"question": "Q", "other": "x"})
    assert [check.decide(text, row) for text in ("", "a", "abc")] == [None, False, True]


@pytest.mark.parametrize(
    ("body", "message"),
    [("1 / 0", r"row 5, line 2: ZeroDivisionError"), ("0.5", r"row 5: it gave 0.5; return True")],
)
def test_a_functions_fault_is_one_line(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(
        f"def right(response, question, **columns):\n    return {body}\n"
    )
    check = make_check(SimpleNamespace(check="mine.py:right", path=tmp_path / "judge.yaml"))  # type: ignore[arg-type]
    assert check is not None
    with pytest.raises(SettingsError, match=message) as caught:
        check.decide("a", GradedRow("5", "q", "Q", "R", None, False))
    assert "\n" not in str(caught.value)


def test_an_unknown_check_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="no check 'exat'; did you mean 'exact'"):
        decide("exat", "a", "b")
    assert make_check(SimpleNamespace(check=None, path=Path("j"))) is None  # type: ignore[arg-type]
