"""Which model answers under a name: that of a directory, its base, another one, or several.

NameChecker    of one server: asks, compares, and comes to a verdict
ProofSettings  what the caller knows of the server

Each name is asked several times, each time over a new connection, so that replicas behind one
address have their turn; vLLM's are asked one by one. Each answer is judged by itself. An adapter
answers if all of them are what its files say.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nip_lm_server.engines.vllm.adapter_proof import (
    CPU_PLACES,
    CPU_RIVALS,
    CPU_TOKENS,
    PLACES,
    RIVALS,
)
from nip_lm_server.lora.probes import Probe
from nip_lm_server.proving.candidates import Candidate
from nip_lm_server.proving.judging import (
    BASE,
    Judged,
    Surroundings,
    fewest_places,
    guess_dtype,
    judge_answer,
    name_answer,
)
from nip_lm_server.proving.prefix_cache import CacheCheck, check_prefix_cache
from nip_lm_server.proving.scoring import (
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
"""Answers that each name is asked for. Of two replicas that are chosen by chance a given one is
missed once in 4,096 times, of four once in 32."""
_BASES = 4
_MOST_RANKS = 64
_NO_RANK = 1_000_000


@dataclass(frozen=True)
class ProofSettings:
    """What the caller knows of a server, and how much is asked of it."""

    base_name: str | None = None
    """The name of the base model; None: as the server lists it."""
    dtype: str | None = None
    """The precision in which it computes; None: guessed."""
    quantization: str = "none"
    repeats: int = REPEATS


@dataclass(frozen=True)
class _Text:
    """What is asked of a server: tokens of a probe, and at how many places."""

    way: str
    tokens: Sequence[int]
    probe: Probe
    places: int


@dataclass(frozen=True)
class _Asked:
    """All that was heard of a name, and how."""

    way: str
    answers: list[ScoredAnswer]
    judged: list[Judged]
    around: Surroundings


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

        It is told from each of `among` in any case; `suspects` are looked at if it does not answer.
        All of them have probes. Raises ProvingError.
        """
        begun = time.monotonic()
        if name not in self._names:
            raise InputError(f"the server has no model {name!r}; it has {list_names(self._names)}")
        try:
            asked = await self._ask(name, candidate)
        except (NoLogprobsError, RefusedError) as error:
            why = f"the server gives no log-probabilities of given tokens: {error}"
            return _cannot_tell(name, why, time.monotonic() - begun)
        verdict = await self._judge(name, candidate, asked, among, suspects)
        return _complete(
            verdict,
            asked,
            ranks=self._ranks,
            notes=(*verdict.notes, *_remarks(name, asked)),
            seconds=time.monotonic() - begun,
        )

    # Asking

    async def _ask(self, name: str, candidate: Candidate) -> _Asked:
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
        # 1. Its base, and how exactly the server computes.
        base_name, base, text = await self._ask_base(name, candidate, way)
        # 2. The name itself, and nothing between: who takes turns would have each its own replica.
        answers = await asyncio.gather(
            *(
                self._score(name, text, number % ranks if ranks else None)
                for number in range(repeats)
            )
        )
        # 3. The names beside it.
        rivals = await self._ask_rivals(name, text) if answers[0].is_exact else {}
        dtype = settings.dtype or guess_dtype(text.probe, base, answers)
        around = Surroundings(dtype, settings.quantization, base_name, base, rivals)
        return _Asked(
            way, answers, [judge_answer(text.probe, one, around) for one in answers], around
        )

    def _cut(self, name: str, tokens: Sequence[int]) -> Sequence[int]:
        """Cut a probe to what the model's context takes, with one token to be generated."""
        length = self._names[name].max_model_len or self._known_length()
        return tokens if length is None else tokens[: max(2, length - 1)]

    def _known_length(self) -> int | None:
        lengths = [served.max_model_len for served in self._names.values() if served.max_model_len]
        return min(lengths, default=None)

    def _shorten(self, name: str, candidate: Candidate, way: str, dtype: str | None) -> _Text:
        """Cut a probe to what is asked: in float32 a part tells enough, as in the proof of a swap.

        Only where each token is a prompt of its own.
        """
        assert candidate.probe is not None
        is_quick = way == "token_ids" and dtype == "float32"
        tokens = self._cut(name, candidate.probe.tokens)
        tokens = tokens[: CPU_TOKENS + 1] if is_quick else tokens
        probe = candidate.probe.at(range(len(tokens) - 1))
        return _Text(way, tokens, probe, CPU_PLACES if is_quick else PLACES)

    async def _score(self, name: str, text: _Text, rank: int | None = None) -> ScoredAnswer:
        return await score(self._server, text.way, name, text.tokens, rank, text.places)

    async def _ask_base(
        self, name: str, candidate: Candidate, way: str
    ) -> tuple[str | None, ScoredAnswer | None, _Text]:
        """Ask the base model, and choose the text by the precision that its answer shows."""
        stated, dtype = self._settings.dtype, self._settings.dtype
        for guess in dict.fromkeys((stated or "float32", stated or "bfloat16")):
            text = self._shorten(name, candidate, way, guess)
            base_name, base = await self._find_base(name, text)
            dtype = stated or (guess_dtype(text.probe, base, ()) if base is not None else None)
            if way != "token_ids" or dtype == guess:
                break
        return base_name, base, text

    async def _find_base(self, name: str, text: _Text) -> tuple[str | None, ScoredAnswer | None]:
        """Find the base model and ask it: the stated one, the name's parent, or the likeliest."""
        stated = self._settings.base_name or self._names[name].parent
        if stated is not None and stated != name and stated in self._names:
            # One that is not asked for by the user may be forbidden, which says nothing against
            # the name.
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
        for other in bases:
            saved, answer = text.probe.base_logprobs, await self._try(other, text)
            if answer is not None and (places := answer.telling(saved)):
                filled = answer.fill(saved)
                distance = sum(abs(filled[p] - saved[p]) for p in places) / len(places)
                if distance < nearest[0]:
                    nearest = (distance, other, answer)
        return nearest[1], nearest[2]

    async def _ask_rivals(self, name: str, text: _Text) -> dict[str, ScoredAnswer]:
        """Ask the adapters that were loaded last, beside this one."""
        most = CPU_RIVALS if text.places == CPU_PLACES else RIVALS
        rivals = [n for n, s in self._names.items() if s.is_adapter and n != name][-most:]
        answers = await asyncio.gather(*(self._try(rival, text) for rival in rivals))
        return {n: a for n, a in zip(rivals, answers, strict=True) if a is not None}

    async def _try(self, name: str, text: _Text) -> ScoredAnswer | None:
        """Ask another name; None: it does not answer, which is nothing against this one."""
        try:
            return await self._score(name, text)
        except (RefusedError, KeyRefusedError, NoLogprobsError):
            return None

    async def _count_ranks(self, name: str) -> int | None:
        """Count the replicas that vLLM has behind the address; None: it has one, or isn't asked."""
        body = {"model": name, "prompt": [10], "max_tokens": 1}

        async def takes(rank: int) -> bool:
            try:
                await self._server.complete(body, rank)
            except (RefusedError, KeyRefusedError):
                return False
            return True

        # Who takes any number does not read it.
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
        asked: _Asked,
        among: Sequence[Candidate],
        suspects: Sequence[Candidate],
    ) -> Verdict:
        agreeing = sum(judged.matches for judged in asked.judged)
        if (why := self._why_not(candidate, asked)) is not None:
            return Verdict(name, "cannot_tell", f"can't tell: {why}")
        if agreeing == len(asked.judged):
            return await self._confirm(name, candidate, asked, among)
        who = _name_all(candidate, asked)
        elsewhere = [c for c in (*among, *suspects) if c.path != candidate.path]
        directories = await self._find_directories(name, asked, elsewhere)
        named = tuple(dict.fromkeys([*who, *directories]))
        listed = " or ".join(named) or "something that none of these files explains"
        if agreeing:
            says = (
                f"replicas disagree: {agreeing} of {len(asked.judged)} answers are the adapter of "
                f"{candidate.label}, {len(asked.judged) - agreeing} are {listed}"
            )
            return Verdict(name, "mixed", says, named)
        kind: Kind = "base" if named == (BASE,) else "another" if named else "unknown"
        says = f"not the adapter of {candidate.label}: what answers is {listed}"
        return Verdict(name, kind, says, named)

    def _why_not(self, candidate: Candidate, asked: _Asked) -> str | None:
        """Say why nothing can be judged; None: it can."""
        probe, dtype = candidate.probe, asked.around.dtype
        assert probe is not None
        few, fewest = min(judged.places for judged in asked.judged), fewest_places(probe, dtype)
        if few < fewest:
            only = (
                "it gives only the likeliest tokens, and these are others"
                if asked.way == "top" and len(asked.answers[0].logprobs) >= fewest
                else f"the probe has {len(probe.logprobs)}, and the model's context takes "
                f"{len(asked.answers[0].logprobs)} of them"
            )
            return (
                f"the server's answers say something of {few} tokens of the probe, {fewest} are "
                f"needed; {only}"
            )
        distance = asked.judged[0].figures.get("base_distance")
        most = asked.around.limits(probe).most
        if distance is not None and distance > most:
            return (
                f"the base model {asked.around.base_name!r} is {distance:.3g} nats from what the "
                f"probe of {candidate.label} has of it, at most {most:g} are rounding: another "
                "base model, or one that is quantized (--quantization)"
            )
        if any(judged.matches and not judged.is_base_told_apart for judged in asked.judged):
            changed = "its training changed nothing" if candidate.is_unchanged else "too little"
            return (
                f"{candidate.label} and its base can't be told apart by the probe ({changed}, for "
                f"{dtype})"
            )
        return None

    async def _confirm(
        self, name: str, candidate: Candidate, asked: _Asked, among: Sequence[Candidate]
    ) -> Verdict:
        """Look for what else all these answers could be, and for an old cache."""
        different = [
            other
            for other in among
            if other.path != candidate.path
            and (other.digest is None or other.digest != candidate.digest)
        ]
        also = await self._find_directories(name, asked, different)
        if also:
            says = f"can't tell: {candidate.label} or {' or '.join(also)}, their probes both agree"
            return Verdict(name, "cannot_tell", says, tuple(also))
        checks = await self._check_caches(name, candidate, asked)
        stale = next((check for check in checks if check.is_stale), None)
        if stale is not None:
            says = (
                f"the adapter of {candidate.label} is loaded, but answers from a stale prefix "
                f"cache, at least {stale.distance:.2g} nats from what it gives without it: reset "
                "it, or load the adapter from a path of its own"
            )
            return Verdict(name, "stale_cache", says)
        distance = max(judged.figures["distance"] for judged in asked.judged)
        says = (
            f"the adapter of {candidate.label} answers: {len(asked.answers)} of "
            f"{len(asked.answers)} answers, at most {distance:.2g} nats from its files"
        )
        unseen = [check.why for check in checks if check.is_stale is None]
        notes = [f"a stale prefix cache would not be seen: {unseen[0]}"] if unseen else []
        return Verdict(name, "adapter", says, notes=tuple(notes))

    async def _check_caches(
        self, name: str, candidate: Candidate, asked: _Asked
    ) -> list[CacheCheck]:
        """Check the prefix cache, of each replica that can be asked by itself."""
        # Only who knows vLLM's other parameters is known to read a salt.
        if asked.way != "token_ids":
            return [CacheCheck(None, why="the server can't be asked without its cache")]
        assert candidate.probe is not None
        limits = asked.around.limits(candidate.probe)
        context = self._names[name].max_model_len or self._known_length()
        ranks: list[int | None] = [*range(self._ranks)] if self._ranks else [None]
        return [
            await check_prefix_cache(self._server, name, context, limits, rank) for rank in ranks
        ]

    async def _find_directories(
        self, name: str, asked: _Asked, candidates: Sequence[Candidate]
    ) -> list[str]:
        """Find the directories whose probe the name answers as their files say."""

        async def answers_as(other: Candidate) -> bool:
            text = self._shorten(name, other, asked.way, asked.around.dtype)
            # Of several replicas one may be it.
            for _ in range(1 if self._is_alone(asked) else self._settings.repeats):
                answer = await self._try(name, text)
                if answer is None:
                    return False
                # Its noise is that of its precision: the base was asked for another text.
                around = Surroundings(asked.around.dtype, asked.around.quantization)
                judged = judge_answer(text.probe, answer, around)
                assert other.probe is not None
                fewest = fewest_places(other.probe, around.dtype)
                if judged.matches and judged.is_base_told_apart and judged.places >= fewest:
                    return True
            return False

        are_it = await asyncio.gather(*map(answers_as, candidates))
        return [
            f"the adapter of {other.label}"
            for other, is_it in zip(candidates, are_it, strict=True)
            if is_it
        ]

    def _is_alone(self, asked: _Asked) -> bool:
        """Say whether all answers were judged alike."""
        return len({judged.matches for judged in asked.judged}) == 1


def _name_all(candidate: Candidate, asked: _Asked) -> list[str]:
    """Name whose the answers are that are not the candidate's, the most frequent first."""
    assert candidate.probe is not None
    probe = candidate.probe.at(range(len(asked.answers[0].logprobs)))
    counted: Counter[str] = Counter()
    for answer, judged in zip(asked.answers, asked.judged, strict=True):
        if not judged.matches:
            counted.update(name_answer(probe, answer, asked.around, judged))
    return [name for name, _ in counted.most_common()]


def _remarks(name: str, asked: _Asked) -> list[str]:
    """Say what the answers say of themselves, and what their way can't show."""
    remarks = []
    called = {answer.calls_itself for answer in asked.answers} - {None, name}
    if called:
        remarks.append(f"asked for {name!r}, it calls itself {', '.join(sorted(map(str, called)))}")
    if asked.way == "top":
        places = min(judged.places for judged in asked.judged)
        remarks.append(
            f"the server gives only the likeliest tokens: compared at {places} of "
            f"{len(asked.answers[0].logprobs)} tokens of the probe"
        )
    if asked.around.base is None:
        remarks.append("no base model could be asked: how exactly the server computes is assumed")
    return remarks


def _complete(
    verdict: Verdict, asked: _Asked, *, ranks: int | None, notes: tuple[str, ...], seconds: float
) -> Verdict:
    worst = max(asked.judged, key=lambda judged: judged.figures.get("distance", 0.0))
    figures = {key: value for key, value in worst.figures.items() if key != "base_names"}
    return Verdict(
        name=verdict.name,
        kind=verdict.kind,
        says=verdict.says,
        who=verdict.who,
        answers=len(asked.answers),
        agreeing=sum(judged.matches for judged in asked.judged),
        way=asked.way,
        ranks=ranks,
        notes=notes,
        figures={**figures, "places": worst.places, "base_name": asked.around.base_name},
        seconds=round(seconds, 3),
    )


def _cannot_tell(name: str, why: str, seconds: float) -> Verdict:
    return Verdict(name, "cannot_tell", f"can't tell: {why}", seconds=round(seconds, 3))
