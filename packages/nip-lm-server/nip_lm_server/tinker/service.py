"""Tinker's API as the routes see it: sessions, models, futures, samplers, checkpoints.

TinkerService.start, stop          take up an earlier server's requests; leave one's own to the next
TinkerService.submit ...           one method for each thing that a client asks for
TinkerService.wait                 the long poll for a request's result

Bodies that can't be read are an ApiError. The refusal of a readable one becomes the result of its
number, so that the client gets the reason and goes on with the next one.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from nip_base.api_errors import ApiError, wrong_value
from nip_base.disk import want_of_space
from nip_base.spec import name_engines
from nip_lm_server.engines.base import EngineError
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.state.models import AdapterError
from nip_lm_server.tinker.executor import Executor, explain_payloads
from nip_lm_server.tinker.samples import Sampler
from nip_lm_server.tinker.steps import Steps
from nip_lm_server.tinker.storage.folders import Folders
from nip_lm_server.tinker.storage.records import (
    CheckpointRow,
    LoraShape,
    RequestRow,
    SamplerRow,
    SessionRow,
    TinkerModelRow,
)
from nip_lm_server.tinker.storage.store import DATABASE, TinkerStore
from nip_lm_server.tinker.storage.upkeep import drop_rows, sweep_folders
from nip_lm_server.tinker.tinker_bodies import not_found
from nip_lm_server.tinker.trainers import TrainerProcess

FOLDER = "tinker"
POLL_S = 30.0
"""So long a request for a result is held; then 408, at which the SDK asks again without a word."""
KEEP_HOUSE_S = 60.0
"""Seconds between two looks for things to remove."""
SILENT_S = 7 * 24 * 3600.0
"""A session without a sign of life for so long is over: some recipes never end theirs."""
MOST_SNAPSHOTS = 64
"""Unnamed snapshots of a session that are kept; the oldest ones go."""

_log = logging.getLogger("nip.lm_server.tinker")


class TinkerService:
    """A server's sessions, models and samplers of Tinker's API. All methods run on its loop."""

    def __init__(self, state_dir: Path, pool: EnginePool, environment: Mapping[str, str]):
        self.pool, self._state_dir = pool, state_dir
        self._environment, self._logs = environment, state_dir / FOLDER / "logs"
        self.store = TinkerStore(state_dir / DATABASE)
        self.folders = Folders(state_dir / FOLDER)
        self.sampler = Sampler(self.store, pool, self._tell)
        self._executors: dict[str, Executor] = {}
        self._trainers: dict[str, TrainerProcess] = {}
        self._waiters: dict[tuple[str, int], asyncio.Event] = {}
        self._keeper: asyncio.Task[None] | None = None
        pool.guests = self

    # Life

    def start(self) -> None:
        """Go on with an earlier server's requests."""
        sweep_folders(self.store, self.folders)
        for model in self.store.list_open_models():
            if model.base_model in self.pool.base_models():
                self._executor(model.base_model).take_up(model)
        self.sampler.take_up()
        self._keeper = asyncio.create_task(self._keep_house(), name="tinker housekeeping")

    async def stop(self) -> None:
        """End everything between two writes; unfinished requests are done again."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self.sampler.stop()
        for executor in self._executors.values():
            await executor.stop()
        for trainer in self._trainers.values():
            await trainer.stop()
        self.store.close()

    # Sessions

    def create_session(self, metadata: dict[str, object], sdk_version: str) -> str:
        """Begin a session; returns its id."""
        self._check_disk()
        id = f"session-{secrets.token_hex(8)}"
        self.store.add_session(id, metadata, sdk_version)
        return id

    def session(self, id: str, *, open_only: bool = True) -> SessionRow:
        """Return a session. Raises ApiError 404, and 410 for one that is over."""
        row = self.store.find_session(id)
        if row is None:
            raise not_found("session", id)
        if open_only and row.finished_at is not None:
            raise ApiError(
                410,
                f"The session {id[:120]!r} is over: begin another one, and load a checkpoint",
                code="session_over",
                param="session_id",
            )
        return row

    def finish_session(self, id: str, finish: str) -> None:
        """End a session: its models leave the trainer, its snapshots the disk."""
        self.session(id, open_only=False)
        if not self.store.finish_session(id, finish):
            return
        for model in self.store.list_models_of(id):
            executor = self._executors.get(model.base_model)
            if executor is None or not executor.forget(model.id):
                self.folders.remove_states(model.id)
            self.store.drop_payloads_of(model.id)

    # Models

    def model(self, id: str) -> TinkerModelRow:
        """Return a model. Raises ApiError 404."""
        row = self.store.find_model(id)
        if row is None:
            raise not_found("model", id)
        return row

    def add_model(
        self,
        session_id: str,
        number: int,
        base_model: str,
        lora: LoraShape,
        metadata: Mapping[str, object] | None,
        kind: str,
        digest: str,
        payload: bytes,
    ) -> tuple[str, str]:
        """Begin a model by its request 0; returns its id and the request's."""
        self.session(session_id)
        id = f"{session_id}:train:{number}"
        if self._repeats(id, 0, digest):
            return id, request_id(id, 0)
        self._check_base(base_model)
        self._check_disk()
        texts = {key: str(value) for key, value in (metadata or {}).items()}
        with self.store.transaction():
            self.store.add_model(id, session_id, base_model, lora, texts)
            self.store.add_request(id, 0, kind, digest, payload)
        executor = self._executor(base_model)
        executor.take_up(self.model(id))
        executor.submit(id, 0)
        return id, request_id(id, 0)

    def submit(self, model_id: str, seq: int, kind: str, digest: str, payload: bytes) -> str:
        """Enter a model's request, once; returns its id.

        Raises ApiError 404 for an unknown model, 410 for one whose session is over, and 400 for
        another payload under a used number.
        """
        model = self.model(model_id)
        if not self._repeats(model_id, seq, digest):
            self.session(model.session_id)
            self.check_served(model.base_model)
            self._check_disk()
            if seq < 1:
                raise wrong_value("seq_id", f"Invalid 'seq_id': got {seq}, expected 1 or more")
            executor = self._executor(model.base_model)
            executor.take_up(model)
            if executor.is_too_far(model_id, seq):
                raise wrong_value("seq_id", f"The number {seq} is far ahead of what has come")
            too_many = executor.keep(model_id, len(payload))
            if too_many is not None and kind in ("forward_backward", "forward"):
                # Like any refusal: no step is taken with a gradient without this part.
                kind = "refused" if kind == "forward_backward" else "refused_call"
                payload = explain_payloads(seq, too_many).encode()
            self.store.add_request(model_id, seq, kind, digest, payload)
            executor.submit(model_id, seq)
        return request_id(model_id, seq)

    def check_served(self, base_model: str) -> None:
        """Raise ApiError 404 where the base of a model or sampler is not served any more."""
        if base_model not in self.pool.base_models():
            raise ApiError(
                404,
                f"The base model {base_model[:120]!r} is not served any more, and this was made "
                "over it: start the server with it under this name again (--model and "
                "--served-model-name), and send the request again; what was done is kept. Served "
                f"now: {self._list_bases()}",
                code="base_model_not_served",
                param="base_model",
            )
        self._check_base(base_model)

    def _check_base(self, base_model: str) -> None:
        """Raise ApiError 400 without an engine that samples by token ids itself."""
        if base_model not in self.pool.base_models():
            raise wrong_value(
                "base_model",
                f"There is no base model {base_model[:120]!r} here; known: {self._list_bases()}",
            )
        engine = self.pool.base(base_model).engine
        if not engine.capabilities.trains_resident:
            raise wrong_value(
                "base_model",
                f"{base_model!r} is served by the engine {engine.name}: Tinker's API needs "
                f"--engine {name_engines('trains_resident')} for a base model",
            )

    def _list_bases(self) -> str:
        return ", ".join(map(repr, self.pool.base_models()))

    def _check_disk(self) -> None:
        """Raise ApiError 507 where the disk has too little room for a request."""
        problem = want_of_space(self._state_dir)
        if problem is not None:
            raise ApiError(507, f"Nothing is taken: {problem}", code="disk_full")

    def _repeats(self, owner: str, seq: int, digest: str) -> bool:
        """Say whether this request was sent before. Raises ApiError 400 if it was another one."""
        earlier_digest = self.store.find_digest(owner, seq)
        if earlier_digest is not None and earlier_digest != digest:
            raise wrong_value(
                "seq_id",
                f"The number {seq} of {owner[:120]!r} was used for another request: it stays what "
                "it was, so take the next number",
            )
        return earlier_digest is not None

    # Futures

    async def wait(self, id: str, timeout_s: float = POLL_S) -> RequestRow | None:
        """Wait for a request to be over; None: it is not yet. Raises ApiError 404."""
        owner, seq = read_request_id(id)
        row = self.store.find_request(owner, seq)
        if row is None:
            raise not_found("request", id)
        if row.status == "pending":
            self._check_owner(owner)
            event = self._waiters.setdefault((owner, seq), asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), timeout_s)
            row = self.store.find_request(owner, seq)
        return None if row is None or row.status == "pending" else row

    def _check_owner(self, owner: str) -> None:
        """Raise ApiError 404 where no engine will execute a model's or sampler's requests."""
        row = self.store.find_model(owner) or self.store.find_sampler(owner)
        if row is not None:
            self.check_served(row.base_model)

    def _tell(self, owner: str, seq: int) -> None:
        event = self._waiters.pop((owner, seq), None)
        if event is not None:
            event.set()

    # Samplers

    def add_sampler(
        self, session_id: str, number: int, base_model: str | None, model_path: str | None
    ) -> str:
        """Begin a sampler of a base model or of named weights; returns its id."""
        self.session(session_id)
        id = f"{session_id}:sample:{number}"
        earlier_sampler = self.store.find_sampler(id)
        if earlier_sampler is not None:
            if earlier_sampler.served_name != (model_path or base_model):
                raise wrong_value(
                    "sampling_session_seq_id",
                    f"The number {number} was used for another sampler: take the next one",
                )
            return id
        if model_path is not None:
            name, base = model_path, self.checkpoint(model_path, "sampler_weights").base_model
        elif base_model is not None:
            name = base = base_model
        else:
            raise wrong_value("base_model", "Give base_model, or model_path")
        if (base_model or base) != base:
            raise wrong_value("base_model", f"{name!r} is over {base!r}, not {base_model!r}")
        if model_path is not None:
            self.check_served(base)
        self._check_base(base)
        self.store.add_sampler(id, session_id, base, model_path, name)
        return id

    def find_sampler(self, id: str) -> SamplerRow:
        """Return a sampler. Raises ApiError 404."""
        row = self.store.find_sampler(id)
        if row is None:
            raise not_found("sampler", id)
        return row

    def submit_sample(
        self, owner: str, seq: int, digest: str, payload: bytes, refusal: str | None
    ) -> str:
        """Enter a sample, once; returns its id. `refusal` is its result if it is given."""
        sampler = self.find_sampler(owner)
        if not self._repeats(owner, seq, digest):
            self.session(sampler.session_id)
            self.check_served(sampler.base_model)
            self._check_disk()
            with self.store.transaction():
                self.store.add_request(owner, seq, "sample", digest, payload)
                if refusal is not None:
                    self.store.fail_request(owner, seq, refusal, "user")
            if refusal is None:
                self.sampler.submit(owner, seq)
        return request_id(owner, seq)

    # Checkpoints

    def checkpoint(self, path: str, *kinds: str) -> CheckpointRow:
        """Return named weights. Raises ApiError 404, 400 for another kind of weights."""
        row = self.store.find_checkpoint(path)
        if row is None or row.deleted_at is not None or row.kind == "snapshot":
            state = "was deleted, or its time is over" if row is not None else "is not there"
            raise ApiError(404, f"{path[:200]!r} {state}", code="not_found", param="path")
        if kinds and row.kind not in kinds:
            raise wrong_value(
                "path", f"{path[:200]!r} is {row.kind}, expected {' or '.join(kinds)}"
            )
        return row

    async def delete_checkpoint(self, row: CheckpointRow) -> None:
        """Take weights off the engine and the disk; their path is not given again."""
        self.store.mark_deleted(row.path)
        if row.kind in ("sampler_weights", "snapshot"):
            with contextlib.suppress(EngineError, AdapterError):
                await self.pool.withdraw(row.path)
        self.folders.remove(row.folder)

    # Guests of the pool

    def find_base(self, name: str) -> str | None:
        """Return the base model of served weights; see `pool.Guests`."""
        row = self._find_served(name)
        return None if row is None else row.base_model

    async def verify(self, name: str) -> Path:
        """Return the folder of served weights. Raises AdapterError if its files have changed."""
        row = self._find_served(name)
        if row is None:
            raise AdapterError(f"{name} was deleted")
        return await self.folders.verify(row.folder, row.content_digest)

    def _find_served(self, name: str) -> CheckpointRow | None:
        row = self.store.find_checkpoint(name)
        kinds = ("sampler_weights", "snapshot")
        return row if row is not None and row.deleted_at is None and row.kind in kinds else None

    # Inside

    def _executor(self, base_model: str) -> Executor:
        """The executor of a base model, started with the first request for it."""
        running_executor = self._executors.get(base_model)
        if running_executor is not None:
            return running_executor
        place = self.pool.training_place(base_model)
        log = self._logs / f"trainer-{len(self._trainers)}.log"
        trainer = TrainerProcess(Path(place.base_model_path), place.device, self._environment, log)
        steps = Steps(
            base_model,
            trainer,
            self.store,
            self.folders,
            self.pool.publish_adapter,
            place.capabilities.max_lora_rank,
        )
        executor = Executor(self.store, steps, self._tell)
        self._trainers[base_model], self._executors[base_model] = trainer, executor
        executor.start()
        return executor

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(KEEP_HOUSE_S)
            try:
                await self.keep_house()
            except Exception:
                _log.exception("old results and weights can't be removed, trying again")

    async def keep_house(self) -> None:
        """Remove old results, silent sessions and expired weights."""
        self.store.drop_old_results()
        await drop_rows(self.store)
        for id in self.store.list_silent_sessions(SILENT_S):
            self.finish_session(id, "silent")
        for row in self.store.list_expired():
            await self.delete_checkpoint(row)
        for session in self.store.list_sessions(1000, 0):
            rows = self.store.list_snapshots_of(session.id)
            keep = 0 if session.finished_at is not None else MOST_SNAPSHOTS
            for row in rows[: max(0, len(rows) - keep)]:
                await self.delete_checkpoint(row)


def request_id(owner: str, seq: int) -> str:
    """Name a request."""
    return f"{owner}:{seq}"


def read_request_id(id: str) -> tuple[str, int]:
    """Take a request's name apart. Raises ApiError 404 for another text."""
    owner, _, seq = id.rpartition(":")
    if not owner or not seq.isdecimal() or len(seq) > 18:
        raise not_found("request", id)
    return owner, int(seq)


def is_local_directory(path: str) -> bool:
    """Say whether a base model lies in a directory of this machine."""
    return os.path.isdir(path)
