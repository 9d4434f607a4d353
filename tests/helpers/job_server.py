"""A fine-tuning API that misbehaves on command, and time that passes only when slept."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from nip_core.jobs.job import Clock


@dataclass
class FakeTime:
    """Seconds that pass only in `sleep`."""

    seconds: float = 1_800_000_000.0
    jump_s: float = 0.0  # what the time of day is off by
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.seconds += seconds
        await asyncio.sleep(0)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.seconds + self.jump_s, lambda: self.seconds, self.sleep)


@dataclass
class WireServer:
    """Speaks files, jobs and events. It never recognises a repeated create: that is the ledger's.

    `on_create`, `on_list`, `on_upload`, `on_poll` hold what befalls the next requests: "ok",
    "drop" (the connection, before any effect), "drop_after" (the effect), an HTTP status,
    "<status>_after", "<status>_retry_<seconds>", "cut" (half an answer after the effect),
    "garbage" (no JSON, after the effect), or for polls a job status; "nameless" is one that has
    succeeded without a model's name.
    """

    time: FakeTime
    lag_s: float = 0.0  # how long a new job stays out of the list
    filters: bool = True
    page: int = 100
    losses: dict[int, float] = field(default_factory=dict)  # by step, others than it tells of
    on_create: list[str] = field(default_factory=list)
    on_list: list[str] = field(default_factory=list)
    on_upload: list[str] = field(default_factory=list)
    on_poll: list[str] = field(default_factory=list)
    error_param: str | None = None  # what the errors blame
    job_fields: dict[str, Any] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    creates: list[tuple[str | None, dict[str, Any]]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    url: str = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/files", self._upload)
        app.router.add_get("/v1/files", self._list_files)
        app.router.add_post("/v1/fine_tuning/jobs", self._create)
        app.router.add_get("/v1/fine_tuning/jobs", self._list_jobs)
        app.router.add_get("/v1/fine_tuning/jobs/{id}", self._retrieve)
        app.router.add_post("/v1/fine_tuning/jobs/{id}/cancel", self._cancel)
        app.router.add_get("/v1/fine_tuning/jobs/{id}/events", self._events)
        return app

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        self.log.append("upload")
        fault = self.on_upload.pop(0) if self.on_upload else "ok"
        form = await request.post()
        if (early := self._before(request, fault)) is not None:
            return early
        upload = form["file"]
        assert isinstance(upload, web.FileField)
        data = upload.file.read()
        item = {
            "id": f"file-{len(self.files)}",
            "object": "file",
            "bytes": len(data),
            "created_at": int(self.time.seconds),
            "filename": upload.filename,
            "purpose": form["purpose"],
            "status": "processed",
        }
        self.files.append(item)
        self.contents[str(item["id"])] = data
        return await self._after(request, fault, item)

    async def _list_files(self, request: web.Request) -> web.StreamResponse:
        self.log.append("files")
        return web.json_response({"object": "list", "data": self.files[::-1], "has_more": False})

    async def _create(self, request: web.Request) -> web.StreamResponse:
        self.log.append("create")
        fault = self.on_create.pop(0) if self.on_create else "ok"
        body = await request.json()
        self.creates.append((request.headers.get("Idempotency-Key"), body))
        if (early := self._before(request, fault)) is not None:
            return early
        job = {
            "id": f"ftjob-{len(self.jobs)}",
            "object": "fine_tuning.job",
            "created_at": int(self.time.seconds),
            "model": body["model"],
            "status": "queued",
            "training_file": body["training_file"],
            "metadata": body["metadata"],
            "method": body["method"],
            "seed": body["seed"],
            "hyperparameters": {"n_epochs": 3},
            "fine_tuned_model": None,
            "visible_at": self.time.seconds + self.lag_s,
        }
        self.jobs.append(job)
        return await self._after(request, fault, self._shown(job))

    async def _list_jobs(self, request: web.Request) -> web.StreamResponse:
        self.log.append("list")
        fault = self.on_list.pop(0) if self.on_list else "ok"
        if (early := self._before(request, fault)) is not None:
            return early
        jobs = [job for job in self.jobs[::-1] if job["visible_at"] <= self.time.seconds]
        wanted = request.query.get("metadata[nip_key]")
        if self.filters and wanted is not None:
            jobs = [job for job in jobs if job["metadata"].get("nip_key") == wanted]
        if after := request.query.get("after"):
            jobs = jobs[[job["id"] for job in jobs].index(after) + 1 :]
        page = [self._shown(job) for job in jobs[: self.page]]
        more = len(jobs) > self.page
        return await self._after(request, fault, {"object": "list", "data": page, "has_more": more})

    async def _retrieve(self, request: web.Request) -> web.StreamResponse:
        self.log.append("poll")
        fault = self.on_poll.pop(0) if self.on_poll else "succeeded"
        job = next((j for j in self.jobs if j["id"] == request.match_info["id"]), None)
        if job is None:
            return self._error(404)
        is_fault = fault[0].isdigit() or fault.startswith(("drop", "cut", "garbage"))
        if is_fault:
            early = self._before(request, fault)
            return early or await self._after(request, fault, self._shown(job))
        status = "succeeded" if fault == "nameless" else fault
        job |= {"status": status, **self.job_fields}
        if fault == "succeeded":
            job |= {"fine_tuned_model": "ft:tiny:quick:1", "trained_tokens": 1234}
        return web.json_response(self._shown(job))

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        self.log.append("cancel")
        return web.json_response(self._shown(self.jobs[-1]))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        events = [
            {
                "id": f"e{i}",
                "object": "fine_tuning.job.event",
                "created_at": i,
                "level": "info",
                "message": f"step {i}",
                "type": "metrics",
                "data": {"step": i, "train_loss": self.losses.get(i, 1 / (i + 1))},
            }
            for i in range(3)
        ]
        return web.json_response({"object": "list", "data": events[::-1], "has_more": False})

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in job.items() if key != "visible_at"}

    def _error(self, status: int, headers: dict[str, str] | None = None) -> web.Response:
        error = {"message": f"told to answer {status}", "type": "x", "code": None}
        error["param"] = self.error_param
        return web.json_response({"error": error}, status=status, headers=headers)

    def _before(self, request: web.Request, fault: str) -> web.StreamResponse | None:
        if fault == "drop":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        status, _, rest = fault.partition("_")
        if status.isdigit() and rest != "after":
            wait = rest.removeprefix("retry_")
            return self._error(int(status), {"Retry-After": wait} if wait else None)
        return None

    async def _after(
        self, request: web.Request, fault: str, answer: dict[str, Any]
    ) -> web.StreamResponse:
        assert request.transport is not None
        if fault == "drop_after":
            request.transport.abort()
        elif fault.endswith("_after"):
            return self._error(int(fault.partition("_")[0]))
        elif fault == "garbage":
            return web.Response(text="{nonsense", content_type="application/json")
        elif fault == "cut":
            text = json.dumps(answer).encode()
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.content_length = len(text)
            await response.prepare(request)
            await response.write(text[: len(text) // 2])
            request.transport.close()
            return response
        return web.json_response(answer)
