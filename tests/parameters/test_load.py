"""Settings: unknown ones are errors, errors name the place, importing them is cheap."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.protocols import make_protocol, protocol_names

MINIMAL = {"run_name": "a", "dataset": "families"}


def with_(**settings):
    return {**MINIMAL, **settings}


def test_default_settings_of_agents_lie_under_their_own():
    loaded = load_parameters(
        with_(agents={"_default": {"model_name": "m", "top_p": 0.5}, "prover": {"top_p": 0.9}})
    )
    assert loaded.agents["prover"].top_p == 0.9
    assert loaded.agents["verifier"].top_p == 0.5
    assert loaded.agents["prover"].model_name == loaded.agents["verifier"].model_name == "m"


def test_overrides_are_read_as_yaml_and_reach_nested_settings():
    loaded = load_parameters(
        MINIMAL, ["rl.lr=1.23e-5", "agents._default.temperature=0", "run_name=b"]
    )
    assert loaded.rl.lr == 1.23e-5
    assert loaded.agents["verifier"].temperature == 0
    assert loaded.run_name == "b"


def test_a_block_without_contents_has_its_defaults():
    blocks = [
        name
        for name, value in HyperParameters.model_validate(MINIMAL)
        if not isinstance(value, str | int)
    ]
    assert {"agents", "rl", "prices", "zk_protocol"} <= set(blocks)
    assert load_parameters(with_(**dict.fromkeys(blocks))) == load_parameters(MINIMAL)
    assert load_parameters(with_(lm_server={"options": None})) == load_parameters(MINIMAL)


def test_the_settings_have_a_json_schema():
    for mode in ("validation", "serialization"):
        assert "agents" in HyperParameters.model_json_schema(mode=mode)["properties"]


def test_what_is_written_out_reads_back_equal():
    loaded = load_parameters(with_(agents={"prover": {"shared_model_group": "g"}}))
    assert HyperParameters.from_dict(loaded.to_dict()) == loaded


@pytest.mark.parametrize(
    ("settings", "overrides", "said"),
    [
        (with_(rl={"lrr": 1}), [], "rl.lrr: unknown setting; did you mean 'lr'?"),
        (MINIMAL, ["num_iterations=3"], "setting; did you mean 'rl.num_iterations'?"),
        (MINIMAL, ["iterations=3"], "setting; did you mean 'rl.num_iterations'?"),
        (MINIMAL, ["rl.numiterations=3"], "setting; did you mean 'num_iterations'?"),
        (with_(rl={"concurrency": 3}), [], "setting; did you mean 'rollouts.concurrency'?"),
        (with_(temprature=1), [], "setting; did you mean 'agents._default.temperature'?"),
        (with_(prompt_usd=1), [], "setting; did you mean 'prices.MODEL.prompt_usd'?"),
        (with_(nonsense=1), [], "nonsense: unknown setting"),
        (
            with_(scenario="code_valdation"),
            [],
            "no scenario 'code_valdation'; did you mean 'code_validation'?; there are code_val",
        ),
        (with_(agents={"provr": {}}), [], "agents.provr: protocol 'nip' has no such agent"),
        (
            with_(agents={"prover": {"temprature": 1}}),
            [],
            "agents.prover.temprature: unknown setting; did you mean 'temperature'?",
        ),
        (
            with_(interaction_protocol="nipp"),
            [],
            "interaction_protocol: there is no protocol 'nipp'; did you mean 'nip'?; there are nip, ",
        ),
        (
            with_(nip_protocol={"max_message_rounds": 8}),
            [],
            "nip_protocol.max_message_rounds: 8 rounds give",
        ),
        (
            with_(nip_protocol={"max_message_rounds": 5, "min_message_rounds": 6}),
            [],
            "nip_protocol.min_message_rounds: 6 is more than max_message_rounds, 5",
        ),
        (with_(run_name="Über Run"), [], "run_name: String should match pattern"),
        (with_(run_name="a" * 42), [], "run_name"),
        ({"run_name": "a"}, [], "dataset: is missing"),
        (with_(agents={"_default": {"temperature": 1, "top_p": 1}}), [], "not both"),
        (
            with_(
                agents={
                    "_default": {"shared_model_group": "g"},
                    "prover": {"lora_rank": 8},
                }
            ),
            [],
            "both share the model group 'g' and must agree",
        ),
        (with_(agents={"_default": {"model_provider": "OpenRouter"}}), [], "can't fine-tune"),
        (MINIMAL, ["rl.lr"], "write it as a.b=c"),
        (MINIMAL, ["run_name.x=1"], "holds a plain value"),
        (with_(rl={"lr": float("nan")}), [], "rl.lr"),
        (MINIMAL, ["rl.lr=yes"], "rl.lr: a number is needed (got True)"),
        (MINIMAL, ["agents.prover.top_p=on"], "agents.prover.top_p: a number is needed"),
        (
            with_(interaction_protocol=["nip"]),
            [],
            "interaction_protocol: Input should be a valid str",
        ),
        (MINIMAL, ["lm_server.url=5"], "lm_server.url: an address like http://host:8000"),
        (MINIMAL, ["lm_server.url=http://"], "lm_server.url: an address like http://host:8000"),
        (MINIMAL, ["lm_server.url=http://h,i"], "lm_server.url: an address like http://host:8000"),
        (MINIMAL, ["lm_server.url=http://h:x"], "lm_server.url: an address like"),
        (MINIMAL, ["lm_server.url=ftp://h"], "lm_server.url: an address like"),
        (MINIMAL, ["rl.lr='1"], "--set rl.lr: the value is not YAML"),
    ],
)
def test_a_wrong_setting_is_one_error_that_names_it(settings, overrides, said):
    with pytest.raises(SettingsError) as caught:
        load_parameters(settings, overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_a_mapping_is_named(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("- 1\n")
    with pytest.raises(SettingsError, match=r"c\.yaml: a mapping of settings is needed, got list"):
        load_parameters(path)
    with pytest.raises(SettingsError, match=r"nothing\.yaml: can't be read"):
        load_parameters(tmp_path / "nothing.yaml")


def test_a_setting_that_stands_twice_is_refused_with_its_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("run_name: a\ndataset: families\nrl:\n  lr: 0.1\n  seed: 1\n  lr: 0.2\n")
    with pytest.raises(SettingsError, match=r"the key 'lr' stands twice \(line 6\)"):
        load_parameters(path)
    path.write_text(
        "run_name: a\ndataset: families\nagents:\n  prover: &p {model_name: tiny}\n"
        "  verifier: {<<: *p, model_name: other}\n"
    )
    names = {name: a.model_name for name, a in load_parameters(path).model_agents.items()}
    assert names == {"prover": "tiny", "verifier": "other"}


def test_an_error_of_an_override_does_not_blame_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("run_name: a\ndataset: families\n")
    for override in ("rl.lrr=1", "nip_protocol.max_message_rounds=8", "interaction_protocol=x"):
        with pytest.raises(SettingsError) as caught:
            load_parameters(path, ["rl.lr=0.1", override])
        assert str(caught.value).startswith(f"--set: {override.partition('=')[0]}: ")
    path.write_text("run_name: a\ndataset: families\nrl: {lrr: 1}\n")
    with pytest.raises(SettingsError, match=r"c\.yaml: rl\.lrr: unknown setting"):
        load_parameters(path, ["rl.lr=0.1"])


def test_a_bundled_configuration_is_known_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_parameters("quickstart").run_name == "quickstart"
    with pytest.raises(
        SettingsError, match=r"quickstrat: neither a file here nor a bundled conf"
    ) as no:
        load_parameters("quickstrat")
    assert "did you mean quickstart?" in str(no.value)
    with pytest.raises(
        SettingsError, match=r"quikstart.yaml: there is no .* did you mean quickstart"
    ):
        load_parameters("quikstart.yaml")


def test_a_name_that_is_a_file_here_too_is_nobodys_guess(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()  # a directory is no configuration
    assert load_parameters("quickstart").run_name == "quickstart"
    (tmp_path / "quickstart").rmdir()
    (tmp_path / "quickstart").write_text("run_name: mine\ndataset: families\n")
    with pytest.raises(
        SettingsError, match=r"a file here and a bundled .*\./quickstart"
    ) as refused:
        load_parameters("quickstart")
    bundled = str(refused.value).split(", or ")[1].removesuffix(" for the other")
    assert load_parameters(bundled).run_name == "quickstart"
    assert load_parameters("./quickstart").run_name == "mine"
    assert load_parameters(Path("quickstart")).run_name == "mine"


def test_importing_settings_loads_nothing_heavy():
    code = (
        "import sys, nip_core.parameters; "
        "heavy = {'torch', 'prefect', 'openai', 'pyarrow', 'aiohttp'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_settings_and_protocols_name_the_same_agents():
    for name in protocol_names():
        parameters = load_parameters(with_(interaction_protocol=name))
        assert make_protocol(parameters).agent_names == tuple(parameters.agents)


def test_a_value_is_found_by_its_address():
    loaded = load_parameters(MINIMAL)
    assert loaded.get("rl.lr") == loaded.rl.lr
    assert loaded.get("agents.prover.lora_rank") == 64
    with pytest.raises(KeyError):
        loaded.get("rl.nothing")


def test_options_of_an_engine_are_what_yaml_makes_of_them():
    options = ["threads=1", "share=0.5", "fast=true", "dtype=bfloat16"]
    loaded = load_parameters("quickstart", [f"lm_server.options.{option}" for option in options])
    assert loaded.lm_server.options == {
        "threads": 1,
        "share": 0.5,
        "fast": True,
        "dtype": "bfloat16",
    }


@pytest.mark.parametrize("text", ["2024", "1e5", "1.5", "on", "2024-01-01"])
def test_an_override_of_a_text_setting_stays_text(text):
    overrides = [f"agents.prover.model_name={text}", f"lm_server.replies={text}"]
    loaded = load_parameters(with_(lm_server={"engine": "deterministic"}), overrides)
    assert loaded.agents["prover"].model_name == loaded.lm_server.replies == text


def test_an_override_of_a_text_setting_can_be_null_and_a_number_stays_a_number():
    loaded = load_parameters(
        with_(lm_server={"engine": "deterministic", "replies": "r.yaml"}),
        ["lm_server.replies=null", "run_name=2024", "rl.lr=1e-3", "prices.m.prompt_usd=1e1"],
    )
    assert (loaded.lm_server.replies, loaded.run_name) == (None, "2024")
    assert (loaded.rl.lr, loaded.prices["m"].prompt_usd) == (0.001, 10.0)


@pytest.mark.parametrize(
    ("settings", "overrides"),
    [
        (with_(lm_server={"url": "http://user:hunter2@host:8000"}), []),
        (with_(lm_server={"url": "http://host:8000/v1?key=hunter2"}), []),
        (with_(lm_server={"url": "http://host:8000/#hunter2"}), []),
        (with_(lm_server={"url": "user:hunter2@host"}), []),
        (with_(lm_server={"url": ["http://hunter2@host"]}), []),
        (with_(lm_server="http://user:hunter2@host"), []),
        (MINIMAL, ["lm_server.url=http://user:hunter2@host"]),
        (MINIMAL, ["lm_server=http://user:hunter2@host"]),
        (MINIMAL, ["lm_server.url http://user:hunter2@host"]),
        (MINIMAL, ["lm_server.url='http://user:hunter2@host"]),
    ],
)
def test_a_secret_in_an_address_is_refused_and_never_shown(settings, overrides):
    with pytest.raises(SettingsError) as caught:
        load_parameters(settings, overrides)
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)
    if isinstance(settings.get("lm_server"), dict):
        with pytest.raises(ValidationError) as raw:
            HyperParameters.model_validate(settings)
        assert "hunter2" not in str(raw.value)


def test_a_plain_address_is_taken():
    assert load_parameters(MINIMAL, ["lm_server.url=https://host:8000/v1"]).lm_server.url == (
        "https://host:8000/v1"
    )
