"""Configurations: read back as they were written, refused where they make no sense."""

import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from nip_base.machine import devices
from nip_base.machine.devices import has_cuda, only_on, overlap
from nip_base.spec import EngineSpec, ServerSpec, Start, base_served_name
from nip_lm_server.__main__ import main
from nip_lm_server.auth import without_secrets
from nip_lm_server.engines.vllm.vllm_engine import VllmEngine
from nip_lm_server.jobs.training_process import SubprocessTrainer
from nip_lm_server.placement import make_slots
from nip_lm_server.serving.served_base import Slot

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
        ({"engine": "other", "model": "m"}, "there is no engine 'other'"),
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
    assert only_on({"A": "b"}, "cpu", "s") == {"A": "b", "CUDA_VISIBLE_DEVICES": ""}
    assert only_on({}, "cuda:1,3", "s")["CUDA_VISIBLE_DEVICES"] == "1,3"
    visible = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert only_on(visible, "cuda:0,2", "s")["CUDA_VISIBLE_DEVICES"] == "4,6"
    assert only_on(visible, "cuda", "s") == visible
    with pytest.raises(ValueError, match=r"s is 'cuda:3'.* only 3 are visible .*4,5,6"):
        only_on(visible, "cuda:3", "s")


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
        "PREFECT_API_AUTH_STRING": "d",
        "NIP_WEBHOOK": "e",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": "f",
        "REGISTRY_PASSPHRASE": "g",
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


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A machine with so many GPUs, made up."""

    def make(gpus: int) -> None:
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(gpus))):
            (tmp_path / name).touch()
        monkeypatch.setattr(devices, "_DEVICES", tmp_path)

    return make


def vllm(model: str, **settings: Any) -> EngineSpec:
    names = {field.name for field in fields(EngineSpec)}
    options = {name: settings.pop(name) for name in [*settings] if name not in names}
    return EngineSpec("vllm", model, options=options, **settings)


def place(tmp_path: Path, *engines: EngineSpec, **environment: str) -> list[Slot]:
    first, *more = engines
    spec = ServerSpec(**vars(first), more_engines=tuple(more))
    return list(make_slots(spec, environment, tmp_path))


def part(slot: Slot) -> float | None:
    """The part of its devices' memory that an engine of the slot takes; None: what vLLM takes."""
    engine = slot.make_engine("model", "name")
    assert isinstance(engine, VllmEngine)
    return engine._options.gpu_memory_utilization


def seen(slot: Slot) -> str | None:
    engine = slot.make_engine("model", "name")
    assert isinstance(engine, VllmEngine)
    return engine._environment.get("CUDA_VISIBLE_DEVICES")


def test_engines_and_trainings_see_the_devices_they_are_put_on(
    tmp_path: Path, machine: Callable[[int], None]
) -> None:
    machine(4)
    slots = place(
        tmp_path,
        vllm("a", training_device="cuda:1"),
        vllm("b", device="cuda:2,3", tensor_parallel_size=2, training_device="cuda:0"),
    )
    assert [slot.engine_device for slot in slots] == ["cuda:0", "cuda:2,3"]
    assert [seen(slot) for slot in slots] == ["0", "2,3"]
    # Each training takes a device that one engine is on, or none.
    assert [[slot.leaves_for(t) for slot in slots] for t in ("cuda:1", "cuda:0", "cuda")] == [
        [False, False],
        [True, False],
        [True, True],
    ]
    (slot,) = place(tmp_path, vllm("a", device="cuda:1"), CUDA_VISIBLE_DEVICES="5,7")
    assert seen(slot) == "7" and slot.engine_device == "cuda:1"
    (slot,) = place(tmp_path, vllm("a", extra_arguments=["--pipeline-parallel-size=2"]))
    assert seen(slot) is None and slot.engine_device == "cuda"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "cuda:2"}, "device is 'cuda:2', counted from 0, but only 2 are visible"),
        ({"device": "cuda:0", "tensor_parallel_size": 2}, "the model takes 2 device"),
        ({"tensor_parallel_size": 3}, "device is 'cuda:0,1,2'"),
        ({"training_device": "cuda:5"}, "training_device is 'cuda:5'"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"gpu_memory_utilization": 80}, "gpu_memory_utilization is 80"),
    ],
)
def test_devices_that_a_machine_has_not_are_refused(
    tmp_path: Path, machine: Callable[[int], None], settings: dict[str, Any], said: str
) -> None:
    machine(2)
    with pytest.raises(ValueError, match=said):
        place(tmp_path, vllm("a", **settings))


@pytest.mark.parametrize(
    ("engines", "parts"),
    [
        ([{}], [None]),  # alone, and asleep while something trains: what vLLM takes
        ([{}, {}], [0.45, 0.45]),
        ([{}, {"device": "cuda:1"}], [None, None]),
        ([{"bases_at_once": 2}, {}], [0.3, 0.3]),
        ([{"gpu_memory_utilization": 0.5}, {}], [0.5, 0.4]),
        ([{"share_device": "no"}], [0.45]),
        ([{"share_device": "no", "training_device": "cuda:1"}], [None]),
        ([{"share_device": "no", "training_device": "cpu"}], [None]),
        # The narrowest of the devices that a model is spread over decides.
        (
            [{"tensor_parallel_size": 2}, {"device": "cuda:1"}, {"device": "cuda:1"}],
            [0.3, 0.3, 0.3],
        ),
    ],
)
def test_engines_share_the_memory_of_a_device(
    tmp_path: Path,
    machine: Callable[[int], None],
    engines: list[dict[str, Any]],
    parts: list[float | None],
) -> None:
    machine(2)
    specs = [vllm(f"model-{number}", **settings) for number, settings in enumerate(engines)]
    assert [part(slot) for slot in place(tmp_path, *specs)] == parts


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ([{"gpu_memory_utilization": 0.6}] * 2, "cuda:0 are given 1.2 times .*m0 0.6, m1 0.6"),
        ([{"gpu_memory_utilization": 0.6, "bases_at_once": 2}], "0.6 x 2 bases at once"),
        ([{"gpu_memory_utilization": 0.88}, {}], "no memory of cuda:0 is left for 1 base"),
    ],
)
def test_memory_that_is_not_there_is_refused_with_the_sum(
    tmp_path: Path, machine: Callable[[int], None], engines: list[dict[str, Any]], said: str
) -> None:
    machine(1)
    specs = [vllm(f"m{number}", **settings) for number, settings in enumerate(engines)]
    with pytest.raises(ValueError, match=said):
        place(tmp_path, *specs)


def test_what_is_compiled_is_kept_in_the_state_directory_unless_the_user_says_where(
    tmp_path: Path, machine: Callable[[int], None]
) -> None:
    machine(1)
    (slot,) = place(tmp_path, vllm("a"), TRITON_CACHE_DIR="/elsewhere")
    assert isinstance(slot.trainer, SubprocessTrainer)
    children = slot.trainer._environment
    assert children["TRITON_CACHE_DIR"] == "/elsewhere"
    assert children["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "caches" / "inductor")


def test_trainings_take_a_cards_memory_in_segments_that_grow_unless_the_user_says_how(
    tmp_path: Path, machine: Callable[[int], None]
) -> None:
    machine(1)
    (slot,) = place(tmp_path, vllm("a"))
    assert isinstance(slot.trainer, SubprocessTrainer)
    assert slot.trainer._environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    (slot,) = place(tmp_path, vllm("a"), PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:512")
    assert isinstance(slot.trainer, SubprocessTrainer)
    assert "PYTORCH_ALLOC_CONF" not in slot.trainer._environment
