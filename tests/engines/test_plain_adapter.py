"""vLLM, started as its own manual says, serves an adapter that `nip export --to peft` wrote."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from finished_run import make_run

from nip_core.hub.adapter_of_run import choose_model, write_adapter
from nip_core.models import BUNDLED
from nip_core.rollouts.tables import read_rollouts

ENVIRONMENT = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
START_S = 300


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


@pytest.fixture
def server(vllm_options, tmp_path):
    """Starts `vllm serve` with arguments; returns its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []

    def start(*arguments):
        command = [vllm_options["executable"], "serve", *arguments]
        command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
        command += ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "8"]
        with (tmp_path / "vllm.log").open("w") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=tmp_path, env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return f"http://127.0.0.1:{port}/v1"

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)


def until_it_answers(url, log):
    begin = time.monotonic()
    while time.monotonic() - begin < START_S:
        try:
            return {model["id"] for model in ask(f"{url}/models")["data"]}
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


async def test_vllm_serves_the_plain_adapter_with_the_log_probabilities_on_record(server, tmp_path):
    run = await make_run(tmp_path / "runs")
    write_adapter(choose_model(run, None, None), tmp_path / "plain", place="plain", probe=True)
    url = server(
        str(tmp_path / "plain" / "base"), "--served-model-name", "tiny", "--enable-lora",
        "--max-lora-rank", "8", "--lora-modules", f"nip={tmp_path / 'plain'}",
    )  # fmt: skip
    assert until_it_answers(url, tmp_path / "vllm.log") == {"tiny", "nip"}
    # The probe's text, scored by vLLM: the adapter and the base each give what was published.
    probe = json.loads((tmp_path / "plain" / "probe.json").read_text())
    for model, expected in (("nip", probe["logprobs"]), ("tiny", probe["base_logprobs"])):
        body = {"model": model, "prompt": probe["tokens"], "max_tokens": 1, "prompt_logprobs": 0}
        [choice] = ask(f"{url}/completions", body)["choices"]
        served = [
            entry[str(token)]["logprob"]
            for entry, token in zip(choice["prompt_logprobs"][1:], probe["tokens"][1:], strict=True)
        ]
        assert served == pytest.approx(expected, abs=2e-3), model
    question = read_rollouts(run.store, run.rollouts(0, "train")).episodes["question"][0].as_py()
    body = {"model": "nip", "messages": [{"role": "user", "content": question}], "max_tokens": 8}
    [choice] = ask(f"{url}/chat/completions", body)["choices"]
    assert choice["message"]["content"]
    assert (tmp_path / "plain" / "base" / "model.safetensors").read_bytes() == (
        BUNDLED["tiny"] / "model.safetensors"
    ).read_bytes()
