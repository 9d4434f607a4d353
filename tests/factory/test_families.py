"""The promises of the bundled problem set `families`."""

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from factory.problems import build_families
from factory.problems.families import FAMILIES, behaviour, select
from factory.problems.families.structure import Family, Member, numbers
from nip_core.scenarios import find_scenario

SPLITS = ("train", "validation", "test")
DATA = find_scenario("code_validation").bundled["families"]
TAKES = {family.name: family.takes for family in FAMILIES}

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return {split: pq.read_table(DATA / f"{split}.parquet").to_pylist() for split in SPLITS}


@pytest.fixture(scope="module")
def references() -> dict[str, str]:
    """Identity of each member to its reference code, written anew from the catalogue."""
    return {member.identity: member.code(0) for family in FAMILIES for member in family.members()}


def _does(row: dict[str, Any], code: str) -> str:
    return behaviour(code, TAKES[row["difficulty"]])


def test_building_again_gives_the_committed_bytes(tmp_path: Path) -> None:
    counts = build_families.build(tmp_path)
    assert counts == {"train": 3992, "validation": 310, "test": 492}
    for split in SPLITS:
        assert (tmp_path / f"{split}.parquet").read_bytes() == (
            DATA / f"{split}.parquet"
        ).read_bytes()


def test_each_split_and_each_family_is_half_correct(rows: Rows) -> None:
    for split in SPLITS:
        labels = Counter((row["difficulty"], row["y"]) for row in rows[split])
        assert {name for name, _ in labels} == set(TAKES)
        assert all(labels[name, 0] == labels[name, 1] > 0 for name in TAKES)


def test_the_label_is_what_running_the_code_says(rows: Rows, references: dict[str, str]) -> None:
    for split in SPLITS:
        for row in rows[split]:
            same = _does(row, row["solution"]) == _does(row, references[row["id"]])
            assert row["y"] == int(same), row["id"]
            assert (row["mutation"] is None) == same, row["id"]


def test_no_question_stands_twice(rows: Rows) -> None:
    everything = [row for split in SPLITS for row in rows[split]]
    assert len({row["id"] for row in everything}) == len(everything)
    assert len({row["question"] for row in everything}) == len(everything)
    assert all(row["question_id"] == row["id"] for row in everything)


def test_no_code_and_no_behaviour_stands_in_two_splits(
    rows: Rows, references: dict[str, str]
) -> None:
    texts, behaviours = defaultdict(set), defaultdict(set)
    for split in SPLITS:
        for row in rows[split]:
            texts[row["solution"]].add(split)
            behaviours[_does(row, row["solution"])].add(split)
            behaviours[_does(row, references[row["id"]])].add(split)
    assert [code for code, splits in texts.items() if len(splits) > 1] == []
    assert [does for does, splits in behaviours.items() if len(splits) > 1] == []


def test_every_word_of_the_other_splits_occurs_in_training(rows: Rows) -> None:
    def words(split: str) -> set[str]:
        texts = (row["question"] + "\n" + row["solution"] for row in rows[split])
        return {word for text in texts for word in re.findall(r"\w+|[^\w\s]", text)}

    assert words("validation") | words("test") <= words("train")


def test_every_way_to_write_a_member_does_the_same() -> None:
    for row in select().rows[::7]:
        family = row.member.family
        codes = range(len(family.codes))
        assert len({behaviour(row.member.code(form), family.takes) for form in codes}) == 1


def test_different_behaviours_are_told_apart() -> None:
    one = "def f(x):\n    return x > 17"
    assert behaviour(one, "x") == behaviour("def f(x):\n    return not x <= 17", "x")
    assert behaviour(one, "x") != behaviour("def f(x):\n    return x >= 17", "x")
    assert behaviour(one, "x") != behaviour("def f(x):\n    return int(x > 17)", "x")
    raises = "def f(x):\n    raise KeyError"
    assert behaviour(raises, "x") == behaviour("def f(x):\n    raise KeyError(x)", "x")
    assert behaviour(raises, "x") != behaviour("def f(x):\n    raise ValueError", "x")


def test_a_variant_that_behaves_like_the_question_is_no_bug() -> None:
    family = Family(
        "vacuous",
        "x",
        (numbers("a", 1, 3), numbers("b", 1, 3)),
        ("Return x plus {a} plus {b}.",),
        ("return x + {a} + {b}",),
        "plus {a} plus {b}",
    )
    selection = select((family,))
    found = [(row, kind, bug) for row in selection.rows for kind, bug in selection.bugs(row.member)]
    assert found
    for row, kind, bug in found:
        assert kind == "constant"  # exchanging a and b changes nothing
        sums = [sum(int(n) for n in member.words.values()) for member in (row.member, bug)]
        assert sums[0] != sums[1]
    member = Member(family, (0, 1))
    assert ("exchange", "families/vacuous/2-1") in {
        (kind, variant.identity) for kind, variant in member.variants()
    }


def test_a_comparison_names_each_slot_and_marks_what_is_wrong() -> None:
    linear = next(family for family in FAMILIES if family.name == "linear")
    members = {member.identity: member for member in linear.members()}
    asked = members["families/linear/3-plus-7"]
    assert asked.compare(asked) == "times 3 code 3 ok, plus code plus ok, 7 code 7 ok"
    written = members["families/linear/3-minus-5"]
    assert written.compare(asked) == "times 3 code 3 ok, plus code minus wrong, 7 code 5 wrong"
    for row in select().rows:
        assert ("wrong" in row.code_member.compare(row.member)) == (row.y == 0), row.member.identity
