"""Problems with tests are read from the files that people have, and what is none is named."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_source import apps_rows, human_eval_rows, mbpp_rows, write_files, write_rows

from nip_core.errors import DatasetError
from nip_core.scenarios.rows import SPLITS, choose_splits
from nip_problems.sources import read_source
from nip_problems.tested import Tested, TestRunner, describe_first_failure, write_plainly

RUNNER = TestRunner(workers=1, max_steps=2_000_000, allow_without_namespaces=True)


def reports_of(problems):
    return RUNNER.run(
        (p, write_plainly(text)) for p in problems for text in p.solutions if text != "print 1"
    )


@pytest.mark.parametrize(
    ("form", "rows"),
    [("HumanEval", human_eval_rows()), ("MBPP", mbpp_rows()), ("APPS", apps_rows())],
)
def test_every_form_is_told_by_its_columns_and_its_solutions_pass(form, rows, tmp_path):
    source = read_source(write_rows(tmp_path / "mine.jsonl", rows))
    assert (source.name, source.form, len(source.problems)) == ("mine", form, len(rows))
    assert source.left_out == ()
    reports = reports_of(source.problems)
    assert all(report.all_passed for report in reports.values()), reports


def test_python_files_have_their_tests_beside_them_or_inside(tmp_path):
    source = read_source(write_files(tmp_path / "mine"))
    assert [p.name for p in source.problems] == [
        *("clamp", "count_even", "initials", "largest", "running")
    ]
    assert all(len(p.tests) >= 3 for p in source.problems)
    clamp = source.problems[0]
    assert clamp.question.startswith("def clamp(x, low, high):\nReturn x, but at least")
    assert all("test_" not in text for p in source.problems for text in p.solutions)
    reports = reports_of(source.problems)
    assert all(report.all_passed for report in reports.values()), reports
    wrong = RUNNER.run([(p, "def f():\n    pass\n") for p in source.problems])
    assert not any(report.all_passed for report in wrong.values())


def test_parquet_json_and_gzip_hold_the_same_problems(tmp_path):
    rows = human_eval_rows()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "mine.parquet")
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "mine.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    read = [read_source(path) for path in sorted(tmp_path.iterdir())]
    assert len(read) == 3
    assert {source.name for source in read} == {"mine"}
    assert all(source.problems == read[0].problems for source in read)


def test_assertions_of_one_check_are_tests_of_their_own_and_the_whole_is_the_last(tmp_path):
    source = read_source(write_rows(tmp_path / "mine.jsonl", human_eval_rows()))
    largest = source.problems[0]
    assert len(largest.tests) == 5  # four, without the one that is always true, and all of them
    assert [test.count("assert") for test in largest.tests] == [1, 1, 1, 1, 5]
    wrong_for_none = "def largest(numbers):\n    return max(numbers)\n"
    report = RUNNER.run([(largest, wrong_for_none)])["Small/largest", wrong_for_none]
    assert report.outcomes == ("passed", "error", "passed", "passed", "error")


def test_what_comes_before_an_assertion_is_part_of_its_test(tmp_path):
    row = human_eval_rows()[2]
    row["test"] = (
        "BASE = 0\ndef check(candidate):\n    low = BASE\n    assert candidate(1, low, 3) == 1\n"
        "    for x in range(5):\n        assert candidate(x, low, 3) <= 3\n    high = 3\n"
        "    assert candidate(9, low, high) == high\n"
    )
    source = read_source(write_rows(tmp_path / "mine.jsonl", [row]))
    assert len(source.problems[0].tests) == 4
    assert all(report.all_passed for report in reports_of(source.problems).values())


def test_difficulty_and_split_of_a_row_are_taken_over(tmp_path):
    rows = [
        {**row, "difficulty": 3, "split": split} for row, split in zip(mbpp_rows(), ("test", "x"))
    ]
    source = read_source(write_rows(tmp_path / "mine.jsonl", rows))
    assert [(p.difficulty, p.split) for p in source.problems] == [("3", "test"), ("3", None)]


def test_a_question_that_stands_twice_is_taken_once(tmp_path):
    rows = mbpp_rows()
    again = {**rows[0], "task_id": 99, "text": rows[0]["text"].replace(" ", "  ")}
    named = {**rows[1], "text": "Something else."}
    source = read_source(write_rows(tmp_path / "mine.jsonl", [*rows, again, named]))
    assert len(source.problems) == len(rows)
    assert [(out.problem, out.reason) for out in source.left_out] == [
        ("99", "same question twice"),
        ("12", "same name twice"),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_output": ""}, "input_output is not JSON"),
        ({"input_output": "[]"}, "must be an object"),
        ({"input_output": '{"inputs": ["1"], "outputs": []}'}, "1 inputs and 0 outputs"),
        ({"input_output": '{"inputs": 1, "outputs": 1}'}, "lists of inputs"),
        ({"solutions": "[]"}, "solutions is empty"),
        ({"solutions": "[1]"}, "list of texts"),
        ({"question": " "}, "question must be a text"),
    ],
)
def test_a_row_that_is_no_problem_is_counted_with_its_reason(change, words, tmp_path):
    rows = [{**row, **(change if number == 1 else {})} for number, row in enumerate(apps_rows())]
    source = read_source(write_rows(tmp_path / "mine.jsonl", rows))
    assert len(source.problems) == len(rows) - 1
    (out,) = source.left_out
    assert (out.problem, out.reason) == ("1", "row is no problem")
    assert words in out.detail


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test": "check = ("}, "not Python"),
        ({"test": "x = 1"}, "must define check"),
        ({"entry_point": "a b"}, "name of a function"),
        ({"canonical_solution": None}, "canonical_solution must be a text"),
    ],
)
def test_a_row_without_usable_tests_is_counted_with_its_reason(change, words, tmp_path):
    rows = human_eval_rows()
    source = read_source(write_rows(tmp_path / "mine.jsonl", [{**rows[0], **change}, *rows[1:]]))
    (out,) = source.left_out
    assert words in out.detail


def refused(path):
    with pytest.raises(DatasetError) as error:
        read_source(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_what_can_not_be_read_is_one_error(tmp_path):
    assert "no such file" in refused(tmp_path / "nothing.jsonl")
    assert "ends in one of" in refused(write_rows(tmp_path / "mine.csv", []))
    assert "no rows" in refused(write_rows(tmp_path / "mine.jsonl", []))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    assert "can't be read" in refused(tmp_path / "cut.parquet")
    (tmp_path / "text.jsonl").write_text("hello\n")
    assert "text.jsonl, line 1: not JSON" in refused(tmp_path / "text.jsonl")
    (tmp_path / "values.json").write_text("[1]")
    assert "each an object" in refused(tmp_path / "values.json")
    (tmp_path / "folder").mkdir()
    assert "no Python file" in refused(tmp_path / "folder")
    with pytest.raises(DatasetError, match="mine: holds no problem with tests; the first: 0, row"):
        read_source(write_rows(tmp_path / "mine.jsonl", [{**apps_rows()[0], "solutions": "[]"}]))


def test_a_missing_column_is_named_with_the_forms_that_there_are(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "test"} for row in human_eval_rows()]
    said = refused(write_rows(tmp_path / "mine.jsonl", rows))
    assert "no column test (it has canonical_solution, entry_point, prompt, task_id)" in said
    assert "MBPP: text or prompt, code, test_list" in said


def test_files_without_tests_question_or_sense_are_counted(tmp_path):
    folder = write_files(tmp_path / "mine")
    (folder / "alone.py").write_text('"""Do it."""\n')
    (folder / "silent.py").write_text("def silent():\n    return 1\n")
    (folder / "test_silent.py").write_text("def test_it():\n    pass\n")
    (folder / "broken.py").write_text("def (\n")
    source = read_source(folder)
    assert {out.problem: out.reason for out in source.left_out} == {
        "alone": "no tests",
        "silent": "no question",
        "broken": "file is not Python",
    }


def test_no_split_is_empty_and_one_that_is_given_stays():
    for count in range(3, 12):
        splits = choose_splits({f"p{number}": None for number in range(count)})
        assert set(splits.values()) == set(SPLITS), count
    assert choose_splits(dict.fromkeys("abcd", "test"))["a"] in SPLITS
    given = {"a": "test", "b": "train", "c": "validation", "d": None}
    assert {k: v for k, v in choose_splits(given).items() if k != "d"} == {
        k: v for k, v in given.items() if v
    }


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (human_eval_rows, ("prompt", "canonical_solution", "test", "task_id", "difficulty")),
        (mbpp_rows, ("text", "code", "test_list", "test_setup_code")),
        (apps_rows, ("question", "solutions", "input_output", "split")),
    ],
)
def test_a_row_with_half_a_surrogate_pair_is_left_out(rows, columns, tmp_path):
    half = "a\ud800"
    for column in columns:
        bad = {**rows()[0], column: [half] if column == "test_list" else half}
        source = read_source(write_rows(tmp_path / "mine.jsonl", [bad, *rows()[1:]]))
        (out,) = source.left_out
        assert out.reason == "row is no problem"
        assert out.detail.startswith(f"{column} has half a surrogate pair ('\\ud800' at char")
        out.problem.encode()
    # In a column that no form names it does no harm.
    more = [{**row, "more": half} for row in rows()]
    assert not read_source(write_rows(tmp_path / "mine.jsonl", more)).left_out


def test_an_exception_whose_text_can_be_written_nowhere_is_escaped():
    tests = ("assert largest([1]) == 1",)
    problem = Tested("largest", "q", (), tests)
    raising = "def largest(numbers):\n    raise ValueError(chr(0xd800))\n"
    (report,) = RUNNER.run([(problem, raising)]).values()
    assert "\\ud800" in report.details[0]
    (report,) = RUNNER.run([(problem, "raise ValueError(chr(0xd800))\n")]).values()
    assert "\\ud800" in report.load_error


def test_files_that_can_not_be_read_are_left_out_and_what_failed_is_said_first(tmp_path):
    folder = write_files(tmp_path / "mine")
    (folder / "folder.py").mkdir()
    for name, value in (("long", "+".join(["1"] * 20_000)), ("deep", "(" * 300 + ")" * 300)):
        (folder / f"{name}.py").write_text(f"def {name}():\n    return {value}\n")
    source = read_source(folder)
    assert {out.problem: out.reason for out in source.left_out} == {
        "long": "file is not Python",
        "deep": "file is not Python",
    }
    rows = [{**row, "test": f"x = {'+'.join(['1'] * 20_000)}"} for row in human_eval_rows()[:1]]
    rows += human_eval_rows()[1:]
    (out,) = read_source(write_rows(tmp_path / "mine.jsonl", rows)).left_out
    assert out.detail.startswith("can't be read as Python: ")
    clamp = source.problems[0]
    (report,) = RUNNER.run([(clamp, "def clamp(x, low, high):\n    return missing\n")]).values()
    failure = describe_first_failure(clamp.tests, report)
    assert failure.startswith("NameError: name 'missing' is not defined in ...")
    assert failure.endswith("test_0()\n") and len(failure) < 250
