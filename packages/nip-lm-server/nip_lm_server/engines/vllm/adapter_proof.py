"""The proof that vLLM answers with saved weights: probes scored token by token, and judged.

VllmProver   scores the models of one vLLM child, remembers their scores, and proves one

A place of a probe is a request of one token, which allows this token alone. The comparison and its
limits are in `lora.probes`.

A model that does not pass is scored again, with all models that it is compared with: kernels round
otherwise in another batch. Only a model that fails SCORINGS times in a row is not proved.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nip_base.proof import Proof
from nip_lm_server.engines.base import EngineError
from nip_lm_server.lora.adapter_files import ServedAdapter, is_unchanged
from nip_lm_server.lora.probes import (
    CLEARLY,
    LIMITS,
    Probe,
    ProbeError,
    Scores,
    choose_limits,
    choose_places,
    choose_telling,
    judge_probe,
    read_probe,
    saved_logprobs,
)

SCORINGS = 4
"""So often a model is scored before it counts as not proved. A rule of thumb: one scoring alone
could fail a training for a rounding. Each further one is one more chance for wrong weights, though
of 2e-9 at most under published noise (docs/results/proof_noise.json, "yes")."""
PLACES = 32
"""The number of places of a probe at which a model is compared. Each is a request of one token.
With so many, one scoring refuses right weights in less than one of a million cases under published
noise (docs/results/proof_noise.json, "no"; a test holds it); with fewer, chance weighs more."""
RIVALS = 6
"""A model is compared with so many other adapters, the ones that were loaded last. A rule of thumb:
above the default number of adapters in one batch (`VllmOptions.max_loras`), in which vLLM could
take one for another. Each without scores costs PLACES requests."""
KEPT_SCORES = 256
"""So many scorings are remembered, the newest. A proof leaves at most RIVALS + 2, so the scorings
of dozens of proofs are there; a forgotten one is made again. Without a limit they would grow with
every adapter of a long run."""
CPU_TOKENS, CPU_RIVALS = 48, 2
"""The tokens and the rivals in float32 on a CPU, which has hardly any noise. An adapter's token
takes 6 ms there at 135 million parameters, and a new adapter has to answer soon."""
CPU_MEAN = 1e-4
"""So near an adapter has to be at so few places, or OVER_NOISE times as far as its base is from its
own figures. By transformers none of 300 wrong ones is (docs/results/proof_places.json)."""

Tokens = tuple[int, ...]
Logprobs = tuple[float, ...]
Score = Callable[[str, Tokens, Sequence[int]], Awaitable[Logprobs]]
Call = Callable[[str, str, Mapping[str, Any]], Awaitable[Any]]
"""(method, path, body) -> vLLM's answer. Raises EngineError."""


class VllmProver:
    """Proves models of a vLLM whose base model is `base`, by the answers to `call`."""

    def __init__(self, base: str, call: Call, *, has_cuda: bool, dtype: str, quantization: str):
        self._base, self._call = base, call
        self._has_cuda = has_cuda
        self._dtype, self._quantization = dtype, quantization
        # The newest scores by model, the probe's tokens and places.
        self._scores: dict[tuple[str, Tokens, Tokens], Logprobs] = {}

    async def warm_up(self) -> None:
        """Score the base once: the first requests compile code for all later ones."""
        await self._score(self._base, (0, 0), (0,))

    async def prove(
        self, name: str, path: Path, adapters: Mapping[str, ServedAdapter], max_model_len: int
    ) -> Proof:
        """Compare the answers of `name` with ``probe.json`` in `path`.

        `name` is one of the loaded `adapters` or the base model. Raises EngineError if there is no
        probe.
        """
        try:
            probe = await asyncio.to_thread(read_probe, path)
        # An error and no failed proof: without a probe nothing is compared.
        except ProbeError as error:
            raise EngineError(f"{name} can't be proved: {error}") from error
        # Of a probe longer than the context, the part that fits into it.
        count = min(len(probe.tokens), max_model_len) - 1
        limits = choose_limits(probe, self._dtype, self._quantization)
        # Any other precision has noise, which many places average out.
        is_quick = not self._has_cuda and limits.mean <= LIMITS["float32"].mean
        most, places = RIVALS, choose_places(count, PLACES)
        if is_quick:
            most, places = CPU_RIVALS, choose_telling(probe, count, CPU_TOKENS)
        probe = probe.at(places)
        compare = partial(
            judge_probe,
            probe,
            # The base has no base of its own to measure the noise with, see `judge_probe`.
            base=None if name == self._base else self._base,
            dtype=self._dtype,
            quantization=self._quantization,
            # The base has no noise of its own to be measured by.
            mean=CPU_MEAN if is_quick and name != self._base else None,
        )
        digest = adapters[name].digest if name in adapters else None
        rivals = {n: each for n, each in adapters.items() if n != name and each.digest != digest}
        # The same weights under another name must give the same, so they are not scored.
        same = {n: Scores((), same_weights=True) for n in adapters if n not in {*rivals, name}}
        paths = {rival: each.path for rival, each in [*rivals.items()][-most:]}
        bases = {} if name == self._base else {self._base: None}
        figures: dict[str, Any] = {}
        matches, scorings = False, 0
        # Kernels round otherwise in another batch, so one scoring that fails proves nothing yet.
        while not matches and scorings < SCORINGS:
            # 1. Compare with the base, scored anew, and with the saved figures of others. An answer
            #    this near to its own is farther from all that can be told from them; and that they
            #    don't serve this model instead shows at the place that tells most.
            is_first = is_quick and not scorings
            firsts = [self._score(r, probe.tokens, places[:1]) for r in paths if is_first]
            logprobs, scores, first_logprobs = await asyncio.gather(
                self._score(name, probe.tokens, places),
                self._score_all(bases if is_first else {}, probe, places, self._score),
                asyncio.gather(*firsts),
            )
            if is_first:
                saved, least = await self._score_all(paths, probe, places), CLEARLY * limits.noise
                matches, figures = compare(logprobs, {**same, **saved, **scores})
                figures["others_scored"] = False
                matches = matches and figures["distance"] <= least / 2
                matches = matches and all(
                    abs(o - probe.logprobs[0]) > least for (o,) in first_logprobs
                )
            # 2. Compare with the scores of the base and the rivals.
            if not matches:
                score = self._score if scorings else self._score_cached
                scores = await self._score_all({**paths, **bases}, probe, places, score)
                matches, figures = compare(logprobs, {**same, **scores})
            scorings += 1
        figures["scorings"] = scorings
        figures["unchanged"] = await asyncio.to_thread(is_unchanged, path)
        figures["weights_sha256"] = digest
        return Proof(matches, figures)

    async def _score_all(
        self,
        paths: Mapping[str, Path | None],
        probe: Probe,
        places: Sequence[int],
        score: Score | None = None,
    ) -> dict[str, Scores]:
        """Score models, and read the saved figures of those with a path.

        Without `score` they have the saved figures alone, if there are any for these tokens.
        """
        scores = {}
        for model, path in paths.items():
            saved = None
            if path is not None:
                saved = await asyncio.to_thread(saved_logprobs, path, probe.tokens, places)
            served = await score(model, probe.tokens, places) if score else saved
            if served is not None:
                scores[model] = Scores(served, saved)
        return scores

    async def _score_cached(self, model: str, tokens: Tokens, places: Sequence[int]) -> Logprobs:
        """The newest scores of `model`. It is scored now if it has none."""
        # To score all rivals at every new adapter would take longest. They don't change, and after
        # a failure all are scored again.
        scores = self._scores.get((model, tokens, (*places,)))
        return await self._score(model, tokens, places) if scores is None else scores

    async def _score(self, model: str, tokens: Tokens, places: Sequence[int]) -> Logprobs:
        """Score the tokens after these places with `model` anew, and remember the scores."""
        salt = secrets.token_hex(8)  # so that no cached computation answers
        each = [self._logprob(model, tokens[: place + 2], salt) for place in places]
        scores, key = tuple(await asyncio.gather(*each)), (model, tokens, (*places,))
        self._scores.pop(key, None)
        self._scores[key] = scores  # the newest stands last
        # The oldest scores are dropped; a model in use is scored again when a proof needs it.
        while len(self._scores) > KEPT_SCORES:
            del self._scores[next(iter(self._scores))]
        return scores

    async def _logprob(self, model: str, tokens: Tokens, salt: str) -> float:
        """The log-probability of the last token, given all before it, from an answer of this token.

        It is the model's own, since vLLM computes it before the restriction. Raises EngineError.
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
            # A server that ignores the name, or the restriction, would be proved by other figures.
            if answer["model"] != model or choice["token_ids"] != [tokens[-1]]:
                raise ValueError(f"{answer['model']} answered with {choice['token_ids']}")
            (logprob,) = choice["logprobs"]["token_logprobs"]
            return float(logprob)
        # An error and no failed proof: an unreadable answer says nothing of the weights.
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"vLLM gave no log-probability of the probe: {error!r}") from error
