"""Sweeps that were declared and played keep their settings, whatever configurations say later."""

import json
from pathlib import Path

import pytest

from nip_study.declare.declared_digests import settings_digests
from nip_study.plan.swept_runs import read_sweep

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["asking", "asking_trained", "debate"])
def test_settings_of_a_committed_declaration_are_todays(name: str) -> None:
    declared = json.loads((ROOT / f"docs/results/{name}/declaration.json").read_text())
    today = settings_digests(read_sweep(ROOT / f"deployments/sweeps/{name}.yaml"))
    assert today == declared["plan"]["runs"]
