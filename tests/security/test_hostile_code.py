"""Code that wants out of the sandbox wins nothing, with namespaces and as a user without any."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nip_sandbox.sandbox import Limits, SandboxError, examine, run_python, run_tests

sys.path.append(str(Path(__file__).parent))
import hostile_code

_NO_RIGHTS = """
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"""
WITHOUT_NAMESPACES = ["unshare", "--user", "--map-root-user", "--", "sh", "-c", _NO_RIGHTS, "sh"]
"""Runs a command as a user who has no rights and can't make namespaces: what a container gives."""


def as_a_user_without_namespaces(*command: str) -> subprocess.CompletedProcess[str]:
    # Where the machine gives none, the command meets that by itself.
    prefix = WITHOUT_NAMESPACES if examine()[0].processes else []
    return subprocess.run(
        [*prefix, sys.executable, *command], capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module", params=["all layers", "a user without namespaces"])
def outcome(request, tmp_path_factory):
    """Every attack, in one sandbox per way in which a machine may hold it."""
    secret = tmp_path_factory.mktemp("home") / "secret"
    secret.write_text("a key")
    secret.parent.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if request.param == "all layers":
            return hostile_code.attack(str(secret), port, allow_without_namespaces=True)
        program = str(Path(hostile_code.__file__))
        ended = as_a_user_without_namespaces(program, str(secret), str(port))
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)


@pytest.mark.parametrize("name", hostile_code.ATTACKS)
def test_an_attack_wins_nothing_and_harms_nobody(outcome, name):
    end, layers = outcome["ends"][name], outcome["isolation"]
    assert end["innocents"], end
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if name == "signals to others" and release < (6, 12) and not layers["processes"]:
        return  # not covered there; the sandbox's docstring says so
    assert end["held"], end


def test_without_namespaces_nothing_is_run_unless_allowed():
    for options in ({"refuse": ["namespaces"]}, {"refuse": ["system_calls"]}):
        with pytest.raises(SandboxError, match="allow_without_namespaces=True"):
            run_python("print(1)", **options)
    with pytest.raises(SandboxError, match="a process table of its own"):
        run_tests("", ["assert True"], refuse=["namespaces"])


def test_what_nothing_holds_is_run_in_no_way():
    with pytest.raises(SandboxError, match=r"can't be run here.*Landlock"):
        run_python(
            "print(1)",
            refuse=["namespaces", "landlock", "user"],
            allow_without_namespaces=True,
        )


def test_a_user_without_namespaces_is_told_in_a_line():
    script = "from nip_sandbox.sandbox import run_python\nrun_python('print(1)')"
    ended = as_a_user_without_namespaces("-c", script)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1
    assert "untrusted code is not run here: this system does not give the sandbox" in last
    assert "(unshare: " in last or "denied" in last or "not permitted" in last


@pytest.mark.parametrize("refuse", [[], ["namespaces"]], ids=["all layers", "no namespaces"])
def test_processes_share_one_limit_on_memory(refuse):
    code = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        held = bytearray(os.urandom(1 << 20)) * 60
        time.sleep(60)
time.sleep(60)
"""
    limits = Limits(wall_s=40.0, memory_mb=150)
    result = run_python(code, limits=limits, refuse=refuse, allow_without_namespaces=True)
    assert result.status == "memory"


def test_a_first_job_that_kills_the_supervisor_fails_alone():
    hostile = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"
    result = run_python(hostile, refuse=["namespaces"], allow_without_namespaces=True)
    assert result.status in ("killed", "error")
