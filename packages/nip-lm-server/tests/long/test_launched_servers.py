"""Who owns a server: started, attached to, replaced, and never left over."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nip_base.machine.processes import is_alive, process_identity
from nip_base.spec import ServerSpec
from nip_base.version import SERVER_VERSION
from nip_lm_server import launch as owner
from nip_lm_server.launch import OwnerError, ServerConflictError
from nip_lm_server.state.directory import ServerCard, read_card, write_card

SPEC = ServerSpec("deterministic", "sim")

PROGRAM = """
import sys, time
from pathlib import Path
from nip_lm_server import launch as owner
from nip_base.spec import ServerSpec
handle = owner.start_or_attach(ServerSpec("deterministic", "sim"), Path(sys.argv[1]), timeout_s=20)
print(handle.pid, handle.owned, flush=True)
time.sleep(60)
"""


def start(state_dir: Path, spec: ServerSpec = SPEC) -> owner.ServerHandle:
    return owner.start_or_attach(spec, state_dir, timeout_s=20)


def start_elsewhere(state_dir: Path) -> tuple[subprocess.Popen[str], int, bool]:
    """A process that starts or attaches, and then sleeps: (process, server's pid, owned)."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(state_dir)], stdout=subprocess.PIPE, text=True
    )
    pid, owned = process.stdout.readline().split()
    return process, int(pid), owned == "True"


def wait_gone(pid: int, identity: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while is_alive(pid, identity):
        assert time.monotonic() < deadline, f"{pid} is still there after {timeout_s} s"
        time.sleep(0.02)


def test_a_second_caller_attaches_and_does_not_stop_it(tmp_path: Path) -> None:
    first = start(tmp_path)
    second = start(tmp_path)
    assert first.owned and not second.owned
    assert (second.url, second.pid, second.api_key) == (first.url, first.pid, first.api_key)
    process, pid, owned = start_elsewhere(tmp_path)
    process.kill()
    process.wait(10)
    assert (pid, owned) == (first.pid, False)
    time.sleep(0.3)
    assert read_card(tmp_path).is_alive()
    owner.stop(first)
    assert process_identity(first.pid) is None
    assert read_card(tmp_path) is None


def test_a_server_that_does_not_take_the_key_of_its_directory_is_not_waited_for(
    tmp_path: Path,
) -> None:
    first = start(tmp_path)
    (tmp_path / "api_key").write_text("another-key\n")
    begun = time.monotonic()
    try:
        with pytest.raises(OwnerError, match="it does not take the key") as caught:
            owner.start_or_attach(SPEC, tmp_path, timeout_s=15)
    finally:
        owner.stop(first)
    assert time.monotonic() - begun < 10
    assert str(tmp_path) in (caught.value.reason or "")


def test_callers_at_the_same_moment_share_one_server(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    answers = [process.stdout.readline().split() for process in processes]
    assert len({pid for pid, _ in answers}) == 1
    assert sorted(owned for _, owned in answers) == ["False", "False", "True"]
    card = read_card(tmp_path)
    for process in processes:
        process.kill()
        process.wait(10)
    wait_gone(card.pid, card.identity, 5)


def test_a_server_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    process, pid, owned = start_elsewhere(tmp_path)
    identity = process_identity(pid)
    assert owned and identity is not None
    process.kill()
    process.wait(10)
    wait_gone(pid, identity, 5)
    assert read_card(tmp_path) is None


def test_a_server_whose_parent_just_died_is_not_attached_to(tmp_path: Path) -> None:
    process, pid, _ = start_elsewhere(tmp_path)
    os.kill(pid, signal.SIGSTOP)  # it can't notice
    process.kill()
    process.wait(10)
    assert read_card(tmp_path).is_orphaned()
    identity = process_identity(pid)
    begin = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "STOP_GRACE_S", 0.5)
        handle = start(tmp_path)
    assert handle.owned and handle.pid != pid
    assert not is_alive(pid, identity)
    assert time.monotonic() - begin < 10
    owner.stop(handle)


def test_a_live_server_that_is_configured_otherwise_is_refused(tmp_path: Path) -> None:
    handle = start(tmp_path)
    with pytest.raises(ServerConflictError, match=r"configured otherwise.*another state"):
        start(tmp_path, ServerSpec("deterministic", "other"))
    card = read_card(tmp_path)
    # The second is one of this release's server from before a run sent `top_logprobs_at`.
    for version in ("0.0.0", SERVER_VERSION):
        write_card(tmp_path, ServerCard(**{**card.__dict__, "version": version}))
        with pytest.raises(ServerConflictError, match=rf"version {re.escape(version)}, this is"):
            start(tmp_path)
    write_card(tmp_path, card)
    owner.stop(handle)
    other = start(tmp_path, ServerSpec("deterministic", "other"))
    assert other.owned
    owner.stop(other)


def test_a_replies_file_counts_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "replies.yaml"
    path.write_text("seed: 1\n")
    spec = ServerSpec("deterministic", "sim", replies=str(path))
    digest = spec.digest()
    path.write_text("seed: 2\n")
    assert spec.digest() != digest
    assert ServerSpec("deterministic", "sim", options={"a": 1}).digest() != SPEC.digest()


def test_what_a_killed_server_left_is_cleaned_up(tmp_path: Path) -> None:
    first = start(tmp_path)
    os.kill(first.pid, signal.SIGKILL)
    second = start(tmp_path)
    assert second.owned and second.pid != first.pid
    assert second.api_key == first.api_key
    owner.stop(second)


def test_a_card_of_a_reused_pid_belongs_to_nobody(tmp_path: Path) -> None:
    card = ServerCard(os.getpid(), "other:1", "http://127.0.0.1:1", "d", "v", "e", "m")
    write_card(tmp_path, card)
    assert owner.stop_state_dir(tmp_path) is False
    write_card(tmp_path, card)
    handle = start(tmp_path)
    assert handle.owned
    owner.stop(handle)


def test_stop_state_dir_ends_anybodys_server(tmp_path: Path) -> None:
    process, pid, _ = start_elsewhere(tmp_path)
    identity = process_identity(pid)
    assert owner.stop_state_dir(tmp_path) is True
    assert not is_alive(pid, identity)
    assert owner.stop_state_dir(tmp_path) is False
    process.kill()
    process.wait(10)


def test_a_server_that_can_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(OwnerError, match=r"(?s)status 2.*replies\.yaml"):
        (tmp_path / "replies.yaml").write_text("rulez: []\n")
        start(
            tmp_path / "state",
            ServerSpec("deterministic", "sim", replies=str(tmp_path / "replies.yaml")),
        )
    with pytest.raises(OwnerError, match="no options"):
        start(tmp_path / "state", ServerSpec("deterministic", "sim", options={"dtype": "x"}))
    with pytest.raises(OwnerError, match=r"can't be used"):
        start(
            tmp_path / "state",
            ServerSpec("deterministic", "sim", replies=str(tmp_path / "none.yaml")),
        )


def run_server(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "nip_lm_server", "--engine", "deterministic"),
            *("--model", "sim", "--no-auth", "--state", str(tmp_path / "s"), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_a_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_server(tmp_path, "--port", str(port))
    assert ended.returncode == 2
    assert ended.stderr.strip() == (
        f"lm_server: can't listen on 127.0.0.1:{port}: the port is in use: choose another one, or 0"
    )


def test_two_servers_do_not_share_a_state_directory(tmp_path: Path) -> None:
    handle = start(tmp_path / "s")
    ended = run_server(tmp_path, "--port", "0")
    assert ended.returncode == 2 and "another server uses" in ended.stderr
    owner.stop(handle)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_server_inherits_nobodys_keys(tmp_path: Path) -> None:
    secrets = ("OPENAI_API_KEY", "GH_TOKEN", "x_secret", "DB_PASSWORD", "NIP_API_KEYS")
    kept = {"HF_TOKEN": "hub", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, **kept, **dict.fromkeys(secrets, "hunter2")}
    environment["PREFECT_API_AUTH_STRING"] = environment["NIP_API_KEY"] = "hunter2"
    handle = owner.start_or_attach(SPEC, tmp_path / "s", timeout_s=20, env=environment)
    try:
        inherited = Path(f"/proc/{handle.pid}/environ").read_bytes().split(b"\0")
        assert not [entry for entry in inherited if b"hunter2" in entry]
        assert {f"{name}={value}".encode() for name, value in kept.items()} <= set(inherited)
    finally:
        owner.stop(handle)


def test_importing_the_owner_loads_nothing_heavy() -> None:
    program = (
        "import sys; import nip_lm_server.launch, nip_base.formats;"
        "print([m for m in ('aiohttp', 'pydantic', 'torch', 'yaml', 'openai') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    assert shown == "[]\n"
