"""What the loader promises: every source read, every fault named with its place."""

import gzip
import json
import os
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core import how_to_install
from nip_core.errors import DatasetError
from nip_core.parameters import CodeValidationParameters
from nip_core.scenarios import Problem, dataset_files, find_scenario
from nip_core.scenarios import datasets as loader
from nip_core.scenarios.datasets import check_splits

SPLITS = ("train", "validation", "test")


def rows(count, *, first=0, labels=2):
    return [
        {"question": f"question {k}", "solution": f"solution {k}", "y": k % labels}
        for k in range(first, first + count)
    ]


def write_parquet(path, found):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(found), path)
    return str(path)


def write_jsonl(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return str(path)


def load_problems(dataset, split, *, settings=None, **options):
    scenario = find_scenario("code_validation")(CodeValidationParameters(**(settings or {})))
    return loader.load_problems(scenario, dataset, split, **options)


def all_splits(dataset, **options):
    return {split: load_problems(str(dataset), split, **options) for split in SPLITS}


def test_files_of_a_scenarios_own_are_read_again_only_where_they_changed(tmp_path):
    kind, file = find_scenario("code_validation"), tmp_path / "own.jsonl"
    own = type("Own", (kind,), {"bundled": {"own": file}})(CodeValidationParameters())

    def load():
        return loader.load_problems(own, "own", "train", make_balanced=False)

    write_jsonl(file, [{**row, "split": "train"} for row in rows(4)])
    first, again = load(), load()
    assert len(first) == 4 and first is not again
    assert all(one is other for one, other in zip(first, again, strict=True))
    write_jsonl(file, [{**row, "split": "train"} for row in rows(6)])
    assert len(load()) == 6
    write_jsonl(file, [{**row, "split": "test"} for row in rows(6)])
    assert loader.load_problems(own, "own", "train", may_be_empty=True) == []
    with pytest.raises(DatasetError, match="no row has 'train' in the column split"):
        load()
    # A file elsewhere is another one, whatever else is alike.
    elsewhere = tmp_path / "elsewhere" / file.name
    elsewhere.parent.mkdir()
    tested = [{**row, "split": "test"} for row in rows(6)]
    write_jsonl(elsewhere, tested[::-1])
    write_jsonl(file, tested)
    assert elsewhere.stat().st_size == file.stat().st_size
    for one in (file, elsewhere):
        os.utime(one, ns=(1, 1))
    here = loader.load_problems(own, "own", "test", make_balanced=False)
    type(own).bundled = {"own": elsewhere}
    assert loader.load_problems(own, "own", "test", make_balanced=False) == here[::-1] != here
    elsewhere.unlink()
    with pytest.raises(DatasetError, match="there is no such file"):
        load()


@pytest.mark.parametrize("name", find_scenario("code_validation").bundled)
def test_bundled_sets_load_by_name(name):
    splits = all_splits(name)
    check_splits(splits)
    for problems in splits.values():
        assert len(problems) >= 100
        assert sum(p.y for p in problems) * 2 == len(problems)
        assert all(p.id.startswith(f"{name}/") for p in problems)


def test_a_directory_holds_one_file_for_each_split(tmp_path):
    write_parquet(tmp_path / "train.parquet", rows(4))
    write_jsonl(tmp_path / "validation.jsonl", rows(2, first=4))
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n\n" for row in rows(2, first=6)))
    splits = all_splits(tmp_path)
    assert [p.question for p in splits["train"]] == [f"question {k}" for k in range(4)]
    assert [p.y for p in splits["validation"]] == [0, 1]
    assert [p.solution for p in splits["test"]] == ["solution 6", "solution 7"]


def test_the_layout_of_a_hugging_face_repository_is_read(tmp_path):
    for shard in (0, 1):
        path = tmp_path / "data" / f"train-0000{shard}-of-00002.parquet"
        write_parquet(path, rows(2, first=2 * shard))
    assert len(load_problems(str(tmp_path), "train")) == 4


def test_what_save_to_disk_writes_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    splits = {s: datasets.Dataset.from_list(rows(4, first=9 * k)) for k, s in enumerate(SPLITS)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    found = all_splits(tmp_path / "saved")
    assert [p.question for p in found["test"]] == [f"question {k}" for k in range(18, 22)]
    splits["train"].save_to_disk(str(tmp_path / "single"))
    assert sum(len(_try(tmp_path / "single", split)) for split in SPLITS) == 4


def _try(path, split):
    try:
        return load_problems(str(path), split, make_balanced=False)
    except DatasetError:
        return []


def test_a_single_file_is_split_by_question(tmp_path):
    found = [{**row, "question": f"question {k // 4}"} for k, row in enumerate(rows(800))]
    splits = all_splits(write_parquet(tmp_path / "all.parquet", found), make_balanced=False)
    check_splits(splits)
    assert sum(map(len, splits.values())) == 800
    assert 480 < len(splits["train"]) < 640
    assert 40 < len(splits["validation"]) < 140
    # Where a row stands in the file changes nothing.
    turned = all_splits(write_parquet(tmp_path / "d.parquet", found[::-1]), make_balanced=False)
    assert {s: {p.id for p in v} for s, v in turned.items()} == {
        s: {p.id for p in v} for s, v in splits.items()
    }


@pytest.mark.parametrize("y", [float("nan"), None, 2, "yes"])
def test_a_file_of_which_a_hash_gives_a_split_nothing_says_so(tmp_path, y):
    path = write_jsonl(tmp_path / "one.jsonl", [{"question": "q", "solution": "s", "y": y}])
    messages = {split: error_of(path, split) for split in SPLITS}
    (there,) = (split for split in SPLITS if "line 1: y must be 1" in messages[split])
    for split in {*SPLITS} - {there}:
        assert messages[split] == (
            f"{path}: a hash splits its rows, and none is in {split!r} (1 in {there}); add rows, "
            "or a column split"
        )


def test_a_train_file_of_which_no_tenth_is_validation_says_so(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", rows(2))
    write_jsonl(tmp_path / "test.jsonl", rows(2, first=4))
    assert "a hash splits its rows, and none is in 'validation' (2 in train)" in error_of(
        tmp_path, "validation"
    )


def test_a_single_file_may_name_the_split_of_each_row(tmp_path):
    found = [{**row, "split": SPLITS[k // 2]} for k, row in enumerate(rows(6))]
    splits = all_splits(write_jsonl(tmp_path / "all.jsonl", found))
    assert [p.question for p in splits["validation"]] == ["question 2", "question 3"]


def test_validation_is_taken_from_train_where_there_is_none(tmp_path):
    write_parquet(tmp_path / "train.parquet", rows(400))
    write_parquet(tmp_path / "test.parquet", rows(40, first=400))
    splits = all_splits(tmp_path, make_balanced=False)
    check_splits(splits)
    assert len(splits["train"]) + len(splits["validation"]) == 400
    assert 15 < len(splits["validation"]) < 70
    assert len(splits["test"]) == 40


def test_ids_follow_from_the_texts_where_there_are_none(tmp_path):
    found = [
        {"question": "q", "solution": "a", "y": 1},
        {"question": "q", "solution": "b", "y": 0},
    ]
    first = load_problems(write_jsonl(tmp_path / "train.jsonl", found) and str(tmp_path), "train")
    (tmp_path / "turned").mkdir()
    write_parquet(tmp_path / "turned" / "train.parquet", found[::-1])
    second = load_problems(str(tmp_path / "turned"), "train")
    assert {p.id for p in first} == {p.id for p in second}
    assert len({p.id for p in first}) == 2
    assert len({p.question_id for p in first}) == 1


def test_all_columns_arrive(tmp_path):
    row = {
        "id": 7, "question_id": "g", "question": "q", "solution": "s", "y": True,
        "difficulty": "easy", "mutation": None, "extra": [1],
    }  # fmt: skip
    write_jsonl(tmp_path / "train.jsonl", [row])
    found = load_problems(str(tmp_path), "train", make_balanced=False)
    assert found == [Problem("7", "g", "q", "s", 1, "easy", None)]


def error_of(dataset, split="train", **options):
    with pytest.raises(DatasetError) as caught:
        load_problems(str(dataset), split, **options)
    return str(caught.value)


def test_a_missing_column_y_is_named(tmp_path):
    path = tmp_path / "train.parquet"
    write_parquet(path, [{"question": "q", "solution": "s", "label": 1}])
    message = error_of(tmp_path)
    assert f"{path}: no column y (it has label, question, solution)" in message


@pytest.mark.parametrize("y", [2, -1, 0.5, "1", None, float("nan")])
def test_a_y_that_is_neither_0_nor_1_is_named_with_its_row(tmp_path, y):
    path = tmp_path / "train.jsonl"
    write_jsonl(path, [rows(1)[0], {"question": "q", "solution": "s", "y": y}])
    message = error_of(tmp_path)
    assert f"{path}, line 2: y must be 1 (correct) or 0 (buggy) (got {y!r})" == message


@pytest.mark.parametrize("column", ["question", "solution"])
@pytest.mark.parametrize("value", [None, "", "  \n", 5])
def test_a_text_that_is_missing_is_named_with_its_row(tmp_path, column, value):
    path = tmp_path / "train.jsonl"
    write_jsonl(path, [*rows(3), {"question": "q", "solution": "s", "y": 1, column: value}])
    assert f"{path}, line 4: {column} must be a text that is not empty" in error_of(tmp_path)


def test_parquet_rows_count_from_zero(tmp_path):
    path = tmp_path / "train.parquet"
    write_parquet(path, [*rows(2), {"question": "q", "solution": None, "y": 1}])
    assert f"{path}, row 2: solution must be" in error_of(tmp_path)


@pytest.mark.parametrize("left", [0, 3, 100, -8, -1])
def test_a_parquet_file_that_is_cut_off_is_named(tmp_path, left):
    path = tmp_path / "train.parquet"
    write_parquet(path, rows(50))
    path.write_bytes(path.read_bytes()[:left])
    assert error_of(tmp_path).startswith(f"{path}: can't be read as Parquet")


def test_a_parquet_file_with_a_damaged_page_is_named(tmp_path):
    path = tmp_path / "train.parquet"
    write_parquet(path, rows(50))
    data = bytearray(path.read_bytes())
    data[8:60] = b"\xff" * 52
    path.write_bytes(data)
    assert error_of(tmp_path).startswith(f"{path}: can't be read as Parquet")


def test_a_line_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(rows(1)[0]) + '\n{"question": "q", "solu\n')
    assert error_of(tmp_path).startswith(f"{path}, line 2: not JSON")
    path.write_text("[1]\n")
    assert error_of(tmp_path).startswith(f"{path}, line 1: expected an object")


def test_a_gzip_file_that_is_cut_off_is_named(tmp_path):
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(rows(1)[0]).encode())[:-6])
    assert error_of(tmp_path).startswith(f"{path}: can't be read as UTF-8 text")


def test_files_that_are_not_there_are_named(tmp_path):
    assert f"{tmp_path}/no.parquet" in error_of(tmp_path / "no.parquet")
    assert f"{tmp_path}: holds no dataset" in error_of(tmp_path)
    (tmp_path / "x.csv").write_text("question,solution,y\n")
    assert "expected a name that ends in" in error_of(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pipe.yaml", "is neither a file nor a directory; name a file or a directory"),
        ("pipe", "is neither a file nor a directory"),
        ("nowhere", "is a link that leads nowhere"),
        ("loop", "can't be read (Too many levels of symbolic links)"),
        ("a" * 300, "can't be read (File name too long)"),
        ("nul\0", "can't be read (embedded null byte)"),
    ],
)
def test_what_is_no_dataset_is_not_asked_for_on_the_hub(tmp_path, monkeypatch, name, said):
    monkeypatch.setitem(sys.modules, "datasets", None)  # without which nothing can be asked
    monkeypatch.chdir(tmp_path)
    for pipe in ("pipe", "pipe.yaml"):
        os.mkfifo(pipe)
    os.symlink("loop", "loop")
    os.symlink("nothing", "nowhere")
    for place in (name, str(tmp_path / name)):
        assert error_of(place).startswith(f"dataset {place!r:.200}: {said}")
    assert "is neither a file nor a directory" in error_of("/dev/null")


def test_unknown_splits_are_refused(tmp_path):
    assert "unknown split 'tests'" in error_of("problems", "tests")
    write_jsonl(tmp_path / "train.jsonl", rows(4))
    assert "has no split 'test', only train" in error_of(tmp_path, "test")


def test_nothing_left_is_an_error_that_says_why(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", [])
    assert "has no rows" in error_of(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", rows(4, labels=1))
    assert "all 4 problems have y = 0" in error_of(tmp_path)
    assert "all 4 problems have y = 0" in error_of(tmp_path, max_size=1)
    assert len(load_problems(str(tmp_path), "train", make_balanced=False)) == 4
    assert "no problems with difficulty 'competition'" in error_of(
        tmp_path, settings={"apps_difficulty": "competition"}
    )


def test_an_id_that_stands_twice_is_named(tmp_path):
    path = tmp_path / "train.jsonl"
    write_jsonl(path, [{**row, "id": "same"} for row in rows(2)])
    message = error_of(tmp_path)
    assert message.startswith(f"{path}, line 2: the id 'same' already stands in {path}, line 1")
    write_jsonl(path, [*rows(1), {**rows(1)[0], "y": 1}])
    assert "already stands in" in error_of(tmp_path)


def test_a_question_in_two_splits_is_named(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", rows(4))
    write_jsonl(tmp_path / "test.jsonl", [{**rows(1, first=3)[0], "question": "question\n  3"}])
    splits = {s: load_problems(str(tmp_path), s, make_balanced=False) for s in ("train", "test")}
    with pytest.raises(DatasetError, match=r"'question\\n  3' stands in two splits: .* in train"):
        check_splits(splits)


@pytest.mark.parametrize(
    "pair", [("train", "validation"), ("train", "test"), ("validation", "test")]
)
def test_any_two_splits_may_not_share_a_question(pair):
    """Also where its text differs in white space and the ids differ."""
    splits = {
        split: [Problem(split, f"q-{split}", f"Return {split}.", "s", 1)]
        for split in ("train", "validation", "test")
    }
    check_splits(splits)
    for split in pair:
        splits[split].append(
            Problem(
                f"x-{split}",
                f"x-{split}",
                "Add\n one  to x." if split == pair[0] else "Add one to x.",
                "s",
                0,
            )
        )
    with pytest.raises(DatasetError, match=f"stands in two splits: x-{pair[0]} in {pair[0]}"):
        check_splits(splits)


def test_a_question_id_in_two_splits_is_named():
    one = Problem("a", "same", "q", "s", 1)
    with pytest.raises(DatasetError, match="stands in two splits: a in train and b in test"):
        check_splits({"train": [one], "test": [replace(one, id="b", question="other")]})
    check_splits({"train": [one], "test": [replace(one, id="b", question="o", question_id="x")]})


def test_reducing_is_stable_and_does_not_go_by_position(tmp_path):
    path = tmp_path / "train.parquet"
    write_parquet(path, rows(100))
    whole = load_problems(str(tmp_path), "train")
    ten = load_problems(str(tmp_path), "train", max_size=10)
    assert len(ten) == 10
    assert sum(p.y for p in ten) == 5
    assert ten == [p for p in whole if p in ten]  # the order of the source
    assert ten != whole[:10]
    assert set(ten) < set(load_problems(str(tmp_path), "train", max_size=20))
    assert ten != load_problems(str(tmp_path), "train", max_size=10, shuffle_seed=1)
    write_parquet(path, rows(100)[::-1])
    assert set(load_problems(str(tmp_path), "train", max_size=10)) == set(ten)
    assert len(load_problems(str(tmp_path), "train", max_size=1)) == 1
    assert len(load_problems(str(tmp_path), "train", max_size=1000)) == 100
    assert "max_size must be at least 1" in error_of(tmp_path, max_size=0)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 70), st.booleans(), st.integers())
def test_what_is_kept_is_balanced_and_as_much_as_possible(zeros, ones, size, balanced, seed):
    problems = [Problem(str(k), "q", "q", "s", int(k < ones)) for k in range(zeros + ones)]
    kept = loader._reduced(problems, size, seed, balanced)
    count = [sum(p.y == y for p in kept) for y in (0, 1)]
    assert kept == [p for p in problems if p in kept]
    if not balanced:
        assert len(kept) == min(size, zeros + ones)
    elif size > 1 or not (zeros and ones):
        assert count[0] == count[1] == min(zeros, ones, size // 2)
    else:
        assert len(kept) == 1


def entry(number, text):
    return {
        "original_solution_number": number,
        "solution": text,
        "levenshtein_distance": {"normalised": 0.1, "raw": 3},
        "checks": {"pass": 3, "fail": 1, "error": 0},
        "generation_attempts": 1,
    }


def apps_row(question, correct, buggy, difficulty="interview", flags=""):
    return {
        "original_split": "train",
        "original_problem_id": 12,
        "difficulty": difficulty,
        "question": question,
        "solutions": [entry(n, text) for n, text in correct],
        "buggy_solutions": [entry(n, text) for n, text in buggy],
        "flags": flags,
    }


@pytest.fixture
def buggy_apps(tmp_path):
    train = [
        apps_row("one", [(0, "a0"), (1, "a1"), (2, "a2")], [(2, "b2")]),
        apps_row("two", [(0, "c0")], [(5, "d5"), (0, "d0")], difficulty="introductory"),
        apps_row("three", [(0, "e0"), (1, "e1")], [(7, "f7"), (8, "f8")]),
        apps_row("four", [(0, "g0")], [(0, "h0")], flags="violence"),
        apps_row("five", [(0, "same"), (1, "i1")], [(0, "same"), (1, "j1")]),
        apps_row("six", [], [(0, "k0")]),
    ]
    write_parquet(tmp_path / "train.parquet", train)
    write_parquet(tmp_path / "validation.parquet", [apps_row("nine", [(0, "n0")], [(0, "o0")])])
    write_parquet(tmp_path / "test.parquet", [apps_row("seven", [(0, "l0")], [(0, "m0")])])
    return tmp_path


def solutions(problems):
    found = {}
    for problem in problems:
        found.setdefault(problem.question, []).append((problem.solution, problem.y))
    return found


def test_buggy_apps_gives_as_many_correct_as_buggy_solutions(buggy_apps):
    found = load_problems(str(buggy_apps), "train")
    assert solutions(found) == {
        "one": [("a2", 1), ("b2", 0)],  # the pair with the same number
        "two": [("c0", 1), ("d0", 0)],
        "three": [("e0", 1), ("f7", 0), ("e1", 1), ("f8", 0)],  # no such pair: in order
        "five": [("i1", 1), ("j1", 0)],  # "same" can't be both
    }
    assert {p.mutation for p in found if p.y == 0} == {"language_model"}
    assert {p.mutation for p in found if p.y == 1} == {None}
    assert len({p.id for p in found}) == len(found)


def test_buggy_apps_can_be_filtered(buggy_apps):
    easy = load_problems(str(buggy_apps), "train", settings={"apps_difficulty": "introductory"})
    assert solutions(easy) == {"two": [("c0", 1), ("d0", 0)]}
    flagged = load_problems(str(buggy_apps), "train", settings={"apps_exclude_flagged": False})
    assert solutions(flagged)["four"] == [("g0", 1), ("h0", 0)]
    assert solutions(load_problems(str(buggy_apps), "test")) == {"seven": [("l0", 1), ("m0", 0)]}


def test_structs_of_lists_are_understood_too(tmp_path):
    row = apps_row("q", [], [])
    row["solutions"] = {"original_solution_number": [0, 1], "solution": ["a", "b"]}
    row["buggy_solutions"] = {"original_solution_number": [1], "solution": ["c"]}
    write_jsonl(tmp_path / "train.jsonl", [row])
    assert solutions(load_problems(str(tmp_path), "train")) == {"q": [("b", 1), ("c", 0)]}


def test_a_nested_fault_is_named_with_its_place(tmp_path):
    path = tmp_path / "train.jsonl"
    write_jsonl(path, [apps_row("q", [(0, "a"), (1, None)], [(0, "b")])])
    assert error_of(tmp_path).startswith(f"{path}, line 1: solutions[1]: solution must be a text")
    write_jsonl(path, [{**apps_row("q", [], []), "solutions": "text"}])
    assert "solutions must be a list of structs (got 'text')" in error_of(tmp_path)


def test_a_name_that_hugging_face_does_not_know_is_an_error(monkeypatch):
    datasets = pytest.importorskip("datasets")
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = error_of("nobody/nothing-of-this-name")
    assert "neither the scenario's own (problems, families) nor a path, and Hugging Face" in message
    assert "could not load it" in message


def test_a_name_that_is_nearly_a_bundled_one_is_not_asked_for_on_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # without which nothing can be asked
    message = error_of("famlies")
    assert "did you mean 'families'?; its own are families, problems, and" in message


def test_a_hugging_face_dataset_is_read(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    # To the library a directory is a dataset like one of the hub; to the loader it is not.
    write_jsonl(tmp_path / "train.jsonl", rows(4))
    write_jsonl(tmp_path / "test.jsonl", rows(2, first=4))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    tables = dataset_files._read_hub(str(tmp_path))
    assert sorted(tables) == ["test", "train"]
    assert tables["test"].rows[1] == {"question": "question 5", "solution": "solution 5", "y": 1}
    assert tables["train"].row_names[2] == f"{tmp_path}[train], row 2"


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert how_to_install("local") in error_of("some/name")
