"""`nip prove` says which model answers under a name, and where it can't, why."""

import json
import shutil
from pathlib import Path

import pytest
from logprobs_server import serve_logprobs
from served_here import KEY, serve
from tiny_model import make_adapter, make_model, peft_logprobs

from nip_base.spec import ServerSpec
from nip_lm_server.proving.request import ProofRequest, prove_served
from nip_lm_server.proving.stranger import InputError, NoAnswerError
from nip_lm_server.proving.verdict import exit_status

LENGTH = 40


def likeliest(base: Path, adapter: Path, length: int) -> list[int]:
    """A text as the adapter would write it, so a server that names the likeliest tells of it."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    tokens = [70]
    with torch.inference_mode():
        while len(tokens) < length:
            scores = model(torch.tensor([tokens])).logits[0, -1]
            scores[torch.tensor(tokens[-8:])] = -1e9  # no token again and again
            tokens.append(int(scores.argmax()))
    return tokens


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A base model, adapters `v1` and `v2` with probes, `bare` without, and `v1` merged."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = tmp_path_factory.mktemp("files")
    base = make_model(place / "base")
    for number, name in enumerate(("v1", "v2", "bare")):
        adapter = make_adapter(base, place / "adapters" / name, seed=number, size=0.3)
        if name == "bare":
            continue
        tokens = likeliest(base, adapter, LENGTH)
        probe = {
            "tokens": tokens,
            "logprobs": peft_logprobs(base, adapter, tokens),
            "base_logprobs": peft_logprobs(base, None, tokens),
            "dtype": "float32",
        }
        (adapter / "probe.json").write_text(json.dumps(probe))
    plain = AutoModelForCausalLM.from_pretrained(base)
    merged = PeftModel.from_pretrained(plain, place / "adapters" / "v1").merge_and_unload()
    merged.save_pretrained(place / "merged")
    AutoTokenizer.from_pretrained(base).save_pretrained(place / "merged")
    return place


async def prove(address, **settings):
    request = ProofRequest(address, **{"base_name": "base", "repeats": 4, **settings})
    return [verdict async for verdict in prove_served(request)]


@pytest.mark.parametrize("way", ["token_ids", "echo"])
async def test_it_names_the_adapter_the_base_and_another_one(files, way):
    base, one, two = files / "base", files / "adapters" / "v1", files / "adapters" / "v2"
    models = {
        "base": [(base, None)],
        "right": [(base, one)],
        "forgotten": [(base, None)],
        "mistaken": [(base, two)],
        "behind": [(base, one), (base, two)],
    }
    expected = {"right": "adapter", "forgotten": "base", "mistaken": "another", "behind": "mixed"}
    async with serve_logprobs(models, way=way) as address:
        for name, kind in expected.items():
            (verdict,) = await prove(address, model=name, directory=one, among=(two,))
            assert (verdict.kind, verdict.way) == (kind, way), verdict
            assert exit_status([verdict]) == (0 if kind == "adapter" else 8)
            if kind in ("another", "mixed"):
                assert any(str(two) in who for who in verdict.who)
            if kind == "mixed":
                assert (verdict.answers, verdict.agreeing) == (4, 2)


@pytest.mark.long
async def test_a_probe_that_a_directory_lacks_is_computed_and_can_be_kept(files, tmp_path):
    bare = shutil.copytree(files / "adapters" / "bare", tmp_path / "all" / "bare")
    base = files / "base"
    models = {"base": [(base, None)], "bare": [(base, bare)]}
    async with serve_logprobs(models) as address:
        given = {"all_in": tmp_path / "all", "base_model": str(base), "saves_probes": True}
        (verdict,) = await prove(address, **given)
        assert verdict.kind == "adapter" and (bare / "probe.json").is_file()
        # With a probe the weights need not be there.
        (bare / "adapter_model.safetensors").unlink()
        (verdict,) = await prove(address, model="bare", directory=bare)
        assert verdict.kind == "adapter"
        (verdict,) = await prove(address, model="base", directory=bare, base_name=None)
        assert verdict.kind == "base"


async def test_nips_own_server_scores_given_tokens_and_is_proved(files, tmp_path):
    """The right adapter, the base under its name, and another one, at the embedded engine."""
    one, two = files / "adapters" / "v1", files / "adapters" / "v2"
    for served, kinds in ((files / "merged", ("adapter", "another")), (files / "base", ("base",))):
        spec = ServerSpec("embedded", str(served), served_model_name="v1", options={"threads": 1})
        async with serve(tmp_path / kinds[0], spec=spec) as here:
            asked = {"model": "v1", "key": KEY, "base_name": None}
            for directory, other, kind in ((one, two, kinds[0]), (two, one, kinds[-1])):
                (verdict,) = await prove(here.url, directory=directory, among=(other,), **asked)
                assert (verdict.kind, verdict.way) == (kind, "echo"), verdict


async def test_an_echoed_prompt_is_scored_as_openai_gives_it(files, tmp_path):
    spec = ServerSpec("embedded", str(files / "base"), served_model_name="b")
    tokens = likeliest(files / "base", files / "adapters" / "v1", 12)
    async with serve(tmp_path / "state", spec=spec) as here:
        body = {"model": "b", "prompt": tokens, "max_tokens": 2, "temperature": 0, "echo": True}
        url = "/v1/completions"
        async with here.http.post(url, json={**body, "logprobs": 2}) as answer:
            (choice,) = (await answer.json())["choices"]
        async with here.http.post(url, json={**body, "echo": False}) as answer:
            plain = await answer.json()
        async with here.http.post(url, json={**body, "stream": True}) as refused:
            assert refused.status == 400 and "echo" in (await refused.json())["error"]["message"]
    scores = choice["logprobs"]
    assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
    expected = peft_logprobs(files / "base", None, tokens)
    assert scores["token_logprobs"][1:12] == pytest.approx(expected, abs=1e-4)
    assert len(scores["tokens"]) == len(scores["text_offset"]) == 14
    assert choice["text"].endswith(plain["choices"][0]["text"])
    assert plain["usage"] == {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}


async def test_weights_of_tinkers_api_are_asked_for_by_their_address(files, tmp_path):
    """They are in no list of models, and a name that answers to nothing is still an error."""
    one, name = files / "adapters" / "v1", "tinker://run/sampler_weights/mine"
    models = {"base": [(files / "base", None)], name: [(files / "base", one)]}
    async with serve_logprobs(models, way="echo", unlisted=(name,)) as address:
        (verdict,) = await prove(address, model=name, directory=one)
        assert verdict.kind == "adapter"
        (verdict,) = await prove(address, model="tinker://run/sampler_weights/no", directory=one)
        assert verdict.kind == "cannot_tell"


async def test_what_is_wrong_is_one_line_and_no_key_is_in_it(files, tmp_path):
    base, one = files / "base", files / "adapters" / "v1"
    (tmp_path / "empty").mkdir()
    models = {"base": [(base, None)], "v1": [(base, one)]}
    async with serve_logprobs(models, way=None, key="k-e-y") as address:
        wrong = {
            "asks for a key": {"model": "v1", "directory": one},
            "refuses the key": {"model": "v1", "directory": one, "key": "another"},
            "has no model 'v7'": {"model": "v7", "directory": one, "key": "k-e-y"},
            "no adapter": {"model": "v1", "directory": tmp_path / "empty", "key": "k-e-y"},
            "no such directory": {"model": "v1", "directory": tmp_path / "x", "key": "k-e-y"},
            "no probe can be computed": {
                "model": "v1", "directory": files / "adapters" / "bare", "key": "k-e-y",
                "base_model": str(tmp_path / "empty"),
            },
        }  # fmt: skip
        for words, settings in wrong.items():
            with pytest.raises(InputError) as error:
                await prove(address, **settings)
            assert words in str(error.value) and "\n" not in str(error.value)
        (verdict,) = await prove(address, model="v1", directory=one, key="k-e-y")
        assert verdict.kind == "cannot_tell" and "no log-probabilities" in verdict.says
        assert exit_status([verdict]) == 9
        with pytest.raises(InputError, match="no server of OpenAI's protocol"):
            await prove(f"{address}/v1/completions", model="v1", directory=one, key="k-e-y")
    with pytest.raises(NoAnswerError, match="nobody answers"):
        await prove(address, model="v1", directory=one)


async def test_another_base_and_an_adapter_that_changes_nothing_are_no_proof(files, tmp_path):
    base, one = files / "base", files / "adapters" / "v1"
    other = make_model(tmp_path / "other", seed=5)
    same = make_adapter(base, tmp_path / "same", seed=9, size=0.0)
    models = {"base": [(other, None)], "v1": [(other, one)], "plain": [(base, None)]}
    models["same"] = [(base, same)]
    async with serve_logprobs(models) as address:
        (verdict,) = await prove(address, model="v1", directory=one)
        assert verdict.kind == "cannot_tell" and "another base model" in verdict.says
        settings = {"model": "same", "directory": same, "base_model": str(base)}
        (verdict,) = await prove(address, **settings, base_name="plain")
        assert verdict.kind == "cannot_tell" and "can't be told apart" in verdict.says
