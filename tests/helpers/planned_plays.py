"""A plan of two arms over seeds, and made-up verdicts of their tests."""

import random

import yaml

from nip_study.declare.declaration import read_plan
from nip_study.parts.counted import Play

QUESTIONS, SEEDS = 40, (1, 2, 3, 4)
CHOSEN, SNEAKY = {"by": "best-of-n", "n": [1, 4]}, {"by": "sneaky", "steps": 4, "every": 2}
GATE = {
    "says": "asking keeps soundness",
    "figure": "soundness",
    "arm": {"protocol": "nip"},
    "against": {"protocol": "adp"},
    "expected": "higher",
    "primary": True,
    "gate": True,
}


def planned(tmp_path, *hypotheses, attacks=None):
    axes = {"protocol": {"adp": {"interaction_protocol": "adp"}, "nip": {}}, "seed": [*SEEDS]}
    sweep = {"name": "asked", "config": "deterministic", "axes": axes}
    sweep |= {"run_store": str(tmp_path / "runs"), "attacks": attacks or {}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    plan = {"sweep": "sweep.yaml", "stopping": "all runs", "hypotheses": [*hypotheses]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    return read_plan(tmp_path / "plan.yaml")


def plays(name, completeness, soundness, questions=QUESTIONS):
    """The verdicts of a test: each question has a right and a wrong solution."""
    draw = random.Random(name)
    return [
        Play(f"q{i}-{y}", f"q{i}", y, y if draw.random() < rate else 1 - y)
        for i in range(questions)
        for y, rate in ((1, completeness), (0, soundness))
    ]
