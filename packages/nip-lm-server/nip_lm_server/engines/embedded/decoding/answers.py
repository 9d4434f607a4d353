"""From the tokens of an answer to its text, piece by piece.

AnswerText       tokens one by one -> text that is certain, cut at the first stop string
may_begin        whether one of some words may begin in a token
wake_listeners   wakes the readers of answers, on their event loops

`generate` reads a row once, at its end, and `stream` again and again while it grows. Both give the
same text, because every token passes through `AnswerText` alone, however many are read at once.

A token may end in the middle of a character, and its text may depend on the tokens before it (a
space is dropped at the beginning). So a token's text is the part that it adds to the text of the
tokens just before it, once this does not end in a character that may still be completed. For
byte-level tokenizers the pieces joined are the text of all tokens at once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

_INCOMPLETE = "\ufffd"
_LONGEST_WAIT = 256
"""Tokens after which an incomplete character counts as broken. It bounds the work per token, since
all waiting tokens are decoded anew. No character has nearly so many tokens. Only a row of
characters, each begun by the last token of the one before, would be cut in the middle."""

Decode = Callable[[Sequence[int]], str]


def may_begin(token: str, words: Sequence[str]) -> bool:
    """Tell whether one of these words may begin in a token, in whatever case."""
    text = token.lower()
    ends = [text[i:] for i in range(len(text)) if not (i and "a" <= text[i - 1] <= "z")]
    begins = (end.startswith(w) or w.startswith(end) for end in ends for w in map(str.lower, words))
    return any(begins)


class AnswerText:
    """The text of one answer. `decode` turns token ids into text without special tokens."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()):
        self._decode = decode
        self._stops = tuple(stops)
        self._window: list[int] = []  # tokens whose text is certain, then the others
        self._context = 0  # how many are certain
        self._context_text = ""
        self._held_text = ""  # certain but for stop strings
        self._certain: list[str] = []
        self.stopped = False
        """A stop string was found: no text is added any more."""

    def push(self, token: int) -> None:
        """Add one token. Tokens after a stop string are ignored, so callers need not check."""
        if self.stopped:
            return
        self._window.append(token)
        text = self._decode(self._window)
        is_waiting = (
            text.endswith(_INCOMPLETE) and len(self._window) - self._context < _LONGEST_WAIT
        )
        if len(text) > len(self._context_text) and not is_waiting:
            self._add(text[len(self._context_text) :])
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._context_text = self._decode(self._window)

    def finish(self) -> None:
        """End the text: its held-back part is certain now, broken characters too."""
        if not self.stopped and len(self._window) > self._context:
            self._add(self._decode(self._window)[len(self._context_text) :])
        self._window = []
        self._certain.append(self._held_text)
        self._held_text = ""

    def take(self) -> str:
        """Return the certain text added since the last call."""
        text = "".join(self._certain)
        self._certain.clear()
        return text

    def _add(self, piece: str) -> None:
        self._held_text += piece
        # The earliest stop string ends the answer: the request wants no text after it.
        places = [
            place for place in (self._held_text.find(stop) for stop in self._stops) if place >= 0
        ]
        if places:
            self._held_text = self._held_text[: min(places)]
            self.stopped = True
        certain_length = len(self._held_text) - (0 if self.stopped else self._beginning_of_a_stop())
        self._certain.append(self._held_text[:certain_length])
        self._held_text = self._held_text[certain_length:]

    def _beginning_of_a_stop(self) -> int:
        """Measure the longest end of the text with which a stop string may begin."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(self._held_text)), 0, -1):
            if any(stop.startswith(self._held_text[-length:]) for stop in self._stops):
                return length
        return 0


class Listening(Protocol):
    """A reader that waits for an answer to advance, with its event loop."""

    loop: asyncio.AbstractEventLoop
    progress: asyncio.Event


def wake_listeners(listening: Sequence[Listening]) -> None:
    """Set the events of the listeners, by one call to each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
    for listener in listening:
        by_loop.setdefault(listener.loop, []).append(listener.progress)
    for loop, events in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(_set_all, events)


def _set_all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        event.set()
