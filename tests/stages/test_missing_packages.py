"""What a configuration needs and this machine lacks is said before anything is started."""

import importlib.util

import pytest

from nip_core import how_to_install
from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.servers.missing_packages import list_missing_packages
from nip_core.session.prepare import prepare

NO_VLLM = {"PATH": "/nowhere"}


def lacking(*packages: str, config: str = "quickstart", **settings: str) -> list[str]:
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    parameters = load_parameters(config, overrides)
    return list_missing_packages(parameters, NO_VLLM, lambda name: name not in packages)


def test_the_embedded_engine_needs_torch_and_the_command_is_told():
    [line] = lacking("torch", "peft")
    assert line.startswith("lm_server.engine: embedded needs torch, peft to play and to train,")
    assert how_to_install("local") in line
    assert lacking() == []


def test_vllm_is_looked_for_and_what_trains_beside_it():
    training, engine = lacking("torch", lm_server__engine="vllm")
    assert training.startswith("lm_server.engine: vllm needs torch to train, which is not inst")
    assert engine.startswith("lm_server.engine: vLLM was not found: install it")
    assert (
        len(lacking("torch", lm_server__engine="vllm", agents___default__freeze_agent="true")) == 1
    )


def test_what_needs_no_model_here_needs_no_package():
    assert lacking("torch", config="deterministic") == []
    assert lacking("torch", config="ei-paper-openai") == []
    assert lacking("torch", lm_server__url="http://127.0.0.1:1") == []


def test_a_run_is_not_begun_without_them_and_nothing_of_it_is_there(tmp_path, monkeypatch):
    """The server used to import for a minute before it said so, without the command."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "torch" else find(name, *of)
    )
    parameters = load_parameters("quickstart", [f"run_store={tmp_path / 'runs'}"])
    with pytest.raises(SettingsError, match=r"embedded needs torch.*not installed.*install"):
        prepare(parameters)
    assert not (tmp_path / "runs" / "quickstart").exists()
