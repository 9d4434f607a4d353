"""A whole server on one card, chats that go on meanwhile, and jobs, for the tests on a GPU."""

import collections
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from nip_base import formats
from nip_base.spec import ServerSpec
from nip_lm_server import launch as owner

START_TIMEOUT_S, JOB_TIMEOUT_S = 600.0, 300.0
QUESTION = [{"role": "user", "content": "Is this right? def add(a, b): return a + b"}]
ANSWERED = {"stop", "length"}


class Server:
    """A server process on a GPU, and a stock client on it."""

    def __init__(
        self, engine: str, base: str, state: Any, share_device: str = "auto", **options: Any
    ):
        self.spec = ServerSpec(
            engine,
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
