"""Which environments of vLLM are taken, on machines that are made up."""

from pathlib import Path
from typing import Any

import pytest

from nip_lm_server.engines.base import EngineError
from nip_lm_server.engines.vllm import vllm_engine as vllm_module
from nip_lm_server.engines.vllm.installation import Installation
from nip_lm_server.engines.vllm.options import find_wide_vocabulary
from nip_lm_server.engines.vllm.vllm_engine import VllmEngine

PYTHON = Path("/env/bin/python")


def installation(version: str = "0.32.0", **facts: Any) -> Installation:
    versions = {"vllm": version, "torch": "2.13.0", **facts.pop("versions", {})}
    facts = {"cpu_build": False, "capability": (9, 0), "torch_cuda": "13.0", **facts}
    return Installation(PYTHON, versions, driver="580.65.06", **facts)


@pytest.mark.parametrize("version", ["0.6.3", "0.22.1", "0.25.9"])
def test_a_vllm_that_may_answer_with_another_adapters_weights_is_refused(version: str) -> None:
    with pytest.raises(EngineError, match=rf"vLLM {version} .*too old.*47724.*0.26 or newer"):
        installation(version).check()


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        ("0.26.0", None),
        ("0.32.0+cpu", None),
        ("0.33.0", "newer than 0.32"),
        ("1.0.0", "newer than 0.32"),
        ("0.1.dev1+gabc", "a development version"),
    ],
)
def test_a_vllm_newer_than_the_tests_is_warned_of(version: str, warned: str | None) -> None:
    warnings = installation(version).check()
    assert len(warnings) == (warned is not None)
    assert warned is None or warned in warnings[0]


def test_bitsandbytes_takes_its_plugin_where_vllm_has_it_no_more() -> None:
    plugin = {"versions": {"vllm-bnb-plugin": "0.1.0"}}
    for right in (installation("0.27.1"), installation("0.32.0", **plugin)):
        right.check(quantization="bitsandbytes")
    installation().check(quantization="fp8")
    with pytest.raises(EngineError, match=r"vllm-bnb-plugin.*'fp8'"):
        installation().check(quantization="bitsandbytes")


@pytest.mark.parametrize(
    ("facts", "asked", "said"),
    [
        ({"capability": None, "devices": 0}, {}, "takes 1 .* sees 0.*CUDA 13.0.*580 or newer"),
        ({"devices": 1}, {"devices": 2}, "takes 2 .* sees 1"),
        ({}, {"device": "cpu"}, "CUDA build: .*build_vllm_cpu.sh"),
        ({"cpu_build": True}, {"device": "cuda:0"}, "CPU build: .*build_vllm_cuda.sh"),
    ],
)
def test_devices_that_are_not_there_are_refused_before_vllm_is_started(
    facts: dict[str, Any], asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        installation(**facts).check(**asked)


async def test_an_engine_that_is_refused_starts_nothing_and_one_that_is_not_tells_its_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inspect(*_: Any) -> Installation:
        return installation(version)

    monkeypatch.setattr(vllm_module, "inspect", inspect)
    monkeypatch.setattr(vllm_module, "find_executable", lambda *_: PYTHON)
    engine = VllmEngine("model", "name", state_dir=tmp_path)
    version = "0.20.0"
    with pytest.raises(EngineError, match="too old"):
        await engine.start()
    version = "0.33.0"
    with pytest.raises(EngineError, match="vLLM"):  # there is no such Python
        await engine.start()
    status = engine.status()
    assert status["torch_cuda"] == "13.0" and status["driver"] == "580.65.06"
    assert "newer than" in status["warnings"][0] and status["device"] == "cuda:0"


def test_a_vocabulary_that_vllm_may_not_serve_adapters_over_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    assert find_wide_vocabulary("organisation/model") is None
    config.write_text('{"vocab_size": 128256}')
    assert find_wide_vocabulary(str(tmp_path)) is None
    config.write_text('{"text_config": {"vocab_size": 262144}}')
    assert "262144" in (find_wide_vocabulary(str(tmp_path)) or "")
