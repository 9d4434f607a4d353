"""Keys: who is let in, and where a key can be seen."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from nip_base.spec import ServerSpec
from nip_lm_server.auth import KeyRing, is_secret_name, load_keys, make_key_file


def test_each_key_is_accepted_and_nothing_else() -> None:
    ring = KeyRing(["one", "two"])
    assert ring.accepts("Bearer one") and ring.accepts("bearer two")
    for header in (None, "", "one", "Bearer", "Bearer ", "Bearer on", "Bearer one2", "Basic one"):
        assert not ring.accepts(header), header


def test_no_key_is_an_error_unless_said_otherwise() -> None:
    with pytest.raises(ValueError, match=r"NIP_API_KEYS.*--no-auth"):
        load_keys(None, False, {})
    assert load_keys(None, True, {}).accepts(None)
    with pytest.raises(ValueError, match="choose one"):
        load_keys(None, True, {"NIP_API_KEYS": "k"})


def test_keys_leave_the_environment_and_join_those_of_the_file(tmp_path: Path) -> None:
    environment = {"NIP_API_KEYS": "a, b,", "HOME": "/"}
    file = tmp_path / "keys"
    file.write_text("c\n\n d \n")
    ring = load_keys(file, False, environment)
    assert environment == {"HOME": "/"}
    assert [ring.accepts(f"Bearer {key}") for key in "abcde"] == [True] * 4 + [False]


def test_an_empty_keys_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        load_keys(tmp_path / "keys", False, {"NIP_API_KEYS": "a"})


def test_a_keys_file_without_an_end_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "keys").open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(ValueError, match="keys is larger than 4194304 bytes, or has no end"):
        load_keys(tmp_path / "keys", no_auth=False, environment={})


@pytest.mark.parametrize("name", ["pipe", "nul\0", "a" * 300])
def test_replies_that_are_no_file_are_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    spec = ServerSpec(engine="deterministic", model="m", replies=str(tmp_path / name))
    with pytest.raises(ValueError, match="there is no such file"):
        spec.digest()


def test_the_key_file_is_private_and_made_once(tmp_path: Path) -> None:
    path = tmp_path / "api_key"
    key = make_key_file(path)
    assert len(key) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert make_key_file(path) == key
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    path.write_bytes(b"k\r\n")
    assert make_key_file(path) == "k"
    for content, problem in (("", "is empty"), ("one\r\ntwo\r\n", "no HTTP header can carry")):
        path.write_text(content)
        with pytest.raises(ValueError, match=problem):
            make_key_file(path)


def test_a_key_file_made_by_many_at_once_has_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        keys = set(threads.map(lambda _: make_key_file(tmp_path / "api_key"), range(64)))
    assert len(keys) == 1


def test_a_server_without_a_key_does_not_start(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "NIP_API_KEYS"}
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "nip_lm_server", "--engine", "deterministic"),
            *("--model", "sim", "--state", str(tmp_path / "state"), "--port", "0"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 2
    assert "no API key" in ended.stderr and "Traceback" not in ended.stderr


def test_a_wrong_key_gets_openais_401_on_every_path(server) -> None:
    client = openai.OpenAI(base_url=server.handle.url + "/v1", api_key="wrong", max_retries=0)
    for call in (
        client.models.list,
        client.files.list,
        lambda: client.chat.completions.create(model="sim", messages=[]),
        lambda: client.get("/nothing", cast_to=object),
    ):
        with pytest.raises(openai.AuthenticationError) as caught:
            call()
        assert caught.value.code == "invalid_api_key"


def test_the_key_is_in_its_file_and_nowhere_else(server) -> None:
    server.client.models.list()
    key = server.handle.api_key
    assert key not in repr(server.handle)
    for path in server.state_dir.rglob("*"):
        if path.is_file() and path.name != "api_key":
            assert key.encode() not in path.read_bytes(), path
    proc = Path(f"/proc/{server.handle.pid}")
    if proc.exists():
        assert key.encode() not in (proc / "cmdline").read_bytes()
        assert key.encode() not in (proc / "environ").read_bytes()


@pytest.mark.parametrize(
    ("name", "secret"),
    [("MYAUTH", True), ("registry_auth", True), ("HTTP_AUTHORIZATION", True), ("MY_JWT", True),
     ("PREFECT_SERVER_API_AUTH_STRING", True), ("SSH_AUTH_SOCK", False), ("XAUTHORITY", False),
     ("AUTHOR", False)],
)  # fmt: skip
def test_a_variable_is_secret_by_the_end_of_its_name(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret
