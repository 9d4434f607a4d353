"""The proof says yes to the right weights, and no to any others."""

import json
import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("peft")

from tiny_model import make_adapter, make_model, peft_logprobs

from nip_lm_server.engines.base import EngineError
from nip_lm_server.engines.embedded.decoding import plain_llama
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine
from nip_lm_server.lora import probes as proof
from nip_lm_server.lora import prove_weights as probe
from nip_lm_server.lora.rowwise_lora import read_lora

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
        proved = await engine.prove(f"a{number}", base.parent / f"a{number}")
        assert proved.matches
        assert proved.detail["weights_equal"] and not proved.detail["unchanged"]
        assert proved.detail["distance_max"] < 1e-4 < proved.detail["tolerance"]
        assert proved.detail["nearest_other_distance_mean"] > 1e-2
        assert proved.detail["base_distance_mean"] > 1e-2
        assert proved.detail["indistinguishable"] == proved.detail["same_weights_as"] == []


async def test_the_expected_figures_are_those_of_peft(engine, base):
    tokens = probe.probe_tokens(engine._worker.loaded.tokenizer, engine.max_model_len)
    assert 64 < len(tokens) <= 256
    assert tokens == probe.probe_tokens(engine._worker.loaded.tokenizer, engine.max_model_len)
    path = base.parent / "a1"

    def expected():
        with probe.apply_adapter(engine._worker.loaded.model, read_lora(path)):
            return engine._worker.decoder.score_by_library([tokens], [None])[0]

    merged = await engine._worker.run(expected)
    assert merged == pytest.approx(peft_logprobs(base, path, tokens), abs=1e-4)
    plain = await engine._worker.run(lambda: engine._worker.decoder.score([tokens], [None])[0])
    assert plain == pytest.approx(peft_logprobs(base, None, tokens), abs=1e-4)


async def test_figures_of_an_earlier_proof_are_those_of_a_new_one(base):
    """Of the base alone and of all other adapters but the newest, which are not scored again."""
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    for number in (1, 2, 3):
        await engine.load_adapter(f"a{number}", base.parent / f"a{number}")
    figures = [await engine.prove("a1", base.parent / "a1") for _ in range(2)]
    given = {name: [*adapter.logprobs] for name, adapter in engine._worker.adapters.items()}
    for name, logprobs in given.items():
        figures.append(await engine.prove(name, base.parent / name))
        assert engine._worker.adapters[name].logprobs == pytest.approx(logprobs, abs=1e-5)
    await engine.stop()
    assert all(proof.matches for proof in figures)
    for name in ("nearest_other_distance_mean", "base_distance_mean"):
        assert figures[1].detail[name] == pytest.approx(figures[0].detail[name], abs=1e-5)


@pytest.mark.parametrize(("dtype", "own", "learned"), [("float32", 32, 32), ("bfloat16", 64, 60)])
async def test_a_precision_with_little_noise_takes_fewer_tokens(
    base, tmp_path, dtype, own, learned
):
    """Of the probe, those before the limit decide."""
    engine = EmbeddedEngine(str(base), dtype=dtype, threads=1)
    await engine.start()
    path, tokens = shutil.copytree(base.parent / "a1", tmp_path / "a1"), list(range(5, 65))
    await engine.load_adapter("a1", path)
    right = peft_logprobs(base, path, tokens)
    matches = []
    for wrong in (learned - 2, learned - 1):
        write_probe(path, tokens, [v - (99 if i >= wrong else 0) for i, v in enumerate(right)])
        proved = await engine.prove("a1", path)
        matches.append(proved.detail["probe_file_distance_max"] > 9)
    await engine.stop()
    assert matches == [True, False]
    assert proved.detail["probe_tokens"] >= own


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
        proved = await engine.prove("a2", base.parent / "a2")
    finally:
        engine._worker.adapters["a2"] = good
    assert proved.detail["weights_equal"]
    assert proved.detail["distance_max"] > proved.detail["tolerance"]
    assert not proved.matches


async def test_an_adapter_that_changes_nothing_is_proved_and_says_so(engine, base, tmp_path):
    path = make_adapter(base, tmp_path / "zero", seed=9, size=0.0)
    await engine.load_adapter("zero", path)
    proved = await engine.prove("zero", path)
    await engine.unload_adapter("zero")
    assert proved.matches
    assert proved.detail["unchanged"]
    assert proved.detail["same_weights_as"] == ["base"]


async def test_the_same_weights_under_another_name_are_told(engine, base, tmp_path):
    await engine.load_adapter("copy", base.parent / "a3")
    proved = await engine.prove("copy", base.parent / "a3")
    await engine.unload_adapter("copy")
    assert proved.matches
    assert proved.detail["same_weights_as"] == ["a3"]


async def test_a_change_below_rounding_is_proved_by_the_bits(engine, base, tmp_path):
    path = make_adapter(base, tmp_path / "faint", seed=9, size=1e-9)
    await engine.load_adapter("faint", path)
    proved = await engine.prove("faint", path)
    await engine.unload_adapter("faint")
    assert proved.matches
    assert not proved.detail["unchanged"]
    assert proved.detail["indistinguishable"] == ["base"]


async def test_bfloat16_is_proved_within_its_own_tolerance(base):
    engine = EmbeddedEngine(str(base), dtype="bfloat16", threads=1)
    await engine.start()
    for number in (1, 2):
        await engine.load_adapter(f"a{number}", base.parent / f"a{number}")
    right = await engine.prove("a1", base.parent / "a1")
    wrong = await engine.prove("a1", base.parent / "a2")
    await engine.stop()
    assert (right.matches, wrong.matches) == (True, False), (right.detail, wrong.detail)
    assert right.detail["tolerance"] == proof.LIMITS["bfloat16"].mean


def stacked(first: Path, second: Path, directory: Path, *, zero_second: bool = False) -> Path:
    """Two adapters in one: ranks added, scales folded into B, so that the scale is 1."""
    import torch
    from safetensors.torch import load_file, save_file

    one, two = read_lora(first), read_lora(second)
    config = json.loads((first / "adapter_config.json").read_text())
    rank = one.rank + two.rank
    directory.mkdir()
    tensors = {}
    for key in load_file(first / "adapter_model.safetensors"):
        module = key.removeprefix("base_model.model.").rpartition(".lora_")[0]
        downs, ups = zip(*(files.pairs[module] for files in (one, two)), strict=True)
        scaled = [ups[0] * one.scale(module), ups[1] * two.scale(module) * (not zero_second)]
        tensors[key] = torch.cat(downs, 0) if ".lora_A." in key else torch.cat(scaled, 1)
    save_file(tensors, directory / "adapter_model.safetensors")
    config |= {"r": rank, "lora_alpha": rank, "rank_pattern": {}, "alpha_pattern": {}}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


async def test_a_stack_is_proved_and_gives_what_peft_gives_for_it(engine, base, tmp_path):
    thin = make_adapter(base, tmp_path / "thin", seed=8, rank=2, lora_alpha=6)
    path = stacked(base.parent / "a1", thin, tmp_path / "stack")
    assert read_lora(path).rank == 6
    await engine.load_adapter("stack", path)
    proved = await engine.prove("stack", path)
    tokens = probe.probe_tokens(engine._worker.loaded.tokenizer, engine.max_model_len)
    served = await engine._worker.run(
        lambda: engine._worker.decoder.score([tokens], [engine._worker.adapters["stack"]])[0]
    )
    await engine.unload_adapter("stack")
    assert proved.matches and not proved.detail["unchanged"]
    assert proved.detail["same_weights_as"] == proved.detail["indistinguishable"] == []
    assert served == pytest.approx(peft_logprobs(base, path, tokens), abs=1e-4)


async def test_a_stack_that_adds_nothing_is_the_same_as_what_it_was_put_upon(
    engine, base, tmp_path
):
    thin = make_adapter(base, tmp_path / "thin", seed=8, rank=2, lora_alpha=6)
    path = stacked(base.parent / "a2", thin, tmp_path / "same", zero_second=True)
    await engine.load_adapter("same", path)
    proved = await engine.prove("same", path)
    back = await engine.prove("a2", base.parent / "a2")
    await engine.unload_adapter("same")
    assert proved.matches and back.matches
    assert proved.detail["same_weights_as"] == ["a2"]
    assert back.detail["same_weights_as"] == ["same"]


async def test_an_adapter_continued_without_learning_is_proved(engine, base, tmp_path):
    """PEFT loads it for training and saves it again, after steps at learning rate 0."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), base.parent / "a1", is_trainable=True
    )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0)
    model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimizer.step()
    model.save_pretrained(tmp_path / "continued")
    await engine.load_adapter("continued", tmp_path / "continued")
    proved = await engine.prove("continued", tmp_path / "continued")
    await engine.unload_adapter("continued")
    assert proved.matches
    assert not proved.detail["unchanged"]  # over the base it changes a lot
    assert proved.detail["same_weights_as"] == ["a1"]


async def test_another_scale_makes_another_adapter_of_the_same_tensors(engine, base, tmp_path):
    path = shutil.copytree(base.parent / "a1", tmp_path / "louder")
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 16}))
    with pytest.raises(EngineError, match="other weights already"):
        await engine.load_adapter("a1", path)
    await engine.load_adapter("louder", path)
    proved = await engine.prove("louder", path)
    wrong = await engine.prove("louder", base.parent / "a1")
    await engine.unload_adapter("louder")
    assert proved.matches and proved.detail["same_weights_as"] == []
    assert not wrong.matches


class OtherWhenApplied(dict):  # type: ignore[type-arg]
    """Matrices that are right when looked at, and another adapter's when they are applied."""

    def __init__(self, shown, applied):
        super().__init__(shown)
        self._applied = applied

    def get(self, name, default=None):
        return self._applied.get(name, default)


async def test_an_answer_with_a_near_neighbours_weights_is_caught(engine, base, tmp_path):
    """Within the tolerance of a token, but nearer to the neighbour than to itself."""
    from safetensors.torch import load_file, save_file

    near = shutil.copytree(base.parent / "a1", tmp_path / "near")
    tensors = load_file(near / "adapter_model.safetensors")
    save_file({k: t * 1.00005 for k, t in tensors.items()}, near / "adapter_model.safetensors")
    await engine.load_adapter("near", near)
    right = await engine.prove("near", near)
    good = engine._worker.adapters["near"]
    other = engine._worker.adapters["a1"]
    engine._worker.adapters["near"] = replace(
        good, matrices=OtherWhenApplied(good.matrices, other.matrices)
    )
    wrong = await engine.prove("near", near)
    await engine.unload_adapter("near")
    assert right.matches and right.detail["indistinguishable"] == []
    assert wrong.detail["weights_equal"]
    assert wrong.detail["distance_max"] <= wrong.detail["tolerance"]
    assert not wrong.matches


def write_probe(path: Path, tokens: list[int], logprobs: list[float], dtype="float32") -> None:
    probe = {"tokens": tokens, "logprobs": logprobs, "base_logprobs": logprobs, "dtype": dtype,
             "quantization": "none"}  # fmt: skip
    (path / "probe.json").write_text(json.dumps(probe))


async def test_what_the_training_recorded_must_be_met(engine, base, tmp_path):
    path = shutil.copytree(base.parent / "a3", tmp_path / "recorded")
    tokens = list(range(5, 40))
    write_probe(path, tokens, peft_logprobs(base, path, tokens))
    right = await engine.prove("a3", path)
    write_probe(path, tokens, peft_logprobs(base, base.parent / "a2", tokens))
    wrong = await engine.prove("a3", path)
    (path / "probe.json").write_text("{}")
    with pytest.raises(EngineError, match=r"probe\.json"):
        await engine.prove("a3", path)
    assert right.matches and right.detail["probe_file_distance_max"] < 1e-4
    assert not wrong.matches and wrong.detail["weights_equal"]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="copies are made there")
async def test_each_copy_of_the_weights_is_behind_a_proof(base, tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    path = shutil.copytree(base, tmp_path / "halved")
    AutoModelForCausalLM.from_pretrained(base).bfloat16().float().save_pretrained(path)
    monkeypatch.setattr(plain_llama, "SMALL_BYTES", 0)
    engine = EmbeddedEngine(str(path), threads=1)
    await engine.start()
    for number in (1, 2):
        made = make_adapter(path, tmp_path / f"a{number}", seed=number)
        await engine.load_adapter(f"a{number}", made)
    tokens = list(range(5, 40))
    figures = peft_logprobs(path, made, tokens)
    zeros = torch.zeros(64, 128)
    wrong = {
        "half": plain_llama.halve(zeros, None),
        "packed": torch.ops.mkldnn._reorder_linear_weight(zeros),
    }
    down = engine._worker.decoder.plain._layers[1].down
    right = {kind: getattr(down, kind) for kind in wrong}
    assert all(it is not None for it in right.values())
    for _ in ("without the training's figures", "with them"):
        for kind in wrong:
            assert (await engine.prove("a2", made)).matches
            object.__setattr__(down, kind, wrong[kind])
            refused = await engine.prove("a2", made)
            object.__setattr__(down, kind, right[kind])
            assert not refused.matches and refused.detail["weights_equal"], kind
        write_probe(made, tokens, figures)
    await engine.stop()


# What vLLM would be asked, of the same real weights


def cut(path: Path, directory: Path) -> Path:
    """The adapter without the second half of its ranks."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(path, directory)
    tensors = load_file(path / "adapter_model.safetensors")
    for key, tensor in tensors.items():
        if ".lora_B." in key:
            tensor[:, tensor.shape[1] // 2 :] = 0
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_swapped_cut_and_absent_adapters_are_caught(base, tmp_path, dtype):
    """Probes as the training writes them, served with the low-rank product in low precision."""
    import torch

    from nip_lm_server.chats.chat_template import load_model, load_tokenizer
    from nip_lm_server.engines.vllm.adapter_proof import SCORINGS, VllmProver
    from nip_lm_server.lora.adapter_files import read_adapter
    from nip_lm_server.lora.prove_weights import token_logprobs

    model = load_model(base, getattr(torch, dtype)).eval()
    tokens = probe.probe_tokens(load_tokenizer(str(base)), 256)
    paths = {name: base.parent / name for name in ("a1", "a2")}
    paths["cut"] = cut(paths["a1"], tmp_path / "cut")
    given = {"base": token_logprobs(model, tokens)}
    for name, path in paths.items():
        with probe.apply_adapter(model, read_lora(path), exact=False):
            given[name] = token_logprobs(model, tokens)
    with probe.apply_adapter(model, read_lora(paths["a1"])):
        saved = token_logprobs(model, tokens)
    own = shutil.copytree(paths["a1"], tmp_path / "own")
    write_probe(own, tokens, saved, dtype)
    value = json.loads((own / "probe.json").read_text())
    (own / "probe.json").write_text(json.dumps({**value, "base_logprobs": given["base"]}))
    serves = {"base": "base", "a2": "a2"}

    async def call(method, path, body):
        place = len(body["prompt"]) - 1
        value = given[serves[body["model"]]][place]
        choice = {"token_ids": body["allowed_token_ids"], "logprobs": {"token_logprobs": [value]}}
        return {"model": body["model"], "choices": [choice]}

    adapters = {"own": read_adapter(own), "a2": read_adapter(paths["a2"])}
    for instead, expected in (("a1", True), ("a2", False), ("cut", False), ("base", False)):
        serves["own"] = instead
        prover = VllmProver("base", call, has_cuda=True, dtype=dtype, quantization="none")
        proved = await prover.prove("own", own, adapters, 256)
        assert proved.matches is expected, (instead, proved.detail)
        assert proved.detail["scorings"] == (1 if expected else SCORINGS)


# Base models


@pytest.mark.parametrize("shard", ["5GB", "200KB"])
@pytest.mark.parametrize("tied", [False, True])
async def test_a_base_is_proved_by_every_bit_of_its_files(tmp_path, shard, tied):
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    path = make_model(tmp_path / "base")
    config = AutoConfig.from_pretrained(path)
    config.tie_word_embeddings = tied
    torch.manual_seed(1)
    (path / "model.safetensors").unlink()
    AutoModelForCausalLM.from_config(config).save_pretrained(path, max_shard_size=shard)
    assert len(list(path.glob("*.safetensors"))) == (1 if shard == "5GB" else 3)
    engine = EmbeddedEngine(str(path), threads=1)
    await engine.start()
    proved = await engine.prove("base", path)
    assert proved.matches, proved.detail
    assert proved.detail["tensors"] == 30 - tied
    tokens = list(range(5, 40))
    write_probe(path, tokens, peft_logprobs(path, None, tokens))
    assert (await engine.prove("base", path)).detail["probe_file_matches"]
    write_probe(path, tokens, [-1.0] * 34)
    wrong = await engine.prove("base", path)
    assert not wrong.matches and wrong.detail["weights_equal"]
    (path / "probe.json").unlink()
    changed = sorted(path.glob("*.safetensors"))[-1]
    tensors = load_file(changed)
    name = sorted(tensors)[-1]
    tensors[name].view(-1)[0] = torch.nextafter(tensors[name].view(-1)[0], torch.tensor(9.0))
    save_file(tensors, changed, metadata={"format": "pt"})
    wrong = await engine.prove("base", path)
    await engine.stop()
    assert not wrong.matches
    assert wrong.detail["different"] == [name]


async def test_a_base_of_another_shape_or_without_files_is_no_proof(engine, base, tmp_path):
    path = shutil.copytree(base, tmp_path / "none")
    (path / "model.safetensors").unlink()
    with pytest.raises(EngineError, match="can't be read"):
        await engine.prove("tiny", path)
    assert not (await engine.prove("tiny", make_model(tmp_path / "other", seed=5))).matches
    assert (await engine.prove("tiny", base)).matches


async def test_a_base_in_another_precision_is_proved_in_the_engines(base):
    engine = EmbeddedEngine(str(base), dtype="bfloat16", threads=1)
    await engine.start()
    proved = await engine.prove("tiny", base)
    await engine.stop()
    assert proved.matches and proved.detail["dtype"] == "bfloat16"


async def test_a_base_whose_tensors_have_other_names_on_disk_is_proved(tmp_path):
    """Experts are saved one by one and held together."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, MixtralConfig

    path = make_model(tmp_path / "experts")
    (path / "model.safetensors").unlink()
    torch.manual_seed(1)
    config = MixtralConfig(
        vocab_size=261, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, num_local_experts=2,
        max_position_embeddings=512, eos_token_id=1,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    engine = EmbeddedEngine(str(path), threads=1)
    await engine.start()
    file = path / "model.safetensors"
    tensors = load_file(file)
    assert tensors.keys() != engine._worker.loaded.model.state_dict().keys()
    right = await engine.prove("experts", path)
    name = next(key for key in sorted(tensors) if ".experts.1." in key)
    tensors[name] = tensors[name] + 0.01
    save_file(tensors, file, metadata={"format": "pt"})
    wrong = await engine.prove("experts", path)
    await engine.stop()
    assert right.matches
    assert not wrong.matches and "experts" in wrong.detail["different"][0]
