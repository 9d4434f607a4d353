"""Two runs are told apart, and several put side by side, by what is on record of them."""

from dataclasses import asdict

import pytest
from handmade import ACCEPT, REJECT, Rollouts
from small_game import write_config
from stored_rows import typed_tables

from nip_cli.cli import app
from nip_core.errors import DatasetError, SettingsError
from nip_core.evaluation.metrics import evaluate, paired_difference
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import commit_shard, join_shards
from nip_core.run_store.documents import encode
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.settings_difference import ABSENT
from nip_core.run_store.store import open_store
from nip_study.compare.comparison import (
    RunComparison,
    compare_runs,
    comparison_table,
    write_comparison,
)
from nip_study.compare.diff import LoneAgent, find_differences, find_lone_agents
from nip_study.compare.played import find_played_run

PROBLEMS = 12


def played(folder, name, right, problems="the same", **changes):
    """A run with two tests: nothing right in the first, and in the second the problems `right`."""
    parameters = load_parameters(write_config(folder, run_name=name, **changes))
    run = RunStore(open_store(folder / "runs"), name)
    contents = {"problems": {"test": problems}}
    run.create_or_open(Identity(parameters.to_dict(), f"1+{name}", parameters.seed, contents))
    episodes = []
    for iteration, solved in ((0, ()), (2, right)):
        rollouts = Rollouts(name)
        for i in range(PROBLEMS):
            said = ACCEPT if (i % 2 == 1) == (i in solved) else REJECT
            rollouts.add(i, i % 2, [said], (0, 0), iteration=iteration)
        directory = run.rollouts(iteration, "test")
        tables = typed_tables(rollouts.episodes, rollouts.generations)
        commit_shard(run.store, directory, "0000", tables, inputs={})
        join_shards(run.store, directory, ["0000"])
        metrics = evaluate(tables.episodes, tables.generations, seed=parameters.seed)
        run.write_json_once(run.metrics(iteration, "test"), metrics.as_json())
        episodes.append(tables.episodes)
    return episodes


@pytest.fixture
def runs(tmp_path):
    """Runs `a` and `b` of one data set, and `c` of another; the last tests of `a` and `b`."""
    a = played(tmp_path, "a", range(4))
    b = played(tmp_path, "b", range(9), rl={"num_iterations": 2, "lr": 0.5})
    played(tmp_path, "c", range(9), problems="others")
    return tmp_path / "runs", a[1], b[1]


def test_a_difference_has_settings_code_data_models_and_paired_results(runs):
    place, a, b = runs
    found = find_differences(
        find_played_run("a", str(place)), find_played_run(f"{place}/b", "nowhere")
    )
    assert found.settings["rl.lr"][1] == 0.5
    assert {key.partition(".")[0] for key in found.settings} == {"rl"}
    assert found.code == ("1+a", "1+b") and found.data == {}
    assert found.models["prover"].first.same is True
    first, last = found.results
    assert first.iterations == (0, 0) and last.iterations == (2, 2)
    assert first.rates["accuracy"].difference == 0
    paired = paired_difference(a, b, 11).as_json()
    assert asdict(last.rates["accuracy"]) == {
        "a": 4 / 12,
        "b": 9 / 12,
        **paired,
        "ci95": tuple(paired["ci95"]),
    }
    assert paired["difference"] == pytest.approx(5 / 12) and paired["p"] == pytest.approx(1 / 16)
    assert last.rates["soundness"].problems == PROBLEMS // 2


def test_results_of_different_data_are_one_error_and_all_else_is_shown(runs, capsys):
    place, *_ = runs
    with pytest.raises(DatasetError, match="'a' and 'c' are tested on different problems"):
        app(["diff", "a", "c", "--run-store", str(place)], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "settings: the same" in shown and "data: not the same: problems.test" in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if str(place) not in line)
    with pytest.raises(DatasetError, match="tested on different problems"):
        compare_runs([find_played_run(name, str(place)) for name in "abc"])


def test_what_can_not_be_compared_is_one_error(runs):
    place, *_ = runs
    with pytest.raises(SettingsError, match=r"run 'd' is not in .*; there are a, b, c"):
        find_played_run("d", str(place))
    a = find_played_run("a", str(place))
    with pytest.raises(SettingsError, match="one run can't be compared"):
        compare_runs([a])
    with pytest.raises(SettingsError, match="is named 2 times"):
        compare_runs([a, a])


def test_a_run_without_a_test_has_no_results(runs):
    place, *_ = runs
    run = RunStore(open_store(place), "bare")
    parameters = load_parameters(write_config(place.parent, run_name="bare"))
    run.create_or_open(Identity(parameters.to_dict(), "1", parameters.seed))
    a, bare = find_played_run("a", str(place)), find_played_run("bare", str(place))
    assert find_differences(a, bare).not_compared == "there is no test yet of 'bare'"
    row = compare_runs([a, bare]).runs[1]
    assert row.accuracy is None and row.against is None


def test_runs_side_by_side_are_a_table_a_figure_and_a_page(runs, tmp_path, capsys):
    place, a, b = runs
    results = compare_runs([find_played_run("a", str(place)), find_played_run("b", str(place))])
    of_a, of_b = results.runs
    assert (of_a.accuracy, of_b.accuracy) == (4 / 12, 9 / 12)
    assert of_b.against.p_holm == paired_difference(a, b, 11).p
    assert results.settings["rl.lr"][1] == 0.5
    page = write_comparison(results, tmp_path / "out").read_text()
    assert (
        RunComparison.model_validate_json((tmp_path / "out" / "results.json").read_text())
        == results
    )
    assert "| b (stopped) | 2 | 75.0 [" in comparison_table(results)
    figure = (tmp_path / "out" / "figure.svg").read_text()
    assert figure in page and ">accuracy<" in figure
    assert "<code>rl.lr</code>" in page and "<script" not in page
    given = ["compare", "a", "b", "--run-store", str(place), "--out", str(tmp_path / "again")]
    app(given, standalone_mode=False)
    shown = capsys.readouterr().out
    rates, beside = (line for line in shown.splitlines() if line.startswith(" b (stopped)"))
    assert rates.count(" [") == 3 and "75.0 [" in rates  # each rate with its interval
    assert "+41.7 [" in beside
    assert all(len(line) <= 80 for line in shown.splitlines() if str(tmp_path) not in line)


def test_runs_side_by_side_have_what_believing_the_prover_would_give(runs, capsys):
    place, *_ = runs
    store = open_store(place)
    for name, believed in (("a", 0.99), ("b", None)):
        run = RunStore(store, name)
        metrics = {k: v for k, v in run.read_json(run.metrics(2, "test")).items() if k != "sha256"}
        if believed:
            metrics["believe_the_prover"] = {"accuracy": believed}
        store.put(run.metrics(2, "test"), encode(metrics))
        document = {"questions": PROBLEMS, "bounds": {}, "intervals": {}, "baselines": {}}
        store.put(run.intervals(2, "test"), encode(document))
    a, b = (find_played_run(name, str(place)) for name in "ab")
    results = compare_runs([a, b])
    assert [row.believed_accuracy for row in results.runs] == [0.99, None]
    heads, *_ = comparison_table(results).splitlines()
    assert "| believed |" in heads and "| 99.0 |" in comparison_table(results)
    out = place.parent / "out"
    app(["compare", "a", "b", "--run-store", str(place), "--out", str(out)], standalone_mode=False)
    assert " believed " in capsys.readouterr().out


def test_a_page_replaces_that_of_the_same_runs_and_nothing_else(runs, tmp_path):
    place, *_ = runs
    a, b = (find_played_run(name, str(place)) for name in "ab")
    out = tmp_path / "out"
    before = write_comparison(compare_runs([a, b]), out).read_text()
    assert write_comparison(compare_runs([a, b]), out).read_text() == before
    write_comparison(compare_runs([b, a]), out)
    played(tmp_path, "d", range(5))
    with pytest.raises(SettingsError, match="a comparison of b, a is there; name another"):
        write_comparison(compare_runs([a, find_played_run("d", str(place))]), out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("mine")
    with pytest.raises(SettingsError, match="something else is there"):
        write_comparison(compare_runs([a, b]), tmp_path / "mine")
    assert (tmp_path / "mine" / "index.html").read_text() == "mine"


def test_an_agent_that_only_one_run_has_is_found_among_the_settings():
    settings = {
        "agents.prover.model_name": ("tiny", ABSENT),
        "agents.prover.lora_rank": (8, ABSENT),
        "agents.judge.is_random": (ABSENT, True),
        "agents.verifier.model_name": ("tiny", "large"),
        "agents.verifier.is_random": (False, False),
        "seed": (1, 2),
    }
    assert find_lone_agents(settings) == {
        "prover": LoneAgent("a", "tiny"),
        "judge": LoneAgent("b", None),
    }
