"""A call to a server of ours: it joins its generation, and waits while the engine advances.

The server answers each request within `wait_s`, with the answer or with how far its engine is
(`nip_lm_server/api/joined.py`). The same request is then sent again and joins the generation. So
the time of an answer has no limit; the time without any progress has one.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from nip_base.wire import JOIN_HEADER
from nip_core.errors import StageError

_SILENCE = 2.0
"""After so many times the settings' time-out a silence counts as a hang, four minutes by default. A
pass over a long prompt is silent until it is over, and may take minutes on a busy machine."""
_LONGEST_WAIT_S = 10.0
"""Well below what proxies let a connection be idle for, which is 30 s at the least."""


class EngineHangsError(StageError):
    """A server's engine has computed nothing for so long that it hangs; no other try would help."""


class EngineWord(BaseModel):
    """A server's words about a call that it has not answered yet. Counters are its engine's."""

    running_s: float = 0.0
    engine: str = ""
    silent_s: float | None = None
    """Since when nothing was computed; None: no engine has the call yet, or it can't tell."""
    prompt_tokens: int | None = None
    generated_tokens: int | None = None


@dataclass
class JoinedCall:
    """One call, and the server's words about it. Twice `timeout_s` without progress is a hang."""

    base_url: str
    body: Mapping[str, Any]
    payload: bytes
    timeout_s: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._tries = 0
        self.words = 0  # heard of the generation while it ran
        self._asked_s, self._silent_s = self.clock(), 0.0

    @cached_property
    def _name(self) -> str:
        """Its name by its request, so that another process joins it too."""
        # Without a seed two calls that say the same are to have two answers.
        has_seed = self.body.get("seed") is not None
        return sha256(self.payload).hexdigest() if has_seed else uuid4().hex

    @property
    def headers(self) -> dict[str, str]:
        """Headers of its requests."""
        wait_s = min(_LONGEST_WAIT_S, self.timeout_s / 4)
        return {JOIN_HEADER: f"{self._name}-{self._tries}", "Prefer": f"wait={wait_s:.3f}"}

    @property
    def request_timeout_s(self) -> float:
        """Longest time of one request: if it takes longer, its connection broke unnoticed."""
        return self.timeout_s / 2

    def ask(self) -> None:
        """Note that a request is sent now."""
        self._asked_s = self.clock()

    def hear(self) -> None:
        """Note that the server has said something."""
        self._silent_s = 0.0

    def begin_anew(self) -> None:
        """Ask for another generation: this one ended without a usable answer."""
        self._tries += 1

    def read(self, raw: bytes) -> EngineWord:
        """Read a 202. Raises EngineHangsError where the engine stands still."""
        self.words += 1
        try:
            word = EngineWord.model_validate_json(raw)
        except ValidationError:  # a proxy's own
            return EngineWord()
        if word.silent_s is not None and word.silent_s > _SILENCE * self.timeout_s:
            raise EngineHangsError(
                f"{self.base_url}: the engine of {self.body['model']!r} ({word.engine}) hangs: it "
                f"has read and written no token for {word.silent_s:.0f} s, while it had calls to "
                "answer. Its device or its thread stands still: look at the server's log, start "
                "the server anew and run again, which pays nothing again. If a single step of this "
                "model takes so long here, raise rollouts.request_timeout_s (now "
                f"{self.timeout_s:g}, and twice that is waited for)"
            )
        return word

    def check_silence(self) -> None:
        """Note a request that ran out of time: too many in a row raise EngineHangsError.

        The time in which a call waits to be sent, for a place or between tries, is no silence of
        the server.
        """
        self._silent_s += self.clock() - self._asked_s
        if self._silent_s > _SILENCE * self.timeout_s * 0.99:
            raise EngineHangsError(
                f"{self.base_url}: the server hangs: it takes connections and has answered "
                f"nothing in {self._silent_s:.0f} s (twice rollouts.request_timeout_s). Look at "
                "its log, start it anew and run again, which pays nothing again"
            )
