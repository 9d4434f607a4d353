"""What the bundled set `problems` promises, and what both bundled sets promise about splits."""

import ast
import collections
import hashlib
import re

import pyarrow.parquet as pq
import pytest

from factory.problems.build import (
    SCHEMA,
    SPLITS,
    Row,
    build,
    choose_split,
    is_buggy,
    main,
    survivors,
    write_split,
)
from factory.problems.sources import SOURCES
from factory.problems.sources.source import MIN_TESTS, problem
from nip_core.errors import DatasetError
from nip_core.scenarios import find_scenario
from nip_problems import Suite, normalise, run_tests_batch
from nip_problems.mutation.mutators import KINDS

DATA = find_scenario("code_validation").bundled["problems"].parent


def committed(name, split):
    return pq.read_table(DATA / name / f"{split}.parquet").to_pylist()


@pytest.fixture(scope="module")
def rows():
    return {split: committed("problems", split) for split in SPLITS}


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    out = tmp_path_factory.mktemp("rebuilt")
    main(["--out", str(out), "--workers", "2", "--allow-without-namespaces"])
    return out


@pytest.mark.parametrize("split", SPLITS)
def test_the_build_gives_the_committed_files(rebuilt, split):
    new, old = rebuilt / f"{split}.parquet", DATA / "problems" / f"{split}.parquet"
    # Each version of the writer has its own bytes; the rows are the same with all.
    if pq.ParquetFile(new).metadata.created_by == pq.ParquetFile(old).metadata.created_by:
        assert (
            hashlib.sha256(new.read_bytes()).digest() == hashlib.sha256(old.read_bytes()).digest()
        )
    assert pq.read_table(old).equals(pq.read_table(new))


def test_writing_twice_gives_equal_bytes(rows, tmp_path):
    for name in ("a", "b"):
        write_split([Row(**row) for row in rows["validation"]], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_files_have_the_columns_of_every_bundled_set():
    for split in SPLITS:
        found = pq.read_schema(DATA / "problems" / f"{split}.parquet")
        assert [(f.name, f.type) for f in found] == [(f.name, f.type) for f in SCHEMA]


def test_there_are_more_than_120_problems_with_enough_tests(rows):
    assert len(SOURCES) >= 130
    assert len({row["question_id"] for split in rows.values() for row in split}) == len(SOURCES)
    assert all(len(source.tests) >= MIN_TESTS for source in SOURCES)


def test_the_label_is_what_the_tests_say(rows):
    tests = {f"problems/{source.slug}": source.tests for source in SOURCES}
    every = [row for split in rows.values() for row in split]
    suites = [Suite(row["solution"], tests[row["question_id"]]) for row in every]
    reports = run_tests_batch(suites, max_steps=20_000, workers=2, allow_without_namespaces=True)
    for row, report in zip(every, reports):
        assert report.all_passed == (row["y"] == 1), row["id"]
        assert row["y"] == 1 or is_buggy(report), row["id"]


def test_each_problem_has_as_many_correct_as_buggy_rows(rows):
    for split in rows.values():
        labels = collections.defaultdict(list)
        for row in split:
            labels[row["question_id"]].append(row["y"])
        for question_id, found in labels.items():
            assert found.count(1) == found.count(0), question_id
            assert 2 <= found.count(1) <= 4, question_id


def test_the_place_of_a_row_does_not_tell_its_label(rows):
    first = [row["y"] for split in rows.values() for row in split if row["id"].endswith("/0")]
    assert 0.3 < sum(first) / len(first) < 0.7


def test_only_buggy_rows_have_a_mutation_and_its_kind_is_known(rows):
    kinds = collections.Counter()
    for split in rows.values():
        for row in split:
            assert (row["mutation"] is None) == (row["y"] == 1)
            if row["y"] == 0:
                kinds[row["mutation"]] += 1
    assert set(kinds) <= set(KINDS)
    assert len(kinds) >= 12
    assert max(kinds.values()) < sum(kinds.values()) / 4


def test_both_labels_are_written_in_the_same_style(rows):
    for split in rows.values():
        for row in split:
            assert normalise(row["solution"]) == row["solution"]
    every = [row for split in rows.values() for row in split]
    for token in (" while ", "enumerate(", "not (", " else:", " += ", "outcome", "collected"):
        share = [
            sum(token in row["solution"] for row in every if row["y"] == y) / (len(every) / 2)
            for y in (0, 1)
        ]
        assert abs(share[0] - share[1]) < 0.06, token


def test_a_problem_is_in_the_split_of_its_name(rows):
    for split, found in rows.items():
        assert {choose_split(row["question_id"].partition("/")[2]) for row in found} == {split}
    assert 0.6 < len(rows["train"]) / sum(map(len, rows.values())) < 0.8


def test_the_tests_notice_changed_boundaries():
    found, tried = survivors(workers=2, allow_without_namespaces=True)
    assert tried > 400
    # What is left are changes without effect, such as >= for > when looking for a maximum.
    assert len(found) / tried < 0.08, [(s.slug, m.description) for s, m in found]


def test_questions_name_the_function_and_its_parameters():
    for source in SOURCES:
        function = ast.parse(source.solutions[0]).body[-1]
        assert isinstance(function, ast.FunctionDef)
        call = f"`{function.name}({', '.join(a.arg for a in function.args.args)})`"
        assert call in source.question, source.slug


def test_the_data_card_gives_the_numbers_of_the_files(rows):
    card = (DATA / "problems" / "README.md").read_text()
    for split, found in rows.items():
        questions = len({row["question_id"] for row in found})
        assert f"| {split} | {questions} | {len(found)} |" in card
    kinds = collections.Counter(r["mutation"] for s in rows.values() for r in s if r["mutation"])
    for kind, count in kinds.items():
        assert re.search(rf"\| {kind} \| {count} \|", card), (kind, count)


@pytest.mark.parametrize("name", ["problems", "families"])
def test_no_question_and_no_code_stands_in_two_splits(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"{name} is not built")
    for column in ("id", "question_id", "question", "solution"):
        places = collections.defaultdict(set)
        for split in SPLITS:
            for row in committed(name, split):
                places[" ".join(row[column].split())].add(split)
        twice = [value for value, splits in places.items() if len(splits) > 1]
        assert twice == [], column


@pytest.mark.parametrize("name", ["problems", "families"])
@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_balanced_in_every_split(name, split):
    if not (DATA / name).is_dir():
        pytest.skip(f"{name} is not built")
    labels = [row["y"] for row in committed(name, split)]
    assert set(labels) == {0, 1}
    assert labels.count(0) == labels.count(1)


WELL = """
def double(x):
    if x > 100:
        return 2 * x + 0
    return x * 2
"""
TESTS = "\n".join(f"double({k}) == {2 * k}" for k in (*range(8), 100, 101))


def test_a_solution_that_fails_its_tests_stops_the_build():
    wrong = problem(
        "d", "introductory", "Write `double(x)`.", TESTS, "def double(x):\n    return 2"
    )
    with pytest.raises(
        DatasetError, match=r"problem d: .*failed AssertionError: in assert double\(0\) == 0"
    ):
        build([wrong], workers=1, allow_without_namespaces=True)


def test_two_problems_with_the_same_function_stop_the_build():
    twins = [problem(slug, "interview", "Write `double(x)`.", TESTS, WELL) for slug in ("d", "e")]
    with pytest.raises(DatasetError, match="problems d and e are both called double"):
        build(twins, workers=1, allow_without_namespaces=True)


def test_a_problem_without_usable_mutants_stops_the_build():
    weak = problem(
        "d", "interview", "?", "\n".join(f"{k} or f" for k in range(8)), "def f():\n    1"
    )
    with pytest.raises(DatasetError, match="problem d: only 0 of"):
        build([weak], workers=1, allow_without_namespaces=True)


def test_too_few_tests_are_refused():
    with pytest.raises(ValueError, match="d: 2 tests"):
        problem("d", "interview", "?", "f() == 1\nf() == 2", "def f():\n    return 1")


def test_unnoticed_mutants_are_found_for_authors():
    weak = problem("d", "interview", "Write `double(x)`.", TESTS, WELL.replace("100", "50"))
    found, tried = survivors([weak], kinds=["boundary"], workers=1, allow_without_namespaces=True)
    # x > 50 and x >= 50 make no difference here.
    assert [(s.slug, m.kind) for s, m in found] == [("d", "boundary")]
    assert tried == 1
