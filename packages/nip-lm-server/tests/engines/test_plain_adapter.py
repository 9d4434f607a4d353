"""vLLM, started as its own manual says, serves an adapter that `nip export --to peft` wrote."""

import json
import urllib.request

import pytest
from own_vllm import KEY

from nip_core.models import BUNDLED
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def test_vllm_serves_the_plain_adapter_with_the_log_probabilities_on_record(own_vllm, exported):
    url, adapter = f"{own_vllm.url}/v1", own_vllm.adapter
    assert {"tiny", "nip"} <= {model["id"] for model in ask(f"{url}/models")["data"]}
    # The probe's text, scored by vLLM: the adapter and the base each give what was published.
    probe = json.loads((adapter / "probe.json").read_text())
    for model, expected in (("nip", probe["logprobs"]), ("tiny", probe["base_logprobs"])):
        body = {"model": model, "prompt": probe["tokens"], "max_tokens": 1, "prompt_logprobs": 0}
        [choice] = ask(f"{url}/completions", body)["choices"]
        served = [
            entry[str(token)]["logprob"]
            for entry, token in zip(choice["prompt_logprobs"][1:], probe["tokens"][1:], strict=True)
        ]
        assert served == pytest.approx(expected, abs=2e-3), model
    run = RunStore(open_store(exported / "runs"), "quickstart")
    question = read_rollouts(run.store, run.rollouts(0, "train")).episodes["question"][0].as_py()
    body = {"model": "nip", "messages": [{"role": "user", "content": question}], "max_tokens": 8}
    [choice] = ask(f"{url}/chat/completions", body)["choices"]
    assert choice["message"]["content"]
    assert (adapter / "base" / "model.safetensors").read_bytes() == (
        BUNDLED["tiny"] / "model.safetensors"
    ).read_bytes()
