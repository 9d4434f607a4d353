"""The engines of a server: the models for which they answer, and the places of trainings.

EnginePool.using                 the engine that answers for a model, held for a request
EnginePool.engine_for            the same for a moment, and only if the model is loaded
EnginePool.publish, withdraw     make a committed model answer, with proof; and the reverse
EnginePool.publish_adapter       the same for an adapter that `guests` keeps, and not the table
EnginePool.training_place        the trainer and the device of a base model
EnginePool.training_on_device    within, an engine that shares the device leaves it

A server has one *slot* for each engine of its configuration. A slot serves its configured base
model; a base model that was made here (full training, a merged stack) takes the slot over, since
two do not fit on one device, unless the slot may serve several (`bases_at_once`). The earlier one
is still there: a request for it starts it again in the place of the new one, and so on. Running
answers end first, and a request waits for its engine's start as it does for an adapter.

A request for an adapter that is not loaded waits until it is loaded and proved.
"""

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from nip_base.api_errors import ApiError, model_not_found
from nip_base.proof import Proof
from nip_lm_server.engines.base import Engine, EngineError
from nip_lm_server.serving.engine_lifecycle import Wanted
from nip_lm_server.serving.guests import Guests
from nip_lm_server.serving.served_base import LOAD_TIMEOUT_S, ServedBase, Slot
from nip_lm_server.serving.training_place import TrainingPlace
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import AdapterError, ModelStore

READY_TIMEOUT_S = 600.0
"""Longest wait of a finished training for an engine to load its adapter, not counting the time for
which a training has the device. By a rule of thumb: a large model takes minutes to start, and a job
that trained for hours must not fail for that; with much more, a job with a broken engine would look
as if it went on."""
RETRY_AFTER_S = 5
"""A request so often costs next to nothing, and notices the return of an engine soon."""

_log = logging.getLogger("nip.lm_server.engine")


class EnginePool:
    """The engines of one server."""

    def __init__(self, slots: Sequence[Slot], database: Database, models: ModelStore):
        self._slots = tuple(slots)
        self._database, self._models = database, models
        self._in_use: Counter[str] = Counter()
        self.guests: Guests | None = None
        for slot in self._slots:
            self._add_base(slot, slot.base_model, slot.spec.model)
        # Oldest first, so that a base model is entered before the models made of it.
        for row in models.list_rows():
            parent = self._find(row.base_model) if row.kind == "base" else None
            # A model over a base model of another configuration waits for that configuration.
            if parent is not None:
                self._add_base(parent.slot, row.name, str(models.path(row.digest)))

    # Life

    async def start(self) -> None:
        """Start every slot. Raises EngineError if the engine of a configured base can't start.

        A base model that was made here and can't start is a problem of that model, and its slot
        serves the configured one.
        """
        for slot in self._slots:
            for base in self._list_formerly_active(slot):
                try:
                    await self._activate(base)
                except EngineError as error:
                    # The server was started for this one, and its slot has nothing to fall back to.
                    if base.name == slot.base_model:
                        raise
                    self._models.note_problem(base.name, str(error))
                    # Or attempts to start it would go on, in the place of the configured one.
                    await base.set_wanted("stopped")
            if not slot.list_active():
                await self._activate(slot.bases[slot.base_model])

    async def stop(self) -> None:
        """Stop every engine."""
        for base in self.bases():
            await base.close()

    # Serving

    @asynccontextmanager
    async def using(self, model: str) -> AsyncIterator[Engine]:
        """Hold the engine of `model`: within, its adapter stays loaded.

        Waits for an adapter that has to be loaded, and for a base model that has to get its place
        back. Raises ApiError 404 if there is no such model, 503 (with Retry-After where waiting
        helps) if it can't answer at the moment.
        """
        self._in_use[model] += 1  # from here on, so that no other request unloads it meanwhile
        try:
            with contextlib.ExitStack() as waiting:
                if not self.is_served(model):
                    await self._bring(model, waiting)
                serving = self._find_serving(model)
                # Expected until it is at work, without a gap: in a gap, another request could
                # displace the base model that came back for this one.
                with serving.keep_at_work():
                    waiting.close()
                    yield serving.engine
        finally:
            self._in_use[model] -= 1
            # `ServedBase.load` takes a model for idle that is not in here.
            if not self._in_use[model]:
                del self._in_use[model]

    def engine_for(self, model: str) -> Engine:
        """Return the engine of `model` for a moment. Raises ApiError as `using` does."""
        return self._find_serving(model).engine

    def is_served(self, model: str) -> bool:
        """Say whether a request for `model` would be answered now."""
        base = self._find_answering(model)
        return base is not None and base.is_ready

    def bases(self) -> tuple[ServedBase, ...]:
        """List all base models, stopped ones too, slot by slot."""
        return tuple(base for slot in self._slots for base in slot.bases.values())

    def base_models(self) -> tuple[str, ...]:
        """Names of all base models."""
        return tuple(base.name for base in self.bases())

    def names(self) -> tuple[str, ...]:
        """Names that requests may have: of base models, then of trained models, newest first."""
        rows, bases = reversed(self._models.list_rows()), self.base_models()
        return (*bases, *(row.name for row in rows if row.base_model in bases))

    def base(self, base_model: str) -> ServedBase:
        """The base model of this name, and its engine's life. Raises KeyError."""
        base = self._find(base_model)
        if base is None:
            raise KeyError(base_model)
        return base

    async def publish(self, name: str, digest: str) -> Proof:
        """Make a committed model answer to `name`, and prove it.

        An adapter is loaded while its engine goes on; a base model gets a start of the engine.
        Raises AdapterError if it does not answer with the weights that were saved; then it does
        not answer at all.
        """
        # Every file is read again: the model may be older than this server, committed before a
        # kill. In a thread, since requests are answered meanwhile.
        manifest = await self._models.verify_aside(digest)
        if manifest.kind == "adapter":
            return await self.publish_adapter(name, manifest.base_model, self._models.path(digest))
        slot = self.base(manifest.base_model).slot
        async with slot.publishing:
            try:
                return await self._publish_base(name, digest, slot)
            except EngineError as error:
                # A trouble of this model alone: the job that made it fails, and the server goes on.
                raise AdapterError(f"the engine can't load {name}: {error}") from error

    async def _publish_base(self, name: str, digest: str, slot: Slot) -> Proof:
        earlier_bases = slot.list_active()
        # Published once more, it has its place already.
        if name not in slot.bases:
            self._add_base(slot, name, str(self._models.path(digest)))
        try:
            await self._activate(slot.bases[name])
            return await slot.bases[name].prove(digest)
        except BaseException:
            # Cancellation included: the earlier base models have this place again.
            await slot.bases.pop(name).close()
            for base in earlier_bases:
                # Not this one, which may have been among them.
                if base.name in slot.bases:
                    await self._activate(base)
            raise

    async def publish_adapter(self, name: str, base_model: str, path: Path) -> Proof:
        """`publish` an adapter that lies in `path`, whose files its caller has verified."""
        base = self.base(base_model)
        # One at a time in a slot: a new base model takes away the engine that loads an adapter.
        async with base.slot.publishing:
            try:
                # A job succeeds with a proof, and only a running engine gives one. So an engine is
                # started that made room meanwhile, or that a person has stopped or put to sleep:
                # hours of training are worth more than its rest.
                if base.wanted != "running":
                    await self._activate(base)
                await base.wait_until_ready(READY_TIMEOUT_S)
                return await base.load(name, path)
            except EngineError as error:
                raise AdapterError(f"the engine can't load {name}: {error}") from error

    async def withdraw(self, name: str) -> None:
        """Stop answering to `name`; no error if it doesn't."""
        for loading in self.bases():
            # A loading under way would have it answer again.
            await loading.stop_loading(name)
        base = self._find(name)
        # The configured one stays, as no job made it: its slot falls back to it when others go.
        if base is not None and name != base.slot.base_model:
            slot = base.slot
            await slot.bases.pop(name).close()
            # Or its slot would answer with no model at all.
            if not slot.list_active():
                await self._activate(slot.bases[slot.base_model])
            return
        answering = self._find_answering(name)
        if answering is not None:
            await answering.unload(name)

    async def set_wanted(self, base_model: str, state: Wanted) -> None:
        """Start, stop or put to sleep. Raises KeyError, or EngineError if it can't be done."""
        base = self.base(base_model)
        if state == "running":
            await self._activate(base)
        else:
            # One that a person stopped must not come back with the next request for it.
            base.stopped_on_request = True
            await base.set_wanted(state)

    # Training

    def training_place(self, base_model: str) -> TrainingPlace:
        """The trainer, the device and the limits for the fine-tuning of `base_model`.

        Raises KeyError, or ApiError 503 if its engine never ran.
        """
        base = self.base(base_model)
        # Only its engine knows the length of the longest example, once it has run.
        if base.max_model_len is None:
            raise self._explain_silence(base_model)
        return TrainingPlace(
            base_model=base_model,
            base_model_path=base.path,
            device=base.slot.training_device,
            trainer=base.slot.trainer,
            capabilities=base.engine.capabilities,
            max_model_len=base.max_model_len,
            chat_template_kwargs=base.slot.spec.options.get("chat_template_kwargs", {}),
        )

    @asynccontextmanager
    async def training_on_device(self, base_model: str) -> AsyncIterator[bool]:
        """Within, the engines sharing the device of this training sleep or are stopped.

        Yields whether there are any. Afterwards they are back with their adapters, even after an
        error inside, unless another training has the device by then.
        """
        device = self.base(base_model).slot.training_device
        # One that a user has stopped or put to sleep is away already, and is not brought back
        # afterwards.
        sharing = [
            base
            for base in self.bases()
            if base.slot.leaves_for(device) and base.wanted == "running"
        ]
        async with AsyncExitStack() as lent:
            for base in sharing:
                await lent.enter_async_context(base.lend())
            yield bool(sharing)

    async def wait_until_back(self, base_model: str) -> None:
        """Wait for an engine lent to another training. `publish` reports its problems.

        Called before `publish`, which keeps its slot to itself while it waits: a wait of hours for
        a training would keep every other model of the slot from being published.
        """
        base = self.base(base_model)
        # Only for an engine lent to a training: no other wait is that long. `publish` meets its
        # problems next, with a limit of its own, and reports them better.
        if base.is_lent:
            with contextlib.suppress(EngineError):
                await base.wait_until_ready(READY_TIMEOUT_S)

    # Inside

    async def _bring(self, model: str, waiting: contextlib.ExitStack) -> None:
        """Make a silent model answer if it could, or wait for it as long as requests may."""
        row, base = self._models.get_row(model), self._find(model)
        guest = self._find_guest(model) if row is None and base is None else None
        # An adapter answers where its base model does.
        if base is None and (row is not None or guest is not None):
            base = self._find(row.base_model if row is not None else guest or "")
        # There is no such model: the next look for its engine says so.
        if base is None:
            return
        # 1. Its base model, if another one has its place. One with a problem on record is left
        #    alone: the answering one would stop for it, most likely in vain. A person can start it.
        base_row = self._models.get_row(base.name)
        is_well = base_row is None or base_row.problem is None
        if base.is_displaced and is_well and not base.failed_lately(base.name):
            waiting.enter_context(base.expect_return())
            # Once for all requests that wait for it.
            if base.returning is None or base.returning.done():
                name = f"bring {base.name} back"
                base.returning = asyncio.create_task(self._bring_back(base), name=name)
            # `wait` leaves the task running when this request gives up: others wait for it, too.
            await asyncio.wait({base.returning}, timeout=LOAD_TIMEOUT_S)
        # 2. An adapter that its engine has not loaded, as after a restart. Not while its base model
        #    starts: that takes minutes, and a request that is told to come back costs its client
        #    less than one that hangs. An answering one is left as it is.
        is_adapter = row is not None and row.kind != "base"
        if row is not None and is_adapter and base.is_ready and self._find_answering(model) is None:
            await base.load_once(model, partial(base.load_listed, model, row.digest))
        if guest is not None and base.is_ready and self._find_answering(model) is None:
            await base.load_once(model, partial(self._load_guest, model, base))

    async def _bring_back(self, base: ServedBase) -> None:
        """Start a displaced base model in its old place; if it can't start, the present one goes
        on.
        """
        async with base.slot.publishing:
            # While this waited for its turn it was brought back, or a training took the device.
            if not base.is_displaced or base.slot.is_lent:
                return
            earlier_bases = base.slot.list_active()
            try:
                await self._activate(base)
            except EngineError as error:
                _log.error("%s can't be brought back: %s", base.name, error)
                # Or the next request for it would try, and stop the present one, at once again.
                base.note_failure(base.name)
                self._models.note_problem(base.name, str(error))
                await base.set_wanted("stopped")
                for earlier_base in earlier_bases:
                    await self._activate(earlier_base)

    async def _load_guest(self, name: str, base: ServedBase) -> None:
        """Compare the files of a guest's adapter, then load and prove it."""
        assert self.guests is not None
        try:
            await base.load(name, await self.guests.verify(name))
        except (AdapterError, EngineError) as error:
            if base.engine.state != "running":
                raise EngineError(str(error)) from error
            _log.error("adapter not served: %s: %s", name, error)
            base.note_failure(name, str(error))

    def _find_guest(self, model: str) -> str | None:
        """The base model of an adapter that is not in the table of models."""
        return None if self.guests is None else self.guests.find_base(model)

    def _add_base(self, slot: Slot, name: str, path: str) -> None:
        slot.bases[name] = ServedBase(slot, name, path, self._database, self._models, self._in_use)

    async def _activate(self, base: ServedBase) -> None:
        """Start a base model in its slot, and stop others until there is room."""
        slot = base.slot
        # 1. The one with the oldest last request goes first, since the others are likelier to be
        #    asked for again; the configured one last, to which the slot falls back.
        rivals = [rival for rival in slot.list_active() if rival is not base]
        rivals.sort(key=lambda rival: (rival.name == slot.base_model, rival.last_request_s))
        for rival in rivals[: max(0, len(rivals) + 1 - slot.spec.bases_at_once)]:
            await rival.make_room()
        try:
            # 2. Start it; it now tells the length of its context.
            base.stopped_on_request = False
            await base.set_wanted("running")
            # On record too: jobs need it while the engine is away.
            base.max_model_len = base.engine.max_model_len
            self._database.set_meta(f"max_model_len {base.name}", base.max_model_len or 0)
        finally:
            # 3. Write down the active base models, for the next start of the server. One that
            #    failed to start is among them, since attempts to start it go on.
            self._database.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
                f"active {slot.base_model}",
                json.dumps([active.name for active in slot.list_active()]),
            )

    def _list_formerly_active(self, slot: Slot) -> list[ServedBase]:
        """List the slot's base models from the server's last run, but those deleted since."""
        key = f"active {slot.base_model}"
        row = self._database.fetch_one("SELECT value FROM meta WHERE key = ?", key)
        names = [name for name in (json.loads(row["value"]) if row else []) if name in slot.bases]
        return [slot.bases[name] for name in names or [slot.base_model]]

    def _explain_silence(self, model: str) -> ApiError:
        base, row = self._find(model), None
        if base is None:
            row, guest = self._models.get_row(model), self._find_guest(model)
            name = guest if row is None else row.base_model
            base = None if name is None else self._find(name)
            if base is None:
                return model_not_found(model, self.names())
        if not base.is_ready:
            # One that made room comes back at its next request, but not during a training.
            returns = base.returning is not None and not base.returning.done()
            is_lent = base.is_away_for_training or (base.is_displaced and base.slot.is_lent)
            helps = base.wanted == "running" or returns or is_lent
            return ApiError(
                503,
                f"The engine of {base.name!r} {base.describe_absence()}",
                code="engine_training" if is_lent else "engine_not_running",
                param="model",
                headers={"Retry-After": str(RETRY_AFTER_S)} if helps else None,
            )
        # It has no problem on record, so asking again helps.
        if row is not None and row.problem is None:
            return ApiError(
                503,
                f"The model {model!r} is not loaded yet",
                code="model_loading",
                param="model",
                # A loading adapter takes seconds; an engine that trains or starts takes longer.
                headers={"Retry-After": "1"},
            )
        problem = row.problem if row is not None else base.get_failure(model) or "it is not loaded"
        return ApiError(
            503,
            f"The model {model!r} exists but is not served: {problem}",
            code="model_not_served",
            param="model",
        )

    def _find(self, base_model: str) -> ServedBase | None:
        return next((base for base in self.bases() if base.name == base_model), None)

    def _find_serving(self, model: str) -> ServedBase:
        """Return the answering base of `model`, and note the request. Raises ApiError as `using`
        does.

        Not one that is about to sleep: it only ends its running answers.
        """
        base = self._find_answering(model)
        if base is None or not base.is_ready:
            raise self._explain_silence(model)
        base.note_request(model)
        return base

    def _find_answering(self, model: str) -> ServedBase | None:
        return next((base for base in self.bases() if base.answers_to(model)), None)
