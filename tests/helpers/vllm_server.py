"""A server process over a real vLLM, and a stock client on it."""

import time
from typing import Any

import openai
import psutil

from nip_base import formats
from nip_base.spec import ServerSpec
from nip_lm_server import launch as owner

TRAINING_TIMEOUT_S = 150.0
# Three servers load at the same time, on two cores, from a disk that has not read vLLM before.
START_TIMEOUT_S = 900.0
BACK_TIMEOUT_S = 240.0
QUESTION = [{"role": "user", "content": "Is it right?"}]


class VllmServer:
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
