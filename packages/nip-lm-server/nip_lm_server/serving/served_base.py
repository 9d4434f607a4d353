"""A slot of the server, and a base model in it with its answering adapters.

Slot         one engine of the configuration, with all base models that it has ever served
ServedBase   a base model: the life of its engine, its proof, its adapters

Nothing answers that was not proved since the engine came up. Adapters beyond `loaded_adapters` are
unloaded, the one with the oldest last request first, but none that is in use.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nip_base.machine.devices import one_queue, overlap
from nip_base.proof import Proof
from nip_base.spec import EngineSpec
from nip_lm_server.engines.base import Engine, EngineError
from nip_lm_server.serving.engine_lifecycle import DRAIN_POLL_S, DRAIN_S, EngineLifecycle
from nip_lm_server.serving.training_place import Trainer
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import AdapterError, ModelStore, NotProvedError

LOAD_TIMEOUT_S = 60.0
"""Longest wait of a request for its adapter to be loaded. By a rule of thumb: a loading takes
seconds, and with much less its requests would be refused in vain; with much more, a client's own
patience may end first, and it learns no reason."""
RESTORED_AFTER_SLEEP = 4
"""So many adapters are proved before an engine that slept answers again. Every request waits for
that. The adapters of the last requests are likely those of the next ones; the others are proved at
their next request."""
RETRY_PROBLEM_S = 30.0
"""An adapter that could not be loaded is tried again after this, at its next request. Each try
reads all its files, which every request would start; a cause, such as a full card, passes
slowly."""

MakeEngine = Callable[[str, str], Engine]
"""(path, served name) -> an engine that is not started."""

_log = logging.getLogger("nip.lm_server.engine")


@dataclass
class Slot:
    """One engine of the configuration, with all base models it has ever served."""

    spec: EngineSpec
    base_model: str
    make_engine: MakeEngine
    trainer: Trainer
    training_device: str
    engine_device: str
    bases: "dict[str, ServedBase]" = field(default_factory=dict)
    publishing: asyncio.Lock = field(default_factory=asyncio.Lock)  # in the order of trainings

    def leaves_for(self, device: str) -> bool:
        """Say whether its engines leave their device while something trains on `device`."""
        # A user may ask for it on processors too, which engine and training share by themselves.
        if self.spec.share_device == "yes":
            return one_queue(self.training_device, device)
        return self.spec.share_device == "auto" and overlap(self.engine_device, device)

    @property
    def is_lent(self) -> bool:
        """Say whether a training has the device of its engines."""
        return any(base.is_lent for base in self.bases.values())

    def list_active(self) -> "list[ServedBase]":
        """List the wanted base models, in the order they were made."""
        return [base for base in self.bases.values() if base.wanted != "stopped"]


class ServedBase(EngineLifecycle):
    """A base model of a slot. Its engine loads `path`.

    `in_use` counts the requests for each model; `max_model_len` is known once the engine has run,
    in an earlier life too.
    """

    def __init__(
        self,
        slot: Slot,
        name: str,
        path: str,
        database: Database,
        models: ModelStore,
        in_use: Counter[str],
    ):
        super().__init__(slot.make_engine(path, name))
        # Before there were several engines there was one epoch.
        epoch = database.get_meta("engine_epoch")
        self.engine.epoch = database.get_meta(f"engine_epoch {name}", epoch)
        self.slot, self.name, self.path = slot, name, path
        self.max_model_len = database.get_meta(f"max_model_len {name}") or None
        self.last_request_s = 0.0  # the time of its last request, on the monotonic clock
        self.stopped_on_request = False  # and not for another one, which had to have its place
        self.returning: asyncio.Task[None] | None = None  # brings it back for a request
        self._expecting = 0  # requests that wait for that
        self._database, self._models, self._in_use = database, models, in_use
        self._proved = False  # the base model itself
        self._adapters: OrderedDict[str, None] = OrderedDict()  # that answer, newest request last
        self._last_used: frozenset[str] = frozenset()  # before the engine went down
        self._unproved: dict[str, None] = {}  # loaded before a sleep, without a request since
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, str] = {}
        self._failed_s: dict[str, float] = {}  # when loading last failed, on the monotonic clock

    def answers_to(self, model: str) -> bool:
        """Say whether `model` is this base, or an adapter of it, and was proved."""
        return model in self._adapters or (model == self.name and self._proved)

    def note_request(self, model: str) -> None:
        """Remember the time of this request for the model."""
        self.last_request_s = time.monotonic()
        if model in self._adapters:
            self._adapters.move_to_end(model)

    @property
    def is_displaced(self) -> bool:
        """Say whether another base model has its place: its next request brings it back."""
        return self.wanted == "stopped" and not self.stopped_on_request

    @contextlib.contextmanager
    def expect_return(self) -> Iterator[None]:
        """Within, a request waits for its return, and is answered before it makes room again."""
        self._expecting += 1
        try:
            yield
        finally:
            self._expecting -= 1

    async def make_room(self) -> None:
        """Stop for another base model, after running and waiting requests have been answered."""
        deadline_s = time.monotonic() + DRAIN_S
        # Without this, two base models with requests in turn would displace each other before
        # either had answered.
        while self._expecting and time.monotonic() < deadline_s:  # noqa: ASYNC110 (no event is set)
            await asyncio.sleep(DRAIN_POLL_S)
        await self.set_wanted("stopped", drain=True)

    def failed_lately(self, name: str) -> bool:
        """Say whether loading this failed within RETRY_PROBLEM_S."""
        # Without a failure: so long ago that it counts no more.
        return time.monotonic() - self._failed_s.get(name, -RETRY_PROBLEM_S) < RETRY_PROBLEM_S

    def note_failure(self, name: str, problem: str = "") -> None:
        """Remember the time of this failed loading, and its problem."""
        self._failed_s[name] = time.monotonic()
        self._failures[name] = problem

    def get_failure(self, name: str) -> str:
        """Return the problem of a failed loading; "" where it did not fail."""
        return self._failures.get(name, "")

    def describe_absence(self) -> str:
        # Not "stopped, start it", as for others: that would take the device from the training.
        if self.is_displaced and self.slot.is_lent:
            return "made room for another, and comes back after the training that has its device"
        return super().describe_absence()

    async def close(self) -> None:
        # A return or loading under way would start the engine again, or load into one that goes.
        if self.returning is not None:
            self.returning.cancel()
            await asyncio.gather(self.returning, return_exceptions=True)
        for name in [*self._loading]:
            await self.stop_loading(name)
        await super().close()

    async def prove(self, digest: str) -> Proof:
        """Compare the base model's answers with the weights of `digest`.

        Raises NotProvedError if they differ, AdapterError if the weights are damaged.
        """
        await self._models.verify_aside(digest)
        proof = await self.engine.prove(self.name, self._models.path(digest))
        if not proof.matches:
            raise NotProvedError(f"{self.name} does not answer with its weights: {proof.detail}")
        return self._with_epoch(proof)

    def _with_epoch(self, proof: Proof) -> Proof:
        return replace(proof, detail={**proof.detail, "engine_epoch": self.engine.epoch})

    # Life

    async def _restore(self, woken: bool) -> None:
        # 1. Prove a base model that was made here. Without a row it is being published, and proved
        #    then; or it is the configured one, without weights on record.
        row = self._models.get_row(self.name)
        if row is not None:
            try:
                proof = await self.prove(row.digest)
            except AdapterError as error:
                # A base model that is not proved must not answer: the engine counts as not started.
                raise EngineError(str(error)) from error
            self._models.note_proof(self.name, proof)
        self._proved = True
        # 2. Load and prove the newest adapters; where the engine only slept and has them still,
        #    those of the last requests. The others are proved at their next request.
        rows = self._models.list_adapters(self.name)[: self.slot.spec.loaded_adapters]
        self._unproved = {}
        if woken:
            rows = [row for row in rows if row.name in self._last_used]
            self._unproved = dict.fromkeys(self.engine.loaded_adapters())
        for row in rows:
            await self.load_listed(row.name, row.digest)
        self._adapters = OrderedDict.fromkeys(reversed(self._adapters))  # the newest came first

    def _went_down(self) -> None:
        self._proved = False
        # Also called for an engine that is down already, without a request since.
        if self._adapters:
            self._last_used = frozenset([*self._adapters][-RESTORED_AFTER_SLEEP:])
        self._adapters.clear()

    def _epoch_began(self) -> None:
        self._database.set_meta(f"engine_epoch {self.name}", self.engine.epoch)

    # Adapters

    async def load(self, name: str, path: Path) -> Proof:
        """Make an adapter answer to `name`, with proof, while the engine goes on.

        Its caller has verified the files in `path`. Raises NotProvedError if it does not answer
        with its weights, EngineError if it can't be loaded; then it does not answer at all.
        """
        self._unproved.pop(name, None)
        # At work, so that the engine does not go to sleep over it.
        with self.keep_at_work():
            proof = await self._load_and_prove(name, path)
        self._adapters[name] = None
        # The ones with the oldest requests make room, those from before a sleep first.
        surplus = len(self._unproved) + len(self._adapters) - self.slot.spec.loaded_adapters
        rivals = [*self._unproved, *[*self._adapters][:-1]]
        idle = [rival for rival in rivals if rival not in self._in_use]
        for rival in idle[: max(0, surplus)]:
            await self.unload(rival)
        return self._with_epoch(proof)

    async def _load_and_prove(self, name: str, path: Path) -> Proof:
        engine = self.engine
        try:
            await engine.load_adapter(name, path)
            proof = await engine.prove(name, path)
            if not proof.matches:
                raise NotProvedError(
                    f"{name} does not answer with the weights that were saved: {proof.detail}"
                )
        except BaseException:
            # Cancellation included: an adapter that isn't proved must not answer.
            if engine.state == "running":
                await engine.unload_adapter(name)
            raise
        return proof

    async def unload(self, name: str) -> None:
        """Stop answering to an adapter's name."""
        self._adapters.pop(name, None)
        self._unproved.pop(name, None)
        # An engine that is down has none loaded; a sleeping one proves each before it answers.
        if self.engine.state == "running":
            await self.engine.unload_adapter(name)

    async def load_once(self, name: str, load: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Load a missing adapter, once for all its requests, and wait at most LOAD_TIMEOUT_S.

        One that could not be loaded is tried again, as the problem may have passed.
        """
        # The request is then refused with the problem on record, at once.
        if self.failed_lately(name):
            return
        task = self._loading.get(name)
        if task is None:
            task = asyncio.create_task(load(), name=f"load {name}")
            self._loading[name] = task
            task.add_done_callback(lambda loading: self._end_loading(name, loading))
        # `wait` leaves the loading to the others who wait for it when this request's time is up.
        await asyncio.wait({task}, timeout=LOAD_TIMEOUT_S)

    def _end_loading(self, name: str, task: "asyncio.Task[None]") -> None:
        self._loading.pop(name, None)
        # Logged here, since the requests that waited may be gone.
        if not task.cancelled() and task.exception() is not None:
            _log.error("loading %s: %s", name, task.exception())

    async def stop_loading(self, name: str) -> None:
        """End the loading of an adapter, if it goes on."""
        task = self._loading.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def load_listed(self, name: str, digest: str) -> None:
        """Load an adapter of the table, and note the outcome there.

        Raises EngineError if the engine is gone, which is no fault of the adapter.
        """
        try:
            await self._models.verify_aside(digest)
            proof = await self.load(name, self._models.path(digest))
        except (AdapterError, EngineError) as error:
            if self.engine.state != "running":
                raise EngineError(str(error)) from error
            _log.error("adapter not served: %s: %s", name, error)
            self._models.note_problem(name, str(error))
            self.note_failure(name)
            return
        if self._models.get_row(name) is None:  # deleted meanwhile
            await self.unload(name)
        else:
            self._models.note_proof(name, proof)
