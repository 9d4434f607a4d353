"""Jobs at a service, driven to their end, killed on the way, and the service's own record of them."""

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nip_base.wire import NipSettings
from nip_core.jobs.job import JobSpec, JobView
from nip_core.run_store.store import open_store
from nip_tinker.backend import TinkerBackend
from nip_tinker.options import Options
from nip_tinker.record.notes import JobNote, Notes
from nip_tinker.record.run_files import RunFiles
from nip_tinker.wire import TinkerClient

ENDED = ("succeeded", "failed", "cancelled")
OPTIONS = Options(first_steps=2, most_steps=2, settle_s=0.3)
SUM = {"supervised": 16, "dpo": 16, "trajectories": 16}


def make_data(method: str, count: int = 16) -> bytes:
    """Lines of a training file: sums, with answers that are right and wrong."""
    rows: list[dict[str, Any]] = []
    for i in range(count):
        question = [{"role": "user", "content": f"What is {i} + {i + 1}?"}]
        answers = [
            [{"role": "assistant", "content": text}] for text in (f"It is {2 * i + 1}.", "No idea.")
        ]
        if method == "supervised":
            rows.append({"messages": [*question, *answers[0]]})
        elif method == "dpo":
            pair = {"preferred_output": answers[0], "non_preferred_output": answers[1]}
            rows.append({"input": {"messages": question}, **pair})
        else:
            turn = {
                "prompt_token_ids": [5, 6, 7 + i],
                "completion_token_ids": [9, 10, 11, 2],
                "logprobs": [-3.0, -2.0, -4.0, -1.0],
            }
            sign = 1.0 if i % 2 else -1.0
            rows.append(
                {"turns": [turn], "group_id": f"g{i // 2}", "reward": sign, "advantage": sign}
            )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def make_spec(method: str, **changes: Any) -> JobSpec:
    """A job of some steps on `make_data`."""
    settings: dict[str, Any] = {"n_epochs": 2, "batch_size": 4}
    if method == "trajectories":
        settings |= {"advantage": "given", "clip_low": 0.2}
    spec = JobSpec(
        run="run-a",
        iteration=0,
        group="g",
        dataset_digest="data",
        parent_model="tiny",
        parent_model_digest="base",
        seed=3,
        examples=16,
        method=method,
        hyper_parameters=settings,
        nip=NipSettings.model_construct(learning_rate=1e-2, lora_rank=8, start_from="base"),
    )
    return replace(spec, **changes)


class Killed(BaseException):
    """The process ended here."""


@dataclass
class Deaths:
    """Counts writes and requests, and ends the process before or after one of them."""

    at: int | None = None
    seen: list[str] = field(default_factory=list)
    is_dead: bool = False
    stop_after: str | None = None
    """The first point of this name is the one, after so many that are passed."""
    skips: int = 0

    def pass_point(self, name: str) -> None:
        if self.is_dead:
            raise Killed
        self.seen.append(name)
        is_here = self.at is not None and len(self.seen) - 1 == self.at
        if is_here or (name == self.stop_after and self.seen.count(name) > self.skips):
            self.is_dead = True
            raise Killed


class DyingFiles(RunFiles):
    def __init__(self, deaths: Deaths, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._deaths = deaths

    def write(self, name: str, data: bytes) -> None:
        kind = name.partition("/")[2].partition("-")[0].removesuffix(".json")
        self._deaths.pass_point(f"before {kind} is written")
        super().write(name, data)
        self._deaths.pass_point(f"after {kind} is written")


class DyingClient(TinkerClient):
    def __init__(self, deaths: Deaths, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._deaths = deaths

    async def _send(self, verb: str, route: str, *rest: Any) -> Any:
        if route in ("retrieve_future", "session_heartbeat") or verb == "GET":
            if self._deaths.is_dead:
                raise Killed
            return await super()._send(verb, route, *rest)
        name = "delete" if verb == "DELETE" else route.rpartition("/")[2]
        self._deaths.pass_point(f"before {name}")
        answer = await super()._send(verb, route, *rest)
        self._deaths.pass_point(f"after {name}")
        return answer


@dataclass
class Place:
    """A service, and the folder of a run."""

    url: str
    key: str
    folder: Path
    options: Options = OPTIONS

    def open(self, deaths: Deaths | None = None, **settings: Any) -> TinkerBackend:
        deaths = deaths or Deaths()
        client = DyingClient(deaths, self.url, self.key, **settings)
        files = DyingFiles(deaths, open_store(str(self.folder)), "run-a/training")
        return TinkerBackend(self.url, self.key, options=self.options, client=client, files=files)

    async def submit(self, spec: JobSpec, data: bytes) -> str:
        backend = self.open()
        name = f"{spec.method}-{len(data)}.jsonl"
        job = await backend.create_job(spec, await backend.upload(name, data))
        await backend.aclose()
        return job.id

    async def drive(self, job_id: str, deaths: Deaths | None = None, **settings: Any) -> JobView:
        """Poll a job to its end, or to the death of the process that drives it."""
        backend = self.open(deaths, **settings)
        try:
            while True:
                view = await backend.retrieve_job(job_id)
                if view.status in ENDED:
                    return view
                await asyncio.sleep(0.02)
        finally:
            await backend.aclose()

    async def train(self, spec: JobSpec, data: bytes | None = None) -> JobView:
        return await self.drive(await self.submit(spec, data or make_data(spec.method)))

    def read(self, job_id: str) -> tuple[JobNote, list[Any]]:
        notes = Notes(RunFiles(open_store(str(self.folder)), "run-a/training"), job_id)
        job = notes.read_job()
        assert job is not None
        return job, notes.list_blocks(job)

    def losses(self, job_id: str) -> list[float | None]:
        return [figure.loss for block in self.read(job_id)[1] for figure in block.figures]


@dataclass(frozen=True)
class Record:
    """The server's own record of a job's requests and states."""

    counts: Mapping[str, int]
    """Requests that were executed, by kind."""
    paths: list[str]
    digest: str | None
    """Of the sampler's weights, by their bytes."""


def read_record(state: Path, job: JobNote) -> Record:
    """Read the server's database. `job` names its states; its runs are found by them."""
    with sqlite3.connect(state / "tinker.sqlite3") as database:
        models = [
            row[0]
            for row in database.execute(
                "SELECT m.id FROM models m JOIN sessions s ON m.session_id = s.id "
                "WHERE s.user_metadata LIKE ?",
                (f"%{job.key}%",),
            )
        ]
        marks = ",".join("?" * len(models))
        counts = dict(
            database.execute(
                f"SELECT kind, count(*) FROM requests WHERE owner IN ({marks}) AND status = 'done' "
                "GROUP BY kind",
                models,
            ).fetchall()
        )
        rows = database.execute(
            f"SELECT path, folder FROM checkpoints WHERE model_id IN ({marks}) "
            "AND deleted_at IS NULL ORDER BY path",
            models,
        ).fetchall()
    folders = {path: state / "tinker" / folder for path, folder in rows}
    digest = None
    for path, folder in folders.items():
        if "/sampler_weights/" in path:
            import hashlib

            weights = next(folder.rglob("adapter_model.safetensors"))
            digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return Record(counts, sorted(folders), digest)
