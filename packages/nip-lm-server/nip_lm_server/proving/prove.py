"""Which model answers under a name: a directory's adapter, its base, another model, or several.

NameChecker    asks one server, compares its answers, and comes to a verdict
ProofSettings  facts about the server that the caller knows

Each name is asked several times, each time over a new connection, so that replicas behind one
address have their turn; vLLM's replicas are asked one by one. Each answer is judged by itself. An
adapter answers if every answer agrees with its files.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nip_lm_server.engines.vllm.adapter_proof import (
    CPU_RIVALS,
    PLACES,
    RIVALS,
)
from nip_lm_server.lora.probes import Probe
from nip_lm_server.proving.candidates import Candidate
from nip_lm_server.proving.judging import (
    BASE,
    Judgement,
    Surroundings,
    fewest_places,
    guess_dtype,
    judge_answer,
    name_answer,
)
from nip_lm_server.proving.prefix_cache import CacheCheck, check_prefix_cache
from nip_lm_server.proving.scoring import (
    FEW_PLACES,
    FEW_TOKENS,
    TOP_REPEATS,
    NoLogprobsError,
    ScoredAnswer,
    find_way,
    score,
)
from nip_lm_server.proving.stranger import (
    InputError,
    KeyRefusedError,
    RefusedError,
    ServedName,
    Stranger,
)
from nip_lm_server.proving.verdict import Kind, Verdict, list_names

REPEATS = 12
"""Requests for each name. If each goes to one of two replicas by chance, one of the replicas is
missed once in 4,096 times; of four replicas, once in 32."""
_BASES = 4
_MOST_RANKS = 64
_NO_RANK = 1_000_000


@dataclass(frozen=True)
class ProofSettings:
    """Facts about a server that the caller knows, and the number of requests for each name."""

    base_name: str | None = None
    """The name of the base model; None: the name that the server lists."""
    dtype: str | None = None
    """The precision in which the server computes; None: guessed."""
    quantization: str = "none"
    repeats: int = REPEATS


@dataclass(frozen=True)
class _Text:
    """The tokens of a probe, and the number of places to ask for."""

    way: str
    tokens: Sequence[int]
    probe: Probe
    places: int


@dataclass(frozen=True)
class _Evidence:
    """All answers under a name, their judgements, and the way in which they were asked for."""

    way: str
    answers: list[ScoredAnswer]
    judgements: list[Judgement]
    surroundings: Surroundings

    @property
    def agreeing(self) -> int:
        """The number of answers in agreement with the candidate."""
        return sum(judgement.matches for judgement in self.judgements)

    @property
    def places(self) -> int:
        """The smallest number of places that an answer was compared at."""
        return min(judgement.places for judgement in self.judgements)


class NameChecker:
    """Proves names of `server`, which lists `names`."""

    def __init__(self, server: Stranger, names: dict[str, ServedName], settings: ProofSettings):
        self._server, self._names, self._settings = server, names, settings
        self._way: str | None = None
        self._ranks: int | None = None
        self._has_asked_ranks = False

    async def prove(
        self,
        name: str,
        candidate: Candidate,
        among: Sequence[Candidate] = (),
        suspects: Sequence[Candidate] = (),
    ) -> Verdict:
        """Say whether the adapter of `candidate` answers under `name`.

        The answers are always compared with each of `among`, and with `suspects` if the adapter
        does not answer. All of them have probes. Raises ProvingError.
        """
        started_at = time.monotonic()
        if name not in self._names:
            raise InputError(f"the server has no model {name!r}; it has {list_names(self._names)}")
        try:
            evidence = await self._ask(name, candidate)
        except (NoLogprobsError, RefusedError) as error:
            says = f"can't tell: the server gives no log-probabilities of given tokens: {error}"
            seconds = round(time.monotonic() - started_at, 3)
            return Verdict(name, "cannot_tell", says, seconds=seconds)
        verdict = await self._judge(name, candidate, evidence, among, suspects)
        return _complete(
            verdict,
            evidence,
            ranks=self._ranks,
            notes=_remarks(name, evidence),
            seconds=time.monotonic() - started_at,
        )

    # Asking

    async def _ask(self, name: str, candidate: Candidate) -> _Evidence:
        """Ask for all answers to the candidate's probe."""
        probe, settings = candidate.probe, self._settings
        assert probe is not None  # callers complete it
        tokens = self._cut(name, probe.tokens)
        if self._way is None:
            self._way = await find_way(self._server, name, tokens)
        if not self._has_asked_ranks:
            self._ranks, self._has_asked_ranks = await self._count_ranks(name), True
        way, ranks = self._way, self._ranks
        repeats = max(settings.repeats, 2 * (ranks or 1))
        repeats = min(repeats, TOP_REPEATS) if way == "top" else repeats
        # 1. Ask its base, which shows the server's precision.
        base_name, base, text = await self._ask_base(name, candidate, way)
        # 2. Ask the name itself, without other requests between: where replicas take turns, each
        #    name would get one replica only.
        answers = await asyncio.gather(
            *(
                self._score(name, text, number % ranks if ranks else None)
                for number in range(repeats)
            )
        )
        # 3. Ask the other adapters.
        rivals = await self._ask_rivals(name, text) if answers[0].is_exact else {}
        dtype = settings.dtype or guess_dtype(text.probe, base, answers)
        surroundings = Surroundings(dtype, settings.quantization, base_name, base, rivals)
        judgements = [judge_answer(text.probe, answer, surroundings) for answer in answers]
        return _Evidence(way, answers, judgements, surroundings)

    def _cut(self, name: str, tokens: Sequence[int]) -> Sequence[int]:
        """Cut a probe to the model's context, and leave room for one generated token."""
        length = self._names[name].max_model_len or self._known_length()
        return tokens if length is None else tokens[: max(2, length - 1)]

    def _known_length(self) -> int | None:
        lengths = [model.max_model_len for model in self._names.values() if model.max_model_len]
        return min(lengths, default=None)

    def _shorten(self, name: str, candidate: Candidate, way: str, dtype: str | None) -> _Text:
        """Cut a probe to the tokens to ask for.

        In float32 a part is enough. It is cut only for `token_ids`,
        where each token is a prompt of its own.
        """
        assert candidate.probe is not None
        is_quick = way == "token_ids" and dtype == "float32"
        tokens = self._cut(name, candidate.probe.tokens)
        tokens = tokens[: FEW_TOKENS + 1] if is_quick else tokens
        probe = candidate.probe.at(range(len(tokens) - 1))
        return _Text(way, tokens, probe, FEW_PLACES if is_quick else PLACES)

    async def _score(self, name: str, text: _Text, rank: int | None = None) -> ScoredAnswer:
        return await score(self._server, text.way, name, text.tokens, rank, text.places)

    async def _ask_base(
        self, name: str, candidate: Candidate, way: str
    ) -> tuple[str | None, ScoredAnswer | None, _Text]:
        """Ask the base model, and cut the text for the precision that its answer shows."""
        stated, dtype = self._settings.dtype, self._settings.dtype
        for guess in dict.fromkeys((stated or "float32", stated or "bfloat16")):
            text = self._shorten(name, candidate, way, guess)
            base_name, base = await self._find_base(name, text)
            dtype = stated or (guess_dtype(text.probe, base, ()) if base is not None else None)
            if way != "token_ids" or dtype == guess:
                break
        return base_name, base, text

    async def _find_base(self, name: str, text: _Text) -> tuple[str | None, ScoredAnswer | None]:
        """Find and ask the base model: the caller's, the name's parent, or the likeliest one."""
        stated = self._settings.base_name or self._names[name].parent
        if stated is not None and stated != name and stated in self._names:
            # The key may be refused for a parent that the user did not name, which says nothing
            # against the name.
            is_needed = self._settings.base_name is not None
            ask = self._score if is_needed else self._try
            answer = await ask(stated, text)
            return (None, None) if answer is None else (stated, answer)
        if self._settings.base_name is not None:
            raise InputError(
                f"the server has no model {stated!r} to be the base of {name!r}; it has "
                f"{list_names(self._names)}"
            )
        bases = [n for n, s in self._names.items() if not s.is_adapter and n != name][:_BASES]
        nearest: tuple[float, str | None, ScoredAnswer | None] = (1.0, None, None)
        for other_name in bases:
            saved, answer = text.probe.base_logprobs, await self._try(other_name, text)
            if answer is not None and (places := answer.telling(saved)):
                filled = answer.fill(saved)
                distance = sum(abs(filled[p] - saved[p]) for p in places) / len(places)
                if distance < nearest[0]:
                    nearest = (distance, other_name, answer)
        return nearest[1], nearest[2]

    async def _ask_rivals(self, name: str, text: _Text) -> dict[str, ScoredAnswer]:
        """Ask the adapters that were loaded last, without this one."""
        max_rivals = CPU_RIVALS if text.places == FEW_PLACES else RIVALS
        rivals = [n for n, s in self._names.items() if s.is_adapter and n != name][-max_rivals:]
        answers = await asyncio.gather(*(self._try(rival, text) for rival in rivals))
        return {n: a for n, a in zip(rivals, answers, strict=True) if a is not None}

    async def _try(self, name: str, text: _Text) -> ScoredAnswer | None:
        """Ask another name. None: it does not answer, and this one may still be right."""
        try:
            return await self._score(name, text)
        except (RefusedError, KeyRefusedError, NoLogprobsError):
            return None

    async def _count_ranks(self, name: str) -> int | None:
        """Count vLLM's replicas behind the address; None: there is one, or they can't be chosen."""
        body = {"model": name, "prompt": [10], "max_tokens": 1}

        async def takes(rank: int) -> bool:
            try:
                await self._server.complete(body, rank)
            except (RefusedError, KeyRefusedError):
                return False
            return True

        # A server that takes any number does not read it.
        if await takes(_NO_RANK):
            return None
        count = 0
        while count < _MOST_RANKS and await takes(count):
            count += 1
        return count if count > 1 else None

    # Judging

    async def _judge(
        self,
        name: str,
        candidate: Candidate,
        evidence: _Evidence,
        among: Sequence[Candidate],
        suspects: Sequence[Candidate],
    ) -> Verdict:
        agreeing, count = evidence.agreeing, len(evidence.judgements)
        if (reason := self._why_not(candidate, evidence)) is not None:
            return Verdict(name, "cannot_tell", f"can't tell: {reason}")
        if agreeing == count:
            return await self._confirm(name, candidate, evidence, among)
        models = _name_all(candidate, evidence)
        elsewhere = [c for c in (*among, *suspects) if c.path != candidate.path]
        directories = await self._find_directories(name, evidence, elsewhere)
        all_models = tuple(dict.fromkeys([*models, *directories]))
        listed = " or ".join(all_models) or "something that none of these files explains"
        if agreeing:
            says = (
                f"replicas disagree: {agreeing} of {count} answers are the adapter of "
                f"{candidate.path}, {count - agreeing} are {listed}"
            )
            return Verdict(name, "mixed", says, all_models)
        kind: Kind = "base" if all_models == (BASE,) else "another" if all_models else "unknown"
        says = f"not the adapter of {candidate.path}: what answers is {listed}"
        return Verdict(name, kind, says, all_models)

    def _why_not(self, candidate: Candidate, evidence: _Evidence) -> str | None:
        """Say why the answers can't be judged; None: they can."""
        probe, dtype = candidate.probe, evidence.surroundings.dtype
        assert probe is not None
        few, fewest = evidence.places, fewest_places(probe, dtype)
        if few < fewest:
            only = (
                "it gives only the likeliest tokens, and these are others"
                if evidence.way == "top" and len(evidence.answers[0].logprobs) >= fewest
                else f"the probe has {len(probe.logprobs)}, and the model's context takes "
                f"{len(evidence.answers[0].logprobs)} of them"
            )
            return (
                f"the server's answers say something of {few} tokens of the probe, {fewest} are "
                f"needed; {only}"
            )
        distance = evidence.judgements[0].figures.get("base_distance")
        max_distance = evidence.surroundings.limits(probe).most
        if distance is not None and distance > max_distance:
            return (
                f"the base model {evidence.surroundings.base_name!r} is {distance:.3g} nats from "
                f"what the probe of {candidate.path} has of it, at most {max_distance:g} are "
                "rounding: another base model, or one that is quantized (--quantization)"
            )
        if any(one.matches and not one.is_base_told_apart for one in evidence.judgements):
            cause = "its training changed nothing" if candidate.is_unchanged else "too little"
            return (
                f"{candidate.path} and its base can't be told apart by the probe ({cause}, for "
                f"{dtype})"
            )
        return None

    async def _confirm(
        self, name: str, candidate: Candidate, evidence: _Evidence, among: Sequence[Candidate]
    ) -> Verdict:
        """Compare the answers with the directories `among`, and look for a stale cache."""
        different = [
            c
            for c in among
            if c.path != candidate.path and (c.digest is None or c.digest != candidate.digest)
        ]
        also = await self._find_directories(name, evidence, different)
        if also:
            says = f"can't tell: {candidate.path} or {' or '.join(also)}, their probes both agree"
            return Verdict(name, "cannot_tell", says, tuple(also))
        checks = await self._check_caches(name, candidate, evidence)
        stale = next((check for check in checks if check.is_stale), None)
        if stale is not None:
            says = (
                f"the adapter of {candidate.path} is loaded, but answers from a stale prefix "
                f"cache, at least {stale.distance:.2g} nats from what it gives without it: reset "
                "it, or load the adapter from a path of its own"
            )
            return Verdict(name, "stale_cache", says)
        distance = max(judgement.figures["distance"] for judgement in evidence.judgements)
        says = (
            f"the adapter of {candidate.path} answers: {len(evidence.answers)} of "
            f"{len(evidence.answers)} answers, at most {distance:.2g} nats from its files"
        )
        unseen = [check.reason for check in checks if check.is_stale is None]
        notes = [f"a stale prefix cache would not be seen: {unseen[0]}"] if unseen else []
        return Verdict(name, "adapter", says, notes=tuple(notes))

    async def _check_caches(
        self, name: str, candidate: Candidate, evidence: _Evidence
    ) -> list[CacheCheck]:
        """Check the prefix cache of each replica that can be asked by itself."""
        # Only a server with vLLM's other parameters is known to read a salt.
        if evidence.way != "token_ids":
            return [CacheCheck(None, reason="the server can't be asked without its cache")]
        assert candidate.probe is not None
        limits = evidence.surroundings.limits(candidate.probe)
        context = self._names[name].max_model_len or self._known_length()
        ranks: list[int | None] = [*range(self._ranks)] if self._ranks else [None]
        return [
            await check_prefix_cache(self._server, name, context, limits, rank) for rank in ranks
        ]

    async def _find_directories(
        self, name: str, evidence: _Evidence, candidates: Sequence[Candidate]
    ) -> list[str]:
        """List the directories with a probe that the name's answers agree with."""
        # The base was asked for another text, so the noise comes from the precision alone.
        surroundings = replace(evidence.surroundings, base_name=None, base=None, rivals=None)
        # One of several replicas may have such an adapter.
        is_mixed = evidence.agreeing not in (0, len(evidence.judgements))
        repeats = self._settings.repeats if is_mixed else 1

        async def answers_as(directory: Candidate) -> bool:
            text = self._shorten(name, directory, evidence.way, surroundings.dtype)
            for _ in range(repeats):
                answer = await self._try(name, text)
                if answer is None:
                    return False
                judgement = judge_answer(text.probe, answer, surroundings)
                assert directory.probe is not None
                is_enough = judgement.places >= fewest_places(directory.probe, surroundings.dtype)
                if is_enough and judgement.matches and judgement.is_base_told_apart:
                    return True
            return False

        are_it = await asyncio.gather(*map(answers_as, candidates))
        return [
            f"the adapter of {directory.path}"
            for directory, is_it in zip(candidates, are_it, strict=True)
            if is_it
        ]


def _name_all(candidate: Candidate, evidence: _Evidence) -> list[str]:
    """Name the models behind the answers that are not the candidate's, the most frequent first."""
    assert candidate.probe is not None
    probe = candidate.probe.at(range(len(evidence.answers[0].logprobs)))
    counts: Counter[str] = Counter()
    for answer, judgement in zip(evidence.answers, evidence.judgements, strict=True):
        if not judgement.matches:
            counts.update(name_answer(probe, answer, evidence.surroundings, judgement))
    return [name for name, _ in counts.most_common()]


def _remarks(name: str, evidence: _Evidence) -> list[str]:
    """Write the notes: the name that answers have for themselves, and the limits of their way."""
    remarks = []
    own_names = {answer.calls_itself for answer in evidence.answers} - {None, name}
    if own_names:
        listed = ", ".join(sorted(map(str, own_names)))
        remarks.append(f"asked for {name!r}, it calls itself {listed}")
    if evidence.way == "top":
        remarks.append(
            f"the server gives only the likeliest tokens: compared at {evidence.places} of "
            f"{len(evidence.answers[0].logprobs)} tokens of the probe"
        )
    if evidence.surroundings.base is None:
        remarks.append("no base model could be asked: how exactly the server computes is assumed")
    return remarks


def _complete(
    verdict: Verdict, evidence: _Evidence, *, ranks: int | None, notes: list[str], seconds: float
) -> Verdict:
    worst = max(evidence.judgements, key=lambda judgement: judgement.figures.get("distance", 0.0))
    figures = {key: value for key, value in worst.figures.items() if key != "base_names"}
    return replace(
        verdict,
        answers=len(evidence.answers),
        agreeing=evidence.agreeing,
        way=evidence.way,
        ranks=ranks,
        notes=(*verdict.notes, *notes),
        figures={**figures, "places": worst.places, "base_name": evidence.surroundings.base_name},
        seconds=round(seconds, 3),
    )
