"""A sweep's second table: each arm less the first, where nobody declared the comparison."""

import json
import random

import numpy as np
import pytest
import yaml
from handmade import ACCEPT, REJECT, Rollouts
from stored_rows import typed_tables

from nip_core.rollouts.plan import TEST
from nip_core.rollouts.storage.tables import commit_shard, join_shards
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_study.compute.arm_differences import subtract_first_arm
from nip_study.compute.cells import read_verdicts
from nip_study.declare.hypotheses import Hypothesis
from nip_study.documents.results_document import (
    ArmDifferences,
    ArmResult,
    BaselineFindings,
    SweepResults,
)
from nip_study.pages.page import _ROUGHLY, differences_summary, render_results
from nip_study.parts.counted import Counted, LastTest, Verdicts
from nip_study.plan.swept_runs import read_sweep

special = pytest.importorskip("scipy.special", reason="scipy is a part of the extra dev")
QUESTIONS = 12
RATES = {"adp": (0.9, 0.3), "nip": (0.9, 0.8)}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two arms with the seeds 1 to 4; a third, of which seed 4 alone is left; one on other data."""
    tmp_path = tmp_path_factory.mktemp("differences")
    file = {
        "name": "asked",
        "config": "deterministic",
        "run_store": str(tmp_path / "runs"),
        "axes": {
            "protocol": {
                "adp": {"interaction_protocol": "adp"},
                "nip": {},
                "rare": {"rl.lr": 0.1},
                "other": {"dataset": "problems"},
            },
            "seed": [1, 2, 3, 4],
        },
        "leave_out": [{"protocol": "rare", "seed": seed} for seed in (1, 2, 3)],
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return read_sweep(tmp_path / "sweep.yaml")


@pytest.fixture(scope="module")
def right(sweep):
    """By protocol, seed and label, whether the verifier was right about each question."""
    verdicts = {}
    for protocol, rates in RATES.items():
        for seed in "1234":
            draw = random.Random(protocol + seed)
            for y, rate in zip((1, 0), rates, strict=True):
                row = [float(draw.random() < rate) for _ in range(QUESTIONS)]
                verdicts[protocol, seed, y] = row
    return verdicts


@pytest.fixture(scope="module")
def counted(sweep, right):
    """The same as tests in the store, of which nip has not finished seed 4."""
    store, tests = open_store(sweep.run_store), {}
    for run in sweep.runs:
        protocol, seed = run.values["protocol"], run.values["seed"]
        played = "adp" if protocol == "other" else "nip" if protocol == "rare" else protocol
        if (protocol, seed) == ("nip", "4"):
            continue
        rows = Rollouts(run.name)
        for i in range(QUESTIONS):
            for y, (good, bad) in ((1, (ACCEPT, REJECT)), (0, (REJECT, ACCEPT))):
                said = good if right[played, seed, y][i] else bad
                rows.add(len(rows.episodes), y, ["Question: why?", "Answer: so.", said], (0, 0))
                rows.episodes[-1] |= {"question_id": f"q{i}", "split": "test"}
        directory = RunStore(store, run.name).rollouts(1, TEST)
        commit_shard(store, directory, "0000", typed_tables(rows.episodes, rows.generations))
        join_shards(store, directory, ["0000"])
        tests[run.name] = LastTest(1)
    return Counted(Verdicts(read_verdicts(store, sweep)[0]), tests)


def two_way_by_hand(differences):
    """Mean, error and df by sums of squares, cell by cell, without our code."""
    seeds, questions = len(differences), len(differences[0])
    mean = sum(map(sum, differences)) / (seeds * questions)
    residuals = [[value - mean for value in row] for row in differences]
    cells = (seeds * questions) ** 2
    few, many = seeds - 1, questions - 1
    rows = sum(sum(row) ** 2 for row in residuals) / cells * seeds / few
    columns = sum(sum(c) ** 2 for c in zip(*residuals, strict=True)) / cells * questions / many
    whole = sum(value**2 for row in residuals for value in row) / cells
    # Of the sum of squares, what is left without rows and columns.
    noise = (whole - rows * few / seeds / questions - columns * many / questions / seeds) * (
        seeds * questions / (few * many)
    )
    variance = max(rows + columns - noise, 0.6 * max(rows, columns, noise))
    parts = noise**2 / (few * many)
    for part, f in ((rows, few), (columns, many)):
        seen = max(part - 0.3 * noise, 0)
        parts += (1 + 4 / f**2) * (seen * (1 + 2.4 / f**2)) ** 2 / f
        variance += 2.4 / f**2 * seen
    return mean, variance**0.5, max(variance**2 / parts, min(few, many))


def test_an_arm_less_the_first_is_paired_by_seed_and_question(sweep, counted, right):
    found = subtract_first_arm(counted, sweep)
    assert found.first == "adp" and found.declared == 0
    rows = {(row.arm, row.figure): row for row in found.compared}
    for figure, y in (("completeness", 1), ("soundness", 0)):
        row = rows["nip", figure]
        both = np.array([[right[p, seed, y] for seed in "123"] for p in ("nip", "adp")])
        mean, error, df = two_way_by_hand((both[0] - both[1]).tolist())
        assert row.difference == pytest.approx(mean)
        assert row.rates == pytest.approx(both.mean(axis=(1, 2)))
        assert row.p == pytest.approx(2 * special.stdtr(df, -abs(mean) / error), rel=1e-6)
        # Of a nearly normal mean the scaled bootstrap is Student's interval, within a tenth.
        width = row.ci95[1] - row.ci95[0]
        assert width == pytest.approx(2 * special.stdtrit(df, 0.975) * error, rel=0.1)
        assert (row.pairs, row.questions) == (3, QUESTIONS)
    tested = sorted(row.p for row in found.compared if row.p is not None)
    smallest = min(found.compared, key=lambda row: 2 if row.p is None else row.p)
    assert smallest.p_holm == pytest.approx(min(1, smallest.p * len(tested)))


def test_one_seed_and_other_problems_are_no_comparison(sweep, counted):
    found = subtract_first_arm(counted, sweep)
    of_rare = [row for row in found.compared if row.arm == "rare"]
    assert {row.because for row in of_rare} == {"one seed shows no spread"}
    assert all(row.pairs == 1 and row.ci95 is row.p is row.seeds_needed is None for row in of_rare)
    of_other = [row for row in found.compared if row.arm == "other"]
    assert {row.because for row in of_other} == {"the arms play other problems"}
    assert all(row.difference is None for row in of_other)
    text = differences_summary(found, "calibrated")
    assert text.count("`other`: the arms play other problems") == 1
    assert "3 comparisons, not declared.\n" in text and "From 3 pairs" in text
    for row in of_rare:
        assert f"| {row.figure} | rare |" in text
    assert "(one seed shows no spread) | – | 1 | – | – |" in text


def test_how_rough_the_seeds_are_is_what_chi_square_says_of_a_variance():
    for pairs, words in _ROUGHLY.items():
        df = pairs - 1
        low, high = (df / special.chdtri(df, tail) for tail in (0.1, 0.9))
        said = [float(end) for end in words.split(" to ")]
        assert said == pytest.approx([low, high], rel=0.15)


def test_what_was_declared_stands_under_declared_alone(sweep, counted):
    declared = Hypothesis(
        says="adp is less sound",
        figure="soundness",
        arm={"protocol": "adp"},
        against={"protocol": "nip"},
        expected="lower",
        primary=True,
    )
    found = subtract_first_arm(counted, sweep, [declared])
    assert found.declared == 1
    assert ("nip", "soundness") not in {(row.arm, row.figure) for row in found.compared}
    assert ("nip", "completeness") in {(row.arm, row.figure) for row in found.compared}
    assert "2 comparisons, not declared; 1 more was.\n" in differences_summary(found, "calibrated")


def test_the_page_has_the_table_and_the_document_reads_back(sweep, counted):
    arm = ArmResult(values={"protocol": "adp"}, runs=4, finished=4)
    results = SweepResults(
        sweep="asked",
        axes=sweep.axes,
        arms=(arm,),
        runs=(),
        baselines=BaselineFindings(),
        differences=subtract_first_arm(counted, sweep),
    )
    page = render_results(results)
    assert "## Each arm less the first: not declared" in page
    [row] = [line for line in page.splitlines() if line.startswith("| soundness | nip |")]
    assert " about " in row and "seeds needed" in page
    text = json.dumps(results.as_json())
    assert SweepResults.model_validate_json(text) == results
    # A document of an earlier version has no such key, and is written back without one.
    before = {key: value for key, value in json.loads(text).items() if key != "differences"}
    assert "differences" not in SweepResults.model_validate(before).as_json()
    assert "less the first" not in render_results(SweepResults.model_validate(before))


def test_one_arm_has_nothing_to_be_compared_with(sweep, counted):
    alone = type(sweep)(sweep.name, sweep.config, sweep.run_store, sweep.axes, sweep.runs[:4])
    assert subtract_first_arm(counted, alone) is None
    assert differences_summary(None, "calibrated") == ""
    nothing = ArmDifferences(first="a", compared=(), declared=3)
    assert differences_summary(nothing, "calibrated") == ""
