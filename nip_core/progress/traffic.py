"""The calls of a run to its models' servers: how many are in flight, how fast they are answered."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_WINDOW_S = 600.0
_MOST_ANSWERS = 512


@dataclass(frozen=True)
class EngineWork:
    """The tokens that an engine says it has computed since its start."""

    at_s: float
    engine: str
    prompt_tokens: int
    generated_tokens: int


@dataclass
class Traffic:
    """Calls in flight and their answers. `clock` tells monotonic seconds."""

    clock: Callable[[], float] = time.monotonic
    in_flight: int = 0
    limit: int = 0
    """How many there may be at the server that was asked last."""
    began_s: float | None = None
    """Since when there has always been a call in flight; None: there is none."""
    answers: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_ANSWERS))
    """When they came, the last ones."""
    work: dict[str, tuple[EngineWork, EngineWork]] = field(default_factory=dict)
    """By address of a server of ours, its first word since it was idle and its last."""

    def note_flight(self, change: int, limit: int) -> None:
        """Note that so many more calls are in flight, of `limit` at their server."""
        if not self.in_flight:
            self.began_s = self.clock()
            self.answers.clear()
            self.work.clear()
        self.in_flight += change
        self.limit = limit
        if not self.in_flight:
            self.began_s = None

    def note_answer(self) -> None:
        """Note an answer."""
        self.answers.append(self.clock())

    def note_work(self, url: str, engine: str, prompt: int, generated: int) -> None:
        """Note what the engine of a server has computed."""
        now = EngineWork(self.clock(), engine, prompt, generated)
        first, last = self.work.get(url, (now, now))
        # Another start of the engine counts from zero.
        is_anew = prompt < last.prompt_tokens or generated < last.generated_tokens
        self.work[url] = (now if is_anew else first, now)

    def answers_per_s(self) -> float | None:
        """Return how fast answers come now; None where there is nothing to go by."""
        if self.began_s is None:
            return None
        now_s = self.clock()
        since_s = max(self.began_s, now_s - _WINDOW_S)
        if len(self.answers) == _MOST_ANSWERS and self.answers[0] < now_s:
            since_s = max(since_s, self.answers[0])
        # A view counts in a thread of its own while answers come, so it counts a copy.
        count = sum(at_s > since_s for at_s in self.answers.copy())
        return count / (now_s - since_s) if now_s > since_s else None

    def tokens_per_s(self) -> tuple[float, float] | None:
        """Return the prompt and answer tokens a second of all engines that told of them."""
        pairs = [(first, last) for first, last in self.work.values() if last.at_s > first.at_s]
        if not pairs:
            return None
        return (
            sum((b.prompt_tokens - a.prompt_tokens) / (b.at_s - a.at_s) for a, b in pairs),
            sum((b.generated_tokens - a.generated_tokens) / (b.at_s - a.at_s) for a, b in pairs),
        )
