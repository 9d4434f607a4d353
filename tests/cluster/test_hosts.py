"""Hosts that share nothing but a network and an object store: nobody commits for another.

Each host is a set of Linux namespaces, which only root may make; see four_hosts.network.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from four_hosts.network import ROOT, Host, HostsError, Network, Program, check_here, until
from small_disk import needs_mount

pytestmark = [pytest.mark.cluster, pytest.mark.short, pytest.mark.timeout(300), needs_mount]
PORT = 9000
LEASE = """
import sys, time
from nip_core.errors import LeaseError
from nip_core.run_store.lease import acquire
from nip_core.run_store.store import open_store
store = open_store("s3://runs/hosts")
lease = acquire(store, "r", ttl_s=5.0)
print("holds", lease.epoch, flush=True)
number = 0
while True:
    number += 1
    try:
        store.put_if_absent(f"r/{lease.epoch}-{number}", b"x", fence=lease.fence)
    except LeaseError as error:
        print("refused:", error, flush=True)
        sys.exit(4)
    except Exception as error:
        print("not written:", error, flush=True)
        continue
    print("wrote", number, flush=True)
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("logs")) as network:
        yield network


@pytest.fixture(scope="module")
def store(network: Network) -> dict[str, str]:
    """The environment in which s3:// is the object store of a host."""
    host = network.add("store")
    script = ROOT / "tests" / "helpers" / "s3_server.py"
    host.start("server", sys.executable, str(script), host.address, str(PORT))
    url = f"http://{host.address}:{PORT}"
    make = f"import urllib.request as u; u.urlopen(u.Request('{url}/runs', method='PUT'))"
    until(lambda: succeeds(host, sys.executable, "-c", make), "the store answers", 60)
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "a-test-key",
        "AWS_SECRET_ACCESS_KEY": "a-test-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "PYTHONPATH": str(ROOT),
    }


def succeeds(host: Host, *command: str) -> bool:
    try:
        host.run(*command)
    except HostsError:
        return False
    return True


def hold(host: Host, name: str, store: dict[str, str]) -> Program:
    """A process on a host that takes the lease and commits under it, again and again."""
    return host.start(name, sys.executable, "-c", LEASE, environment=store)


def says(program: Program, words: str) -> None:
    until(lambda: words in program.said(), f"{program.name} says {words!r}", 120)


def test_a_host_that_comes_back_commits_nothing_under_a_lease_that_another_took(
    network: Network, store: dict[str, str]
) -> None:
    b, c = network.add("b"), network.add("c", clock_offset_s=7200.0)
    first = hold(b, "first", store)
    says(first, "wrote 3")
    b.cut()
    second = hold(c, "second", store)
    says(second, "holds 2")
    says(second, "wrote 3")
    assert second.is_running
    before = first.said().count("wrote")
    b.mend()
    says(first, "refused:")
    assert first.process.wait(30) == 4
    assert first.said().count("wrote") == before
    second.kill()


def test_a_host_that_lost_its_power_is_replaced_once_its_time_is_over(
    network: Network, store: dict[str, str]
) -> None:
    lost, heir = network.add("lost-power"), network.add("heir", clock_offset_s=-7200.0)
    first = hold(lost, "held", store)
    says(first, "wrote 1")
    epoch = int(first.said().split("holds ")[1].split()[0])
    lost.switch_off()
    second = hold(heir, "inherits", store)
    says(second, f"holds {epoch + 1}")
    says(second, "wrote 1")
    second.kill()


@pytest.mark.parametrize("trouble", [{"delay_s": 2.0}, {"refused": 0.3}], ids=["late", "503"])
def test_a_store_in_trouble_costs_no_lease(
    trouble: dict[str, float], network: Network, store: dict[str, str]
) -> None:
    host = network.add(f"patient-{len(network.hosts)}")
    holder = hold(host, "holder", store)
    says(holder, "wrote 1")
    tell_store(host, store, trouble)
    try:
        before = holder.said().count("wrote")
        until(lambda: holder.said().count("wrote") >= before + 3, "it goes on", 120)
    finally:
        tell_store(host, store, {"delay_s": 0.0, "refused": 0.0})
    assert holder.is_running and "refused:" not in holder.said()
    holder.kill()


def tell_store(host: Host, store: dict[str, str], trouble: dict[str, float]) -> None:
    """Let the object store answer later, or a share of requests with 503, from now on."""
    url, body = f"{store['AWS_ENDPOINT_URL']}/-/trouble", json.dumps(trouble).encode()
    host.run(sys.executable, "-c", f"import urllib.request as u; u.urlopen({url!r}, {body!r})")


def test_a_host_has_files_a_clock_and_a_disk_of_its_own(network: Network) -> None:
    host, other = network.add("late", disk="32m", clock_offset_s=7200.0), network.add("other")
    host.run("sh", "-c", "echo here > $TMPDIR/file; echo here > $HOME/file")
    assert host.run("ls") == "file\n", "a program begins in its folder for temporary files"
    # Wherever the checkout is; what is below /tmp there stays the machine's alone.
    folders = other.run("sh", "-c", "ls $TMPDIR $HOME").split()
    assert folders == ["/home/other:", f"{other.temporary}:"]
    assert not Path(host.temporary).exists()
    with tempfile.NamedTemporaryFile() as file:
        assert not succeeds(host, "ls", file.name)
    assert not succeeds(host, "touch", str(ROOT / "file")), "the checkout is read-only"
    ahead_s = int(host.run("date", "+%s")) - time.time()
    assert 7190 < ahead_s < 7260
    host.fill()
    assert not succeeds(host, "sh", "-c", "head -c 4096 /dev/zero > $TMPDIR/more")
    host.empty()
    assert succeeds(host, "sh", "-c", "head -c 4096 /dev/zero > $TMPDIR/more")


def test_nothing_is_left_of_hosts_whose_maker_was_killed(tmp_path: Path) -> None:
    made = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from four_hosts.network import Network
        with Network(Path({str(tmp_path)!r})) as network:
            host = network.add("lost")
            host.start("sleeper", "sleep", "4711.25")
            print("made", flush=True)
            time.sleep(600)
    """)
    maker = subprocess.Popen(
        [sys.executable, "-c", made],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")},
    )
    assert maker.stdout is not None and maker.stdout.readline() == b"made\n"
    assert running("4711.25")
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    until(lambda: not running("4711.25"), "its program ends", 30)
    until(lambda: not running("init.py", "lost"), "the host ends", 30)


def running(*words: str) -> bool:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = place.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if all(any(argument.endswith(word) for argument in arguments) for word in words):
            return True
    return False


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostsError, match="hosts need root, this is user 1000; run it as root"):
        check_here()


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostsError, match=r"hosts need ip, .* apt-get install iproute2"):
        check_here()
