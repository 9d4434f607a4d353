"""Files: limits, expiry, and that a refusal reaches the client whatever it was sending."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from nip_base import formats
from nip_base.api_errors import ApiError
from nip_base.spec import ServerSpec
from nip_lm_server import launch as owner
from nip_lm_server.launch import ServerHandle
from nip_lm_server.state.database import Database
from nip_lm_server.state.files import FileStore


def examples(count: int = 10) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "x"}]}
        for i in range(count)
    ]


def store(directory: Path, clock: Any = lambda: 1000.0, **limits: int) -> FileStore:
    limits = {"max_bytes": 10**6, **limits}
    return FileStore(
        directory / "files", Database(directory / "jobs.sqlite3"), clock=clock, **limits
    )


def put(files: FileStore, content: bytes, expires_after_s: int | None = None) -> str:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 100):
            yield content[start : start + 100]

    staged = asyncio.run(files.stage(chunks(), "train.jsonl"))
    return str(files.admit(staged, "fine-tune", expires_after_s)["id"])


def test_a_file_with_too_many_examples_is_refused(tmp_path: Path) -> None:
    files = store(tmp_path, max_rows=12)
    put(files, formats.to_jsonl(examples(12)))
    with pytest.raises(ApiError) as caught:
        put(files, formats.to_jsonl(examples(13)))
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "too_many_examples", "file")
    assert "more than 12 examples" in error.message
    assert len(list((tmp_path / "files").iterdir())) == 1


def test_a_file_expires_when_it_was_to_and_not_while_it_is_needed(tmp_path: Path) -> None:
    now = [1000.0]
    files = store(tmp_path, clock=lambda: now[0])
    kept = put(files, formats.to_jsonl(examples()))
    short = put(files, formats.to_jsonl(examples()), 3600)
    assert "expires_at" not in files.retrieve(kept)
    assert files.retrieve(short)["expires_at"] == 4600
    now[0] = 4599.9
    assert len(_list(files)) == 2
    now[0] = 4600.0
    assert [file["id"] for file in _list(files)] == [kept]
    with pytest.raises(ApiError) as caught:
        files.find_content(short)
    assert caught.value.status == 404
    assert [path.name for path in (tmp_path / "files").iterdir()] == [kept]


def test_a_row_without_content_counts_as_deleted(tmp_path: Path) -> None:
    """As a kill leaves it between freeing the content and the mark, and a disk that is away."""
    files = store(tmp_path)
    kept, gone = (put(files, formats.to_jsonl(examples()), 3600) for _ in range(2))
    content = (tmp_path / "files" / gone).rename(tmp_path / "elsewhere")
    files = store(tmp_path)
    assert [file["id"] for file in _list(files)] == [kept]
    for call in (files.retrieve, files.find_content, files.delete, files.get_purpose):
        with pytest.raises(ApiError) as caught:
            call(gone)
        assert caught.value.status == 404
    content.rename(tmp_path / "files" / gone)
    assert [file["id"] for file in _list(store(tmp_path))] == [gone, kept]


def test_content_that_the_table_does_not_know_is_never_deleted(tmp_path: Path) -> None:
    """Emptied, the table knows none; what somebody else has put there it never knew."""
    files = store(tmp_path)
    ids = [put(files, formats.to_jsonl(examples())) for _ in range(2)]
    contents = {id: (tmp_path / "files" / id).read_bytes() for id in ids}
    strange = ["notes.txt", ".hidden", "file-x.part", "file-0123"]
    for name in strange:
        (tmp_path / "files" / name).write_text("precious")
    broken_off = tmp_path / "files" / f"file-{'0' * 24}.part"
    broken_off.write_text("{")
    Database(tmp_path / "jobs.sqlite3").execute("DELETE FROM files")
    for _ in range(2):
        assert (
            store(tmp_path).list(purpose=None, limit=9, after=None, descending=True)["data"] == []
        )
        assert {path.name for path in (tmp_path / "files").iterdir()} == set(strange)
    assert {path.name: path.read_bytes() for path in (tmp_path / "set_aside").iterdir()} == contents


def test_a_deletion_that_the_table_can_not_take_is_one(tmp_path: Path) -> None:
    database = Database(tmp_path / "jobs.sqlite3")
    files = FileStore(tmp_path / "files", database, 10**6, clock=lambda: 1000.0)
    ids = [put(files, formats.to_jsonl(examples())) for _ in range(4)]
    database.execute("PRAGMA query_only = ON")
    for id in ids[1:3]:
        assert files.delete(id)["deleted"] is True
    assert len(list((tmp_path / "files").iterdir())) == 2
    assert [file["id"] for file in _list(files)] == [ids[3], ids[0]]
    page = files.list(purpose=None, limit=1, after=ids[3], descending=True)
    assert ([file["id"] for file in page["data"]], page["has_more"]) == ([ids[0]], False)


def _list(files: FileStore) -> list[dict[str, Any]]:
    page = files.list(purpose=None, limit=10, after=None, descending=True)
    ends = (page["data"][0]["id"], page["data"][-1]["id"])
    assert (page["first_id"], page["last_id"]) == ends
    return list(page["data"])


def test_an_upload_may_say_when_it_expires(server) -> None:
    upload = lambda **policy: server.client.files.create(  # noqa: E731
        file=("t.jsonl", formats.to_jsonl(examples())), purpose="fine-tune", expires_after=policy
    )
    file = upload(anchor="created_at", seconds=3600)
    assert file.expires_at == file.created_at + 3600
    assert server.client.files.retrieve(file.id).expires_at == file.expires_at
    for policy, param in (
        ({"anchor": "created_at", "seconds": 3599}, "expires_after[seconds]"),
        ({"anchor": "created_at", "seconds": 2_592_001}, "expires_after[seconds]"),
        ({"anchor": "created_at", "seconds": "soon"}, "expires_after[seconds]"),
        ({"anchor": "created_at"}, "expires_after[seconds]"),
        ({"anchor": "used_at", "seconds": 3600}, "expires_after[anchor]"),
        ({"seconds": 3600}, "expires_after[anchor]"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            upload(**policy)
        assert caught.value.param == param, policy


def test_an_empty_list_has_no_null_ids(make_server) -> None:
    page = make_server().client.get("/files", cast_to=object)
    assert page == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


class SmallServer:
    """A server that takes files of 100 kB, in a directory of its own."""

    def __init__(self, state_dir: Path):
        self.state_dir = state_dir
        self.handle: ServerHandle = owner.start_or_attach(
            ServerSpec("deterministic", "sim", max_upload_bytes=100_000), state_dir, timeout_s=20
        )
        self.url = self.handle.url + "/v1"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    server = SmallServer(tmp_path_factory.mktemp("small") / "state")
    yield server
    owner.stop(server.handle)


class Zeros:
    """A sparse file that is larger than what lies between two sockets, by far."""

    def __init__(self, directory: Path, size: int):
        self.path = directory / "zeros.jsonl"
        with self.path.open("wb") as file:
            file.truncate(size)


def test_a_stock_client_is_told_that_its_file_is_too_large(
    small: SmallServer, tmp_path: Path
) -> None:
    zeros = Zeros(tmp_path, 300 * 1024 * 1024)
    client = openai.OpenAI(base_url=small.url, api_key=small.handle.api_key, max_retries=0)
    with zeros.path.open("rb") as file, pytest.raises(openai.APIStatusError) as caught:
        client.files.create(file=file, purpose="fine-tune")
    assert (caught.value.status_code, caught.value.code) == (413, "file_too_large")
    assert caught.value.param == "file"
    assert client.files.list().data == []
    client.close()


@pytest.mark.long
async def test_an_asynchronous_client_is_told_too(small: SmallServer, tmp_path: Path) -> None:
    zeros = Zeros(tmp_path, 300 * 1024 * 1024)
    key = small.handle.api_key
    async with openai.AsyncOpenAI(base_url=small.url, api_key=key, max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.files.create(file=zeros.path.open("rb"), purpose="fine-tune")
    assert caught.value.status_code == 413


def test_a_file_of_unknown_length_is_cut_off_at_the_limit(small: SmallServer) -> None:
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        head = 'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        yield b"--b\r\n" + head.encode()
        for _ in range(5000):
            sent += 20_000
            yield b"x" * 20_000

    response = httpx.post(
        small.url + "/files",
        content=body(),
        headers={
            "Authorization": f"Bearer {small.handle.api_key}",
            "Content-Type": "multipart/form-data; boundary=b",
        },
        timeout=30,
    )
    assert response.status_code == 413 and response.json()["error"]["code"] == "file_too_large"
    assert list((small.state_dir / "files").iterdir()) == []


def test_a_client_that_goes_on_for_ever_is_cut_off(small: SmallServer) -> None:
    host, port = small.handle.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n"
            b"Authorization: Bearer " + small.handle.api_key.encode() + b"\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


class TinyDisk:
    """A server whose state lies on a disk of 80 MB, in a mount namespace of its own."""

    def __init__(self, directory: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = f"{sys.executable} -m nip_lm_server --engine deterministic --model sim"
        self.process = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c",
             f"mount -t tmpfs -o size=80m tmpfs {directory} && "
             f"exec {server} --no-auth --port {port} --state {directory}"],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                self.client.models.list()
                return
            except openai.APIConnectionError:
                assert self.process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)

    def upload(self, content: bytes) -> str:
        return self.client.files.create(file=("t.jsonl", content), purpose="fine-tune").id


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[TinyDisk]:
    try:
        subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)],
            check=True, capture_output=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no mount namespaces here")
    server = TinyDisk(tmp_path)
    try:
        server.wait_ready()
        yield server
    finally:
        server.client.close()
        server.process.terminate()
        server.process.wait(20)


def test_a_full_disk_refuses_uploads_and_jobs_and_keeps_what_there_is(tiny_disk: TinyDisk) -> None:
    jobs = tiny_disk.client.fine_tuning.jobs
    small_file = tiny_disk.upload(formats.to_jsonl(examples()))
    key = {"Idempotency-Key": "one"}
    first = jobs.create(model="sim", training_file=small_file, extra_headers=key)
    row = b'{"messages": []}' + b" " * 1_000_000 + b"\n"
    large_file = tiny_disk.upload(row * 20)

    with pytest.raises(openai.APIStatusError) as caught:
        jobs.create(model="sim", training_file=small_file)
    assert (caught.value.status_code, caught.value.code) == (507, "disk_full")
    health = httpx.get(str(tiny_disk.client.base_url.join("/health")))
    assert health.status_code == 503
    assert health.json()["problems"] == health.json()["lasting"]
    assert "67.2 MB of disk are needed, only" in health.json()["lasting"][0]
    # It is no new job that is asked for here.
    again = jobs.create(model="sim", training_file=small_file, extra_headers=key)
    assert again.id == first.id
    with pytest.raises(openai.APIStatusError) as caught:
        tiny_disk.upload(row * 70)
    assert (caught.value.status_code, caught.value.code) == (507, "disk_full")

    assert {file.id for file in tiny_disk.client.files.list(purpose="fine-tune")} == {
        small_file, large_file
    }  # fmt: skip
    tiny_disk.client.files.delete(large_file)
    assert [job.id for job in jobs.list()] == [first.id]
    jobs.create(model="sim", training_file=small_file)


@pytest.mark.long
def test_files_can_be_deleted_on_a_disk_with_no_byte_left(tiny_disk: TinyDisk) -> None:
    ids = [tiny_disk.upload(formats.to_jsonl(examples())) for _ in range(3)]
    for kilobytes in (40_000, 20_000, 8_000, 2_000, 500, 100, 20, 4):
        row = b'{"messages": []}'.ljust(kilobytes * 500 - 1) + b"\n"
        with contextlib.suppress(openai.APIStatusError):
            while True:
                ids.append(tiny_disk.upload(row * 2))
    with pytest.raises(openai.APIStatusError) as caught:
        tiny_disk.upload(formats.to_jsonl(examples()))
    assert (caught.value.status_code, caught.value.code) == (507, "disk_full")
    for id in ids:
        assert tiny_disk.client.files.delete(id).deleted
    assert tiny_disk.client.files.list().data == []
    tiny_disk.upload(formats.to_jsonl(examples()))
