"""The proof says yes to the right weights, and no to any others."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("peft")

from nip_core.lm_server import probe
from nip_core.lm_server.engines.embedded import EmbeddedEngine
from nip_core.lm_server.engines.lora import read_lora

sys.path.append(str(Path(__file__).parent))
from tiny_model import make_adapter, make_model, peft_logprobs

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(base):
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    for number in (1, 2, 3):
        path = make_adapter(base, base.parent / f"a{number}", seed=number)
        await engine.load_adapter(f"a{number}", path)
    yield engine
    await engine.stop()


async def test_each_adapter_is_proved_against_base_and_the_others(engine, base):
    for number in (1, 2, 3):
        proof = await engine.prove(f"a{number}", base.parent / f"a{number}")
        assert proof.matches
        assert proof.detail["weights_equal"] and not proof.detail["unchanged"]
        assert proof.detail["distance_max"] < 1e-4 < proof.detail["tolerance"]
        assert proof.detail["nearest_other_distance_mean"] > 1e-2
        assert proof.detail["base_distance_mean"] > 1e-2
        assert proof.detail["indistinguishable"] == proof.detail["same_weights_as"] == []


async def test_the_expected_figures_are_those_of_peft(engine, base):
    tokens = probe.probe_tokens(engine._worker.tokenizer, engine.max_model_len)
    assert 64 < len(tokens) <= 256
    assert tokens == probe.probe_tokens(engine._worker.tokenizer, engine.max_model_len)
    path = base.parent / "a1"

    def expected():
        with probe.merged(engine._worker.model, read_lora(path)):
            return engine._worker.decoder.score([tokens], [None])[0]

    merged = await engine._worker.run(expected)
    assert merged == pytest.approx(peft_logprobs(base, path, tokens), abs=1e-4)
    plain = await engine._worker.run(lambda: engine._worker.decoder.score([tokens], [None])[0])
    assert plain == pytest.approx(peft_logprobs(base, None, tokens), abs=1e-4)


async def test_an_adapter_that_serves_other_weights_is_caught(engine, base):
    wrong = await engine.prove("a1", base.parent / "a2")
    assert not wrong.matches
    assert not wrong.detail["weights_equal"]
    assert wrong.detail["distance_max"] > wrong.detail["tolerance"]


async def test_a_name_that_answers_as_the_base_is_caught(engine, base):
    good = engine._worker.adapters["a2"]
    engine._worker.adapters["a2"] = replace(
        good, unchanged=True
    )  # the weights are there, never applied
    try:
        proof = await engine.prove("a2", base.parent / "a2")
    finally:
        engine._worker.adapters["a2"] = good
    assert proof.detail["weights_equal"]
    assert proof.detail["distance_max"] > proof.detail["tolerance"]
    assert not proof.matches


async def test_an_adapter_that_changes_nothing_is_proved_and_says_so(engine, base, tmp_path):
    path = make_adapter(base, tmp_path / "zero", seed=9, size=0.0)
    await engine.load_adapter("zero", path)
    proof = await engine.prove("zero", path)
    await engine.unload_adapter("zero")
    assert proof.matches
    assert proof.detail["unchanged"]
    assert proof.detail["same_weights_as"] == ["base"]


async def test_the_same_weights_under_another_name_are_told(engine, base, tmp_path):
    await engine.load_adapter("copy", base.parent / "a3")
    proof = await engine.prove("copy", base.parent / "a3")
    await engine.unload_adapter("copy")
    assert proof.matches
    assert proof.detail["same_weights_as"] == ["a3"]


async def test_a_change_below_rounding_is_proved_by_the_bits(engine, base, tmp_path):
    path = make_adapter(base, tmp_path / "faint", seed=9, size=1e-9)
    await engine.load_adapter("faint", path)
    proof = await engine.prove("faint", path)
    await engine.unload_adapter("faint")
    assert proof.matches
    assert not proof.detail["unchanged"]
    assert proof.detail["indistinguishable"] == ["base"]


async def test_bfloat16_is_proved_within_its_own_tolerance(base):
    engine = EmbeddedEngine(str(base), dtype="bfloat16", threads=1)
    await engine.start()
    for number in (1, 2):
        await engine.load_adapter(f"a{number}", base.parent / f"a{number}")
    right = await engine.prove("a1", base.parent / "a1")
    wrong = await engine.prove("a1", base.parent / "a2")
    await engine.stop()
    assert (right.matches, wrong.matches) == (True, False), (right.detail, wrong.detail)
    assert right.detail["tolerance"] == probe.TOLERANCES["bfloat16"]
