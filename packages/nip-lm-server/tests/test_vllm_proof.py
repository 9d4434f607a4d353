"""vLLM is asked again before it counts as serving other weights, and under noise it seldom is."""

import asyncio
import importlib.util
import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from nip_lm_server.engines.base import EngineError
from nip_lm_server.engines.vllm.adapter_proof import (
    CPU_RIVALS,
    CPU_TOKENS,
    PLACES,
    RIVALS,
    SCORINGS,
    VllmProver,
)
from nip_lm_server.lora.adapter_files import ServedAdapter
from nip_lm_server.lora.probes import LIMITS, choose_telling, read_probe

TOKENS = tuple(range(100, 181))
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "proof_noise.py"


class Served:
    """Answers as vLLM does, with the log-probabilities of `models`, by name and token.

    `noise` makes them of the number of scorings that a model has had.
    """

    def __init__(self, **models):
        self.models, self.noise = models, lambda scoring: 0.0
        self.salts: dict[str, list[str]] = {}

    async def __call__(self, method, path, body):
        assert (method, path) == ("POST", "/v1/completions")
        name, (token,) = body["model"], body["allowed_token_ids"]
        salts = self.salts.setdefault(name, [])
        if body["cache_salt"] not in salts:
            salts.append(body["cache_salt"])
        value = self.models[name][token] + self.noise(len(salts))
        choice = {"token_ids": [token], "logprobs": {"token_logprobs": [value]}}
        return {"model": name, "choices": [choice]}

    def prover(self, *, has_cuda=True, dtype="bfloat16"):
        return VllmProver("base", self, has_cuda=has_cuda, dtype=dtype, quantization="none")


def drawn(seed, around=None, by=0.8):
    values = random.Random(seed)
    around = around or dict.fromkeys(TOKENS, -1.5)
    return {token: around[token] + values.gauss(0, by) for token in TOKENS}


BASE = drawn(0)
MODELS = {name: drawn(seed, BASE) for seed, name in enumerate(("own", "other", "third"), 1)}


def written(path, name, dtype="bfloat16", **models):
    """An adapter whose weights are nothing but a file, with its probe; as the engine holds it."""
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text("{}")
    saved = {"base": BASE, **MODELS, **models}
    rows = {key: [saved[m][t] for t in TOKENS[1:]] for key, m in (("", name), ("base_", "base"))}
    probe = {"tokens": TOKENS, "dtype": dtype}
    probe |= {f"{key}logprobs": row for key, row in rows.items()}
    (path / "probe.json").write_text(json.dumps(probe))
    return ServedAdapter(path=path, digest=name, rank=8)


def prove(served, path, adapters, **kwargs):
    proving = served.prover(**kwargs).prove("own", path, adapters, 4096)
    return asyncio.run(proving)


def test_a_bad_scoring_is_followed_by_another_one(tmp_path):
    served = Served(base=BASE, **MODELS)
    served.noise = lambda scoring: 1.0 if scoring < SCORINGS else 0.0
    adapters = {"own": written(tmp_path / "own", "own")}
    proof = prove(served, tmp_path / "own", adapters)
    assert proof.matches and proof.detail["scorings"] == SCORINGS
    assert {name: len(salts) for name, salts in served.salts.items()} == {
        "own": SCORINGS, "base": SCORINGS
    }  # fmt: skip


@pytest.mark.parametrize("instead", ["base", "other", "third"])
def test_other_weights_are_refused_however_often_they_are_scored(tmp_path, instead):
    served = Served(base=BASE, **{**MODELS, "own": {"base": BASE, **MODELS}[instead]})
    adapters = {name: written(tmp_path / name, name) for name in MODELS}
    proof = prove(served, tmp_path / "own", adapters)
    assert not proof.matches and proof.detail["scorings"] == SCORINGS
    assert instead in proof.detail["nearer_than_own"]


def test_the_adapters_that_were_loaded_last_are_the_rivals(tmp_path):
    many = {f"a{number}": drawn(number + 10, BASE) for number in range(9)}
    served = Served(base=BASE, **MODELS, **many)
    # In float32 they are asked at one place, and at all where the answers are not at once the own.
    cases = (
        ("bfloat16", 0, RIVALS, 1),
        ("float32", 5e-5, CPU_RIVALS, 2),
        ("float32", 0, CPU_RIVALS, 1),
    )
    for dtype, off, rivals, scorings in cases:
        adapters = {name: written(tmp_path / name, name, dtype, **many) for name in [*many, "own"]}
        adapters["twin"] = ServedAdapter(path=tmp_path / "own", digest="own", rank=8)
        served.salts.clear()
        served.models["own"] = {token: value + off for token, value in MODELS["own"].items()}
        proof = prove(served, tmp_path / "own", adapters, has_cuda=False, dtype=dtype)
        assert proof.matches and proof.detail["same_weights_as"] == ["twin"]
        assert proof.detail["nearest_other"] and proof.detail["indistinguishable"] == []
        assert {name: len(salts) for name, salts in served.salts.items()} == dict.fromkeys(
            [*many][-rivals:], scorings
        ) | {"own": 1, "base": 1}
        assert proof.detail.get("others_scored") is (
            False if (dtype, off) == ("float32", 0) else None
        )


def test_in_float32_the_places_tell_most_and_few_tokens_are_read(tmp_path):
    written(tmp_path / "own", "own", "float32")
    probe = read_probe(tmp_path / "own")
    *places, late = choose_telling(probe, 80, CPU_TOKENS)
    assert sum(place + 1 for place in [*places, late]) <= CPU_TOKENS and len(places) >= 3
    # What is wrong with a position shows at no early place.
    assert late == CPU_TOKENS // 2 - 1 and max(places) < CPU_TOKENS // 6
    changes = [abs(a - b) for a, b in zip(probe.logprobs, probe.base_logprobs, strict=True)]
    assert fmean(changes[place] for place in places) > fmean(changes[: CPU_TOKENS // 2])
    # The first of them is asked of the others, too.
    assert places[0] == max(range(late), key=lambda place: changes[place] / (place + 1))
    # Where the parent gives the same, a place tells nothing.
    continued = replace(probe, parent_logprobs=(probe.logprobs[0], *probe.base_logprobs[1:]))
    assert choose_telling(continued, 80, CPU_TOKENS)[-2] == 0 and 0 in places[:-1]
    unchanged = replace(probe, logprobs=probe.base_logprobs)
    assert choose_telling(unchanged, 80, CPU_TOKENS) == [*range(6), late]
    assert choose_telling(probe, 1, CPU_TOKENS) == [0]
    assert choose_telling(probe, 2, CPU_TOKENS) == [0, 1]


@pytest.mark.parametrize("wrong", ["a rival", "the base", "the base a little"])
def test_in_float32_others_that_serve_wrong_weights_are_noticed(tmp_path, wrong):
    """The model in question is right, and what stands beside it in the same engine is not."""
    served = Served(base=BASE, **MODELS)
    adapters = {name: written(tmp_path / name, name, "float32") for name in MODELS}
    assert prove(served, tmp_path / "own", adapters, has_cuda=False, dtype="float32").matches
    if wrong == "a rival":
        served.models["third"] = MODELS["own"]
    elif wrong == "the base":
        served.models["base"] = MODELS["own"]
    else:
        served.models["base"] = {token: value + 0.5 for token, value in BASE.items()}
    proof = prove(served, tmp_path / "own", adapters, has_cuda=False, dtype="float32")
    assert not proof.matches and proof.detail["scorings"] == SCORINGS
    assert proof.detail["base_distance"] == 0.0 or wrong != "a rival"


@pytest.mark.parametrize("off", [0.5, 2e-3, -2e-4])
def test_in_float32_a_little_off_is_refused(tmp_path, off):
    near = {token: value + off for token, value in MODELS["own"].items()}
    served = Served(base=BASE, **{**MODELS, "own": near})
    adapters = {name: written(tmp_path / name, name, "float32") for name in MODELS}
    proof = prove(served, tmp_path / "own", adapters, has_cuda=False, dtype="float32")
    assert not proof.matches and proof.detail["scorings"] == SCORINGS


@pytest.mark.parametrize("instead", ["base", "other", "third"])
def test_in_float32_other_weights_are_refused_too(tmp_path, instead):
    served = Served(base=BASE, **{**MODELS, "own": {"base": BASE, **MODELS}[instead]})
    adapters = {name: written(tmp_path / name, name, "float32") for name in MODELS}
    proof = prove(served, tmp_path / "own", adapters, has_cuda=False, dtype="float32")
    assert not proof.matches and instead in proof.detail["nearer_than_own"]


def test_only_the_newest_scorings_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr("nip_lm_server.engines.vllm.adapter_proof.KEPT_SCORES", 4)
    served = Served(base=BASE, **MODELS)
    prover = served.prover()
    adapters = {name: written(tmp_path / name, name) for name in MODELS}
    for name in [*MODELS, *MODELS]:
        asyncio.run(prover.prove(name, tmp_path / name, adapters, 4096))
        assert len(prover._scores) <= 4
        assert name in {model for model, *_ in prover._scores}


def test_an_answer_that_is_none_is_an_error(tmp_path, monkeypatch):
    async def call(method, path, body):
        return {"model": body["model"], "choices": [{"token_ids": [0]}]}

    served = Served()
    monkeypatch.setattr(Served, "__call__", lambda self, *asked: call(*asked))
    with pytest.raises(EngineError, match="no log-probability"):
        prove(served, tmp_path / "own", {"own": written(tmp_path / "own", "own")})


def test_under_published_noise_a_proof_errs_less_than_once_in_a_million(monkeypatch):
    """By convolution, so exactly, for the laws that were fitted to what was published."""
    pytest.importorskip("numpy")
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))  # it imports from beside itself
    spec = importlib.util.spec_from_file_location("proof_noise", BENCHMARK)
    noise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(noise)
    limits = LIMITS["bfloat16"]
    for name, scale in noise.SCALES.items():
        wrong = noise.mistaken(scale, limits, PLACES)
        refused = noise.too_far(scale, limits, PLACES) + noise.COMPARED * wrong
        assert refused < 1e-6 and SCORINGS * wrong < 1e-6, (name, refused, wrong)
        assert noise.drawn(scale, 100, PLACES) == {"right": 0, "base": 0, "rival": 0, "half": 0}
