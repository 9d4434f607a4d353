"""Verdicts are read by the judge's own form: the last one counts, and nothing is repaired."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.errors import SettingsError
from nip_judges.settings.pattern_checks import check_pattern
from nip_judges.verdict_forms import (
    EndForm,
    LabelForm,
    NumberForm,
    PatternForm,
    TextForm,
)

GRADES = TextForm("GRADE: C", "GRADE: I")


@pytest.mark.parametrize(
    ("words", "verdict", "has_both"),
    [
        ("so GRADE: C", "accept", False),
        ("GRADE: C? no. GRADE: I", "reject", True),
        ("GRADE: I, then GRADE: C", "accept", True),
        ("grade: c", "none", False),
        ("GRADE:  C", "none", False),
        ("", "none", False),
    ],
)
def test_the_last_form_counts_as_it_is_written(words: str, verdict: str, has_both: bool) -> None:
    reading = GRADES.read(words)
    assert (reading.verdict, reading.has_both) == (verdict, has_both)
    assert (reading.reason is None) == (verdict != "none")


def test_a_form_does_not_count_within_the_other() -> None:
    form = TextForm("correct", "incorrect")
    assert form.read("it is incorrect")[:3] == ("reject", None, False)
    assert form.read("incorrect? no: correct")[:3] == ("accept", None, True)
    swapped = TextForm("not bad", "bad")
    assert swapped.read("not bad")[:3] == ("accept", None, False)
    assert swapped.read("not bad, but bad").verdict == "reject"


def test_case_is_ignored_only_where_the_form_says_so() -> None:
    form = TextForm("Yes", "No", ignore_case=True)
    assert form.read("YES").verdict == "accept" and form.read("İ no").verdict == "reject"


WORD = st.text("abB ", min_size=1, max_size=3).filter(str.strip)


@given(WORD, WORD, st.text("abB ", max_size=30))
def test_every_reading_agrees_with_a_search_letter_by_letter(
    accept: str, reject: str, words: str
) -> None:
    if accept == reject:
        with pytest.raises(SettingsError):
            TextForm(accept, reject)
        return
    spans = {
        form: [(i, i + len(form)) for i in range(len(words)) if words.startswith(form, i)]
        for form in (accept, reject)
    }
    for inner, outer in ((accept, reject), (reject, accept)):
        if len(inner) < len(outer):
            spans[inner] = [
                (s, e)
                for s, e in spans[inner]
                if not any(a <= s and e <= b for a, b in spans[outer])
            ]
    last = max(((e, s, form) for form, places in spans.items() for s, e in places), default=None)
    reading = TextForm(accept, reject).read(words)
    if last is None:
        assert reading.verdict == "none"
        return
    ends = {form: max((e, s) for s, e in places) for form, places in spans.items() if places}
    expected = max(ends, key=lambda form: ends[form])
    assert reading.verdict == ("accept" if expected == accept else "reject")
    assert reading.has_both == (len(ends) == 2)
    assert reading.end == ends[expected][0]


@given(st.text(max_size=60))
def test_no_words_break_a_form(words: str) -> None:
    forms = [
        GRADES,
        PatternForm(r"(?is).*GRADE\s*:\s*([CI])", "C", "I"),
        NumberForm(0.5, 0, 1, "result"),
        LabelForm(["pass", "fail"], ["pass"]),
    ]
    for form in [*forms, *map(EndForm, forms)]:
        reading = form.read(words)
        assert (reading.reason is None) == (reading.verdict != "none")


def test_the_last_match_of_a_pattern_counts_by_its_group() -> None:
    form = PatternForm(r"GRADE: (\w)", "C", "I")
    assert form.read("GRADE: C GRADE: I")[:3] == ("reject", None, True)
    off_menu = form.read("GRADE: C, or rather GRADE: P")
    assert off_menu.verdict == "none" and "'P'" in (off_menu.reason or "")
    assert form.read("GRADE: c").verdict == "none"
    assert PatternForm(r"(?i)grade: (\w)", "C", "I").read("Grade: c").verdict == "accept"
    score = PatternForm(r"SCORE: ([\d.]+)", threshold=7).read("SCORE: 3 SCORE: 7.5")
    assert (score.verdict, score.score) == ("accept", 7.5)
    assert PatternForm(r"SCORE: (\S+)", threshold=7).read("SCORE: high").verdict == "none"


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"((?:a+)+)b", r"((?:a|a)*)b", r"(\s*\s*x)", r"(a)(b)", r"a", r"("),
        *(
            r"(?s).*a.*(b)",
            r"(?s)\A.*a.*b.*(c)",
            r"(?s).*(?!.*a)(b)",
            r"(?s)\A.*(?>.*a)(?>.*b)+(c)",
        ),
    ],
)
def test_a_pattern_that_may_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(SettingsError, match="pattern"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"SCORE:\s*\d+ of (\d+)", r"^\W*(yes|no)\b", r"\[\[(A|B)\]\]", r"(?s)\A.*?: *(\w+)"),
        *(r"(?s)\A(?!.*a)(?>.*b)(?:.*c|.*d)(e)", r"(?s)\A.*a.*(b)"),
    ],
)
def test_an_ordinary_pattern_is_taken(pattern: str) -> None:
    assert check_pattern(pattern).groups == 1


def test_the_time_of_a_pattern_is_bounded_on_long_words() -> None:
    spacing = r"[\s\u200b\u200c\u200d]*"
    inspect_like = rf"(?is).*(?<!\w)GRADE(?!\w){spacing}:{spacing}(\w*)"
    form = PatternForm(inspect_like, "C", "I")
    assert form.read("x" * 100_000 + " GRADE: C").verdict == "accept"
    began = time.monotonic()
    assert form.read("GRADE " * 2_000).verdict == "none"
    assert time.monotonic() - began < 4


def test_numbers_outside_the_range_are_no_verdict() -> None:
    form = NumberForm(0.5, 0, 1, "result")
    assert form.read('{"result": 0.5}')[:2] == ("accept", None)
    assert form.read('```json\n{"result": 0.2}\n```').score == 0.2
    assert form.read("I'd say 0.9").verdict == "accept"
    for words in ("7", '{"result": NaN}', "good", '{"result": true}', "v1x"):
        assert form.read(words).verdict == "none", words


def test_a_label_is_one_of_the_list_alone_or_as_json() -> None:
    form = LabelForm(["pass", "fail"], ["pass"])
    assert form.read('{"label": "pass"}').verdict == "accept"
    assert form.read(' "fail" ').verdict == "reject"
    for words in ("it is pass", "PASS", '{"label": "good"}', '{"grade": "pass"}'):
        assert form.read(words).verdict == "none", words


def test_at_the_end_a_quoted_verdict_counts_no_more() -> None:
    form = EndForm(GRADES)
    assert form.read('He wrote "GRADE: C".\nSo **GRADE: I**.').verdict == "reject"
    assert form.read("GRADE: C\nbut I am not sure").verdict == "none"
    assert form.read("GRADE: C is what it says").verdict == "none"
    first = EndForm(PatternForm(r"(?s)\A.*?GRADE: ([CI])", "C", "I"))
    assert first.read("GRADE: C is quoted.\nGRADE: I").verdict == "reject"
