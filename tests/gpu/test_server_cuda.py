"""The whole server on one card: chats and jobs at once, by HTTP; sleep, training, wake, proof.

Needs what `test_vllm_cuda.py` needs. CUDA graphs are on, as in use. Never run so far.
"""

import collections
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from nip_lm_server import formats
from nip_lm_server import launch as owner
from nip_lm_server.spec import ServerSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

START_TIMEOUT_S, JOB_TIMEOUT_S = 600.0, 300.0
QUESTION = [{"role": "user", "content": "Is this right? def add(a, b): return a + b"}]
ANSWERED = {"stop", "length"}


class Server:
    """A server process over vLLM on a GPU, and a stock client on it."""

    def __init__(self, base: str, state: Any, share_device: str = "auto", **options: Any):
        self.spec = ServerSpec(
            "vllm",
            base,
            served_model_name="base",
            share_device=share_device,
            options={"max_model_len": 512, "max_lora_rank": 16, **options},
        )
        self.handle = owner.start_or_attach(self.spec, state, timeout_s=START_TIMEOUT_S)
        self.client = openai.OpenAI(
            base_url=self.handle.url + "/v1", api_key=self.handle.api_key, max_retries=0
        )

    def create(self, answer: str, seed: int) -> str:
        """Ask for a fine-tune that learns to say this; returns the job's id."""
        rows = [{"messages": [*QUESTION, {"role": "assistant", "content": answer}]}] * 20
        file = self.client.files.create(
            file=("train.jsonl", formats.to_jsonl(rows)), purpose="fine-tune"
        )
        return self.client.fine_tuning.jobs.create(
            model="base",
            training_file=file.id,
            seed=seed,
            hyperparameters={"n_epochs": 10, "batch_size": 5},
            extra_body={"nip": {"learning_rate": 2e-3, "lora_rank": 8}},
        ).id

    def wait(self, id: str) -> Any:
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while (job := self.client.fine_tuning.jobs.retrieve(id)).status in (
            "validating_files", "queued", "running",
        ):  # fmt: skip
            assert time.monotonic() < deadline, job
            time.sleep(0.1)
        assert job.status == "succeeded", job.error
        return job

    def engine(self) -> Any:
        return self.client.get(f"{self.handle.url}/nip/engines/base", cast_to=object)

    def ask(self, model: str = "base", **settings: Any) -> str:
        """One chat; returns how it ended: a finish reason, or the code of the error."""
        try:
            answer = self.client.chat.completions.create(
                model=model, messages=QUESTION, max_tokens=200, **settings
            )
            return str(answer.choices[0].finish_reason)
        except openai.APIStatusError as error:
            return str(error.code)

    def stop(self) -> None:
        self.client.close()
        owner.stop(self.handle)


@pytest.fixture
def serve(base, tmp_path):
    servers = []

    def start(**settings: Any) -> Server:
        servers.append(Server(base, tmp_path / "state", **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def chat_while(server: Server, work: Any) -> collections.Counter[str]:
    """Keep 64 chats in flight while `work` goes on; counts how they ended."""
    ended, done = collections.Counter(), threading.Event()

    def chat(_: int) -> None:
        while not done.is_set():
            how = server.ask()
            ended[how] += 1
            if how not in ANSWERED:
                time.sleep(0.2)

    with ThreadPoolExecutor(64) as pool:
        chats = [pool.submit(chat, number) for number in range(64)]
        try:
            work()
        finally:
            done.set()
        for each in chats:
            each.result()
    return ended


def test_jobs_train_while_the_engine_sleeps_once_and_no_chat_is_cut(serve):
    server = serve(gpu_memory_utilization=0.6)

    def train() -> None:
        ids = [server.create(answer, seed) for seed, answer in enumerate(("accept", "reject"))]
        models.extend(server.wait(id).fine_tuned_model for id in ids)
        events.extend(server.client.fine_tuning.jobs.list_events(ids[0]).data)

    models, events = [], []
    ended = chat_while(server, train)
    assert ended.keys() <= {*ANSWERED, "engine_training"} and ended["length"] + ended["stop"]
    engine = server.engine()
    assert (engine["state"], engine["epoch"], engine["restarts"]) == ("running", 1, 0)
    assert any("stays asleep" in event.message for event in events)
    for name in models:
        assert server.client.models.retrieve(name).nip["proof"]["matches"] is True
        assert server.ask(name, temperature=0) in ANSWERED


def test_an_engine_that_stays_answers_while_its_card_trains(serve):
    server = serve(share_device="no", gpu_memory_utilization=0.4)
    ended = chat_while(server, lambda: server.wait(server.create("accept", 1)))
    assert ended.keys() <= ANSWERED
    assert server.engine()["epoch"] == 1


def test_a_rehearsed_sleep_is_done_at_the_start(serve):
    server = serve(gpu_memory_utilization=0.4, rehearse_sleep=True)
    assert server.ask() in ANSWERED
    server.wait(server.create("accept", 1))
    assert server.engine()["epoch"] == 1
