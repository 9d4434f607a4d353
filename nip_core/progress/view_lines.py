"""The lines of a run's view: for people without a live view, and for programs.

Both are asked again and again for the lines now due, and go by the clock of the progress alone.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from nip_core.parameters import HyperParameters
from nip_core.progress.board import Event, Progress
from nip_core.progress.outlook import Doing, State, observe_run
from nip_core.progress.words import (
    between_words,
    count_words,
    format_clock,
    place_words,
    stage_words,
    whole_words,
)

LINE_EVERY_S = 10.0
"""Between two lines on the same thing that goes on."""
SLOW_EVERY_S = 60.0
"""Between two words on a slow run."""
STATE_EVERY_S = 5.0
"""Between two states in JSON."""
_DIGITS = 4
_WORTH_A_LINE_S = 1.0  # that something has gone on


class _New:
    """The events since the last look."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._seen = progress, 0

    def __iter__(self) -> Iterator[Event]:
        events = self._progress.events[self._seen :]
        self._seen += len(events)
        return iter(events)


class PlainLines:
    """Lines for people, each with the time since the start before it."""

    def __init__(
        self, progress: Progress, parameters: HyperParameters, *, only_events: bool = False
    ) -> None:
        """`only_events`: the present work is shown elsewhere."""
        self._progress, self._parameters = progress, parameters
        self._only_events, self._new = only_events, _New(progress)
        self._told_s: dict[tuple[str | None, ...], float] = {}
        self._last_s = progress.began_s
        self._slow_s = -math.inf

    def lines_due(self) -> list[str]:
        """Take the lines due now: each is given once."""
        # 1. Events since the last look.
        progress = self._progress
        lines = [
            self._stamped(event.text, event.at)
            for event in self._new
            if not (self._only_events and event.kind == "begin")  # that goes on
        ]
        now_s = progress.clock()
        if lines:
            self._last_s = now_s
        if self._only_events:
            return lines
        # 2. Present work, each piece for itself, and the whole run with the first of them.
        state = observe_run(progress, self._parameters)
        is_silent = now_s - self._last_s >= LINE_EVERY_S
        due = [doing for doing in state.doing if self._is_due(state, doing)]
        if is_silent and state.doing and not due:  # the work has just begun
            due = [state.doing[0]]
            self._note(state, due[0])
        texts = [place_words(state, doing) for doing in due]
        # 3. No user waits in silence, for any work that takes long.
        if is_silent and not state.doing:
            place = stage_words(state) or between_words(state)
            texts.append(f"{place}, {format_clock(state.stage_s)} so far")
        if texts:
            self._last_s = now_s
            more = [count_words(state.counts)]
            more += [whole_words(state.whole)] if state.whole is not None else []
            more.append(self._slow(state, now_s))
            texts[0] = "; ".join(part for part in (texts[0], *more) if part)
        drawn_s = progress.now()
        return lines + [self._stamped(text, drawn_s) for text in texts]

    def _slow(self, state: State, now_s: float) -> str:
        """Say what is slow, but not in every line."""
        if not state.slow or now_s - self._slow_s < SLOW_EVERY_S:
            return ""
        self._slow_s = now_s
        return state.slow

    def _is_due(self, state: State, doing: Doing) -> bool:
        now_s, key = self._progress.clock(), _key(state, doing)
        # Work that counts began with an event; other work is told of soon, as it begins.
        first_s = LINE_EVERY_S if doing.unit or doing.job else _WORTH_A_LINE_S
        began_s = now_s - doing.elapsed_s
        due_s = self._told_s[key] + LINE_EVERY_S if key in self._told_s else began_s + first_s
        if now_s < due_s:
            return False
        self._note(state, doing)
        return True

    def _note(self, state: State, doing: Doing) -> None:
        self._told_s[_key(state, doing)] = self._progress.clock()

    def _stamped(self, text: str, moment_s: float) -> str:
        elapsed_s = self._progress.clock() - self._progress.began_s
        gone_s = elapsed_s - (self._progress.now() - moment_s)
        return f"[{format_clock(max(gone_s, 0.0))}] {text}"


def _key(state: State, doing: Doing) -> tuple[str | None, ...]:
    return state.stage, str(state.iteration), doing.what, doing.job


class JsonLines:
    """A JSON object in each line: ``at`` (UTC), ``event``, and the fields of that event.

    Of something that has happened that is ``text`` and ``facts``; the event ``progress`` has the
    whole `State`.
    """

    def __init__(self, progress: Progress, parameters: HyperParameters) -> None:
        self._progress, self._parameters = progress, parameters
        self._new, self._told_s = _New(progress), -STATE_EVERY_S

    def lines_due(self) -> list[str]:
        """Take the lines due now: each is given once."""
        progress = self._progress
        lines = [
            _line(event.at, event.kind, text=event.text, facts=dict(event.facts))
            for event in self._new
        ]
        now_s = progress.clock()
        if now_s - self._told_s >= STATE_EVERY_S:
            self._told_s = now_s
            state = asdict(observe_run(progress, self._parameters))
            lines.append(_line(progress.now(), "progress", **state))
        return lines


def _line(moment_s: float, event: str, **parts: Any) -> str:
    moment = datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="milliseconds")
    document = {"at": moment, "event": event, **_rounded(parts)}
    return json.dumps(document, ensure_ascii=False, default=str)


def _rounded(value: Any) -> Any:
    """Round the numbers in `value` for readers; None stands for NaN and infinity."""
    if isinstance(value, float):
        return round(value, _DIGITS) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
