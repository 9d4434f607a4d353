"""What a user of SkyRL does, by the Tinker SDK; it runs in the environment of SkyRL.

    python tinker_asker.py ADDRESS BASE_MODEL

It takes one order per line of standard input, JSON with `do` and the arguments of the method of
that name, and answers each by a line of JSON on standard output: what the method returns, or
`{"error": ...}`. It stays up, as what it trains lives as long as its session at the server does.
"""

import asyncio
import itertools
import json
import sys
import time
from typing import Any

import tinker
from tinker import types

KEY = "tml-none"  # the server asks for none; the SDK wants one that begins like this
Tokens = list[int]


class Asker:
    """One session at the server, with what was trained in it, by names."""

    def __init__(self, address: str, base: str):
        self.service = tinker.ServiceClient(base_url=address, api_key=KEY)
        self.base = base
        self.trainers: dict[str, Any] = {}
        self.samplers: dict[str, Any] = {}
        self.bases: Any = None

    def train(
        self,
        name: str,
        rank: int,
        batches: list[list[dict[str, Any]]],
        rates: list[float],
        adam: dict[str, float] | None = None,
    ) -> dict[str, Any]:
        """Make an adapter and take a step on each batch, with the learning rate of that step.

        An example has `tokens`, `targets` and `weights`, one of each per token. Gradient and step
        are sent together, as Tinker's documentation says; the next ones only when both are done:
        where more steps wait, this server at times adds up the gradients of several.
        """
        trainer = self.service.create_lora_training_client(self.base, rank=rank, seed=0)
        self.trainers[name] = trainer
        data = [[_datum(example) for example in batch] for batch in batches]
        began = time.monotonic()
        for batch, rate in zip(data, rates, strict=True):
            passed = trainer.forward_backward(batch, "cross_entropy")
            stepped = trainer.optim_step(types.AdamParams(learning_rate=rate, **(adam or {})))
            last = passed.result()
            stepped.result()
        train_s = time.monotonic() - began
        losses = [
            sum(output["elementwise_loss"].data) / max(1.0, sum(example["weights"]))
            for output, example in zip(last.loss_fn_outputs, batches[-1], strict=True)
        ]
        return {"train_s": round(train_s, 3), "final_loss": sum(losses) / len(losses)}

    def save(self, name: str) -> dict[str, Any]:
        """Save an adapter for sampling, and give its path."""
        path = self.trainers[name].save_weights_for_sampler(name).result().path
        self.samplers[name] = self.service.create_sampling_client(model_path=path)
        return {"path": path}

    def swap(self, name: str, prompt: Tokens, tokens: int) -> dict[str, Any]:
        """From trained weights to their first answer, by the SDK's call for that."""
        began = time.monotonic()
        sampler = self.trainers[name].save_weights_and_get_sampling_client()
        answer = sampler.sample(types.ModelInput.from_ints(prompt), 1, _greedy(tokens)).result()
        seconds = time.monotonic() - began
        return {"seconds": round(seconds, 4), "tokens": list(answer.sequences[0].tokens)}

    def answer(self, name: str, prompt: Tokens, tokens: int, end: int) -> dict[str, Any]:
        """Ask one adapter, or the base model where the name is empty, until the end token."""
        greedy = types.SamplingParams(max_tokens=tokens, temperature=0.0, seed=0, stop=[end])
        asked = self._sampler(name).sample(types.ModelInput.from_ints(prompt), 1, greedy)
        return {"tokens": list(asked.result().sequences[0].tokens)}

    def sample(
        self, names: list[str], prompts: list[Tokens], tokens: int, in_flight: int, run_s: float
    ) -> dict[str, Any]:
        """So many requests in flight, the adapters in turn; waits for the last."""
        turns = zip(itertools.cycle(names), itertools.cycle(prompts), strict=True)
        return asyncio.run(self._sample(turns, tokens, in_flight, run_s))

    async def _sample(
        self, turns: Any, tokens: int, in_flight: int, run_s: float
    ) -> dict[str, Any]:
        seconds: list[float] = []
        failures: list[str] = []
        began = time.monotonic()

        async def one_after_the_other() -> None:
            while time.monotonic() - began < run_s and not failures:
                name, prompt = next(turns)
                asked = time.monotonic()
                answer = await self._sampler(name).sample_async(
                    types.ModelInput.from_ints(prompt), 1, _greedy(tokens)
                )
                seconds.append(time.monotonic() - asked)
                if len(answer.sequences[0].tokens) != tokens:
                    failures.append(f"{len(answer.sequences[0].tokens)} tokens")

        await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
        whole = time.monotonic() - began
        ordered = sorted(seconds)
        return {
            "requests": len(seconds),
            "failures": failures,
            "requests_per_s": len(seconds) / whole,
            "median_ms": 1000 * ordered[len(ordered) // 2],
            "p95_ms": 1000 * ordered[int(0.95 * (len(ordered) - 1))],
        }

    def _sampler(self, name: str) -> Any:
        if name:
            return self.samplers[name]
        if self.bases is None:
            self.bases = self.service.create_sampling_client(base_model=self.base)
        return self.bases


def _datum(example: dict[str, Any]) -> Any:
    inputs = {"target_tokens": example["targets"], "weights": example["weights"]}
    model_input = types.ModelInput.from_ints(example["tokens"])
    return types.Datum(model_input=model_input, loss_fn_inputs=inputs)


def _greedy(tokens: int) -> Any:
    return types.SamplingParams(max_tokens=tokens, temperature=0.0, seed=0)


def main() -> None:
    """Take orders until standard input ends."""
    asker = Asker(sys.argv[1], sys.argv[2])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            done = getattr(asker, order.pop("do"))(**order)
        except Exception as error:  # the reason is for who gave the order
            done = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
