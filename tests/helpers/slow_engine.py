"""An engine that computes as slowly as a test wants, and can hang.

SlowEngine   answers like the deterministic engine, a token at a time for all of its requests
"""

import asyncio
from typing import Any

from nip_lm_server.engines.base import GenerationRequest, WorkDone
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine
from nip_lm_server.engines.scripted.reply_rules import load_replies


class SlowEngine(DeterministicEngine):
    """Every answer takes `steps` steps of `step_s`; `hangs` stops all of them where they are.

    It counts as engines do: a token of every answer that was begun, also of one that was given up.
    """

    def __init__(self, steps: int = 10, step_s: float = 0.02) -> None:
        super().__init__("sim", load_replies(None))
        self.steps, self.step_s = steps, step_s
        self.hangs = False
        self.generated = self.begun = self.given_up = 0

    async def measure_work(self) -> WorkDone:
        return WorkDone(0, self.generated)

    async def generate(self, request: GenerationRequest) -> Any:
        self.begun += 1
        try:
            for _ in range(self.steps):
                await asyncio.sleep(self.step_s)
                while self.hangs:
                    await asyncio.sleep(self.step_s)
                self.generated += 1
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return await super().generate(request)
