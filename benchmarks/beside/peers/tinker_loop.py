"""What a user of a server with Tinker's API does, by the SDK; the same for nip and for SkyRL.

    python tinker_loop.py ADDRESS KEY BASE_MODEL

It runs in an environment with an SDK that the server speaks. It takes one order per line of
standard input, JSON with `do` and the arguments of the method of that name, and answers each by a
line of JSON on standard output: what the method returns, or `{"error": ...}`. Batches are drawn
here, so both servers get the same ones.
"""

import asyncio
import json
import sys
import time
from typing import Any

import tinker
from tinker import types
from tinker_batches import RATE, Tokens, draw, draw_batch

Batch = list[Tokens]


class Loop:
    """One session at the server, with one adapter in training and one sampler."""

    def __init__(self, address: str, key: str, base: str):
        self.service = tinker.ServiceClient(base_url=address, api_key=key)
        self.base = base
        self.trainer: Any = None
        self.sampler: Any = None
        self._plays = 0  # of `sample`, so that no prompt comes twice

    def make(self, rank: int) -> dict[str, Any]:
        """Make the adapter anew."""
        began = time.monotonic()
        made = self.service.create_lora_training_client(self.base, rank=rank, seed=0)
        self.trainer = _wait(made)
        return {"seconds": time.monotonic() - began}

    def score(self, count: int, length: int) -> dict[str, Any]:
        """Compute a batch without a gradient: log-probabilities of all its tokens."""
        outputs = self._forward(draw_batch(count, length))
        return {"logprobs": [value for output in outputs for value in output]}

    def train(self, count: int, length: int, loss: str, steps: int) -> dict[str, Any]:
        """Take steps on one batch; gradient and step are sent together, then both awaited."""
        batch = draw_batch(count, length)
        sampled = self._forward(batch) if loss != "cross_entropy" else None
        data = _make_data(batch, sampled, has_mask=loss == "gspo")
        config = {"beta": 0.05} if loss == "dro" else None
        means = []
        began, began_cpu = time.monotonic(), time.process_time()
        for _ in range(steps):
            passed = self.trainer.forward_backward(data, loss, config)
            stepped = self.trainer.optim_step(types.AdamParams(learning_rate=RATE))
            outputs = passed.result().loss_fn_outputs
            stepped.result()
            means.append(_mean(outputs))
        seconds, processor_s = time.monotonic() - began, time.process_time() - began_cpu
        return {"seconds": seconds, "processor_s": processor_s, "losses": means}

    def sample(
        self, prompt: int, n: int, max_tokens: int, clients: int, requests: int
    ) -> dict[str, Any]:
        """Sample with so many clients at once, each so many requests one after the other.

        No prompt comes twice: what a server keeps of prompts is not what is measured.
        """
        if self.sampler is None:
            self.swap(8)
        return asyncio.run(self._sample(prompt, n, max_tokens, clients, requests))

    async def _sample(
        self, prompt: int, n: int, max_tokens: int, clients: int, requests: int
    ) -> dict[str, Any]:
        params = types.SamplingParams(max_tokens=max_tokens, temperature=1.0, stop=[])
        lengths: list[int] = []
        self._plays += 1

        async def ask(client: int) -> None:
            for request in range(requests):
                drawn = draw(f"{self._plays} {client} {request}", prompt)
                asked = types.ModelInput.from_ints(drawn)
                answer = await self.sampler.sample_async(asked, n, params)
                lengths.extend(len(one.tokens) for one in answer.sequences)

        began = time.monotonic()
        await asyncio.gather(*(ask(client) for client in range(clients)))
        seconds = time.monotonic() - began
        if set(lengths) != {max_tokens}:
            raise ValueError(f"answers have {sorted(set(lengths))} tokens, not {max_tokens}")
        return {"seconds": seconds, "samples": len(lengths)}

    def swap(self, max_tokens: int) -> dict[str, Any]:
        """Save the adapter and take the first sample of it, by the SDK's call for that."""
        params = types.SamplingParams(max_tokens=max_tokens, temperature=0.0, stop=[])
        began = time.monotonic()
        self.sampler = _wait(self.trainer.save_weights_and_get_sampling_client())
        asked = self.sampler.sample(types.ModelInput.from_ints(draw(0, 40)), 1, params)
        answer = asked.result().sequences[0]
        seconds = time.monotonic() - began
        return {
            "seconds": seconds,
            "tokens": list(answer.tokens),
            "logprobs": list(answer.logprobs or ()),
        }

    def score_prompt(self) -> dict[str, Any]:
        """Ask for the log-probabilities of a prompt."""
        asked = self.sampler.compute_logprobs(types.ModelInput.from_ints(draw(0, 40)))
        return {"logprobs": list(asked.result())}

    def _forward(self, batch: Batch) -> list[list[float]]:
        passed = self.trainer.forward(_make_data(batch, None), "cross_entropy").result()
        return [list(output["logprobs"].data) for output in passed.loss_fn_outputs]


def _wait(made: Any) -> Any:
    """Newer SDKs give futures where older ones give clients."""
    return made.result() if hasattr(made, "result") else made


def _make_data(
    batch: Batch, sampled: list[list[float]] | None, *, has_mask: bool = False
) -> list[Any]:
    """Datums of cross-entropy, or with what a sampler said, of a policy gradient."""
    data = []
    for i, tokens in enumerate(batch):
        inputs: dict[str, Any] = {"target_tokens": tokens[1:]}
        if sampled is None:
            inputs["weights"] = [1.0] * (len(tokens) - 1)
        else:
            inputs["logprobs"] = sampled[i]
            inputs["advantages"] = [1.0 if i % 2 else -1.0] * (len(tokens) - 1)
        if has_mask:
            count = len(tokens) - 1
            mask = types.TensorData(data=[1.0] * count, dtype="float32", shape=[count])
            inputs["sequence_ratio_mask"] = mask
        model_input = types.ModelInput.from_ints(tokens[:-1])
        data.append(types.Datum(model_input=model_input, loss_fn_inputs=inputs))
    return data


def _mean(outputs: Any) -> float:
    values = [value for output in outputs for value in output["logprobs"].data]
    return -sum(values) / len(values)


def main() -> None:
    """Take orders until standard input ends."""
    loop = Loop(*sys.argv[1:4])
    print(json.dumps({"sdk": tinker.__version__}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            done = getattr(loop, order.pop("do"))(**order)
        except Exception as error:  # the reason is for who gave the order
            done = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
