"""A sweep's table is made of what its runs have on record."""

import asyncio
import json
import re

import pytest
import yaml
from small_game import FEW, train_here, write_config

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.sweep.counted import Counted, LastTest
from nip_core.sweep.counted import rate as rate_of
from nip_core.sweep.declaration import settings_digest
from nip_core.sweep.page import AFTER_ATTACK, METRICS, page, table
from nip_core.sweep.plan import read_sweep
from nip_core.sweep.results import collect, write

RATES = ("accuracy", "completeness", "soundness", "always_fail_rate")


@pytest.fixture
def sweep(tmp_path):
    """Two arms of two seeds; those of the first are finished."""
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


def test_an_arm_is_the_mean_of_its_finished_runs(sweep):
    store = open_store(sweep.run_store)
    results = collect(store, sweep, {"small-nip-1": "exit code 6: the job failed"})
    tests = {
        run.name: json.loads(store.get(f"{run.name}/iterations/0001/metrics-test.json"))
        for run in sweep.runs[:2]
    }
    [adp, nip] = results["arms"]
    assert (adp["runs"], adp["finished"], nip["runs"], nip["finished"]) == (2, 2, 2, 0)
    for rate in RATES:
        values = [test[rate] for test in tests.values()]
        mean = sum(values) / 2
        low, high = adp[rate].pop("ci95", (mean, mean))
        assert 0 <= low <= mean <= high <= 1
        assert adp[rate] == {"mean": mean, "lowest": min(values), "highest": max(values)}
        assert nip[rate] is None
    assert [run["status"] for run in results["runs"]] == ["finished"] * 2 + ["not begun"] * 2

    lines = table(results).splitlines()
    assert lines[2].startswith("| adp | 2 | ") and lines[3].startswith("| nip | 0 of 2 | – |")
    assert "2 of 4 runs and 1 of 4 attacks finished" in page(results)
    assert "- `small-nip-1`: exit code 6: the job failed" in page(results)

    # Where problems are played several times, what their majority says is shown as well.
    assert "majority" not in lines[0]
    adp["majority_accuracy"] = {"mean": 0.75, "lowest": 0.5, "highest": 1.0}
    assert "| majority |" in table(results) and "| 75.0 |" in table(results)

    # Of the attacks only one was made.
    metrics = json.loads(store.get("small-adp-1-chosen/iterations/0000/metrics-attack.json"))
    attack = results["runs"][0]["attacks"]["chosen"]
    assert (attack["run"], attack["status"]) == ("small-adp-1-chosen", "finished")
    for rate in AFTER_ATTACK:
        assert attack[rate] == metrics["by_n"][-1][rate]
        assert adp["attacks"]["chosen"][rate]["mean"] == attack[rate]
    for loss in ("lost_to_lying", "lost_to_training"):
        assert attack[loss] == metrics[loss]["difference"] is not None
    assert (adp["attacks"]["chosen"]["finished"], adp["attacks"]["chosen"]["runs"]) == (1, 2)
    assert results["runs"][1]["attacks"]["chosen"]["status"] == "not begun"
    assert nip["attacks"]["chosen"]["soundness"] is None
    counted = Counted(store, {"small-adp-1-chosen": LastTest(0, n=3)})
    assert rate_of([counted.of("small-adp-1-chosen", "soundness")]) == attack["soundness"]
    heads = ("soundness", "completeness", "lost to lying", "lost to training")
    assert f" {' | '.join(f'chosen: {head}' for head in heads)} |" in lines[0]
    failed = collect(store, sweep, {"small-adp-2-chosen": "exit code 3"})
    assert "- `small-adp-2-chosen`: exit code 3" in page(failed)

    results = collect(store, sweep)
    # The record has the settings that were planned.
    for run in sweep.runs[:2]:
        record = RunStore(store, run.name).open()
        assert settings_digest(record.parameters) == settings_digest(run.parameters.to_dict())

    place = write(store, results)
    assert place.endswith("sweeps/small/README.md")
    assert json.loads(store.get("sweeps/small/results.json")) == results
    svg = store.get("sweeps/small/arms.svg").decode()
    assert re.search(r">\s*adp\s*<", svg) and re.search(r">\s*nip\s*<", svg)

    # A run that can't be read keeps nobody from seeing the others.
    store.put("small-adp-1/run.json", b"{")
    [first, *_] = collect(store, sweep)["runs"]
    assert first["status"] == "damaged" and "small-adp-1" in first["failure"]


def test_texts_stay_in_their_cells():
    arm = dict.fromkeys(METRICS) | {
        "values": {"a": "x | y\nz"},
        "runs": 1,
        "finished": 0,
        "gain": None,
    }
    [_, _, row] = table({"axes": ["a", "seed"], "arms": [arm]}).splitlines()
    assert row.startswith("| x \\| y z | 0 of 1 |")
