"""The progress of a run in this process: stages write it, views read it through `outlook`.

A stage writes by adding to counters and setting attributes: no lock, no clock and no text for an
episode or a call, of which a thousand may be in flight. Only the thread of the event loop counts;
views look from other threads, and may see the state of a call before.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nip_core.progress.phases import PhaseClock
from nip_core.progress.traffic import Traffic

STAGES = ("test", "play", "dataset", "train", "gate", "swap", "attack")
"""Of an iteration, in their order, named as in its times; --rerun-from takes some of them."""


@dataclass(frozen=True)
class Stage:
    """A step of an iteration. Two with the same iteration and name are the same."""

    iteration: int
    name: str
    """One of `STAGES`."""
    episodes: int = field(default=0, compare=False)
    """To be played in it."""


@dataclass(frozen=True)
class Event:
    """A single happening, like an iteration's test or a warning."""

    at: float
    """Seconds since 1970."""
    kind: str
    """The kind for programs: run, ready, test, ...; warning and trouble are for people first."""
    text: str
    """The same in a line."""
    facts: Mapping[str, Any]
    """By name, plain values."""


@dataclass
class Activity:
    """A piece of work going on now, like a job; episodes are counted in `Progress`."""

    what: str
    began_s: float
    """On the clock of the progress, as all times here."""
    job: str | None = None
    """Id of the fine-tune job that it waits for."""
    group: str | None = None
    """The group that the job trains."""
    status: str = ""
    """The last word of who does it."""
    unit: str = ""
    done: int = 0
    total: int = 0
    """In `unit`; 0: not known."""
    loss: float | None = None
    tokens: int = 0
    """Trained on so far."""
    tokens_total: int | None = None
    """To be trained on in all, where that is known."""
    tokens_per_s: float | None = None
    left_s: float | None = None
    """The time left by the word of its server, at `told_s`."""
    told_s: float = 0.0
    _first: tuple[float, int] | None = None

    def tell(
        self,
        now_s: float,
        *,
        status: str,
        done: int = 0,
        total: int = 0,
        loss: float | None = None,
        tokens: int = 0,
        left_s: float | None = None,
    ) -> None:
        """Note what was just heard of it."""
        if done != self.done or status != self.status:
            self.left_s, self.told_s = left_s, now_s
        # The pace of training is that since the first step that was seen: no start-up in it.
        if done and self._first is None:
            self._first = now_s, tokens
        if self._first is not None and done != self.done and now_s > self._first[0]:
            new_tokens = tokens - self._first[1]
            self.tokens_per_s = new_tokens / (now_s - self._first[0]) if new_tokens > 0 else None
        self.status, self.done, self.total, self.tokens = status, done, total, tokens
        self.loss = self.loss if loss is None else loss


@dataclass
class Progress:
    """The run in this process. Counters count since the process started.

    `clock` tells monotonic seconds, `now` seconds since 1970.
    """

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    traffic: Traffic = field(default_factory=Traffic)
    """The calls to models' servers."""

    # Of the split that is being played:
    episodes_total: int = 0
    episodes_done: int = 0
    episodes_failed: int = 0
    episodes_in_flight: int = 0
    episodes_before: int = (
        0  # of those done, the ones that were not played here since its playing began
    )
    episodes_began_s: float = 0.0
    tokens_before: int = 0  # generated, when its playing began
    turns_before: int = 0  # valid answers, when its playing began
    split: str = ""
    # Of all of them:
    calls: int = 0  # answers received
    calls_reused: int = 0  # answers that a journal had
    invalid_answers: int = 0
    first_answers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By agent, how many of its turns were answered, and at how many the first try was invalid."""
    retries: int = 0
    last_trouble: str = ""
    """Why something was tried again the last time."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_by_agent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Prompt and generated tokens, by agent."""
    warning: str = ""
    """A warning that people should see at once."""

    events: list[Event] = field(default_factory=list)
    activities: list[Activity] = field(default_factory=list)
    """Those that go on now, in the order in which they began."""
    plan: tuple[Stage, ...] = ()
    """All stages of the run, in order; () where that is not known yet."""
    stage: Stage | None = None
    stage_began_s: float = 0.0
    """The seconds of earlier processes count as just before. Outside of stages, when the last was
    over."""
    took_s: dict[Stage, float] = field(default_factory=dict)
    """By stage that is over, its seconds, on record or in this process."""
    paces: dict[str, list[float]] = field(default_factory=dict)
    """By name of a stage, seconds as they were measured: of an episode where it plays some, of the
    whole elsewhere."""
    guesses: dict[str, float] = field(default_factory=dict)
    """By name of a stage its pace, as the measured speed of the models' server lets one guess it;
    what was measured of a stage counts before."""
    own_device: str | None = None
    """Where the run's own server computes; None: it has none with a model."""
    turns_per_episode: float | None = None
    """As it is expected; None: not known."""
    training_tokens_per_s: float | None = None
    """As the last job that was seen had it."""
    share: float = 0.0
    """Of the whole run, by time; the highest that was shown, which it never goes back from."""
    _played: int = 0
    _submitted: int = 0

    def __post_init__(self) -> None:
        """Note when it began."""
        self.began_s = self.stage_began_s = self.clock()
        self.phases = PhaseClock(self.clock)

    # Present work ----------------------------------------------------------------------------

    @contextmanager
    def doing(self, name: str, **facts: Any) -> Iterator[Activity]:
        """Show an activity while the block goes on; `facts` are attributes of it."""
        activity = Activity(name, self.clock(), **facts)
        self.activities.append(activity)
        try:
            yield activity
        finally:
            self.activities.remove(activity)

    @contextmanager
    def starting(self, name: str, **facts: Any) -> Iterator[Activity]:
        """`doing`, and once it is done an event with how long it took."""
        with self.doing(f"starting {name}", **facts) as activity:
            yield activity
        took_s = self.clock() - activity.began_s
        self.tell("ready", f"{name}: ready after {took_s:.1f} s", what=name, seconds=took_s)

    def start_episodes(self, split: str, total: int, done: int = 0, failed: int = 0) -> None:
        """Begin with the episodes of a split; `done` are played, `failed` of these failed."""
        self._played += self.episodes_done - self.episodes_before
        self.split, self.episodes_began_s = split, self.clock()
        self.episodes_total, self.episodes_done, self.episodes_failed = total, done, failed
        self.episodes_before, self.tokens_before = done, self.completion_tokens
        self.turns_before = self.turns

    @contextmanager
    def during(self, iteration: int, name: str, before_s: float = 0.0) -> Iterator[None]:
        """Go through a stage of the run, and measure it; earlier processes took `before_s`."""
        stages = (s for s in self.plan if (s.iteration, s.name) == (iteration, name))
        self.stage = stage = next(stages, Stage(iteration, name))
        began_s = self.clock()
        self.stage_began_s = began_s - before_s
        episodes, submitted = self._all_played, self._submitted
        try:
            with self.phases.during(name):
                yield
        finally:
            # Figures that are only shown while the stage goes on.
            self.start_episodes("", 0)
            self.stage, self.stage_began_s = None, self.clock()
        took_s = self.clock() - began_s
        in_all_s = before_s + took_s
        self.took_s[stage] = max(in_all_s, self.took_s.get(stage, 0.0))
        # Only this process's work is measured: not episodes that were on record already.
        if episodes := self._all_played - episodes:
            self.paces.setdefault(name, []).append(took_s / episodes)
        elif not stage.episodes and (name != "train" or self._submitted > submitted or before_s):
            self.paces.setdefault(name, []).append(in_all_s)

    @property
    def turns(self) -> int:
        """Count the valid answers."""
        return self.calls - self.invalid_answers

    @property
    def _all_played(self) -> int:
        return self._played + self.episodes_done - self.episodes_before

    def expect(
        self, plan: Sequence[Stage], took_s: Mapping[Stage, float], paces: Mapping[str, list[float]]
    ) -> None:
        """Set the plan of the whole run, and the paces known from before."""
        self.plan, self.took_s, self.share = tuple(plan), dict(took_s), 0.0
        self.paces = {name: list(seconds) for name, seconds in paces.items()}

    # Events -------------------------------------------------------------------------------------

    def tell(self, kind: str, text: str, **facts: Any) -> None:
        """Add an event."""
        self.events.append(Event(self.now(), kind, text, facts))

    def warn(self, text: str) -> None:
        """Add a warning, for people to see at once."""
        self.warning = text
        self.tell("warning", f"warning: {text}")

    def count_job(self) -> None:
        """Count a job submitted here."""
        self._submitted += 1

    def count_answer(self, agent: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Add one received answer."""
        self.calls += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        counts = self.tokens_by_agent.get(agent, (0, 0))
        self.tokens_by_agent[agent] = (counts[0] + prompt_tokens, counts[1] + completion_tokens)

    def count_first(self, agent: str, *, is_invalid: bool) -> None:
        """Add the first answer of a turn."""
        answers, invalid = self.first_answers.get(agent, (0, 0))
        self.first_answers[agent] = (answers + 1, invalid + is_invalid)

    def count_retry(self, reason: str) -> None:
        """Count another try: of a call, of a look at a job, of a task."""
        self.retries += 1
        self.last_trouble = reason
