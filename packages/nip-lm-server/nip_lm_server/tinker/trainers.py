"""A resident trainer that starts at its first call, and again when it has ended.

TrainerProcess   the methods of `training.resident`, by a process that may come and go
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from nip_base.machine.devices import only_on, training_memory
from nip_base.machine.processors import SMALL_BYTES, most_threads, usual_threads, weights_bytes
from nip_lm_server.auth import without_secrets
from nip_lm_server.training.resident.resident_client import ResidentClient, ResidentDied
from nip_lm_server.training.resident.types import AdamParams, Datum, LoraConfig, Output

DTYPE = "float32"
"""Of the frozen base on the processors; on a GPU it is half as large."""
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 30.0
"""Longest pause before a process that ended is started again: one that can't start would otherwise
keep a machine busy."""


class TrainerProcess:
    """The trainer of a base model. After `ResidentDied` the next call has a new, empty process."""

    def __init__(self, base: Path, device: str, environment: Mapping[str, str], log: Path):
        cuda = device.startswith("cuda")
        self._base, self._log = base, log
        # The process sees no device but its own, so it needs no number.
        self._device = "cuda" if cuda else "cpu"
        self._dtype = "bfloat16" if cuda else DTYPE
        # A number that stays: with another one sums would round differently after a kill.
        weights = weights_bytes(base) or SMALL_BYTES
        self._threads = usual_threads(environment) or most_threads(weights)
        children = {**without_secrets(environment), **training_memory(environment)}
        self._environment = only_on(children, device, "training_device")
        self._client: ResidentClient | None = None
        self._pause_s = 0.0

    async def create_model(self, model_id: str, lora: LoraConfig) -> None:
        """Draw a new adapter."""
        async with self._at_work() as client:
            await client.create_model(model_id, lora)

    async def forward_backward(
        self,
        model_id: str,
        data: Sequence[Datum],
        loss_fn: str,
        config: Mapping[str, float],
        *,
        forward_only: bool,
    ) -> Output:
        """Compute a loss, and add its gradient."""
        async with self._at_work() as client:
            output = await client.forward_backward(
                model_id, data, loss_fn, config, forward_only=forward_only
            )
            self._pause_s = 0.0
            return output

    async def optim_step(self, model_id: str, adam: AdamParams) -> dict[str, float]:
        """Step with the gradient."""
        async with self._at_work() as client:
            return await client.optim_step(model_id, adam)

    async def save(self, model_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write a model."""
        async with self._at_work() as client:
            await client.save(model_id, directory, optimizer=optimizer)

    async def load(
        self, model_id: str, directory: Path, lora: LoraConfig | None, *, optimizer: bool
    ) -> None:
        """Read a model."""
        async with self._at_work() as client:
            await client.load(model_id, directory, lora, optimizer=optimizer)

    async def drop_model(self, model_id: str) -> None:
        """Forget a model."""
        async with self._at_work() as client:
            await client.drop_model(model_id)

    async def stop(self) -> None:
        """End the process."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[ResidentClient]:
        """Give a process that runs; one that ends within is not used again."""
        if self._client is None:
            # Each end without work in between waits twice as long as the one before.
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
            self._log.parent.mkdir(exist_ok=True)
            self._client = await ResidentClient.start(
                self._base,
                device=self._device,
                dtype=self._dtype,
                threads=self._threads,
                environment=self._environment,
                log=self._log,
            )
        try:
            yield self._client
        except ResidentDied:
            await self.stop()
            raise
