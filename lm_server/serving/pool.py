"""The engines of a server, which of them answers for a model, and where a model is trained.

EnginePool.using                 the engine that answers for a model, for as long as it does
EnginePool.engine_for            the same for a moment, and only if the model is loaded
EnginePool.publish, withdraw     make a committed model answer, with proof; and the reverse
EnginePool.training_place        with what and where a base model is fine-tuned
EnginePool.training_on_device    within, an engine that shares the device leaves it

A server has one *slot* for each engine of its configuration. A slot serves its configured base
model; a base model that was made here (full training, a merged stack) takes the slot over, since
two do not fit on one device, unless the slot may serve several (`bases_at_once`). What answered
before is still there: it is started again by POST /nip/engines/<base>/start.

Adapters beyond `loaded_adapters` are unloaded, the one that was asked for longest ago first, but
none that is in use. An adapter that is not loaded is loaded and proved when it is asked for; the
request waits for that.
"""

import asyncio
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from nip_lm_server.devices import one_queue, overlap
from nip_lm_server.engines.base import Engine, EngineError, Proof
from nip_lm_server.errors import ApiError, model_not_found
from nip_lm_server.serving.engine_lifecycle import EngineKeeper, Wanted
from nip_lm_server.spec import EngineSpec
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import AdapterError, ModelStore
from nip_lm_server.training.trainers import Trainer, TrainingPlace

READY_TIMEOUT_S = 600.0
"""Longest wait of a finished training for an engine that comes back to load its adapter."""
LOAD_TIMEOUT_S = 60.0
"""Longest wait of a request for its adapter to be loaded."""
RETRY_PROBLEM_S = 30.0
"""An adapter that could not be loaded is tried again after this, when it is asked for."""
RETRY_AFTER_S = 5

_log = logging.getLogger("nip.lm_server.engine")


@dataclass
class _Base:
    """A base model of a slot. `path` is what its engine loads."""

    name: str
    path: str
    keeper: EngineKeeper
    max_model_len: int | None = None  # known once its engine has run, in an earlier life too
    asked_s: float = 0.0  # when it was last asked for, on the monotonic clock
    used: "OrderedDict[str, None]" = field(default_factory=OrderedDict)  # adapters, latest last


@dataclass
class Slot:
    """One engine of the configuration, with all base models that it has ever served."""

    spec: EngineSpec
    base_model: str
    make_engine: Callable[[str, str], Engine]  # (path, served name) -> an engine, not started
    trainer: Trainer
    training_device: str
    engine_device: str
    bases: dict[str, _Base] = field(default_factory=dict)

    def leaves_for(self, device: str) -> bool:
        """Whether its engines leave their device while something trains on `device`."""
        if self.spec.share_device == "yes":
            return one_queue(self.training_device, device)
        return self.spec.share_device == "auto" and overlap(self.engine_device, device)

    def active(self) -> list[str]:
        """Names of the base models that are wanted, in the order they were made."""
        return [name for name, base in self.bases.items() if base.keeper.wanted != "stopped"]


class EnginePool:
    """The engines of one server."""

    def __init__(self, slots: Sequence[Slot], database: Database, models: ModelStore):
        self._slots = tuple(slots)
        self._database = database
        self._models = models
        self._served: dict[str, _Base] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._in_use: Counter[str] = Counter()
        self._failed_s: dict[str, float] = {}  # when loading last failed, on the monotonic clock
        for slot in self._slots:
            self._add_base(slot, slot.base_model, slot.spec.model)
        for row in models.rows():
            found = self._slot_of(row["base_model"]) if row["kind"] == "base" else None
            if found is not None:
                self._add_base(found, row["name"], str(models.path(row["digest"])))

    # Life

    async def start(self) -> None:
        """Start every slot. Raises EngineError if the engine of a configured base can't start.

        A base model that was made here and can't start is a problem of that model, and its slot
        serves the configured one.
        """
        for slot in self._slots:
            for name in self._remembered(slot):
                try:
                    await self._activate(slot, name)
                except EngineError as error:
                    if name == slot.base_model:
                        raise
                    self._models.note_problem(name, str(error))
                    await slot.bases[name].keeper.set_wanted("stopped")
            if not slot.active():
                await self._activate(slot, slot.base_model)

    async def stop(self) -> None:
        """Stop every engine."""
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        for base in self._bases():
            await base.keeper.close()

    # Serving

    @asynccontextmanager
    async def using(self, model: str) -> AsyncIterator[Engine]:
        """The engine that answers for `model`; within, its adapter stays loaded.

        Waits for an adapter that has to be loaded. Raises ApiError 404 if there is no such model,
        503 (with Retry-After where waiting helps) if it can't answer at the moment.
        """
        self._in_use[model] += 1  # from here on, so that nobody unloads what is being loaded
        try:
            if model not in self._served:
                await self._load_if_it_can_be(model)
            yield self.engine_for(model)
        finally:
            self._in_use[model] -= 1
            if not self._in_use[model]:
                del self._in_use[model]

    def engine_for(self, model: str) -> Engine:
        """The engine that answers for `model` now. Raises ApiError as `using` does."""
        base = self._served.get(model)
        if base is not None and base.keeper.engine.state == "running":
            base.asked_s = time.monotonic()
            if model in base.used:
                base.used.move_to_end(model)
            return base.keeper.engine
        raise self._why_not(model)

    def is_served(self, model: str) -> bool:
        """Whether a request for `model` would be answered now."""
        base = self._served.get(model)
        return base is not None and base.keeper.is_ready

    def base_models(self) -> tuple[str, ...]:
        """Names of all base models, those that are stopped too."""
        return tuple(base.name for base in self._bases())

    def engines(self) -> tuple[Engine, ...]:
        """The engines of all base models."""
        return tuple(base.keeper.engine for base in self._bases())

    def keeper(self, base_model: str) -> EngineKeeper:
        """The keeper of a base model's engine. Raises KeyError."""
        return self._base(base_model).keeper

    def max_model_len(self, base_model: str) -> int | None:
        """Longest prompt plus completion, in tokens; None before its engine ever ran."""
        return self._base(base_model).max_model_len

    async def publish(self, name: str, digest: str) -> Proof:
        """Make a committed model answer to `name` and prove that it does.

        An adapter is loaded while its engine goes on; a base model gets a start of the engine.
        Raises AdapterError if it does not answer with the weights that were saved; then it does
        not answer at all.
        """
        manifest = await asyncio.to_thread(self._models.verify, digest)
        try:
            if manifest.get("kind", "adapter") == "base":
                return await self._publish_base(name, digest, manifest["base_model"])
            base = self._base(manifest["base_model"])
            if base.keeper.wanted != "running":
                await self._activate(self._slot(base.name), base.name)
            await base.keeper.until_ready(READY_TIMEOUT_S)
            return await self._load(base, name, digest)
        except EngineError as error:
            raise AdapterError(f"the engine can't load {name}: {error}") from error

    async def withdraw(self, name: str) -> None:
        """Stop answering to `name`; no error if it doesn't."""
        loading = self._loading.pop(name, None)
        if loading is not None:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        slot = next((s for s in self._slots if name in s.bases and name != s.base_model), None)
        if slot is not None:
            base = slot.bases.pop(name)
            await base.keeper.close()
            if not slot.active():
                await self._activate(slot, slot.base_model)
            return
        served = self._served.get(name)
        if served is not None:
            await self._unload(served, name)

    async def set_wanted(self, base_model: str, wanted: Wanted) -> None:
        """Start, stop or put to sleep. Raises KeyError, or EngineError if it can't be done."""
        if wanted == "running":
            await self._activate(self._slot(base_model), base_model)
        else:
            await self._base(base_model).keeper.set_wanted(wanted)

    # Training

    def training_place(self, base_model: str) -> TrainingPlace:
        """With what and where `base_model` is fine-tuned.

        Raises KeyError, or ApiError 503 if its engine never ran.
        """
        slot, base = self._slot(base_model), self._base(base_model)
        if base.max_model_len is None:
            raise self._why_not(base_model)
        return TrainingPlace(
            base_model=base_model,
            base_model_path=base.path,
            device=slot.training_device,
            trainer=slot.trainer,
            max_lora_rank=base.keeper.engine.capabilities.max_lora_rank,
            max_model_len=base.max_model_len,
        )

    @asynccontextmanager
    async def training_on_device(self, base_model: str) -> AsyncIterator[None]:
        """Within, engines that share the device of this training sleep or are stopped.

        Afterwards they are back with their adapters, whatever happened inside.
        """
        device = self._slot(base_model).training_device
        sharing = [
            base
            for slot in self._slots
            if slot.leaves_for(device)
            for base in slot.bases.values()
            if base.keeper.wanted == "running"
        ]
        async with AsyncExitStack() as lent:
            for base in sharing:
                await lent.enter_async_context(base.keeper.lend())
            yield

    # Inside

    def _add_base(self, slot: Slot, name: str, path: str) -> _Base:
        engine = slot.make_engine(path, name)
        # Before there were several engines there was one epoch.
        engine.epoch = self._database.get_meta(
            f"engine_epoch {name}", self._database.get_meta("engine_epoch")
        )
        base: _Base

        async def restore(_: Engine) -> None:
            await self._restore(base)

        def went_down() -> None:
            for served in [n for n, b in self._served.items() if b is base]:
                del self._served[served]
            base.used.clear()

        def epoch_began(started: Engine) -> None:
            self._database.set_meta(f"engine_epoch {name}", started.epoch)

        keeper = EngineKeeper(engine, restore=restore, went_down=went_down, epoch_began=epoch_began)
        length = self._database.get_meta(f"max_model_len {name}") or None
        base = slot.bases[name] = _Base(name, path, keeper, length)
        return base

    async def _activate(self, slot: Slot, name: str) -> None:
        """Start a base model in its slot, stopping those that don't fit beside it."""
        active = [base for base in slot.bases.values() if base.name in slot.active()]
        beside = [base for base in active if base.name != name]
        # The one that was asked for longest ago goes first, the configured one last.
        beside.sort(key=lambda base: (base.name == slot.base_model, base.asked_s))
        for other in beside[: max(0, len(beside) + 1 - slot.spec.bases_at_once)]:
            await other.keeper.set_wanted("stopped")
        try:
            await slot.bases[name].keeper.set_wanted("running")
            length = slot.bases[name].keeper.engine.max_model_len
            slot.bases[name].max_model_len = length
            self._database.set_meta(f"max_model_len {name}", length or 0)
        finally:
            self._database.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
                f"active {slot.base_model}",
                json.dumps(slot.active()),
            )

    def _remembered(self, slot: Slot) -> list[str]:
        """The base models that the slot served when the server last ran."""
        row = self._database.one(
            "SELECT value FROM meta WHERE key = ?", f"active {slot.base_model}"
        )
        names = json.loads(row["value"]) if row else []
        return [name for name in names if name in slot.bases] or [slot.base_model]

    async def _publish_base(self, name: str, digest: str, parent_base: str) -> Proof:
        slot = self._slot(parent_base)
        before = slot.active()
        if name not in slot.bases:
            self._add_base(slot, name, str(self._models.path(digest)))
        try:
            await self._activate(slot, name)
            return await self._prove_base(slot.bases[name], digest)
        except BaseException:
            # Cancellation included: what answered before answers again.
            await slot.bases[name].keeper.close()
            del slot.bases[name]
            for other in before:
                if other in slot.bases:
                    await self._activate(slot, other)
            raise

    async def _prove_base(self, base: _Base, digest: str) -> Proof:
        engine = base.keeper.engine
        await asyncio.to_thread(self._models.verify, digest)
        proof = await engine.prove(base.name, self._models.path(digest))
        if not proof.matches:
            raise AdapterError(f"{base.name} does not answer with its weights: {proof.detail}")
        return _with_epoch(proof, engine)

    async def _restore(self, base: _Base) -> None:
        """Prove what answers with this engine, after it came up: called by the keeper."""
        slot = self._slot(base.name)
        row = self._models.row(base.name)
        if row is not None:
            # A base model that was made here; without a row it is being published, and proved then.
            try:
                proof = await self._prove_base(base, row["digest"])
            except AdapterError as error:
                raise EngineError(str(error)) from error
            self._models.note_proof(base.name, proof)
        self._served[base.name] = base
        limit = slot.spec.loaded_adapters
        for row in self._models.adapters_of(base.name)[:limit]:
            await self._load_listed(base, row["name"], row["digest"])
        base.used = OrderedDict.fromkeys(reversed(base.used))  # the newest came first

    async def _load_listed(self, base: _Base, name: str, digest: str) -> None:
        """Load an adapter of the table and note there how that went.

        Raises EngineError if the engine is gone, which is no fault of the adapter.
        """
        try:
            proof = await self._load(base, name, digest, verify=True)
        except (AdapterError, EngineError) as error:
            if base.keeper.engine.state != "running":
                raise EngineError(str(error)) from error
            _log.error("adapter not served: %s: %s", name, error)
            self._models.note_problem(name, str(error))
            self._failed_s[name] = time.monotonic()
            return
        if self._models.row(name) is None:  # deleted meanwhile
            await self._unload(base, name)
        else:
            self._models.note_proof(name, proof)

    async def _load(self, base: _Base, name: str, digest: str, *, verify: bool = False) -> Proof:
        engine, path = base.keeper.engine, self._models.path(digest)
        if verify:
            await asyncio.to_thread(self._models.verify, digest)
        try:
            await engine.load_adapter(name, path)
            proof = await engine.prove(name, path)
            if not proof.matches:
                raise AdapterError(
                    f"{name} does not answer with the weights that were saved: {proof.detail}"
                )
        except BaseException:
            # Cancellation included: an adapter that isn't proved must not answer.
            if engine.state == "running":
                await engine.unload_adapter(name)
            raise
        self._served[name] = base
        base.used[name] = None
        await self._unload_surplus(base)
        return _with_epoch(proof, engine)

    async def _unload_surplus(self, base: _Base) -> None:
        surplus = len(base.used) - self._slot(base.name).spec.loaded_adapters
        idle = [name for name in [*base.used][:-1] if name not in self._in_use]
        for name in idle[: max(0, surplus)]:
            await self._unload(base, name)

    async def _unload(self, base: _Base, name: str) -> None:
        base.used.pop(name, None)
        self._served.pop(name, None)
        if base.keeper.engine.state == "running":
            await base.keeper.engine.unload_adapter(name)

    async def _load_if_it_can_be(self, model: str) -> None:
        """Load an adapter that isn't, and wait for it, but not for ever.

        One that could not be loaded is tried again, as what was wrong may have passed.
        """
        row = self._models.row(model)
        failed_s = self._failed_s.get(model, -RETRY_PROBLEM_S)
        if row is None or row["kind"] == "base" or time.monotonic() - failed_s < RETRY_PROBLEM_S:
            return
        slot = self._slot_of(row["base_model"])
        if slot is None or not slot.bases[row["base_model"]].keeper.is_ready:
            return
        task = self._loading.get(model)
        if task is None:
            base = slot.bases[row["base_model"]]
            task = self._loading[model] = asyncio.create_task(
                self._load_listed(base, model, row["digest"]), name=f"load {model}"
            )
            task.add_done_callback(lambda done: self._loaded(model, done))
        await asyncio.wait({task}, timeout=LOAD_TIMEOUT_S)

    def _loaded(self, model: str, task: "asyncio.Task[None]") -> None:
        self._loading.pop(model, None)
        if not task.cancelled() and task.exception() is not None:
            _log.error("loading %s: %s", model, task.exception())

    def _why_not(self, model: str) -> ApiError:
        row = None
        if model in self.base_models():
            base_name = model
        else:
            row = self._models.row(model)
            if row is None or row["base_model"] not in self.base_models():
                return model_not_found(model)
            base_name = row["base_model"]
        keeper = self.keeper(base_name)
        if not keeper.is_ready:
            waiting = keeper.wanted == "running"
            return ApiError(
                503,
                f"The engine of {base_name!r} {keeper.describe_absence()}",
                code="engine_training" if keeper.is_lent else "engine_not_running",
                param="model",
                headers={"Retry-After": str(RETRY_AFTER_S)} if waiting else None,
            )
        if row is not None and row["problem"] is None:
            return ApiError(
                503,
                f"The model {model!r} is not loaded yet",
                code="model_loading",
                param="model",
                headers={"Retry-After": "1"},
            )
        problem = row["problem"] if row is not None else "it is not loaded"
        return ApiError(
            503,
            f"The model {model!r} exists but is not served: {problem}",
            code="model_not_served",
            param="model",
        )

    def _bases(self) -> list[_Base]:
        return [base for slot in self._slots for base in slot.bases.values()]

    def _slot_of(self, base_model: str) -> Slot | None:
        return next((slot for slot in self._slots if base_model in slot.bases), None)

    def _slot(self, base_model: str) -> Slot:
        slot = self._slot_of(base_model)
        if slot is None:
            raise KeyError(base_model)
        return slot

    def _base(self, base_model: str) -> _Base:
        return self._slot(base_model).bases[base_model]


def _with_epoch(proof: Proof, engine: Engine) -> Proof:
    return replace(proof, detail={**proof.detail, "engine_epoch": engine.epoch})
