"""Asking a judge so that no answer is lost or paid twice, and no cap is passed.

Caps          the most that an attack may spend
Spending      calls, tokens and US dollars so far
Asker         asks one judge: many at once, each answer on disk before it is used
CapReached    the error of a cap; answers on record stay

A judge that scores and has no threshold gets one by `set_threshold`; its answers are on record as
they came, so that they are read by the same threshold when an attack goes on.

An answer is found again by the judge's digest, the text that it was shown and the number of the
asking. So a kill costs the calls in flight, and a text that two parts of the course show is asked
once.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nip_core.errors import BudgetError, NipError, StageError, StoreError
from nip_core.hashing import derive_key, derive_seed
from nip_core.rollouts.storage.journal import Journal
from nip_judges.parts import Judge, JudgeAnswer, ShownText


class CapReached(BudgetError):
    """A cap of the attack is reached; answers so far are kept."""


_MOST_CHARACTERS = 100_000
"""Of a judge's words on record."""


@dataclass(frozen=True)
class Caps:
    """The most that an attack may spend; None: no cap."""

    usd: float | None = None
    """US dollars. Calls in flight when it is reached are paid, too."""
    calls: int | None = None
    """Calls, those in flight included."""
    prompt_usd: float | None = None
    """US dollars for a million prompt tokens."""
    completion_usd: float | None = None


@dataclass
class Spending:
    """Calls, tokens and dollars of an attack so far, those of earlier processes included."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def count(self, answer: JudgeAnswer) -> None:
        """Add an answer."""
        self.calls += answer.calls
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens

    def price(self, caps: Caps) -> float | None:
        """Compute the US dollars so far; None without prices."""
        if caps.prompt_usd is None or caps.completion_usd is None:
            return None
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return (prompt * caps.prompt_usd + completion * caps.completion_usd) / 1e6


class Asker:
    """Asks judges; each answer is in the journal before it is used."""

    def __init__(
        self,
        journal: Journal,
        caps: Caps,
        *,
        concurrency: int,
        seed: int,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the answers on record. `on_answer` is called after each new answer."""
        self.spending = Spending()
        self.written = Spending()
        """Calls and tokens of another model than the judge's, which writes texts."""
        self.asked = 0
        """Answers of this process."""
        self._journal, self._caps, self._seed = journal, caps, seed
        self._on_answer = on_answer
        self._places = asyncio.Semaphore(concurrency)
        self._begun = 0  # calls in flight
        self._failed: NipError | None = None
        self.cap: CapReached | None = None
        """The cap that a call has met; a trainer between here and there may hide it."""
        self._thresholds: dict[str, float] = {}  # by the judge's digest
        self._tasks: dict[str, asyncio.Task[JudgeAnswer]] = {}
        self._answers: dict[str, JudgeAnswer] = {}
        for record in journal.replay():
            answer = JudgeAnswer(**record["answer"])
            self._answers[record["key"]] = answer
            (self.spending if record["counts"] else self.written).count(answer)

    def set_threshold(self, judge: Judge, threshold: float) -> None:
        """Read scores of a judge that have no verdict by a threshold, from which it accepts."""
        self._thresholds[judge.digest] = threshold

    async def ask(
        self, judge: Judge, shown_text: ShownText, asking: int = 0, *, counts: bool = True
    ) -> JudgeAnswer:
        """Judge a text, or give its answer on record. Raises CapReached, or as the judge does.

        Without `counts` it is a text that another model than the judge's writes: the cap of calls
        holds it, and its dollars are not known.
        """
        key = derive_key(judge.digest, asdict(shown_text), asking)
        if (answer := self._answers.get(key)) is not None:
            return self._decide(judge, answer)
        # Two parts of the course may want one text at once.
        if (task := self._tasks.get(key)) is None:
            task = asyncio.create_task(self._ask(judge, shown_text, key, counts))
            self._tasks[key] = task
        return self._decide(judge, await task)

    def _decide(self, judge: Judge, answer: JudgeAnswer) -> JudgeAnswer:
        threshold = self._thresholds.get(judge.digest)
        if threshold is None or answer.score is None or answer.verdict != "none":
            return answer
        is_accepted = answer.score >= threshold
        return replace(answer, verdict="accept" if is_accepted else "reject", reason=None)

    async def ask_all(
        self, judge: Judge, texts: Sequence[tuple[ShownText, int]], *, counts: bool = True
    ) -> list[JudgeAnswer]:
        """Judge texts at once, each with the number of its asking.

        Raises the first error, when all calls in flight have ended.
        """
        results = await asyncio.gather(
            *(self.ask(judge, shown_text, asking, counts=counts) for shown_text, asking in texts),
            return_exceptions=True,
        )
        return _raise_first(results)

    async def _ask(
        self, judge: Judge, shown_text: ShownText, key: str, counts: bool
    ) -> JudgeAnswer:
        async with self._places:
            # Checked when a call has its place: all calls of a part of the course wait at once.
            if self._failed is not None:  # no later call can succeed either
                raise self._failed
            taken = getattr(judge, "calls_per_answer", 1)
            self._check_caps(taken)
            self._begun += taken
            try:
                answer = _shorten(await judge.ask(shown_text, derive_seed(self._seed, key)))
                await self._journal.append({"key": key, "counts": counts, "answer": asdict(answer)})
            except NipError as error:
                self._failed = error
                raise
            finally:
                self._begun -= taken
            self._answers[key] = answer
            (self.spending if counts else self.written).count(answer)
        self.asked += 1
        self._on_answer()
        return answer

    def _check_caps(self, taken: int) -> None:
        try:
            self._compare_with_caps(taken)
        except CapReached as reached:
            self.cap = reached
            raise

    def _compare_with_caps(self, taken: int) -> None:
        caps, spent = self._caps, self.spending
        calls = spent.calls + self.written.calls + self._begun
        if caps.calls is not None and calls + taken > caps.calls:
            raise CapReached(
                f"the cap of {caps.calls} calls is reached; running again with more goes on"
            )
        usd = spent.price(caps)
        if caps.usd is not None and usd is not None and usd >= caps.usd:
            raise CapReached(
                f"the cap of ${caps.usd:g} is reached (${usd:.4f}); running again with more goes on"
            )


def _shorten(answer: JudgeAnswer) -> JudgeAnswer:
    """Cut the middle of words that are far longer than a judge's; its verdict is read already."""
    if len(answer.words) <= _MOST_CHARACTERS:
        return answer
    half, cut = _MOST_CHARACTERS // 2, len(answer.words) - _MOST_CHARACTERS
    words = f"{answer.words[:half]}\n[{cut} characters are left out]\n{answer.words[-half:]}"
    return replace(answer, words=words)


def _raise_first(results: Iterable[Any]) -> list[JudgeAnswer]:
    answers, errors = list[JudgeAnswer](), list[BaseException]()
    for result in results:
        (errors if isinstance(result, BaseException) else answers).append(result)
    # A wrong key says more than the cap that other calls met.
    for error in sorted(errors, key=lambda error: isinstance(error, CapReached)):
        raise error
    return answers


def open_journal(path: Path) -> Journal:
    """Open the journal of an attack, alone. Raises StageError where another process has it open."""
    try:
        return Journal(path)
    except StoreError as error:
        if "another process" in str(error):
            raise StageError(
                f"{path}: another process makes this attack; wait for it or stop it"
            ) from None
        raise
