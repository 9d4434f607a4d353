"""`nip grade`: rows in, grades out, bad rows named by file and line, and a kill loses little."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from threading import Event

import pytest

from nip_sandbox.grading.grade import Grade, TestGrade, grade
from nip_sandbox.grading.graded_file import GradedFile
from nip_sandbox.grading.in_sandbox import encode_value
from nip_sandbox.grading.judge import Judge, Task, Unjudged
from nip_sandbox.grading.outputs import explain_output, explain_value
from nip_sandbox.grading.rows import RowError, make_row, read_rows
from nip_sandbox.sandbox import Limits

HUMANEVAL = Path(__file__).parents[4] / "shared" / "data" / "humaneval-even.jsonl.gz"
COMMAND = [sys.executable, "-m", "nip_sandbox.grading.grading_command"]
DOUBLE = "def f(x):\n    return 2 * x"


def nip_grade(*arguments, stdin=None, **options):
    return subprocess.run(
        [*COMMAND, *map(str, arguments), "--allow-without-namespaces"],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(name, code, *tests, **more):
    return {"id": name, "code": code, "tests": list(tests), **more}


def read(path):
    return {grade["id"]: grade for grade in map(json.loads, path.read_text().splitlines())}


AS_HUMANEVAL = (
    "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate('a') == 'aa'\n"
)
OTHER = "assert f(g(2)) == 8"
CHECKED = f"def check(candidate):\n    candidate(1)\n    {OTHER}"
STRICT = "def f(x):\n    if x < 0:\n        raise ValueError\n    return x"
RAISES = "def f(x):\n    raise ValueError"
EXPECTED = "try:\n    f(-1)\nexcept ValueError:\n    pass\n"
LATE = "try:\n    r = f(1)\nexcept ValueError:\n    pass\n"
UNDEFINED = "the tests of f use the name 'g', which they don't define"
ODD = "the tests of f give it an argument of type function, which can't be told to the code"
COLLATZ = """
def f(n):
    steps = 0
    while n != 1:
        n, steps = n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1
    return steps
"""
DIES = "import os\ndef f(x):\n    return x + 1 if x else os._exit(0)"
PAIR = "def f(x):\n    return x, x + 1"
PAIRS = "def check(c):" + "".join(
    f"\n    a, b = c({k})\n    assert (a, b) == ({k}, {k + 1})" for k in range(1, 7)
)
ASSERTED = [
    # Arguments that can't be told: nothing is judged, unless an earlier assertion has failed.
    (DOUBLE, "assert f(1) == 2\nassert f(lambda: 2) == 4", ODD),
    (DOUBLE, "assert f(1) == 2\nassert f(2, y=lambda: 2) == 4", ODD),
    (DOUBLE, "def check(c):\n    assert c(1) == 2\n    c(lambda: 2)", ODD),
    (DOUBLE, "assert f(1) == 3\nassert f(lambda: 2) == 4", "wrong answer"),
    (DOUBLE, "f(1)\ntry:\n    f(lambda: 2)\nexcept BaseException:\n    pass", ODD),
    # A name that tests lack, after an exception that they expect.
    (STRICT, EXPECTED + "assert f(1) == 1", ""),
    (STRICT, EXPECTED + "assert g(f(1)) == 1", UNDEFINED),
    (STRICT, EXPECTED + "assert g(1) == 1", UNDEFINED),
    (STRICT, EXPECTED + "assert f(1) == 2", "wrong answer"),
    # A name that they lack for an exception of the code is its mistake.
    (RAISES, LATE + "assert r == 1", "exception"),
    (RAISES, LATE.replace("pass", "g(1)"), "exception"),
    ("def f(x):\n    if x == 1:\n        raise ValueError\n    return x",
     LATE + "f(2)\nassert r == 1", "wrong answer"),
    ("def f(x):\n    raise NameError('g')", "f(1)", "exception"),
    # Tests that catch everything still wait for each answer.
    ("def f(x):\n    return x", "n = f(1)\nn += f(n + 1)\ntry:\n    r = f(n)\n"
     "except BaseException:\n    r = 4\nassert r == 4", "wrong answer"),
    # Calls that follow from answers: none that no test makes counts, and each other one does.
    (COLLATZ, "assert f(int(f(6))) == 3", ""),
    (COLLATZ, "assert f(len('a' * f(6))) == 3 and f(int(str(f(6)))) == 3", ""),
    (COLLATZ, "assert f(int(f(6))) == 4", "wrong answer"),
    (DIES, "if f(6) == 3:\n    f(0)\nassert f(8) == 9", ""),
    (DIES, "n = f(8)\nif n == 3:\n    f(0)\nassert n == 9", ""),
    (DIES, "if f(6) == 3:\n    f(0)\nassert f(8) == 8", "wrong answer"),
    (DIES, "if f(6) == 7:\n    f(0)\nassert f(8) == 9", "crash"),
    (DIES, "if f(6) == 3:\n    f(1)\nassert f(8) == 9\nf(0)", "crash"),
    (DIES, "assert f(len('a' * f(6))) == 8\nf(f(6) - 7)", "crash"),
    (PAIR, PAIRS, ""),
    (PAIR, "n = 1\nfor _ in range(6):\n    _, n = f(n)\nassert n == 7", ""),
    (PAIR.replace("x + 1", "x + (x != 6)"), PAIRS + "  # of other code", "wrong answer"),
]  # fmt: skip
GRADED = [
    (row("output", "print(2 * int(input()))", {"stdin": "2\n", "stdout": "4"}), ""),
    (row("main", "if __name__ == '__main__':\n    print(1)", {"stdout": "1\n"}), ""),
    (row("no output", "x = 1", {"stdout": ""}), ""),
    (row("wrong", "print(5)", {"stdout": "4"}), "wrong output: line 1: got '5', expected '4'"),
    (row("lines", "print(1)\nprint(2)", {"stdout": "1"}), "wrong output: got 2 lines, expected 1"),
    (row("raises", "print(1)\n1 / 0", {"stdout": "1"}), "crash: exit code 1, ZeroDivisionError"),
    (row("exact", "print(1)", {"stdout": "1", "exact": True}), "wrong output: got '1\\n'"),
    (row("syntax", "print(", {"stdout": ""}), "crash: exit code 1, SyntaxError"),
    (row("call", DOUBLE, {"call": "f", "args": [2], "expected": 4}), ""),
    (row("named", DOUBLE, {"call": "f", "kwargs": {"x": "a"}, "expected": "aa"}), ""),
    (row("method", "class S:\n    def g(self, x): return x, x",
         {"call": "S.g", "args": [1], "expected": [1, 1]}), ""),
    (row("prints", "def f(x):\n    print('4')\n    return 4",
         {"call": "f", "args": [0], "expected": 4}), ""),
    (row("other", DOUBLE, {"call": "f", "args": [2], "expected": 5}),
     "wrong answer: got 4, expected 5"),
    (row("set", "def f():\n    return {1}", {"call": "f", "expected": [1]}),
     "wrong answer: returned a set, which is no JSON value"),
    (row("object", "def f():\n    return object()", {"call": "f", "expected": 1}),
     "wrong answer: returned a object, which is no JSON value"),
    (row("error", "def f():\n    raise ValueError('no')", {"call": "f", "expected": 1}),
     "exception: ValueError: no"),
    (row("missing", "x = 1", {"call": "f", "expected": 1}), "no function: the code has no f"),
    (row("no load", "import numpy_of_nobody", {"call": "f", "expected": 1}),
     "does not load: ModuleNotFoundError"),
    (row("assert", DOUBLE, {"call": "f", "assert": "assert f(2) == 4"}), ""),
    (row("HumanEval", DOUBLE, {"call": "f", "assert": AS_HUMANEVAL}), ""),
    (row("assert not", DOUBLE, {"call": "f", "assert": "assert f(2) == 5"}),
     "wrong answer: an assertion failed"),
    (row("unjudged", DOUBLE, {"call": "f", "assert": "assert 1"}), "the tests of f never call it"),
    (row("helper", DOUBLE + "\ndef g(x):\n    return x", {"call": "f", "assert": "f(1)\n" + OTHER}),
     "the tests of f use the name 'g', which they don't define"),
    (row("odd", DOUBLE, {"call": "f", "assert": "assert f(1) == 2\nassert f(lambda: 2) == 4"}), ODD),
    (row("checked", DOUBLE + "\ndef g(x):\n    return x", {"call": "f", "assert": CHECKED}),
     "the tests of f use the name 'g', which they don't define"),
]  # fmt: skip


@pytest.fixture(scope="module")
def grades():
    rows = [make_row(data) for data, _ in GRADED]
    return {g.id: g for g in grade(rows, jobs=2, allow_without_namespaces=True)}


@pytest.mark.parametrize(("data", "reason"), GRADED, ids=[data["id"] for data, _ in GRADED])
def test_a_test_passes_or_says_why_not(grades, data, reason):
    [test] = grades[data["id"]].tests
    assert test.reason.startswith(reason)
    assert bool(test.reason) == bool(reason)
    expected = None if reason.startswith("the tests") else not reason
    assert test.passed is grades[data["id"]].passed is expected


def test_assertions_judge_code_by_the_calls_that_they_make_or_say_why_not():
    limits = Limits(wall_s=10, cpu_s=10, memory_mb=512)
    tasks = [Task(code, "f", source) for code, source, _ in ASSERTED]
    judged = Judge(limits, 0, allow_without_namespaces=True).judge(tasks)
    for (code, source, reason), judgement in zip(ASSERTED, judged, strict=True):
        if isinstance(judgement, Unjudged):
            assert judgement.reason.startswith(reason or "passed"), (code, source)
            continue
        assert (judgement.mistake or "") == reason, (code, source)
        # COLLATZ would take all its time for a call with a made-up argument.
        assert judgement.seconds < 8, (code, source)


def test_tests_that_only_answers_end_are_judged_and_those_without_an_end_judge_nothing():
    limits = Limits(wall_s=1, cpu_s=1, memory_mb=512)
    chain = "n = 6\nwhile n > 3:\n    n = f(n)\nassert n == {}"
    counts = "n = 0\nwhile f(n) < 8:\n    n += 1\nassert n == 4"
    endless = "f(1)\nwhile True:\n    pass"
    cases = [
        (COLLATZ, chain.format(3), None),  # 6, 8, 3
        (COLLATZ, chain.format(4), "wrong answer"),
        (DOUBLE, counts, None),
        (DOUBLE, endless, "the tests of f do not end, neither with answers nor without"),
    ]
    tasks = [Task(code, "f", source) for code, source, _ in cases]
    judged = Judge(limits, 0, allow_without_namespaces=True).judge(tasks)
    for (_, source, end), judgement in zip(cases, judged, strict=True):
        if isinstance(judgement, Unjudged):
            assert judgement.reason.startswith(end or "passed"), source
        else:
            assert judgement.mistake == end, source


@pytest.mark.long
def test_calls_that_each_follow_from_the_answer_before_have_an_end():
    source = "n = 1\nfor _ in range(40):\n    n = f(n)"
    data = make_row(row("a", DOUBLE, {"call": "f", "assert": source}))
    [grade_of_row] = grade([data], allow_without_namespaces=True)
    assert grade_of_row.passed is None
    assert "tests of f ask for calls more than 16 times" in grade_of_row.tests[0].reason


def test_no_test_of_a_row_follows_one_that_failed_where_asked():
    tests = [{"stdout": "1"}, {"stdout": "2"}, {"stdout": "1"}, {"call": "f", "assert": "f(1)"}]
    data = make_row(row("a", "print(1)", *tests))
    [stopped] = grade([data], stop_at_first_failure=True, allow_without_namespaces=True)
    assert [test.passed for test in stopped.tests] == [True, False, False, False]
    assert {test.reason for test in stopped.tests[2:]} == {"not run: an earlier test failed"}
    [whole] = grade([data], allow_without_namespaces=True)
    assert [test.passed for test in whole.tests[:3]] == [True, False, True]


@pytest.mark.parametrize(
    ("got", "expected", "options", "same"),
    [
        (" 1 2 \n\n", "1 2", {}, True),
        ("1.50 2", "1.5 2.0", {}, True),
        ("1.50 x", "1.5 x", {}, False),
        ("1.50 x", "1.5 x", {"tolerance": 0}, True),
        ("0.3333", "0.33333", {"tolerance": 1e-3}, True),
        ("0.3433", "0.33333", {"tolerance": 1e-3}, False),
        ("nan", "nan", {}, True),
        ("nan", "1", {"tolerance": 9}, False),
        ("1e300", "0", {"tolerance": 1}, False),
        ("3", "1", {"tolerance": 1}, False),
        ("2", "1", {"tolerance": 1}, True),
        ("150", "100", {"tolerance": 0.4}, False),
        ("150", "100", {"tolerance": 0.5}, True),
        ("1e999", "5", {"tolerance": 1}, False),
        ("5", "1e999", {"tolerance": 1}, False),
        ("1e999", "1e999", {"tolerance": 1}, True),
        ("1_0", "10", {}, False),
        ("1e9999999999", "1", {}, False),
        ("50000000000000000", "50000000000000001", {}, False),
        ("1 2\n3", "1 2 3", {}, False),
    ],
)
def test_outputs_are_compared_line_by_line_and_numbers_by_their_value(got, expected, options, same):
    options = {"exact": False, "tolerance": None, **options}
    assert (explain_output(got, expected, **options) == "") is same


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "same"),
    [
        (1, 1.0, None, True),
        (True, 1, None, False),
        (1, True, None, False),
        (None, False, None, False),
        ((1, [2]), [1, [2]], None, True),
        ({1: "a"}, {"1": "a"}, None, True),
        ({None: "a"}, {"null": "a"}, None, False),
        (0.1 + 0.2, 0.3, None, False),
        (0.1 + 0.2, 0.3, 1e-9, True),
        (10**400, 1e9, 0.1, False),
        ("1", 1, None, False),
        (b"a", "a", None, False),
        ([1, 2], [1], None, False),
        (float("nan"), 1.0, 9.0, False),
        (1e300, 0, 1.0, False),
        ([150], [100], 0.4, False),
        ([150], [100], 0.5, True),
        (float("inf"), 5, 1.0, False),
        (5, float("inf"), 1.0, False),
        (float("-inf"), float("inf"), 1.0, False),
        (float("inf"), float("inf"), 1.0, True),
        (10**400, 10**400 + 1, 1.0, False),
    ],
)
def test_values_are_compared_as_json(got, expected, tolerance, same):
    assert (explain_value(encode_value(got), expected, tolerance) == "") is same


def test_whatever_is_told_of_a_value_is_at_most_a_wrong_one():
    for told in (["int", "x"], [], ["list"], {}, "text", 3, ["dict", [[["list", []], None]]]):
        assert explain_value(told, 1, None)


@pytest.mark.skipif(not HUMANEVAL.is_file(), reason=f"no {HUMANEVAL.name} beside the repository")
def test_rows_of_humaneval_pass_with_their_solutions_and_no_others():
    with gzip.open(HUMANEVAL) as file:
        problems = {problem["task_id"]: problem for problem in map(json.loads, file)}
    rows = []
    # A test that only calls, one that needs another function for its calls, and one for the check.
    for name in ("HumanEval/0", "HumanEval/38", "HumanEval/32"):
        prompt, test = problems[name]["prompt"], problems[name]["test"]
        for body in (problems[name]["canonical_solution"], "    return None\n"):
            tests = {"assert": prompt + test, "call": problems[name]["entry_point"]}
            rows.append(make_row(row(len(rows), prompt + body, tests)))
    found = {g.id: g.passed for g in grade(rows, jobs=2, allow_without_namespaces=True)}
    assert found == {0: True, 1: False, 2: True, 3: False, 4: True, 5: False}


BAD = [
    ("{", "not JSON in UTF-8"),
    ('{"id": NaN}', "NaN is no JSON"),
    ("[1]", "must be a JSON object (got [1])"),
    ("[" * 500 + "]" * 500, "not JSON in UTF-8 (it is nested more than"),
    (row("a", "", {"stdout": "x" * 4_000_001}), "tests[0]: 'stdout' has more than 4,000,000 bytes"),
    (row("a", "", {"stdout": ""}, second=1), "unknown key 'second'; did you mean 'seconds'?"),
    ({"code": "", "tests": [{"stdout": ""}]}, "'id' is missing"),
    (row(True, "", {"stdout": ""}), "'id' must be a text or a whole number (got true)"),
    (row("a", ""), "'tests' is empty"),
    (row("a", None, {"stdout": ""}), "'code' must be source code as a text (got null)"),
    (row("a", "", {"stdout": ""}, seconds=0), "'seconds' must be a number above 0"),
    (row("a", "", {"stdout": ""}, memory_mb=1), "'memory_mb' must be a whole number from 64"),
    (
        '{"id": "a", "code": "", "tests": [{"stdout": ""}], "meta": {"k": [1e999]}}',
        """'meta' must be without numbers that no float holds (got {"k": [Infinity]})""",
    ),
    (row("a", "", {"stdin": ""}), "tests[0]: a test needs one of 'stdout'"),
    (row("a", "", {"stdout": 1}), "tests[0]: 'stdout' must be a text (got 1)"),
    (row("a", "", {"stdout": "1", "strict": 1}), "tests[0]: unknown key 'strict'; there are stdin"),
    (row("a", "", {"expected": 1}), "tests[0]: 'call' is missing"),
    (row("a", "", {"call": "f(", "expected": 1}), "'call' must be the name of a function"),
    (row("a", "", {"call": "f", "args": 1, "expected": 1}), "'args' must be a list (got 1)"),
    (row("a", "", {"call": "f", "assert": "assert ("}), "tests[0]: 'assert' is no Python"),
    (row("first", "", {"stdout": ""}), "the id 'first' is also that of rows.jsonl:1"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_a_bad_row_is_named_by_file_and_line_with_what_was_got(bad, message):
    good = json.dumps(row("first", "", {"stdout": ""}))
    text = bad if isinstance(bad, str) else json.dumps(bad)
    with pytest.raises(RowError) as error:
        list(read_rows([good.encode(), b"\n", text.encode()], "rows.jsonl"))
    assert str(error.value).startswith("rows.jsonl:3: ")
    assert message in str(error.value)


def test_a_kill_loses_the_rows_in_flight_alone_and_running_again_goes_on(tmp_path):
    rows = write_rows(
        tmp_path / "rows.jsonl",
        row("quick", "print(1)", {"stdout": "1"}, meta={"problem": 7}),
        *(row(k, "import time\ntime.sleep(0.4)", {"stdout": ""}) for k in range(6)),
        row("fails", "print(1)", {"stdout": "2"}),
    )
    out = tmp_path / "grades.jsonl"
    process = subprocess.Popen([*COMMAND, rows, out, "--jobs", "2", "--allow-without-namespaces"])
    while not out.exists() or out.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.01)
    # The file is one process's.
    with pytest.raises(RowError, match="another process writes grades to it"):
        GradedFile(str(out))
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = out.read_text()
    out.write_text(kept[: kept.rindex("\n") + 1] + '{"id": "torn", "pas')
    again = nip_grade(rows, out, "--json")
    assert again.returncode == 0, again.stderr
    lines = out.read_text().splitlines()
    assert len(lines) == len(read(out)) == 8
    assert "\n".join(lines).startswith(kept.rstrip("\n"))
    counts = json.loads(again.stdout)
    assert counts["skipped"] == kept.count("\n")
    assert counts["graded"] == 8 - counts["skipped"]
    assert read(out)["fails"]["passed"] is False
    assert read(out)["quick"] == {**read(out)["quick"], "passed": True, "meta": {"problem": 7}}
    # The same id with other code is not passed over in silence.
    write_rows(rows, row("quick", "print(2)", {"stdout": "1"}))
    other = nip_grade(rows, out)
    assert other.returncode == 2
    assert f"{rows}:1: {out} has a grade of id 'quick' with other code" in other.stderr
    # And a file of something else is not written to.
    before = rows.read_bytes()
    wrong = nip_grade(rows, rows)
    assert wrong.returncode == 2
    assert f"{rows}:1: is no grade" in wrong.stderr
    assert rows.read_bytes() == before


GRADE = Grade("a", True, (TestGrade(True, "", 0.1),), "0123", "end").as_line()
FOREIGN = [
    '{"learning_rate": 1}',
    '{"id": "a", "code": "print(1)", "tests": [{"stdout": "1"}]}',
    '{"id": "a", "code": "print(1)", "te',
    '{"id": "a", "passed": "yes", "te',
    '{"id": "a", "passed": true}',
    "id,passed\n1,true",
    '{"id": ["a", "b',
    '{"id": "a", "digest": "0123"}',
    "[1, 2]",
    "7",
    "\n",
    f"{GRADE}a last line of another kind",
    f'{{"learning_rate": 1}}\n{GRADE[:30]}',
]


@pytest.mark.parametrize("text", FOREIGN)
def test_of_a_file_that_has_no_grades_not_a_byte_is_changed(tmp_path, text):
    path = tmp_path / "precious.json"
    path.write_text(text)
    number = 2 if text.startswith(GRADE) else 1
    with pytest.raises(
        RowError, match=rf"precious\.json:{number}: is no grade, and nothing is wri"
    ):
        GradedFile(str(path))
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["b", 'a "b\\', "é", 0, -17])
@pytest.mark.parametrize("passed", [True, False, None])
def test_a_grade_is_removed_wherever_it_is_cut_short_and_kept_where_it_is_whole(
    tmp_path, name, passed
):
    path = tmp_path / "grades.jsonl"
    line = Grade(name, passed, (TestGrade(passed, "x: y", 0.1),) * 2, "4567").as_line()
    for place in range(len(line) - 1):
        path.write_text(GRADE + line[:place])
        with GradedFile(str(path)):
            assert path.read_text() == GRADE, line[:place]
    path.write_text(GRADE + line.rstrip("\n"))
    with GradedFile(str(path)):
        assert path.read_text() == GRADE + line


def test_rows_come_from_a_pipe_and_grades_go_to_one_and_a_test_that_judges_nothing_is_said():
    good, bad = row("a", "print(1)", {"stdout": "1"}), row("b", "", {"call": "f", "assert": "1"})
    done = nip_grade("-", "-", stdin="".join(json.dumps(data) + "\n" for data in (good, bad)))
    assert done.returncode == 2
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["a"]
    assert "graded 1 rows: 1 passed, 0 failed" in done.stderr
    assert "stdin:2: tests[0]: the tests of f never call it" in done.stderr


def test_rows_of_a_pipe_that_has_a_path_are_read_once_and_graded(tmp_path):
    reader, writer = os.pipe()
    with open(writer, "w") as pipe:
        for data in (row(k, "print(1)", {"stdout": "1"}) for k in range(3)):
            pipe.write(json.dumps(data) + "\n")
    out = tmp_path / "grades.jsonl"
    with open(reader):
        done = nip_grade(f"/dev/fd/{reader}", out, pass_fds=[reader])
    assert done.returncode == 0, done.stderr
    assert read(out).keys() == {0, 1, 2}


def test_a_grade_waits_for_no_row_after_it_and_no_more_rows_are_read_than_there_is_room_for():
    is_graded, read_count = Event(), 0

    def rows():
        nonlocal read_count
        for read_count in range(1, 10):
            if read_count == 4:
                assert is_graded.wait(60)
            yield make_row(row(read_count, "print(1)", {"stdout": "1"}))

    iterator = grade(rows(), jobs=2, allow_without_namespaces=True)
    assert next(iterator).passed
    is_graded.set()
    assert len(list(islice(iterator, 3))) == 3
    assert read_count <= 4 + 2 * 2
    iterator.close()


@pytest.mark.parametrize("place", ["-", "pipe"])
def test_a_grade_is_written_and_the_command_ends_while_rows_may_still_come(tmp_path, place):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rows = pipe if place == "pipe" else place
    process = subprocess.Popen(
        [*COMMAND, rows, "-", "--jobs", "2", "--allow-without-namespaces"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process, process.stdin if place == "-" else open(pipe, "w") as writer:
        for name in range(3):
            writer.write(json.dumps(row(name, "print(1)", {"stdout": "1"})) + "\n")
            writer.flush()
            assert json.loads(process.stdout.readline())["id"] == name
        # An interrupt ends it, with no complaint about the reading that it leaves.
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "Fatal" not in process.stderr.read()


def test_a_file_that_can_not_be_written_is_named_and_what_is_no_file_is_not_read(tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", row("a", "print(1)", {"stdout": "1"}))
    assert nip_grade(rows, os.devnull).returncode == 0
    full = nip_grade(rows, "/dev/full")
    assert full.returncode == 2
    assert "/dev/full: can't be written to (No space left on device)" in full.stderr
    away = nip_grade(rows, tmp_path / "none" / "grades.jsonl")
    assert "grades.jsonl: can't be written to (No such file or directory)" in away.stderr


def test_it_needs_neither_prefect_nor_a_server_nor_parquet():
    code = (
        "import sys, nip_sandbox.grading.grading_command\n"
        "heavy = {'prefect', 'pyarrow', 'numpy', 'pydantic', 'httpx', 'nip_lm_server', 'torch'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
