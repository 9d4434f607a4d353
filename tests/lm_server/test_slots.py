"""Configurations: read back as they were written, refused where they make no sense."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from nip_lm_server.__main__ import main
from nip_lm_server.auth import without_secrets
from nip_lm_server.devices import has_cuda, overlap
from nip_lm_server.serving.placement import _for_device, make_slots
from nip_lm_server.spec import EngineSpec, ServerSpec, Start, base_served_name

SECOND = EngineSpec("deterministic", "other", training_device="cuda:1", loaded_adapters=3)


SPEC = ServerSpec(
    "deterministic",
    "some/model",
    replies="replies.yaml",
    served_model_name="name",
    options={"max_batch": 8, "dtype": "float32"},
    training_device="cpu",
    share_device="yes",
    loaded_adapters=5,
    bases_at_once=2,
    more_engines=(SECOND,),
    max_upload_bytes=77,
)


def test_a_process_is_told_the_specification_as_it_is(tmp_path: Path) -> None:
    start = Start(SPEC, tmp_path, api_keys_file=tmp_path / "keys", parent=1, parent_pipe=3)
    assert Start.from_json(start.to_json()) == start
    assert Start.from_json(Start(SPEC, tmp_path).to_json()) == Start(SPEC, tmp_path)
    digests = {replace(SPEC, replies=None, more_engines=x).digest() for x in ((), (SECOND,))}
    assert len(digests) == 2


def test_the_options_of_the_command_are_those_of_the_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr("nip_lm_server.server.run", lambda start: started.append(start) or 0)
    options = {
        "engine": "deterministic",
        "model": "some/model",
        "replies": "replies.yaml",
        "served-model-name": "name",
        "training-device": "cpu",
        "share-device": "yes",
        "loaded-adapters": "5",
        "bases-at-once": "2",
        "max-upload-bytes": "77",
        "state": str(tmp_path),
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    second = {"engine": "deterministic", "model": "other", "training_device": "cuda:1"}
    arguments += ["--option", "max_batch=8", "--option", "dtype=float32", "--add-engine"]
    assert main([*arguments, json.dumps(second | {"loaded_adapters": 3})]) == 0
    assert main(["--engine=vllm", "--model=m", f"--state={tmp_path}", "--die-with-parent"]) == 0
    assert started == [
        Start(SPEC, tmp_path),
        Start(ServerSpec("vllm", "m"), tmp_path, parent=os.getppid()),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--idempotency-ttl-s=0"], "answers to chats are not kept"),
        (["--option", "x"], "expected KEY=JSON"),
        (["--add-engine", "{}"], "an engine needs engine and model"),
        (["--training-device=gpu"], "training_device is 'gpu'"),
    ],
)
def test_a_wrong_option_of_the_command_is_named(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["--engine=deterministic", "--model=m", f"--state={tmp_path / 'state'}"]
    assert main([*start, *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"engine": "other", "model": "m"}, "unknown engine 'other'"),
        ({"engine": "vllm", "model": "m", "training_device": "gpu"}, "training_device is 'gpu'"),
        ({"engine": "vllm", "model": "m", "share_device": "no way"}, "share_device is 'no way'"),
        ({"engine": "vllm", "model": "m", "bases_at_once": 0}, "bases_at_once is 0"),
    ],
)
def test_a_wrong_setting_is_named(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EngineSpec(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["[]", "{}", '{"engine": "vllm", "model": "m", "port": 1}', "{"])
def test_a_wrong_engine_of_add_engine_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        EngineSpec.from_json(text)


def test_two_engines_cannot_serve_one_name(tmp_path: Path) -> None:
    spec = ServerSpec("deterministic", "sim", more_engines=(EngineSpec("deterministic", "sim"),))
    with pytest.raises(ValueError, match="two engines serve the name 'sim'"):
        make_slots(spec, os.environ, tmp_path)


def test_an_option_that_an_engine_has_not_is_refused_with_those_it_has(tmp_path: Path) -> None:
    spec = ServerSpec("embedded", "model", options={"max_batsh": 3})
    with pytest.raises(ValueError, match=r"no 'max_batsh'; it has .*max_batch"):
        make_slots(spec, os.environ, tmp_path)


@pytest.mark.parametrize(
    ("training", "engine", "shared"),
    [
        ("cpu", "cpu", False),
        ("cuda", "cpu", False),
        ("cuda", "cuda", True),
        ("cuda:1", "cuda", True),
        ("cuda:1", "cuda:0", False),
        ("cuda:0,1", "cuda:1", True),
    ],
)
def test_devices_are_shared_if_both_use_one_of_the_same_number(
    training: str, engine: str, shared: bool
) -> None:
    assert overlap(training, engine) is shared


def test_a_training_sees_its_device_alone() -> None:
    assert _for_device({"A": "b"}, "cpu") == {"A": "b", "CUDA_VISIBLE_DEVICES": ""}
    assert _for_device({}, "cuda:1,3")["CUDA_VISIBLE_DEVICES"] == "1,3"
    visible = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert _for_device(visible, "cuda:0,2")["CUDA_VISIBLE_DEVICES"] == "4,6"
    assert _for_device(visible, "cuda") == visible
    with pytest.raises(ValueError, match=r"only .* are visible"):
        _for_device(visible, "cuda:3")


@pytest.mark.parametrize(
    ("share", "training", "device", "leaves"),
    [
        ("auto", "cuda:0", "cuda", True),  # named otherwise, but the same device
        ("auto", "cuda:1", "cuda:0", False),
        ("no", "cuda", "cuda", False),
        ("yes", "cpu", "cpu", True),
        ("yes", "cpu", "cuda:0", False),
    ],
)
def test_an_engine_leaves_its_device_for_any_training_there(
    tmp_path: Path, share: Literal["auto", "yes", "no"], training: str, device: str, leaves: bool
) -> None:
    spec = ServerSpec("deterministic", "model", training_device=training, share_device=share)
    (slot,) = make_slots(spec, {}, tmp_path)
    slot = replace(slot, engine_device=training)
    assert slot.leaves_for(device) is leaves


def test_children_are_given_nobodys_keys_but_for_models() -> None:
    environment = {
        "PATH": "/bin",
        "HF_TOKEN": "a",
        "GITHUB_TOKEN": "b",
        "AWS_SECRET_ACCESS_KEY": "c",
    }
    assert without_secrets(environment) == {"PATH": "/bin", "HF_TOKEN": "a"}


def test_a_base_model_is_called_after_its_directory_wherever_it_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "a model"
    directory.mkdir()
    (tmp_path / "link").symlink_to(directory)
    for given in (directory, tmp_path / "link", directory / ".." / "a model"):
        assert base_served_name(str(given)) == "a model"
    assert base_served_name("organisation/model") == "organisation/model"
    (slot,) = make_slots(ServerSpec("deterministic", str(directory)), {}, tmp_path)
    assert slot.base_model == "a-model"


def test_hidden_devices_are_none() -> None:
    assert not has_cuda({"CUDA_VISIBLE_DEVICES": ""})
    assert has_cuda({}) is Path("/dev/nvidiactl").exists()
