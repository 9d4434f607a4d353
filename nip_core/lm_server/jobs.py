"""The job table: creating a job exactly once, its transitions, its events.

JobTable.create      validates against files and models, enforces the idempotency key
JobTable.transition  compare-and-set on the status: of two that race, one wins
JobTable.cancel ...  what the routes and the supervisor need

What a transition starts (validation, training, commit) is the business of `supervisor`.
"""

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nip_core.lm_server import wire
from nip_core.lm_server.database import Database, dump, load
from nip_core.lm_server.errors import ApiError, model_not_found, not_found
from nip_core.lm_server.files import FileStore
from nip_core.lm_server.models import ModelStore, adapter_digest, adapter_name
from nip_core.lm_server.wire import CreateJobRequest, EffectiveSettings

_ADAPTER_SHAPE = ("lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules")
_UNSUPPORTED_METHODS = ("dpo", "reinforcement", "trajectories")


class JobTable:
    """The jobs of one server."""

    def __init__(
        self,
        database: Database,
        files: FileStore,
        models: ModelStore,
        base_model: str,
        max_model_len: int,
    ):
        self._database = database
        self._files = files
        self._models = models
        self._base_model = base_model
        self._max_model_len = max_model_len

    # Creating

    def create(
        self, request: CreateJobRequest, payload: Mapping[str, Any], key: str | None
    ) -> tuple[dict[str, Any], bool]:
        """Enter a job and return (its object, whether it is new).

        The same `key` with the same payload returns the first job. Raises ApiError 409 for the
        same key with another payload, 400 for anything wrong in the request. There is no await
        in here and the key's column is unique, so two requests that race make one job.
        """
        payload_digest = _digest(payload)
        # Ids of files are drawn, so that the adapter's name goes by their content.
        content_digest = _digest(self._with_file_contents(payload))
        if key is not None:
            first = self._database.one("SELECT * FROM jobs WHERE idempotency_key = ?", key)
            if first is not None:
                same = first["payload_digest"] == payload_digest
                if not same and first["adapter_digest"] != adapter_digest(key, content_digest):
                    raise ApiError(
                        409,
                        f"Idempotency-Key {key!r} was used for job {first['id']} with another "
                        "payload: use a new key for a new job",
                        code="idempotency_key_reused",
                        param="Idempotency-Key",
                    )
                return self.object(first), False
        self._check_method(request)
        self._check_files(request)
        parent, settings = self._resolve(request)
        id = "ftjob-" + secrets.token_hex(12)
        digest = adapter_digest(key or id, content_digest)
        with self._database.transaction():
            seq = self._database.insert(
                "jobs",
                id=id,
                idempotency_key=key,
                payload_digest=payload_digest,
                method="supervised",
                model=request.model,
                base_model=self._base_model,
                parent=parent,
                training_file=request.training_file,
                validation_file=request.validation_file,
                settings=settings.model_dump_json(),
                seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
                metadata=dump(request.metadata),
                suffix=request.suffix,
                adapter_name=adapter_name(self._base_model, request.suffix, digest),
                adapter_digest=digest,
                status="validating_files",
                created_at=time.time(),
            )
            for name, value in (request.metadata or {}).items():
                self._database.execute(
                    "INSERT INTO job_metadata (job_seq, key, value) VALUES (?, ?, ?)",
                    seq,
                    name,
                    value,
                )
            self.add_event(id, f"Created fine-tuning job: {id}")
            self.add_event(id, f"Validating training file: {request.training_file}")
        return self.retrieve(id), True

    def _with_file_contents(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The payload with the SHA-256 of each file that is there in place of its id."""
        contents = dict(payload)
        for field in ("training_file", "validation_file"):
            row = self._database.one("SELECT sha256 FROM files WHERE id = ?", payload.get(field))
            if row is not None:
                contents[field] = row["sha256"]
        return contents

    def _check_method(self, request: CreateJobRequest) -> None:
        if request.method is None:
            return
        if request.method.type in _UNSUPPORTED_METHODS:
            raise ApiError(
                400,
                f"Method {request.method.type!r} is not supported yet: use 'supervised'.",
                code="unsupported_method",
                param="method.type",
            )
        if request.method.type != "supervised":
            raise ApiError(
                400,
                f"Invalid 'method.type': got {request.method.type!r}, expected 'supervised'.",
                code="invalid_value",
                param="method.type",
            )
        if request.method.supervised is not None and request.hyperparameters is not None:
            raise ApiError(
                400,
                "Give 'hyperparameters' or 'method.supervised.hyperparameters', not both.",
                code="invalid_value",
                param="hyperparameters",
            )

    def _check_files(self, request: CreateJobRequest) -> None:
        for param in ("training_file", "validation_file"):
            id = getattr(request, param)
            if id is None:
                continue
            try:
                purpose = self._files.purpose(id)
            except ApiError:
                raise ApiError(
                    400, f"invalid {param}: {id}", code="invalid_file", param=param
                ) from None
            if purpose != "fine-tune":
                raise ApiError(
                    400,
                    f"invalid {param}: {id} has purpose {purpose!r}, expected 'fine-tune'",
                    code="invalid_file_purpose",
                    param=param,
                )

    def _resolve(self, request: CreateJobRequest) -> tuple[str | None, EffectiveSettings]:
        """The adapter to continue from, if any, and every setting with its default filled in."""
        nip = request.nip
        is_base = request.model == self._base_model
        row = None if is_base else self._models.row(request.model)
        if not is_base and (row is None or not self._models.is_served(request.model)):
            raise model_not_found(request.model, status=400)
        start_from = nip.start_from or ("base" if is_base else "continue")
        if is_base and start_from == "continue":
            raise ApiError(
                400,
                f"'nip.start_from' is 'continue', but {request.model!r} is the base model",
                code="invalid_value",
                param="nip.start_from",
            )
        shape: dict[str, Any] = {name: getattr(nip, name) for name in _ADAPTER_SHAPE}
        parent = request.model if start_from == "continue" else None
        if parent is not None and row is not None:
            inherited = self._models.manifest(row["digest"])["settings"]
            for name, asked in shape.items():
                # Dropout is no part of the weights' shape, so it may change.
                if asked is not None and asked != inherited[name] and name != "lora_dropout":
                    raise ApiError(
                        400,
                        f"'nip.{name}' is {asked!r}, but {parent!r} has {inherited[name]!r}: "
                        "continuing keeps the adapter's shape",
                        code="invalid_value",
                        param=f"nip.{name}",
                    )
                shape[name] = inherited[name] if asked is None else asked
        rank = shape["lora_rank"] or wire.DEFAULT_LORA_RANK
        hyper = request.hyperparameters or wire.Hyperparameters()
        if request.method is not None and request.method.supervised is not None:
            hyper = request.method.supervised.hyperparameters
        multiplier = hyper.learning_rate_multiplier or 1.0
        rate = wire.DEFAULT_LEARNING_RATE if nip.learning_rate is None else nip.learning_rate
        dropout, targets = shape["lora_dropout"], shape["lora_target_modules"]
        return parent, EffectiveSettings(
            n_epochs=hyper.n_epochs or wire.DEFAULT_N_EPOCHS,
            batch_size=hyper.batch_size or wire.DEFAULT_BATCH_SIZE,
            learning_rate_multiplier=multiplier,
            learning_rate=rate * multiplier,
            lora_rank=rank,
            lora_alpha=shape["lora_alpha"] or 2.0 * rank,
            lora_dropout=wire.DEFAULT_LORA_DROPOUT if dropout is None else dropout,
            lora_target_modules=wire.DEFAULT_TARGET_MODULES if targets is None else targets,
            max_length=min(nip.max_length or self._max_model_len, self._max_model_len),
            warmup_ratio=nip.warmup_ratio,
            lr_scheduler=nip.lr_scheduler,
            weight_decay=nip.weight_decay,
            start_from=start_from,
        )

    # Reading

    def row(self, id: str) -> sqlite3.Row:
        """The table's row of a job. Raises ApiError 404."""
        row = self._database.one("SELECT * FROM jobs WHERE id = ?", id)
        if row is None:
            raise not_found("fine-tuning job", id, "fine_tuning_job_id")
        return row

    def rows_in(self, statuses: Sequence[str]) -> list[sqlite3.Row]:
        """Jobs in any of these statuses, oldest first."""
        marks = ", ".join("?" * len(statuses))
        return self._database.all(
            f"SELECT * FROM jobs WHERE status IN ({marks}) ORDER BY seq",  # noqa: S608
            *statuses,
        )

    def next_in(self, status: str) -> sqlite3.Row | None:
        """The oldest job in a status."""
        return self._database.one(
            "SELECT * FROM jobs WHERE status = ? ORDER BY seq LIMIT 1", status
        )

    def retrieve(self, id: str) -> dict[str, Any]:
        """The object of a job. Raises ApiError 404."""
        return self.object(self.row(id))

    def object(self, row: sqlite3.Row) -> dict[str, Any]:
        """OpenAI's `fine_tuning.job`, with the extension object `nip`."""
        settings = EffectiveSettings.model_validate_json(row["settings"])
        result: dict[str, Any] = load(row["result"]) or {}
        hyperparameters = settings.openai_hyperparameters()
        succeeded = row["status"] == "succeeded"
        return {
            "object": "fine_tuning.job",
            "id": row["id"],
            "model": row["model"],
            "created_at": int(row["created_at"]),
            "finished_at": int(row["finished_at"]) if row["finished_at"] else None,
            "fine_tuned_model": row["adapter_name"] if succeeded else None,
            "organization_id": wire.ORGANIZATION_ID,
            "result_files": [row["result_file"]] if row["result_file"] else [],
            "status": row["status"],
            "validation_file": row["validation_file"],
            "training_file": row["training_file"],
            "hyperparameters": hyperparameters,
            "trained_tokens": result.get("tokens") if succeeded else None,
            "error": load(row["error"]),
            "seed": row["seed"],
            "estimated_finish": _estimated_finish(row),
            "integrations": [],
            "method": {
                "type": row["method"],
                row["method"]: {"hyperparameters": hyperparameters},
            },
            "metadata": load(row["metadata"]),
            "user_provided_suffix": row["suffix"],
            "nip": {
                **settings.nip_settings(),
                "parent": row["parent"],
                "attempts": row["attempts"],
                "progress": load(row["progress"]),
                "result": result or None,
            },
        }

    def list(
        self, *, limit: int, after: str | None, metadata: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """One page of jobs, newest first.

        `metadata` keeps jobs that have all these pairs; an empty mapping keeps those without any.
        """
        where, values = ["1"], []
        if after is not None:
            where.append("seq < ?")
            values.append(self.row(after)["seq"])
        if metadata is not None and not metadata:
            where.append("metadata IS NULL")
        for key, value in (metadata or {}).items():
            where.append("seq IN (SELECT job_seq FROM job_metadata WHERE key = ? AND value = ?)")
            values += [key, value]
        rows = self._database.all(
            f"SELECT * FROM jobs WHERE {' AND '.join(where)} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            *values,
            limit + 1,
        )
        return wire.list_object([self.object(row) for row in rows[:limit]], len(rows) > limit)

    def events(self, id: str, *, limit: int, after: str | None) -> dict[str, Any]:
        """One page of a job's events, newest first. Raises ApiError 404."""
        self.row(id)
        before = None
        if after is not None:
            found = self._database.one(
                "SELECT seq FROM events WHERE id = ? AND job_id = ?", after, id
            )
            if found is None:
                raise not_found("event", after, "after")
            before = found["seq"]
        rows = self._database.all(
            "SELECT * FROM events WHERE job_id = ? AND (? IS NULL OR seq < ?) "
            "ORDER BY seq DESC LIMIT ?",
            id,
            before,
            before,
            limit + 1,
        )
        data = [
            wire.event_object(
                id=row["id"],
                created_at=row["created_at"],
                level=row["level"],
                message=row["message"],
                type=row["type"],
                data=load(row["data"]),
            )
            for row in rows[:limit]
        ]
        return wire.list_object(data, len(rows) > limit)

    def checkpoints(self, id: str, *, limit: int, after: str | None) -> dict[str, Any]:
        """The final weights are the one checkpoint that can be used; none before success."""
        row = self.row(id)
        checkpoint_id = "ftckpt-" + row["adapter_digest"]
        if after is not None and after != checkpoint_id:
            raise not_found("checkpoint", after, "after")
        if row["status"] != "succeeded" or after is not None or limit < 1:
            return wire.list_object([], False)
        result = load(row["result"]) or {}
        metrics: dict[str, Any] = {"step": result.get("steps", 0)}
        if result.get("final_loss") is not None:
            metrics["train_loss"] = result["final_loss"]
        data = {
            "object": "fine_tuning.job.checkpoint",
            "id": checkpoint_id,
            "created_at": int(row["finished_at"]),
            "fine_tuned_model_checkpoint": row["adapter_name"],
            "fine_tuning_job_id": id,
            "step_number": result.get("steps", 0),
            "metrics": metrics,
        }
        return wire.list_object([data], False)

    # Changing

    def transition(self, id: str, before: Sequence[str], after: str, **columns: Any) -> bool:
        """Set the status if it is one of `before`, together with `columns`. False if it was not."""
        names = "".join(f", {name} = ?" for name in columns)
        marks = ", ".join("?" * len(before))
        changed = self._database.execute(
            f"UPDATE jobs SET status = ?{names} WHERE id = ? AND status IN ({marks})",  # noqa: S608
            after,
            *columns.values(),
            id,
            *before,
        )
        return changed == 1

    def cancel(self, id: str) -> tuple[dict[str, Any], bool]:
        """Cancel a job that has not ended; returns (its object, whether this call did it).

        Cancelling a cancelled job is no error. Raises ApiError 404, 400 if it succeeded or failed.
        """
        self.row(id)
        with self._database.transaction():
            changed = self.transition(
                id, wire.ACTIVE_STATUSES, "cancelled", finished_at=time.time()
            )
            if changed:
                self.add_event(id, "The job was cancelled")
        row = self.row(id)
        if row["status"] != "cancelled":
            raise ApiError(
                400,
                f"The job {id} has status {row['status']!r} and can't be cancelled",
                code="job_already_ended",
                param="fine_tuning_job_id",
            )
        return self.object(row), changed

    def fail(self, id: str, code: str, message: str, param: str | None = None) -> None:
        """End a job without a model; one that was cancelled meanwhile stays so."""
        error = {"code": code, "message": message, "param": param}
        with self._database.transaction():
            if self.transition(
                id, wire.ACTIVE_STATUSES, "failed", finished_at=time.time(), error=dump(error)
            ):
                self.add_event(id, f"The job failed: {message}", level="error", data=error)

    def set_child(self, id: str, pid: int | None, identity: str | None) -> None:
        """Write down the training process, so that the next start can end one that is left."""
        self._database.execute(
            "UPDATE jobs SET child_pid = ?, child_identity = ? WHERE id = ?", pid, identity, id
        )

    def add_event(
        self,
        id: str,
        message: str,
        *,
        level: str = "info",
        type: str = "message",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Append to what the events endpoint shows."""
        self._database.insert(
            "events",
            id="ftevent-" + secrets.token_hex(12),
            job_id=id,
            created_at=time.time(),
            level=level,
            type=type,
            message=message,
            data=dump(data),
        )

    def add_training_events(self, id: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Publish what a trainer reported, in one transaction."""
        with self._database.transaction():
            for event in events:
                if event.get("type") == "progress":
                    self._add_progress(id, event)
                else:
                    level = {"warning": "warn"}.get(str(event.get("level")), event.get("level"))
                    self.add_event(
                        id,
                        str(event.get("message", "")),
                        level=level if level in ("info", "warn", "error") else "info",
                    )

    def _add_progress(self, id: str, event: Mapping[str, Any]) -> None:
        step, total, loss = event.get("step"), event.get("total_steps"), event.get("loss")
        data = {
            "step": step,
            "total_steps": total,
            "train_loss": loss,
            "learning_rate": event.get("learning_rate"),
            "epoch": event.get("epoch"),
            "tokens": event.get("tokens"),
        }
        shown = "" if loss is None else f": training loss={loss:.4f}"
        self.add_event(id, f"Step {step}/{total}{shown}", type="metrics", data=data)
        self._database.execute(
            "UPDATE jobs SET progress = ? WHERE id = ?", dump({**data, "at": time.time()}), id
        )

    def metrics(self, id: str) -> Sequence[dict[str, Any]]:
        """The progress by step; of a step that was reported by several attempts, the last."""
        rows = self._database.all(
            "SELECT data FROM events WHERE job_id = ? AND type = 'metrics' ORDER BY seq", id
        )
        by_step = {data["step"]: data for data in (load(row["data"]) for row in rows)}
        return [by_step[step] for step in sorted(by_step)]


def _estimated_finish(row: sqlite3.Row) -> int | None:
    progress = load(row["progress"])
    if row["status"] != "running" or not progress or not row["started_at"]:
        return None
    step, total = progress.get("step"), progress.get("total_steps")
    if not step or not total:
        return None
    spent = progress["at"] - row["started_at"]
    return int(progress["at"] + spent * (total - step) / step)


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
