"""From the tokens of an answer to its text, piece by piece.

AnswerText   tokens one by one -> text that is certain, cut at the first stop string
tell         wakes those who read answers, on their event loops

`generate` reads a row once, at its end, and `stream` again and again while it grows. Both give the
same text, because every token passes through `AnswerText` alone, however many are read at once.

A token may end in the middle of a character, and what it adds may depend on the tokens before it
(a space that is dropped at the beginning). So a token's text is what it adds to the text of the
tokens just before it, once that does not end in a character that may still be completed. For
byte-level tokenizers the pieces joined are the text of all tokens at once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

_INCOMPLETE = "\ufffd"
_LONGEST_WAIT = 256
"""Tokens after which an incomplete character is taken for broken: it bounds the work per token, as
all that wait are decoded anew. No character has nearly so many tokens; only a row of them, each
begun by the last token of the one before, would be cut in the middle."""

Decode = Callable[[Sequence[int]], str]


class AnswerText:
    """The text of one answer. `decode` turns token ids into text without special tokens."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()):
        self._decode = decode
        self._stops = tuple(stops)
        self._window: list[int] = []  # tokens whose text is certain, and after them the others
        self._context = 0  # how many are certain
        self._context_text = ""
        self._held = ""  # certain but for stop strings
        self._certain: list[str] = []
        self.stopped = False
        """Whether a stop string was found; nothing is added any more."""

    def push(self, token: int) -> None:
        """Add one token. None is added after a stop string: callers hand over all they have."""
        if self.stopped:
            return
        self._window.append(token)
        text = self._decode(self._window)
        waits = text.endswith(_INCOMPLETE) and len(self._window) - self._context < _LONGEST_WAIT
        if len(text) > len(self._context_text) and not waits:
            self._add(text[len(self._context_text) :])
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._context_text = self._decode(self._window)

    def finish(self) -> None:
        """No token comes any more: what was held back is certain now, broken characters too."""
        if not self.stopped and len(self._window) > self._context:
            self._add(self._decode(self._window)[len(self._context_text) :])
        self._window = []
        self._certain.append(self._held)
        self._held = ""

    def take(self) -> str:
        """Return the certain text added since the last call."""
        text = "".join(self._certain)
        self._certain.clear()
        return text

    def _add(self, piece: str) -> None:
        self._held += piece
        # The earliest, whichever stop string it is: what comes after it was never asked for.
        places = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if places:
            self._held = self._held[: min(places)]
            self.stopped = True
        certain = len(self._held) - (0 if self.stopped else self._beginning_of_a_stop())
        self._certain.append(self._held[:certain])
        self._held = self._held[certain:]

    def _beginning_of_a_stop(self) -> int:
        """Measure the longest end of the text that a stop string begins with."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0


class Listening(Protocol):
    """Who waits for an answer to advance, and the event loop that this is on."""

    loop: asyncio.AbstractEventLoop
    progress: asyncio.Event


def tell(listening: Sequence[Listening]) -> None:
    """Set the events of those who listen, by one call to each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
    for each in listening:
        by_loop.setdefault(each.loop, []).append(each.progress)
    for loop, events in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(_set_all, events)


def _set_all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        event.set()
