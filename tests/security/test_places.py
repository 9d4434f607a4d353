"""What a server answers names no place on its machine, whatever goes wrong."""

import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from served_here import CHAT, Here, serve, until

from nip_base.api_errors import Places
from nip_base.formats import to_jsonl
from nip_lm_server.state.directory import FILES, JOBS, MODELS

LINE = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}


class Seen:
    """A server, and all that it has answered."""

    def __init__(self, here: Here, state: Path):
        self.here, self.state = here, state
        self.bodies: list[str] = []

    async def get(self, path: str) -> Any:
        async with self.here.http.get(path) as answer:
            self.bodies.append(f"{path} {answer.status} {await answer.text()}")
            return await answer.json(content_type=None)

    async def post(self, path: str, **body: Any) -> Any:
        status, raw, _ = await self.here.post(path, body)
        self.bodies.append(f"{path} {status} {raw.decode()}")
        return json.loads(raw)

    async def upload(self) -> str:
        content = to_jsonl([LINE] * 10)
        form = b"".join(
            b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % part
            for part in (
                (b"purpose", b"", b"fine-tune"),
                (b"file", b'; filename="t.jsonl"', content),
            )
        )
        kind = {"Content_Type": "multipart/form-data; boundary=b"}
        status, raw, _ = await self.here.post("/v1/files", form + b"--b--\r\n", **kind)
        self.bodies.append(f"upload {status} {raw.decode()}")
        return str(json.loads(raw).get("id"))

    async def train(self, **nip: Any) -> dict[str, Any]:
        """A job that has ended, after its object and events were asked for."""
        created = await self.post(
            "/v1/fine_tuning/jobs", model="sim", training_file=await self.upload(), nip=nip
        )
        return await self.ended(created["id"])

    async def ended(self, id: str) -> dict[str, Any]:
        jobs = self.here.services.jobs
        await until(lambda: jobs.get_row(id).finished_at is not None)
        await self.get(f"/v1/fine_tuning/jobs/{id}/events")
        await self.get("/v1/fine_tuning/jobs")
        job: dict[str, Any] = await self.get(f"/v1/fine_tuning/jobs/{id}")
        return job


@pytest_asyncio.fixture
async def seen(tmp_path: Path) -> AsyncIterator[Seen]:
    async with serve(tmp_path / "state") as here:
        seen = Seen(here, tmp_path / "state")
        yield seen
        for path in ("/health", "/nip/status", "/nip/engines", "/v1/models", "/v1/files"):
            await seen.get(path)
        places = [tmp_path, Path(__file__).parents[2], sys.prefix]
        told = [body for body in seen.bodies for place in places if str(place) in body]
        assert told == []


async def test_of_an_upload_that_is_damaged(seen: Seen) -> None:
    file = await seen.upload()
    (seen.state / FILES / file).write_bytes(b"x")
    answer = await seen.get(f"/v1/files/{file}/content")
    assert f"{FILES}/{file}: it is no longer what was uploaded" in answer["error"]["message"]
    job = await seen.post("/v1/fine_tuning/jobs", model="sim", training_file=file)
    assert (await seen.ended(job["id"]))["error"]["code"] == "file_damaged"


async def test_of_a_disk_that_takes_no_file(seen: Seen) -> None:
    shutil.rmtree(seen.state / FILES)
    await seen.upload()
    shutil.rmtree(seen.state / JOBS)
    (seen.state / JOBS).write_text("no directory")
    await seen.post("/v1/fine_tuning/jobs", model="sim", training_file="file-1")


async def test_of_an_adapter_that_is_damaged(seen: Seen) -> None:
    name = (await seen.train())["fine_tuned_model"]
    (row,) = seen.here.services.models.list_rows()
    (seen.state / MODELS / row.digest / "adapter.json").write_text("{}")
    for action in ("stop", "start"):
        await seen.post(f"/nip/engines/sim/{action}")
    answer = await seen.post("/v1/chat/completions", **{**CHAT, "model": name})
    assert "SHA-256" in answer["error"]["message"]
    await seen.get(f"/v1/models/{name}")
    # Nor may it be trained on.
    job = {"model": name, "training_file": await seen.upload()}
    await seen.post("/v1/fine_tuning/jobs", **job)


async def test_of_a_base_model_that_is_damaged(seen: Seen) -> None:
    name = (await seen.train(use_lora=False))["fine_tuned_model"]
    (row,) = seen.here.services.models.list_rows()
    (seen.state / MODELS / row.digest / "base.json").write_text("{")
    await seen.post(f"/nip/engines/{name}/stop")
    answer = await seen.post(f"/nip/engines/{name}/start")
    assert "is no model" in answer["error"]["message"]
    await seen.post("/v1/chat/completions", **{**CHAT, "model": name})


async def test_of_a_training_that_ended_with_a_traceback(seen: Seen) -> None:
    file = await seen.upload()
    jobs = seen.here.services.jobs
    job = await seen.post("/v1/fine_tuning/jobs", model="sim", training_file=file)
    await seen.ended(job["id"])
    log = f'File "{sys.prefix}/lib/x.py", line 1\ncan\'t load {seen.state / MODELS / "m"}'
    jobs.database.execute("UPDATE jobs SET status = 'running' WHERE id = ?", job["id"])
    jobs.fail(job["id"], "training_process_died", f"End of its log:\n{log}")
    answer = await seen.ended(job["id"])
    assert f"can't load state/{MODELS}/m" in answer["error"]["message"]


def test_a_place_is_known_by_whole_names() -> None:
    places = Places(["/srv/nip", "/srv/nip/state", "relative", "/"])
    told = places.hide({"message": "/srv/nip/state/a, /srv/nip: /srv/nips, relative/b, /v1"})
    assert told == {"message": "state/a, nip: /srv/nips, relative/b, /v1"}
