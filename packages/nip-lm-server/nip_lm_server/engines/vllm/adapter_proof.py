"""The proof of vLLM's answering with saved weights: probes scored token by token, and judged.

VllmProver   of one vLLM child: scores models, remembers what they gave, and proves one

A place of a probe is a request of one token whose answer can be no other. What is compared with
what, and how far it may be, is in `lora.probes`.

A model that does not pass is scored again, with all that it is compared with: kernels round
otherwise in another batch. Only what fails SCORINGS times in a row is not proved.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_base.proof import Proof
from nip_lm_server.engines.base import EngineError
from nip_lm_server.lora.adapter_files import ServedAdapter, is_unchanged
from nip_lm_server.lora.probes import (
    ProbeError,
    Scores,
    choose_places,
    judge_probe,
    read_probe,
    saved_logprobs,
)

SCORINGS = 4
"""So often a model is scored before it counts as not proved. A rule of thumb: one scoring alone
would fail a training for a rounding, and each more is a further chance for wrong weights, though
one of 2e-9 at most under published noise (docs/results/proof_noise.json, "yes")."""
PLACES = 32
"""At how many places of a probe a model is compared. Each is a request of one token. With so many,
one scoring refuses right weights in less than one of a million cases under published noise
(docs/results/proof_noise.json, "no"; held by a test); with fewer, chance outweighs more easily."""
RIVALS = 6
"""So many other adapters are compared with, those that were loaded last. A rule of thumb, above the
default of the adapters in one batch (`VllmOptions.max_loras`), which is where vLLM could take one
for another. Each that has no scores yet costs PLACES requests."""
KEPT_SCORES = 256
"""So many scorings are remembered, the newest. A proof leaves at most RIVALS + 2, so those of
dozens of proofs are there; what is forgotten is scored again. Without an end they would grow with
every adapter of a long run."""
CPU_PLACES, CPU_TOKENS, CPU_RIVALS = 12, 48, 2
"""The same in float32 on a CPU, which has next to no noise, and how far into the probe: there a
token takes 2 ms through an adapter's matrices at max_lora_rank 64, and a new adapter has to answer
within a second."""

Tokens = tuple[int, ...]
Call = Callable[[str, str, Mapping[str, Any]], Awaitable[Any]]
"""(method, path, body) -> vLLM's answer. Raises EngineError."""


class VllmProver:
    """Proves models of a vLLM whose base model is `base`, by what `call` answers."""

    def __init__(self, base: str, call: Call, *, has_cuda: bool, dtype: str, quantization: str):
        self._base, self._call = base, call
        # Any other precision has noise that takes many places to average out.
        self._is_quick = not has_cuda and dtype == "float32"
        self._dtype, self._quantization = dtype, quantization
        # What models gave when they were last scored, by the probe's tokens.
        self._scores: dict[tuple[str, Tokens], tuple[float, ...]] = {}

    async def warm_up(self) -> None:
        """Score the base once: the first requests compile what all later ones need."""
        await self._score(self._base, (0, 0), (0,))

    async def prove(
        self, name: str, path: Path, adapters: Mapping[str, ServedAdapter], max_model_len: int
    ) -> Proof:
        """Compare what `name` serves with ``probe.json`` in `path`.

        `name` is one of the loaded `adapters` or the base model. Raises EngineError if there is no
        probe.
        """
        try:
            probe = await asyncio.to_thread(read_probe, path)
        # An error and no failed proof: without a probe nothing is compared.
        except ProbeError as error:
            raise EngineError(f"{name} can't be proved: {error}") from error
        # Of a probe that is longer than the context, the part that vLLM can take.
        places = self._choose_places(min(len(probe.tokens), max_model_len) - 1)
        digest = adapters[name].digest if name in adapters else None
        figures: dict[str, Any] = {}
        matches, scorings = False, 0
        # Kernels round otherwise in another batch, so one scoring that fails proves nothing yet.
        while not matches and scorings < SCORINGS:
            again = scorings > 0
            # 1. Score the model anew, and have the scores of everything else that answers.
            served = await self._score(name, probe.tokens, places)
            rivals = await self._score_rivals(name, adapters, probe.tokens, places, again=again)
            base = None
            # The base has no base of its own to measure the noise by, see `judge_probe`.
            if name != self._base:
                base = self._base
                rivals[base] = Scores(
                    await self._score_cached(base, probe.tokens, places, again=again)
                )
            # 2. Compare.
            matches, figures = judge_probe(
                probe.at(places),
                served,
                rivals,
                base=base,
                dtype=self._dtype,
                quantization=self._quantization,
            )
            scorings += 1
        figures["scorings"] = scorings
        figures["unchanged"] = await asyncio.to_thread(is_unchanged, path)
        figures["weights_sha256"] = digest
        return Proof(matches, figures)

    async def _score_rivals(
        self,
        name: str,
        adapters: Mapping[str, ServedAdapter],
        tokens: Tokens,
        places: Sequence[int],
        *,
        again: bool,
    ) -> dict[str, Scores]:
        """Score the other adapters loaded last, beside the scores saved of them."""
        digest = adapters[name].digest if name in adapters else None
        # The same weights under another name must give the same, so nothing is asked of them.
        others = [(rival, adapter) for rival, adapter in adapters.items() if rival != name]
        rivals = {r: Scores((), same_weights=True) for r, a in others if a.digest == digest}
        different = [(rival, adapter) for rival, adapter in others if rival not in rivals]
        for rival, adapter in different[-(CPU_RIVALS if self._is_quick else RIVALS) :]:
            rivals[rival] = Scores(
                await self._score_cached(rival, tokens, places, again=again),
                await asyncio.to_thread(saved_logprobs, adapter.path, tokens, places),
            )
        return rivals

    def _choose_places(self, count: int) -> list[int]:
        """Choose the places to compare among `count`.

        Evenly, since what weights change need not show at a probe's beginning; the last has all of
        the probe before it.
        """
        if self._is_quick:
            return choose_places(min(count, CPU_TOKENS), CPU_PLACES)
        return choose_places(count, PLACES)

    async def _score_cached(
        self, model: str, tokens: Tokens, places: Sequence[int], *, again: bool
    ) -> tuple[float, ...]:
        """The last scores of `model`; it is scored now if it never was, or is to be `again`."""
        # Scoring all rivals at every new adapter would take longest; they change no more, and
        # after a failure all are scored again.
        scores = None if again else self._scores.get((model, tokens))
        return await self._score(model, tokens, places) if scores is None else scores

    async def _score(self, model: str, tokens: Tokens, places: Sequence[int]) -> tuple[float, ...]:
        """Compute anew what `model` gives the tokens after these places, and remember it."""
        salt = secrets.token_hex(8)  # nothing that was computed before may answer
        each = [self._logprob(model, tokens[: place + 2], salt) for place in places]
        scores = tuple(await asyncio.gather(*each))
        self._scores.pop((model, tokens), None)
        self._scores[(model, tokens)] = scores  # the newest stands last
        # The oldest go; those of what answers now are scored again if they are asked for.
        while len(self._scores) > KEPT_SCORES:
            del self._scores[next(iter(self._scores))]
        return scores

    async def _logprob(self, model: str, tokens: Tokens, salt: str) -> float:
        """The log-probability of the last token, given all before it: the answer can be no other.

        It is the model's own, since the restriction comes later. Raises EngineError.
        """
        answer = await self._call(
            "POST",
            "/v1/completions",
            {
                "model": model,
                "prompt": list(tokens[:-1]),
                "allowed_token_ids": [tokens[-1]],
                "max_tokens": 1,
                "ignore_eos": True,
                "skip_special_tokens": False,
                "temperature": 0,
                "logprobs": 0,
                "return_token_ids": True,
                "cache_salt": salt,
            },
        )
        try:
            (choice,) = answer["choices"]
            # A server that ignores a name, or the restriction, would be proved by another's
            # figures.
            if answer["model"] != model or choice["token_ids"] != [tokens[-1]]:
                raise ValueError(f"{answer['model']} answered with {choice['token_ids']}")
            (logprob,) = choice["logprobs"]["token_logprobs"]
            return float(logprob)
        # An error and no failed proof: an answer that can't be read says nothing of the weights.
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"vLLM gave no log-probability of the probe: {error!r}") from error
