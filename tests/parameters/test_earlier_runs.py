"""A run whose record lacks settings that came later goes on: they count as their defaults."""

import copy
import json
from pathlib import Path

import pytest

from nip_core.errors import RunConflictError
from nip_core.parameters import DATA_NEUTRAL, HyperParameters, load_parameters
from nip_core.parameters.stored import read_settings
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.run import Identity, RunStore

QUICKSTART = Path(__file__).parents[2] / "deployments" / "configs" / "quickstart.yaml"
EARLIER = json.loads((Path(__file__).parent / "earlier_run.json").read_text(encoding="utf-8"))
"""The record of a quick start, without settings that came later."""
SAME = ["agents.prover.lora_alpha=null", "agents.prover.lora_alpha_scale=1.0"]
SAME += ["agents.prover.shared_model_group=provers", "lm_server.start_timeout_s=180"]


def going_on(*changes: str) -> HyperParameters:
    """The settings with which the run goes on."""
    return load_parameters(QUICKSTART, [*SAME, *changes])


def identity(parameters: dict) -> Identity:
    return Identity(parameters, "1", 6198, data_neutral=DATA_NEUTRAL)


@pytest.fixture
def run(tmp_path):
    run = RunStore(LocalStore(tmp_path), "quickstart")
    run.create_or_open(identity(EARLIER))
    return run


def test_the_record_lacks_what_came_later():
    assert "_type" not in EARLIER and "base_run" not in EARLIER


def test_the_same_configuration_is_no_difference(run):
    now = going_on().to_dict()
    assert run.check_same(identity(now)) == {}
    assert not run.create_or_open(identity(now)).created
    assert run.store.list("quickstart/openings") == []


def test_a_later_setting_at_another_value_is_a_difference_from_its_default(run):
    for setting, shown in [
        ("agents.verifier.chat_format=alternating", '"named" -> "alternating"'),
        ("protocol_common.zero_knowledge=true", "protocol_common.zero_knowledge: false -> true"),
        ("agents.verifier.update_schedule={_type: ContiguousPeriodicUpdateSchedule, period: 2, "
         "start: 0, stop: 1}", "update_schedule._type"),
        ("base_run={base_run_type: parameters, run_id: b}", 'base_run.run_id: null -> "b"'),
    ]:  # fmt: skip
        given = load_parameters(QUICKSTART, [*SAME, setting]).to_dict()
        with pytest.raises(RunConflictError) as caught:
            run.check_same(identity(given))
        assert shown in str(caught.value)


def test_a_later_setting_that_is_harmless_may_differ(run):
    given = going_on("text_rl.save_transcripts=true").to_dict()
    assert run.check_same(identity(given)) == {"text_rl.save_transcripts": (False, True)}


def test_a_setting_that_is_gone_is_a_difference(tmp_path):
    run = RunStore(LocalStore(tmp_path), "quickstart")
    stored = copy.deepcopy(EARLIER)
    stored["rl"]["gone"] = 1
    run.create_or_open(identity(stored))
    with pytest.raises(RunConflictError, match=r"rl\.gone: 1 -> \(absent\)"):
        run.check_same(identity(load_parameters(QUICKSTART, SAME).to_dict()))


def test_its_settings_can_be_read_as_todays():
    today = read_settings(EARLIER)
    assert isinstance(today, HyperParameters)
    assert today == going_on()
