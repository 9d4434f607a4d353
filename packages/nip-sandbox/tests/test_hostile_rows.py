"""No code forges a grade: it is told what it reads, and what is expected is nowhere near it.

All attacks are graded in one go. Each row asks for a secret by all three kinds of tests, and code
that has the secret by luck passes the same tests, so each of them can be passed.
"""

import json
import secrets
import textwrap
import time

import pytest
from unknown_code import EXCESSES, FORGERIES, SEARCH

from nip_sandbox.grading.grade import check_isolation, grade
from nip_sandbox.grading.outputs import explain_output
from nip_sandbox.grading.rows import RowError, make_row
from nip_sandbox.sandbox import Isolation, SandboxError
from nip_sandbox.sandbox_process import join_lines

SECRET = f"SECRET-{secrets.token_hex(16)}"


def row(name, code, **more):
    tests = [
        {"stdin": "", "stdout": SECRET},
        {"call": "f", "args": [1], "expected": SECRET},
        {"call": "f", "assert": f"assert f(1) == {SECRET!r}"},
    ]
    return {"id": name, "code": textwrap.dedent(code), "tests": tests, "seconds": 3, **more}


@pytest.fixture(scope="module")
def grades(tmp_path_factory):
    """Every attack, between code that is right."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    right = f"def f(x):\n    return {SECRET!r}\nif __name__ == '__main__':\n    print({SECRET!r})"
    search = f"ROWS = {str(path)!r}\n{SEARCH}"
    told = [
        {"stdin": SECRET, "stdout": SECRET},
        {"call": "f", "args": [[SECRET]], "expected": SECRET},
    ]
    rows = [
        row("right", right),
        row("searches", search, seconds=20),
        {
            "id": "searches and is told",
            "code": f"import sys\nheld = sys.stdin.read()\n{search}",
            "tests": told,
            "seconds": 20,
        },
        *(row(name, code) for name, code in FORGERIES.items()),
        *(
            {**row(name, code, seconds=1), "tests": [{"stdout": SECRET}]}
            for name, (code, _) in EXCESSES.items()
        ),
        row("right again", right),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    path.chmod(0o644)
    begun = time.monotonic()
    found = {
        grade.id: grade
        for grade in grade(map(make_row, rows), jobs=2, allow_without_namespaces=True)
    }
    assert time.monotonic() - begun < 300
    return found


def test_the_tests_of_the_secret_can_be_passed(grades):
    for name in ("right", "right again"):
        assert [test.passed for test in grades[name].tests] == [True] * 3, grades[name]


def test_what_is_expected_is_found_nowhere_and_what_is_told_is(grades):
    assert [test.passed for test in grades["searches"].tests] == [False] * 3
    output, value = grades["searches"].tests[:2]
    assert output.reason.startswith("wrong output: line 1: got 'nothing'")
    assert value.reason.startswith("wrong answer: got 'nothing'")
    # The same search finds what was given to the code, so it would find the rest.
    assert grades["searches and is told"].passed, grades["searches and is told"]


@pytest.mark.parametrize("name", FORGERIES)
def test_nothing_but_the_right_answer_passes(grades, name):
    assert [test.passed for test in grades[name].tests] == [False] * 3
    assert all(test.reason for test in grades[name].tests)


@pytest.mark.parametrize("name", EXCESSES)
def test_what_takes_too_much_fails_and_the_reason_says_why(grades, name):
    [test] = grades[name].tests
    assert test.passed is False
    assert test.reason.startswith(EXCESSES[name][1])


def test_where_code_could_read_the_expected_outputs_nothing_is_graded():
    layers = dict(network=True, processes=True, filesystem=True, user=True, system_calls=True)
    check_isolation(Isolation(**layers, landlock=True), "", False)
    check_isolation(Isolation(**layers, landlock=False), "", True)
    with pytest.raises(SandboxError, match="has no Landlock"):
        check_isolation(Isolation(**layers, landlock=False), "", False)


def test_a_row_that_can_not_be_read_stops_no_row_before_it():
    def rows():
        yield make_row({"id": 1, "code": "print(1)", "tests": [{"stdout": "1"}]})
        yield make_row({"id": 2, "code": "print(1)"}, "rows.jsonl:2")

    iterator = grade(rows(), allow_without_namespaces=True)
    assert next(iterator).passed
    with pytest.raises(RowError, match=r"^rows\.jsonl:2: 'tests' is missing"):
        next(iterator)


def test_one_line_of_four_million_digits_is_compared_in_time_that_grows_as_it_does():
    digits = "1" * 4_000_000
    for line in (f"{digits}x", f"{digits}.{digits}x", f".{digits}x", f"{digits}e{digits}"):
        assert explain_output(line, "5", exact=False, tolerance=1e-6)
    # The digits count, so they are read as numbers.
    assert explain_output(f"5.{'0' * 4_000_000}", "5", exact=False, tolerance=None) == ""
    assert explain_output(f"5.{digits}", "5", exact=False, tolerance=None)
    assert explain_output(f"5.{digits}", "5", exact=False, tolerance=0.2) == ""


def test_a_line_of_many_pieces_is_joined_in_time_that_grows_as_it_does():
    pieces = [b"first\n\nsecond", *([b"x" * 60] * 1_000_000), b"\nthird\n", b"with no end"]
    first, empty, second, third = join_lines(pieces)
    assert (first, empty, third) == (b"first", b"", b"third")
    assert len(second) == 60_000_006
    assert list(join_lines([*[b"x" * 60] * 2_000_000, b"\n"])) == []
