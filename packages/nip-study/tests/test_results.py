"""A sweep's table is made of what its runs have on record; docs/sweeps.md has the commands."""

import asyncio
import dataclasses
import io
import json
import re
import shutil
from collections import defaultdict
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from small_game import FEW, train_here, write_config

from nip_core.attack_figures.figures import plain_rollouts
from nip_core.attack_figures.reach import reach_share
from nip_core.errors import NipError, SettingsError
from nip_core.evaluation.baseline_words import shows_checking
from nip_core.records.iterations import Records
from nip_core.rollouts.storage.tables import StoredRollouts, read_rollouts
from nip_core.run_store.documents import encode
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files, open_store
from nip_core.showing.reports import read_report_data
from nip_core.showing.summary import summarise_run
from nip_study.commands.sweep import sweep as sweep_command
from nip_study.compute.cells import encode_parquet, read_verdicts
from nip_study.compute.swept_tests import measure_attack
from nip_study.declare.declared_digests import settings_digest
from nip_study.documents.results_document import ArmResult, BaselineFindings, SweepResults
from nip_study.facts_on_record import collect_sweep
from nip_study.pages.page import arms_table, render_results
from nip_study.parts.counted import Counted, LastTest, Verdicts, share_right
from nip_study.parts.document_parts import OverRuns
from nip_study.plan.swept_runs import read_sweep
from nip_study.recompute import recompute_results
from nip_study.results import compute_results, write_results

RATES = ("accuracy", "completeness", "soundness", "always_fail_rate")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two arms of two seeds; those of the first are finished."""
    tmp_path = tmp_path_factory.mktemp("sweep")
    config = write_config(tmp_path, rl=FEW, dataset_options={"max_test_size": 8})
    file = {
        "name": "small",
        "config": config.name,
        "axes": {"interaction_protocol": ["adp", "nip"], "seed": [1, 2]},
        "attacks": {"chosen": {"by": "best-of-n", "n": [1, 3], "problems": 3}},
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    planned = read_sweep(tmp_path / "sweep.yaml")
    for run in planned.runs[:2]:
        asyncio.run(train_here(planned.config, run.overrides))
    [attack] = planned.runs[0].attacks
    (tmp_path / "attack.yaml").write_text(yaml.safe_dump(attack.settings))
    asyncio.run(train_here(tmp_path / "attack.yaml"))
    return planned


@pytest.mark.long
def test_what_a_script_took_is_counted_from_the_runs_own_test(sweep):
    store = open_store(sweep.run_store)
    collected = collect_sweep(store, sweep)
    run = collected.facts.runs[0]
    [attack] = run.attacks
    assert not attack.is_script
    verdicts = Verdicts(collected.verdicts)
    own = measure_attack(verdicts, run, attack)
    assert own.lost_to_script is None
    scripted = measure_attack(verdicts, run, attack.model_copy(update={"is_script": True}))
    assert (scripted.lost_to_lying, scripted.lost_to_training) == (own.lost_to_lying, None)
    assert scripted.lost_to_script == pytest.approx(own.lost_to_lying + own.lost_to_training)


def test_an_attack_is_shown_beside_the_same_one_on_the_untrained_models(sweep, tmp_path):
    shutil.copytree(sweep.run_store, tmp_path / "runs")
    store = open_store(tmp_path / "runs")

    def show():
        run = RunStore(store, "small-adp-1-chosen")
        return summarise_run(run)["attack"], read_report_data(Records(run)).sections["attack"]

    shown, reported = show()
    assert shown["control"] is None is reported.control and "guarantee" not in shown
    # The same attack, on the models that its run began with.
    shutil.copytree(tmp_path / "runs/small-adp-1-chosen", tmp_path / "runs/small-adp-1-untrained")
    untrained = RunStore(store, "small-adp-1-untrained")
    document = untrained.read_json("small-adp-1-untrained/run.json")
    document["parameters"]["attack"]["iteration"] = 0
    store.put("small-adp-1-untrained/run.json", encode(document))
    shown, reported = show()
    assert shown["control"]["run"] == reported.control.run == "small-adp-1-untrained"
    assert shown["control"]["soundness"] == shown["by_n"][-1]["soundness"]
    # It is none for another attack.
    document["parameters"]["attack"]["n"] = [1, 2]
    store.put("small-adp-1-untrained/run.json", encode(document))
    assert show()[0]["control"] is None
    assert "control" not in summarise_run(untrained)["attack"]


def test_an_arm_is_the_mean_of_its_finished_runs(sweep):
    store = open_store(sweep.run_store)
    results = compute_results(
        collect_sweep(store, sweep, {"small-nip-1": "exit code 6: the job failed"})
    )
    tests = {
        run.name: json.loads(store.get(f"{run.name}/iterations/0001/metrics-test.json"))
        for run in sweep.runs[:2]
    }
    [adp, nip] = results.arms
    assert (adp.runs, adp.finished, nip.runs, nip.finished) == (2, 2, 2, 0)
    for rate in RATES:
        values = [test[rate] for test in tests.values()]
        mean = sum(values) / 2
        figure = adp.figures[rate]
        low, high = figure.ci95 or (mean, mean)
        assert 0 <= low <= mean <= high <= 1
        assert (figure.mean, figure.lowest, figure.highest) == (mean, min(values), max(values))
        assert nip.figures[rate] is None
    assert [run.status for run in results.runs] == ["finished"] * 2 + ["not begun"] * 2

    lines = arms_table(results).splitlines()
    assert lines[2].startswith("| adp | 2 | ") and lines[3].startswith("| nip | 0 of 2 | – |")
    assert "2 of 4 runs and 1 of 4 attacks finished" in render_results(results)
    assert "- `small-nip-1`: exit code 6: the job failed" in render_results(results)

    # Where problems are played several times, what their majority says is shown as well.
    assert "majority" not in lines[0]
    voted = OverRuns(mean=0.75, lowest=0.5, highest=1.0)
    arms = (adp.model_copy(update={"majority_accuracy": voted}), nip)
    shown = arms_table(results.model_copy(update={"arms": arms}))
    assert "| majority |" in shown and "| 75.0 |" in shown

    # Of the attacks only one was made.
    metrics = json.loads(store.get("small-adp-1-chosen/iterations/0000/metrics-attack.json"))
    attack = results.runs[0].attacks["chosen"]
    assert (attack.run, attack.status) == ("small-adp-1-chosen", "finished")
    of_arm = adp.attacks["chosen"]
    for rate, left in (("soundness", attack.soundness), ("completeness", attack.completeness)):
        assert left == metrics["by_n"][-1][rate] == of_arm.rates[rate].mean
    assert attack.lost_to_lying == metrics["lost_to_lying"]["difference"] is not None
    assert attack.lost_to_training == metrics["lost_to_training"]["difference"] is not None
    assert (of_arm.finished, of_arm.runs) == (1, 2)
    # Of the episodes that count, whatever was played to choose their messages.
    chosen = RunStore(store, "small-adp-1-chosen")
    stored = StoredRollouts(store, [chosen.rollouts(0, "attack")])
    played = plain_rollouts(read_rollouts(store, chosen.rollouts(0, "attack")), stored.choices(), 3)
    spoken = played.generations.filter(pc.equal(played.generations["agent"], "verifier"))
    tokens = pc.sum(spoken["completion_tokens"]).as_py() / played.episodes.num_rows
    # Over what it took: with fewer messages it costs less.
    one, three = attack.by_effort
    assert (one.place, three.place) == ("n 1", "n 3") and 0 < one.tokens < three.tokens
    assert (three.soundness, three.completeness) == (attack.soundness, attack.completeness)
    assert three.calls == metrics["generations"]
    assert [(of.place, of.soundness.mean) for of in of_arm.by_effort] == [
        ("n 1", one.soundness),
        ("n 3", three.soundness),
    ]
    assert "| adp | chosen | n 3 |" in render_results(results)
    # How rare a kind of message may be that it never had to choose from.
    assert attack.rarest == metrics["reach"]["rarest"] == of_arm.rarest.mean
    reach = reach_share(attack.rarest)
    assert " | chosen: reach |" in lines[0] and lines[2].endswith(f" | {reach} |")
    assert lines[3].endswith(" | – |") and "\nReach: kinds of message" in render_results(results)
    assert attack.verifier_tokens == of_arm.verifier_tokens.mean == tokens > 0
    assert results.runs[1].attacks["chosen"].status == "not begun"
    assert nip.attacks["chosen"].soundness is None
    verdicts = Verdicts(read_verdicts(store, sweep)[0])
    counted = Counted(verdicts, {"small-adp-1-chosen": LastTest(0, n=3)})
    assert share_right([counted.count("small-adp-1-chosen", "soundness")]) == attack.soundness
    heads = ("soundness", "completeness", "lost to lying", "lost to training")
    assert f" {' | '.join(f'chosen: {head}' for head in heads)} |" in lines[0]
    failed = compute_results(collect_sweep(store, sweep, {"small-adp-2-chosen": "exit code 3"}))
    assert "- `small-adp-2-chosen`: exit code 3" in render_results(failed)

    results = compute_results(collect_sweep(store, sweep))
    # The record has the settings that were planned.
    for run in sweep.runs[:2]:
        record = RunStore(store, run.name).open()
        assert settings_digest(record.parameters) == settings_digest(run.parameters.to_dict())

    _, place = write_results(store, sweep, collect_sweep(store, sweep))
    assert place.endswith("sweeps/small/README.md")
    written = json.loads(store.get("sweeps/small/results.json"))
    assert written == json.loads(json.dumps(results.as_json()))
    assert written["cells"] == {"verdicts": 44, "left_out": []}
    # What is read back is what was written, key by key.
    again = json.dumps(SweepResults.model_validate(written).as_json(), indent=2)
    assert again == store.get("sweeps/small/results.json").decode()
    svg = store.get("sweeps/small/arms.svg").decode()
    assert re.search(r">\s*adp\s*<", svg) and re.search(r">\s*nip\s*<", svg)

    # A run that can't be read keeps nobody from seeing the others.
    before = store.get("small-adp-1/run.json")
    store.put("small-adp-1/run.json", b"{")
    [first, *_] = compute_results(collect_sweep(store, sweep)).runs
    assert first.status == "damaged" and "small-adp-1" in first.failure
    store.put("small-adp-1/run.json", before)


def test_every_figure_of_an_arm_can_be_made_anew_of_the_verdicts_beside_it(sweep, tmp_path):
    store, out = open_store(sweep.run_store), open_store(tmp_path)
    write_results(store, sweep, collect_sweep(store, sweep), out)
    file = out.get("cells.parquet")
    table, results = pq.read_table(io.BytesIO(file)), json.loads(out.get("results.json"))
    assert "Each of the 44 verdicts is in `cells.parquet`, and" in out.get("README.md").decode()
    rows = table.to_pylist()
    [arm, empty] = results["arms"]
    last = {row["iteration"] for row in rows if row["attack"] is None} - {0}
    own = [row for row in rows if row["attack"] is None and row["iteration"] in last]
    chosen = [row for row in rows if (row["attack"], row["n"]) == ("chosen", 3)]
    for figures, cells in ((arm, own), (arm["attacks"]["chosen"], chosen)):
        for rate, label in {"completeness": 1, "soundness": 0}.items():
            by_run = defaultdict(list)
            for row in cells:
                if row["y"] == label:
                    by_run[row["run"]].append(row["decision"] == label)
            means = [sum(right) / len(right) for right in by_run.values()]
            assert figures[rate]["mean"] == pytest.approx(sum(means) / len(means))
            assert len(means) == figures["finished"]
    assert empty["soundness"] is None and {row["axis_interaction_protocol"] for row in rows} == {
        "adp"
    }
    assert {row["n"] for row in rows if row["attack"] == "chosen"} == {1, 3}
    # The order and the bytes follow from the verdicts.
    keys = [(row["run"], row["attack"] or "", row["iteration"], row["n"] or 0) for row in rows]
    assert keys == sorted(keys) and len(file) < 10_000
    assert encode_parquet(read_verdicts(store, sweep)[0]) == file


def test_the_query_of_the_page_gives_what_the_table_has(sweep, tmp_path):
    store, out = open_store(sweep.run_store), open_store(tmp_path)
    results, _ = write_results(store, sweep, collect_sweep(store, sweep), out)
    page = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()
    [query] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    query = query.replace("cells.parquet", str(tmp_path / "cells.parquet"))
    [left, own] = duckdb.sql(query.replace("axis_protocol", "axis_interaction_protocol")).fetchall()
    arm = results.arms[0]
    assert own == ("adp", None, pytest.approx(arm.soundness.mean))
    assert left == ("adp", "chosen", pytest.approx(arm.attacks["chosen"].soundness.mean))


def test_facts_without_the_messages_that_were_sampled_have_no_reach(sweep):
    collected = collect_sweep(open_store(sweep.run_store), sweep)
    runs = [
        run.model_copy(
            update={"attacks": tuple(of.model_copy(update={"sampled": None}) for of in run.attacks)}
        )
        for run in collected.facts.runs
    ]
    earlier = collected.facts.model_copy(update={"runs": tuple(runs)})
    results = compute_results(dataclasses.replace(collected, facts=earlier))
    assert "Reach:" not in render_results(results) and ": reach" not in arms_table(results)
    assert "rarest" not in json.dumps(results.as_json())


@pytest.mark.long
def test_a_plan_says_what_its_attacks_will_reach(sweep, capsys):
    file = Path(sweep.config).with_name("sweep.yaml")
    sweep_command(file, dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    [reach] = {line.partition("  reach ")[2] for line in lines if "-chosen " in line}
    assert not any("  reach " in line for line in lines if "-chosen " not in line)
    assert lines[-1].startswith("reach: kinds of message rarer than this")
    sweep_command(file, dry_run=True, as_json=True)
    plans = json.loads(capsys.readouterr().out)
    [planned] = {plan["reach"]["rarest"] for plan in plans if "reach" in plan}
    assert reach == reach_share(planned) and sum("reach" in plan for plan in plans) == 4


def test_what_is_there_of_a_sweep_is_collected_and_nothing_is_started(sweep, tmp_path, capsys):
    file = Path(sweep.config).with_name("sweep.yaml")
    before = {*list_files(open_store(sweep.run_store), "")}
    sweep_command(file, collect_only=True, out=tmp_path / "out")
    assert "| adp | 2 | " in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    figures = {"arms.svg", "efforts.svg"}
    assert names == {"README.md", *figures, "cells.parquet", "facts.json", "results.json"}
    # The script that attacks took tokens of the verifier: a point on the axis, by the attack's name.
    drawn = (tmp_path / "out" / "efforts.svg").read_text()
    assert drawn.startswith("<svg") and ">adp<" in drawn and ">chosen<" in drawn
    assert "(efforts.svg)" in (tmp_path / "out" / "README.md").read_text()
    assert {*list_files(open_store(sweep.run_store), "")} == before
    # Results would keep whoever wants to declare what it will show from it.
    with pytest.raises(SettingsError, match="no run of sweep 'small' has begun in"):
        sweep_command(file, [f"run_store={tmp_path}"], collect_only=True)
    with pytest.raises(SettingsError, match="--out"):
        sweep_command(file, dry_run=True, out=tmp_path)


def test_results_are_computed_again_byte_for_byte_without_the_runs(sweep, tmp_path, capsys):
    store, out = open_store(sweep.run_store), tmp_path / "out"
    results, _ = write_results(store, sweep, collect_sweep(store, sweep), open_store(str(out)))
    again = recompute_results(out)
    assert again.results.as_json() == results.as_json()
    assert (again.verdicts, again.numbers) == (44, len(numbers_in(results.as_json())))
    sweep_command(recompute=out)
    assert "as computed from 44 verdicts, byte for byte" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="--recompute reads one directory"):
        sweep_command(out, recompute=out)
    with pytest.raises(SettingsError, match="FILE is missing"):
        sweep_command()


def numbers_in(value):
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return [number for part in parts for number in numbers_in(part)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_the_tests_of_a_sweep_are_those_that_its_runs_have_on_record(sweep):
    store = open_store(sweep.run_store)
    [run, *_] = compute_results(collect_sweep(store, sweep)).runs
    records = Records(RunStore(store, run.run))
    for test in run.tests:
        metrics = records.of(test.iteration).metrics("test")
        for name in ("accuracy", "completeness", "soundness", "always_fail_rate", "episodes"):
            assert getattr(test, name) == getattr(metrics, name)
        assert test.any_of == metrics.any_of and test.believed_accuracy == metrics.believed_accuracy
        assert test.shows_checking == shows_checking(metrics)
        assert test.generated_tokens == metrics.completion_tokens / metrics.episodes


def test_the_first_number_that_does_not_follow_is_named(sweep, tmp_path):
    store, out = open_store(sweep.run_store), tmp_path
    write_results(store, sweep, collect_sweep(store, sweep), open_store(str(out)))
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    document = json.loads(whole["results.json"])

    def told(name, content):
        (out / name).write_bytes(content)
        with pytest.raises(NipError) as raised:
            recompute_results(out)
        (out / name).write_bytes(whole[name])
        assert "\n" not in str(raised.value)
        return str(raised.value)

    # 1. A figure that was changed by hand, in the document or on the page, or a verdict.
    right = document["arms"][0]["soundness"]["mean"]
    document["arms"][0]["soundness"]["mean"] = 0.123
    changed = json.dumps(document, indent=2).encode()
    where = f"results.json: arms[0].soundness.mean is 0.123, recomputed {right!r}"
    assert where in told("results.json", changed)
    page = whole["README.md"].decode().replace("44 verdicts", "45 verdicts")
    assert "'45', recomputed '44'" in told("README.md", page.encode())
    rows = pq.read_table(out / "cells.parquet")
    flipped = pa.array([1 - d if d < 2 else d for d in rows["decision"].to_pylist()], pa.int8())
    at = rows.schema.get_field_index("decision")
    other = rows.set_column(at, rows.schema.field("decision"), flipped)
    assert "results.json: arms[0].accuracy.mean is " in told("cells.parquet", encode_parquet(other))
    # 2. What can't be read, or is not there, as in results of earlier versions.
    assert "cells.parquet: can't be read" in told("cells.parquet", b"no Parquet")
    assert "facts.json: no JSON" in told("facts.json", b"{")
    assert "facts.json: name: Field required" in told("facts.json", b'{"format": 1, "runs": []}')
    assert "format 3, of a later version" in told("facts.json", b'{"format": 3}')
    # 3. Facts of an earlier version have the intervals of that version.
    facts = json.loads(whole["facts.json"])
    assert (facts["format"], facts["intervals"]) == (2, "calibrated")
    earlier = {key: value for key, value in facts.items() if key != "intervals"} | {"format": 1}
    assert ".ci95[" in told("facts.json", json.dumps(earlier).encode())
    mixed = json.dumps(earlier | {"format": 2}).encode()
    assert "format 2 has this key from 2 on" in told("facts.json", mixed)
    (out / "facts.json").unlink()
    with pytest.raises(SettingsError, match=r"facts.json missing, as in results of earlier"):
        recompute_results(out)
    with pytest.raises(SettingsError, match="no results of a sweep"):
        recompute_results(tmp_path / "nowhere")


def test_a_run_whose_verdicts_cannot_be_read_is_named_and_the_others_are_there(sweep, tmp_path):
    whole, damaged = open_store(sweep.run_store), open_store(tmp_path)
    for path in list_files(whole, ""):
        damaged.put(path, whole.get(path))
    place = "small-adp-2/iterations/0000/rollouts/test"
    [file] = [name for name in damaged.list(place) if name.startswith("episodes-")]
    damaged.put(f"{place}/{file}", b"no Parquet")
    table, left_out = read_verdicts(damaged, sweep)
    assert [run.status for run in compute_results(collect_sweep(damaged, sweep)).runs[:2]] == [
        "finished",
        "damaged",
    ]
    assert [*left_out] == ["small-adp-2"] and f"{place}/{file}" in left_out["small-adp-2"]
    assert {*table["run"].to_pylist()} == {"small-adp-1"}


def test_texts_stay_in_their_cells():
    arm = ArmResult(values={"a": "x | y\nz"}, runs=1, finished=0)
    results = SweepResults(
        sweep="s", axes=("a", "seed"), arms=(arm,), runs=(), baselines=BaselineFindings()
    )
    [_, _, row] = arms_table(results).splitlines()
    assert row.startswith("| x \\| y z | 0 of 1 |")
