"""A plan is tried on made-up verdicts before its first run, by the command of docs/study.md.

Of each hypothesis it says how often it is shown.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from planned_plays import CHOSEN, GATE, planned

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "simulated_plan.py"
SCRIPTS = "def list_c(turn): return 'C'\n\ndef nothing(turn): return '.'\n"
ATTACKS = {"chosen": CHOSEN, "held_out": ["silent.py:list_c", "silent.py:nothing"]}
AFTER = {**GATE, "after": ["held_out"], "where": {"completeness": 0.9}}
COMPLETE = {**GATE, "says": "more complete", "figure": "completeness", "primary": False}
SOUND = {"own": [0.9, 0.02], "nothing": [0.9, 0.02], "others": [0.95, 0.02]}


def simulate(tmp_path, *arms, draws=12, **options):
    (tmp_path / "silent.py").write_text(SCRIPTS)
    planned(tmp_path, AFTER, {**COMPLETE, "gate": False}, attacks=ATTACKS)
    spec = {"together": 0.5, "arms": [*arms], **options}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    files = [tmp_path / name for name in ("plan.yaml", "spec.yaml", "drawn.json")]
    command = [sys.executable, SCRIPT, *files[:2], "--draws", str(draws), "--out", files[2]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return done, json.loads(files[2].read_bytes())["hypotheses"] if not done.returncode else None


def test_power_and_false_positives_of_a_plan_are_counted(tmp_path):
    sound = {"arm": {"protocol": "nip"}, "completeness": [0.97, 0.01], "soundness": SOUND}
    less = {**sound, "arm": {}, "soundness": {**SOUND, "nothing": [0.05, 0.02]}}
    done, [after, complete] = simulate(tmp_path, sound, less)
    assert not done.returncode, done.stderr
    # The worst of the two that are held out; of each run ten wrong problems are tested.
    assert after["shown"] == 12 and after["difference"] == pytest.approx(0.8, abs=0.1)
    # Behind the gate, of arms that are equally complete.
    assert complete["shown"] + complete["contradicted"] <= 3
    assert sum(complete[word] for word in ("shown", "not shown", "contradicted")) == 12
    assert "of 12 draws" in done.stdout and "+" in done.stdout
    # The same seed draws the same.
    assert simulate(tmp_path, sound, less)[1] == [after, complete]


def test_a_condition_that_is_not_met_is_named(tmp_path):
    """And what waits for the gate is not tested either."""
    half = {"arm": {}, "completeness": [0.5, 0], "soundness": {"own": [1, 0], "others": [0.5, 0]}}
    done, [after, complete] = simulate(tmp_path, half, draws=3)
    assert after["not tested"] == complete["not tested"] == 3, done.stderr
    assert after["because"].startswith("completeness of arm is 0.")
    assert complete["because"] == "the gate is not tested (asking keeps soundness)"


def test_a_run_without_rates_is_an_error(tmp_path):
    adp = {"arm": {"protocol": "adp"}, "completeness": [0.9, 0], "soundness": {"own": [0.9, 0]}}
    done, _ = simulate(tmp_path, adp)
    assert done.stderr == "soundness.chosen: no rate for asked-adp-1; add it, or others\n"
    adp["soundness"]["others"] = [0.5, 0]
    assert simulate(tmp_path, adp)[0].stderr == "arms: none fits asked-nip-1; add it\n"
    every = {**adp, "arm": {}}
    every["soundness"] = {**SOUND, "nothin": [0.5, 0]}
    refused = simulate(tmp_path, every)[0].stderr
    assert refused.startswith("arms[0].soundness.nothin: there is no such attack; it is one of own")
    every["soundness"] = SOUND
    refused = simulate(tmp_path, every, {**adp, "arm": {"protocol": "nap"}})[0].stderr
    assert refused.startswith("arms[1]: no run has these rates, as none is of arm {'protocol': 'n")
