"""The whole server over a real vLLM: fine-tune, swap, prove, survive kills, leave nothing behind."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import psutil
import pytest

from nip_lm_server import formats
from nip_lm_server import launch as owner
from nip_lm_server.spec import ServerSpec

TRAINING_TIMEOUT_S = 150.0
# Three servers load at the same time, on two cores, from a disk that has not read vLLM before.
START_TIMEOUT_S = 900.0
BACK_TIMEOUT_S = 240.0
QUESTION = [{"role": "user", "content": "Is it right?"}]


class Server:
    """A server process over vLLM, and a stock client on it."""

    def __init__(self, base_path, options, state_dir):
        self.state_dir = state_dir
        self.spec = ServerSpec("vllm", str(base_path), served_model_name="tiny", options=options)
        self.handle = owner.start_or_attach(self.spec, state_dir, timeout_s=START_TIMEOUT_S)
        self.client = openai.OpenAI(
            base_url=self.handle.url + "/v1", api_key=self.handle.api_key, max_retries=0
        )

    def fine_tune(self, answer: str) -> Any:
        rows = [
            {"messages": [*QUESTION, {"role": "assistant", "content": answer}]} for _ in range(10)
        ]
        file = self.client.files.create(
            file=("train.jsonl", formats.to_jsonl(rows)), purpose="fine-tune"
        )
        job = self.client.fine_tuning.jobs.create(
            model="tiny",
            training_file=file.id,
            seed=1,
            hyperparameters={"n_epochs": 20, "batch_size": 5},
            extra_body={"nip": {"learning_rate": 0.01, "lora_rank": 8}},
        )
        deadline = time.monotonic() + TRAINING_TIMEOUT_S
        while (job := self.client.fine_tuning.jobs.retrieve(job.id)).status not in (
            "succeeded", "failed", "cancelled",
        ):  # fmt: skip
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        assert job.status == "succeeded", job.error
        return job.fine_tuned_model

    def ask(self, model: str) -> tuple[str, str]:
        answer = self.client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=12
        )
        return answer.model, answer.choices[0].message.content

    def ask_until_it_answers(self, model: str) -> tuple[str, str]:
        deadline = time.monotonic() + BACK_TIMEOUT_S
        while True:
            try:
                return self.ask(model)
            except (openai.InternalServerError, openai.APIConnectionError):
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.handle.pid).children(recursive=True)

    def stop(self) -> None:
        self.client.close()
        owner.stop(self.handle)


@pytest.fixture(scope="module")
def server(base_path, vllm_options, tmp_path_factory):
    server = Server(base_path, vllm_options, tmp_path_factory.mktemp("server") / "state")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def models(server) -> dict[str, str]:
    """Two fine-tunes that were trained to answer differently, by what they were taught."""
    return {answer: server.fine_tune(answer) for answer in ("accept", "reject")}


def test_fine_tunes_answer_differently_at_the_same_time(server, models):
    names = ["tiny", *models.values()]
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(server.ask, names * 3))
    assert [model for model, _ in answers] == names * 3
    for taught, name in models.items():
        assert {text for model, text in answers if model == name} == {taught}
    assert not {text for model, text in answers if model == "tiny"} & set(models)


def test_each_fine_tune_carries_its_proof(server, models):
    for name in models.values():
        proof = server.client.models.retrieve(name).nip["proof"]
        assert proof["matches"] is True
        assert proof["detail"]["distance"] < proof["detail"]["tolerance"]
        assert proof["detail"]["unchanged"] is False


def test_streams_pass_through_whole(server, models):
    name = models["reject"]
    chunks = list(
        server.client.chat.completions.create(
            model=name, messages=QUESTION, temperature=0, max_tokens=12, stream=True
        )
    )
    assert {chunk.model for chunk in chunks} == {name}
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "reject"


def test_a_schema_is_kept_to_by_the_base_and_by_a_fine_tune(server, models):
    def ask(model, schema):
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        answer = server.client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=40, response_format=form
        )
        return answer.choices[0].message.content

    numbers = {"enum": ["twelve", "thirteen"]}
    for model in ("tiny", models["accept"]):
        assert ask(model, numbers) in ('"twelve"', '"thirteen"')
    with pytest.raises(openai.BadRequestError) as refused:
        ask("tiny", {"type": "objekt"})
    assert refused.value.param == "response_format"


def test_what_vllm_would_ignore_or_die_of_is_refused(server, models):
    for parameter in ("a_made_up_parameter", "prompt_logprobs", "kv_transfer_params"):
        with pytest.raises(openai.BadRequestError) as refused:
            server.client.chat.completions.create(
                model=models["reject"], messages=QUESTION, extra_body={parameter: 1}
            )
        assert refused.value.param == parameter
    assert server.ask("tiny")[0] == "tiny"


def test_a_killed_engine_process_comes_back_with_its_adapters(server, models):
    core = [p for p in server.descendants() if "VLLM::EngineCore" in " ".join(p.cmdline())]
    assert len(core) == 1
    epoch = server.client.models.retrieve("tiny").nip["engine_epoch"]
    core[0].send_signal(signal.SIGKILL)
    core[0].wait(10)
    for taught, name in models.items():
        assert server.ask_until_it_answers(name) == (name, taught)
        assert server.client.models.retrieve(name).nip["proof"]["matches"] is True
    assert server.client.models.retrieve("tiny").nip["engine_epoch"] == epoch + 1


def test_killing_the_server_leaves_no_vllm_process(server, models):
    left = server.descendants()
    assert sum("vllm" in " ".join(p.cmdline()).lower() for p in left) >= 3
    os.kill(server.handle.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(left, timeout=15)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
