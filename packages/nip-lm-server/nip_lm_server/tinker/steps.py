"""The work of each kind of training request, by a resident trainer.

Steps          the requests of one base model's models: `run` one, `restore` a model after a kill

A request is a row of the database with everything it needs, so it is run the same way the first
time and in a replay. `Failed` ends it with a reason; any other exception is not its fault.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nip_lm_server import aside
from nip_lm_server.lora.probes import PROBE
from nip_lm_server.state.models import AdapterError
from nip_lm_server.tinker.storage.folders import Folders
from nip_lm_server.tinker.storage.records import (
    Category,
    CheckpointKind,
    CheckpointRow,
    LoraShape,
    RequestRow,
    TinkerModelRow,
)
from nip_lm_server.tinker.storage.store import TinkerStore
from nip_lm_server.tinker.tinker_bodies import (
    LoadWeights,
    OptimStep,
    SaveExternal,
    SaveForSampler,
    SaveWeights,
)
from nip_lm_server.tinker.tinker_messages import decode_forward_backward, encode_output
from nip_lm_server.tinker.trainers import TrainerProcess
from nip_lm_server.training.resident.resident_client import ResidentDied
from nip_lm_server.training.resident.types import (
    UNUSABLE_GRADIENT,
    AdamParams,
    Datum,
    LoraConfig,
    ResidentError,
)

PROBE_TOKENS = 256
"""Most tokens on which a snapshot's answers are compared with the trainer's."""
PUBLISH_ATTEMPTS = 2
"""So often a snapshot is loaded and proved before its request fails: once more for a slip."""
_BASE = "(base)"
"""A model of the trainer's that is never trained, and computes the same as the base."""


class Failed(Exception):
    """A request ends without a result, for this reason."""

    def __init__(self, message: str, category: Category = "user"):
        super().__init__(message)
        self.message, self.category = message, category


class UnusableGradient(Failed):
    """No step can be taken with the gradient that a model has."""


@dataclass(frozen=True)
class Done:
    """The result of a request, as its client gets it."""

    body: bytes
    is_protobuf: bool = False


Publish = Callable[[str, str, Path], Awaitable[object]]
"""(served name, base model, folder): makes an adapter answer, with proof. Raises AdapterError."""


class Steps:
    """Runs requests of models over one base model."""

    def __init__(
        self,
        base_model: str,
        trainer: TrainerProcess,
        store: TinkerStore,
        folders: Folders,
        publish: Publish,
        max_rank: int,
    ):
        self._base_model, self._trainer = base_model, trainer
        self._store, self._folders, self._publish = store, folders, publish
        self._max_rank = max_rank
        self._probe_tokens: dict[
            str, tuple[int, ...]
        ] = {}  # tokens that a model has trained on last
        self._has_base = False

    def trainer_restarted(self) -> None:
        """Forget the facts that only the trainer's process had."""
        self._has_base = False

    async def run(self, model: TinkerModelRow, row: RequestRow) -> Done:
        """Do a request. Raises Failed, or ResidentDied."""
        step = {
            "create_model": self._create,
            "load_weights": self._load,
            "forward_backward": self._forward_backward,
            "forward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_external": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "refused": self._refuse,
            "refused_call": self._refuse,
        }[row.kind]
        try:
            return await step(model, row)
        except ResidentDied:
            raise
        except ResidentError as error:
            reason = UnusableGradient if error.code == UNUSABLE_GRADIENT else Failed
            raise reason(error.message, error.category) from error

    async def restore(self, model: TinkerModelRow, end: int) -> None:
        """Bring a model to its state after its requests below `end`. Raises as `run` does."""
        # 1. Drop the trainer's state of it, which may be half-way.
        await self.drop(model.id)
        start = max(0, model.durable_seq)
        if model.durable_seq >= 0:
            folder = self._folders.path(model.id, "state", model.durable_seq)
            await self._call(
                self._trainer.load(model.id, folder, _config(model.lora), optimizer=True)
            )
        else:
            first = self._store.find_request(model.id, 0)
            if first is None:
                raise Failed(f"nothing is on record of how {model.id} began", "server")
            await self.run(model, first)
        # 2. The requests since, by their payloads; the results are on record already.
        for seq in self._store.list_replayed(model.id, start, end):
            row = self._store.find_request(model.id, seq)
            if row is None or row.payload is None:
                raise Failed(f"request {seq} of {model.id} can't be done again", "server")
            await self.run(model, row)

    async def drop(self, model_id: str) -> None:
        """Take a model out of the trainer; no error if it isn't there."""
        try:
            await self._trainer.drop_model(model_id)
        except ResidentDied:
            raise
        except ResidentError as error:
            if error.code != "model_not_found":
                raise Failed(error.message, error.category) from error

    async def make_durable(
        self, model: TinkerModelRow, seq: int, result: Done | None = None
    ) -> None:
        """Write a model's state, of which `seq` was the last request; earlier ones go.

        With that request's `result`, the two are on record together or not at all.
        """
        folder = self._folders.path(model.id, "state", seq)
        await self._call(self._trainer.save(model.id, folder, optimizer=True))
        await self._folders.measure(folder)  # it syncs the names in the folder, too
        with self._store.transaction():
            if result is not None:
                self._store.end_request(model.id, seq, result.body, result.is_protobuf)
            self._store.note_durable(model.id, seq)
        self._folders.remove_states(model.id, but=folder)

    def remove_states(self, model_id: str) -> None:
        """Let go of the states of a model whose session is over."""
        self._folders.remove_states(model_id)

    async def _call(self, call: Awaitable[None]) -> None:
        try:
            await call
        except ResidentDied:
            raise
        except ResidentError as error:
            raise Failed(error.message, error.category) from error

    async def _refuse(self, _model: TinkerModelRow, row: RequestRow) -> Done:
        raise Failed((row.payload or b"").decode())

    async def _create(self, model: TinkerModelRow, _row: RequestRow) -> Done:
        self._check_rank(model.lora.rank)
        await self._trainer.create_model(model.id, _config(model.lora))
        return _json({"model_id": model.id, "type": "create_model"})

    async def _load(self, model: TinkerModelRow, row: RequestRow) -> Done:
        body = LoadWeights.model_validate_json(row.payload or b"{}")
        checkpoint = self._store.find_checkpoint(body.path)
        if checkpoint is None or checkpoint.deleted_at is not None:
            raise Failed(f"there are no weights {body.path[:200]!r}: they were deleted or expired")
        self._check_rank(checkpoint.lora.rank)
        _check_same_shape(model.lora, checkpoint.lora)
        try:
            folder = await self._folders.verify(checkpoint.folder, checkpoint.content_digest)
        except AdapterError as error:
            raise Failed(str(error), "server") from error
        await self._trainer.load(
            model.id, folder, _config(checkpoint.lora), optimizer=body.optimizer
        )
        return _json({"path": body.path, "model_id": model.id, "type": "load_weights"})

    def _check_rank(self, rank: int) -> None:
        if rank > self._max_rank:
            raise Failed(
                f"the LoRA rank is {rank}, the engine of {self._base_model!r} takes at most "
                f"{self._max_rank}: ask for a lower rank, or raise the server's --option "
                "max_lora_rank"
            )

    async def _forward_backward(self, model: TinkerModelRow, row: RequestRow) -> Done:
        payload = row.payload or b""
        call = await aside.run(len(payload), decode_forward_backward, payload)
        output = await self._trainer.forward_backward(
            model.id, call.data, call.loss_fn, call.config, forward_only=call.forward_only
        )
        if not call.forward_only:
            longest = max(call.data, key=lambda datum: len(datum.tokens))
            self._probe_tokens[model.id] = tuple(longest.tokens[:PROBE_TOKENS].tolist())
        size = sum(array.nbytes for array in output.logprobs)
        return Done(await aside.run(size, encode_output, output), is_protobuf=True)

    async def _optim_step(self, model: TinkerModelRow, row: RequestRow) -> Done:
        adam = OptimStep.model_validate_json(row.payload or b"{}").adam_params
        params = AdamParams() if adam is None else AdamParams(**adam.model_dump(exclude={"type"}))
        metrics = await self._trainer.optim_step(model.id, params)
        return _json({"metrics": metrics, "type": "optim_step"})

    async def _save_weights(self, model: TinkerModelRow, row: RequestRow) -> Done:
        body, kind = _read_save(row)
        path = f"tinker://{model.id}/{kind}/{body.path or f'step-{row.seq}'}"
        folder = self._folders.path(model.id, kind, row.seq)
        earlier = self._store.find_checkpoint(path)
        if earlier is not None and self._is_own(earlier, folder):
            return _json({"path": path, "size_bytes": earlier.bytes, "type": row.kind})
        if earlier is not None and not body.overwrite:
            state = "was deleted, and a name is given once" if earlier.deleted_at else "is there"
            raise Failed(
                f"{path} {state}: choose another name"
                + (", or set overwrite" if kind == "weights" else "")
            )
        await self._trainer.save(model.id, folder, optimizer=kind == "weights")
        record = await self._record(model, kind, path, folder, body.ttl_seconds, body.user_metadata)
        self._store.put_checkpoint(record)
        if earlier is not None and earlier.folder != record.folder:
            self._folders.remove(earlier.folder)
        return _json({"path": path, "size_bytes": record.bytes, "type": row.kind})

    async def _save_for_sampler(self, model: TinkerModelRow, row: RequestRow) -> Done:
        body = SaveForSampler.model_validate_json(row.payload or b"{}")
        # 1. The name by which it will answer.
        if body.path is not None:
            kind: CheckpointKind = "sampler_weights"
            name = f"tinker://{model.id}/sampler_weights/{body.path}"
        else:
            kind = "snapshot"
            name = f"{model.session_id}:sample:{body.sampling_session_seq_id}"
        key = "path" if kind == "sampler_weights" else "sampling_session_id"
        answer = _json({key: name, "type": "save_weights_for_sampler"})
        folder = self._folders.path(model.id, kind, row.seq)
        earlier = self._store.find_checkpoint(name)
        if earlier is not None and self._is_own(earlier, folder):
            return answer
        if earlier is not None:
            raise Failed(f"{name} is there, or was deleted: a name is given once, choose another")
        if kind == "snapshot" and self._store.find_sampler(name) is not None:
            raise _number_error(body)
        # 2. The weights, and the trainer's answers with them.
        await self._trainer.save(model.id, folder, optimizer=False)
        await self._write_probe(model, folder)
        record = await self._record(model, kind, name, folder, body.ttl_seconds, body.user_metadata)
        # 3. They answer, with proof, before the client gets their name.
        for attempt in range(1, PUBLISH_ATTEMPTS + 1):
            try:
                await self._publish(name, model.base_model, folder)
                break
            except AdapterError as error:
                if attempt == PUBLISH_ATTEMPTS:
                    raise Failed(
                        f"the engine does not answer with the trained weights: {error}", "server"
                    ) from error
        with self._store.transaction():
            self._store.put_checkpoint(record)
            if kind == "snapshot" and not self._store.add_sampler(
                name, model.session_id, model.base_model, None, name
            ):
                raise _number_error(body)  # while the weights were proved
        return answer

    def _is_own(self, row: CheckpointRow, folder: Path) -> bool:
        """Say whether a request made these weights itself, and was killed before its result."""
        return row.deleted_at is None and row.folder == self._folders.relative(folder)

    async def _record(
        self,
        model: TinkerModelRow,
        kind: CheckpointKind,
        path: str,
        folder: Path,
        ttl_s: float | None,
        metadata: Mapping[str, Any] | None,
    ) -> CheckpointRow:
        digest, size = await self._folders.measure(folder)
        now = time.time()
        return CheckpointRow(
            path=path,
            model_id=model.id,
            session_id=model.session_id,
            base_model=model.base_model,
            kind=kind,
            name=path.rpartition("/")[2],
            folder=self._folders.relative(folder),
            content_digest=digest,
            bytes=size,
            lora=model.lora,
            created_at=now,
            expires_at=None if ttl_s is None else now + ttl_s,
            user_metadata={key: str(value) for key, value in (metadata or {}).items()},
            has_optimizer=kind == "weights",
            deleted_at=None,
        )

    async def _write_probe(self, model: TinkerModelRow, folder: Path) -> None:
        """Leave beside the weights the trainer's log-probabilities with them, and with the base."""
        tokens = self._probe_tokens.get(model.id, ())
        if len(tokens) < 2:
            return  # nothing was trained since the start: the files alone are compared
        if not self._has_base:
            await self.drop(_BASE)
            await self._trainer.create_model(_BASE, LoraConfig(rank=1, seed=0))
            self._has_base = True
        saved, base = [await self._score(id, tokens) for id in (model.id, _BASE)]
        probe = {
            "tokens": list(tokens),
            "logprobs": saved,
            "base_logprobs": base,
            "dtype": "float32",
            "quantization": "none",
        }
        (folder / PROBE).write_text(json.dumps(probe) + "\n")

    async def _score(self, model_id: str, tokens: Sequence[int]) -> list[float]:
        ids = np.asarray(tokens)
        inputs = {"target_tokens": ids[1:], "weights": np.ones(len(ids) - 1, np.float32)}
        output = await self._trainer.forward_backward(
            model_id, [Datum(ids[:-1], inputs)], "cross_entropy", {}, forward_only=True
        )
        return [float(value) for value in output.logprobs[0]]


def _read_save(row: RequestRow) -> tuple[SaveWeights, CheckpointKind]:
    """Read a request to save weights. One for other programs has fields of its own."""
    payload = row.payload or b"{}"
    if row.kind == "save_weights":
        return SaveWeights.model_validate_json(payload), "weights"
    body = SaveExternal.model_validate_json(payload)
    fields = body.model_dump(exclude={"age_encryption_recipients"})
    return SaveWeights(**fields), "external_weights"


def _config(lora: LoraShape) -> LoraConfig:
    return LoraConfig(**asdict(lora))


def _check_same_shape(has: LoraShape, loaded: LoraShape) -> None:
    """Raise Failed where a model would become another than the one on record."""
    for name in ("rank", "train_attn", "train_mlp", "train_unembed"):
        if getattr(has, name) != getattr(loaded, name):
            raise Failed(
                f"the weights have {name}={getattr(loaded, name)}, this model was made with "
                f"{getattr(has, name)}: make a model of the same shape for them"
            )


def _number_error(body: SaveForSampler) -> Failed:
    return Failed(
        f"the number {body.sampling_session_seq_id} was used for another sampler: take the next one"
    )


def _json(value: Mapping[str, Any]) -> Done:
    return Done(json.dumps(value).encode())
