"""A state directory that was altered or damaged: nothing of it is used, and one line says what."""

import asyncio
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from served_here import Here, serve, until

from nip_base import formats
from nip_base.spec import ServerSpec
from nip_lm_server.__main__ import main

ROWS = formats.to_jsonl(
    [
        {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "x"}]}
        for i in range(10)
    ]
)
POISON = ROWS.replace(b'"x"', b'"y"')


async def upload(here: Here) -> tuple[str, Path]:
    """(id, where its content lies) of a new file."""
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="t"\r\n\r\n'
        b"%b\r\n--b--\r\n" % ROWS
    )
    kind = {"Content_Type": "multipart/form-data; boundary=b"}
    status, body, _ = await here.post("/v1/files", form, **kind)
    assert status == 200, body
    id = json.loads(body)["id"]
    return id, here.services.state_dir / "files" / id


async def create(here: Here, file_id: str, **more: Any) -> str:
    job = {"model": "sim", "training_file": file_id, **more}
    status, body, _ = await here.post("/v1/fine_tuning/jobs", job)
    assert status == 200, body
    return str(json.loads(body)["id"])


async def ended(here: Here, job_id: str) -> dict[str, Any]:
    jobs = here.services.jobs
    await until(lambda: jobs.get_row(job_id).status in ("succeeded", "failed", "cancelled"))
    return jobs.retrieve(job_id)


async def test_an_altered_upload_is_neither_served_nor_trained_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replies = tmp_path / "replies.yaml"
    replies.write_text("training: {seconds: 60}\n")
    spec = ServerSpec("deterministic", "sim", replies=str(replies))
    async with serve(tmp_path / "state", spec=spec) as here:
        (good, _), (bad, content), (late, late_content) = [await upload(here) for _ in range(3)]
        content.write_bytes(POISON)
        async with here.http.get(f"/v1/files/{bad}/content") as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (500, "file_damaged")
        where = f"(state/files/{bad}: it is no longer what was uploaded): upload it again"
        assert where in error["message"] and str(content) not in error["message"]
        assert str(content) in caplog.text  # of who runs the server
        busy = await create(here, good)
        for files in ({"file_id": bad}, {"file_id": good, "validation_file": bad}):
            job = await ended(here, await create(here, **files))
            assert (job["status"], job["error"]["code"]) == ("failed", "file_damaged")
            param = "validation_file" if "validation_file" in files else "training_file"
            assert job["error"]["param"] == param
        # Altered while its job waits for its turn, long after it was checked.
        waiting = await create(here, late)
        await until(lambda: here.services.jobs.get_row(waiting).status == "queued")
        late_content.unlink()
        late_content.write_bytes(POISON)
        await here.post(f"/v1/fine_tuning/jobs/{busy}/cancel", b"")
        job = await ended(here, waiting)
        assert (job["status"], job["error"]["code"]) == ("failed", "file_damaged")
        late_content.unlink()
        async with here.http.get(f"/v1/files/{late}/content") as answer:
            assert answer.status == 500
        assert here.services.database.fetch_all("SELECT * FROM models") == []


async def test_health_without_a_state_directory_is_a_503_that_floods_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(tmp_path / "state") as here:
        (tmp_path / "state").rename(tmp_path / "away")
        async with here.http.get("/health") as answer:
            problems = (await answer.json())["problems"]
        (tmp_path / "away").rename(tmp_path / "state")
    assert answer.status == 503
    assert problems == ["the state directory can't be read: No such file or directory"]
    assert "Traceback" not in caplog.text


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a server that has done a bit of everything."""
    state = tmp_path_factory.mktemp("whole") / "state"

    async def work() -> None:
        async with serve(state) as here:
            id, _ = await upload(here)
            job = await ended(here, await create(here, id, metadata={"a": "b"}))
            assert job["status"] == "succeeded"

    asyncio.run(work())
    return state


@pytest.fixture
def state(whole: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it."""
    mask = os.umask(0o022)
    shutil.copytree(whole, tmp_path / "state")
    yield tmp_path / "state"
    os.umask(mask)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def other_magic(path: Path) -> None:
    path.write_bytes(b"PK\3\4" + path.read_bytes()[4:])


def zeroes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = bytes(64)
    path.write_bytes(data)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def no_text(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREA\xd2E TABLE"[:12]))


def sql(statement: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database:
            assert database.execute(statement).rowcount == 1
            database.commit()

    return damage


@pytest.mark.parametrize("damage", [cut, other_magic, zeroes, folder, no_text])
def test_a_damaged_database_is_one_line_that_names_it(
    damage: Callable[[Path], None], state: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(state / "jobs.sqlite3")
    refused(state, "jobs.sqlite3", capfd)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE jobs SET settings = substr(settings, 9)",
        "UPDATE jobs SET settings = replace(settings, 'n_epochs', 'n_epoks')",
        "UPDATE jobs SET metadata = '{'",
        "UPDATE jobs SET created_at = 'x'",
        "UPDATE models SET proof = 'x'",
        "UPDATE meta SET value = 'x' WHERE key = 'created_at'",
        "UPDATE meta SET value = '[1]' WHERE key = 'created_at'",
        "UPDATE events SET data = '}' WHERE seq = 1",
    ],
)
def test_a_damaged_row_is_one_line_that_names_the_database(
    statement: str, state: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sql(statement)(state / "jobs.sqlite3")
    refused(state, "jobs.sqlite3", capfd)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_card_that_a_full_disk_does_not_take_is_one_line(
    state: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (state / "server.json.part").symlink_to("/dev/full")
    refused(state, "server.json", capfd)


def refused(state: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    files = {path: path.read_bytes() for path in (state / "files").iterdir()}
    arguments = ["--engine=deterministic", "--model=sim", "--port=0", f"--state={state}"]
    assert main([*arguments, "--no-auth"]) == 2
    printed = capfd.readouterr().err
    (line,) = [line for line in printed.splitlines() if line.startswith("lm_server: ")]
    assert str(state / name) in line and "Traceback" not in printed
    assert {path: path.read_bytes() for path in (state / "files").iterdir()} == files


def test_what_a_server_keeps_is_for_its_user_alone(state: Path) -> None:
    """Also what was made before, whose directory anybody could read."""
    shutil.rmtree(state)
    from nip_lm_server import launch as owner

    handle = owner.start_or_attach(ServerSpec("deterministic", "sim"), state)
    owner.stop(handle)
    open_to_others = [path for path in (state, *state.rglob("*")) if path.stat().st_mode & 0o077]
    assert open_to_others == []
