"""benchmarks/speed_bar.py: when a figure is worse, what fails. many_processes.py: what is counted."""

import argparse
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def on_the_path():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("now", "before", "published", "worse"),
    [
        ([1.06, 1.2], [1.0, 1.0], [], True),
        ([1.04, 1.2], [1.0, 1.0], [], False),
        ([1.04, 1.2, 1.2, 1.2], [1.0] * 4, [], True),  # one round was disturbed
        ([1.0, 1.0], [1.0, 1.0], [0.7, 0.75], True),
        ([1.0, 1.0], [1.0, 1.0], [0.7, 0.8], False),
        ([1.0], [], [], False),
        ([], [1.0], [0.1], False),
    ],
)
def test_a_figure_is_worse_where_nearly_every_round_is(now, before, published, worse):
    from speed_bar import BEFORE, NOW, is_worse

    assert is_worse({NOW: now, BEFORE: before}, published) is worse


def test_a_row_has_its_unit_and_says_from_where_it_would_be_seen():
    from speed_bar import BEFORE, NOW, describe

    rounds = {
        "call": {NOW: [0.002, 0.002], BEFORE: [0.002, 0.0021]},
        "server, MB": {NOW: [400.0], BEFORE: [200.0]},
    }
    rows = describe([rounds], {"call": [0.001]})
    assert rows["call"]["median"] == 2.0 and rows["call"]["ratio_to_published"] == 2.0
    assert rows["call"]["seen_from"] == pytest.approx(1.05 * 1.05)
    assert rows["server, MB"]["median"] == 400.0 and rows["server, MB"]["is_worse"]


def test_a_slower_tree_is_seen_and_a_piece_that_fails_is_an_error(tmp_path, monkeypatch):
    import speed_bar

    program = tmp_path / "benchmarks" / "speed_pieces.py"
    program.parent.mkdir()
    program.write_text(
        "import json, os, sys\n"
        "slow = 'now' in os.environ['PYTHONPATH']\n"
        "for line in sys.stdin:\n"
        "    if sys.argv[1] == 'run': raise ValueError('no such setting')\n"
        "    if sys.argv[1] == 'play' and not slow: raise ValueError('too old')\n"
        "    if sys.argv[1] == 'train': print('{\"trained token\": [1.0, 0]}', flush=True)\n"
        "    sys.stderr.write('a warning ' * 10_000)\n"
        "    print(json.dumps({'call': [1.2 if slow else 1.0, 1]}), flush=True)\n"
    )
    monkeypatch.setattr(speed_bar, "ROOT", tmp_path)
    trees = {speed_bar.NOW: tmp_path / "now", speed_bar.BEFORE: tmp_path / "earlier"}
    errors = {}
    rounds = speed_bar.measure("call", trees, 3, errors)
    assert errors == {} and speed_bar.is_worse(rounds["call"])
    assert speed_bar.measure("run", trees, 3, errors) == {}
    assert "no such setting" in errors.pop("run, now") and "run, before" in errors
    assert speed_bar.measure("play", trees, 3, errors) == {"call": {speed_bar.NOW: [1.2] * 3}}
    assert "too old" in errors["play, before"] and "play, now" not in errors
    speed_bar.measure("train", trees, 3, errors)
    assert "0 units" in errors["train, now"]


def test_a_figure_is_worse_where_each_measurement_says_so_by_itself():
    from speed_bar import BEFORE, NOW, describe

    worse = {"call": {NOW: [2.0] * 4, BEFORE: [1.0] * 4}}
    equal = {"call": {NOW: [1.0, 1.0, 1.2, 1.2], BEFORE: [1.0] * 4}}
    assert describe([worse, worse], {})["call"]["is_worse"]
    row = describe([worse, equal], {})["call"]
    assert not row["is_worse"] and row["seen_from"] == 1.05
    assert row["measurements"] == 2 and len(row["rounds"][NOW]) == 8


def test_what_fails_ends_with_1_and_published_rows_without_rounds_are_an_error(
    tmp_path, monkeypatch
):
    import speed_bar

    rows = {"call": {"is_worse": True}}
    asked = argparse.Namespace(check=True, allow_before=False)
    assert speed_bar.find_faults({}, {"call, before": "too old"}, asked)
    assert speed_bar.find_faults(rows, {}, asked) == ["call: worse"]
    asked = argparse.Namespace(check=False, allow_before=True)
    assert speed_bar.find_faults(rows, {"call, before": "too old"}, asked) == []
    assert speed_bar.find_faults(rows, {"call, now": "failed"}, asked)

    monkeypatch.setattr(speed_bar, "PUBLISHED", tmp_path / "speed_bar.json")
    row = {"rounds_ms": {"now": [1.0]}}
    document = {"machine": "this one", "figures": {"call": row}}
    speed_bar.PUBLISHED.write_text(json.dumps(document))
    assert speed_bar.read_published("another one") == {}
    with pytest.raises(ValueError, match=r"no rounds of .*call"):
        speed_bar.read_published("this one")
    row["rounds"] = row.pop("rounds_ms")
    speed_bar.PUBLISHED.write_text(json.dumps(document))
    assert speed_bar.read_published("this one") == {"call": [0.001]}


@pytest.mark.parametrize(
    ("asked", "once"),
    [
        (("a", "b", "a", "b"), True),
        (("a", "a", "a", "b"), False),  # as many, one twice and one not at all
        (("a", "b", "c", "d"), False),
    ],
)
def test_of_many_processes_each_call_is_counted_by_itself(asked, once):
    from beside.stub import Counts
    from many_processes import Case, is_each_once

    counts = Counts()
    for call in asked:
        counts.begin(call, 1)
        counts.end(call, True)
    assert is_each_once(Case.read("2x2@1"), 1, counts.state()) is once
    counts.begin("a", 1)
    counts.end("a", False)
    assert not is_each_once(Case.read("2x2@1"), 1, counts.state())
