"""Hosts on one Linux machine: each with a network, files, processes and a name of its own.

Network       the hosts and the cables between them
Host          one: start programs on it, cut it off, switch its power off, fill its disk
enter_apart   put this process on a network of its own, as the desk from which hosts are watched

Hosts share the machine's files read-only; whatever they write is on a tmpfs of their own. All of it
hangs on processes that end with the one that made them, however that ends, and so nothing is left.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

ROOT = Path(__file__).resolve().parents[3]
PREFIX = "10.77.0"
DESK = 1  # the last number of its address; hosts come after
TOOLS = ("ip", "mount", "unshare", "nsenter")
_HERE = Path(__file__).parent
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLOCK = "/run/clock.so"  # on a host


class HostsError(Exception):
    """Hosts can't be made here; the message says why, and what to do."""


def check_here() -> None:
    """Raise HostsError unless hosts can be made on this machine by this user."""
    if sys.platform != "linux":
        raise HostsError(f"hosts need Linux, this is {sys.platform}; run it in a Linux machine")
    if os.geteuid() != 0:
        raise HostsError(
            f"hosts need root, this is user {os.geteuid()}; run it as root, or with sudo"
        )
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise HostsError(
            f"hosts need {', '.join(missing)}, not found in PATH; "
            "apt-get install iproute2 util-linux"
        )
    if not Path("/dev/net/tun").exists():
        raise HostsError("hosts need /dev/net/tun, which is not there; load the module tun")


def build_clock(folder: Path) -> Path:
    """Build the library that moves a program's clock. Raises HostsError where that can't be."""
    library = folder / "clock.so"
    if not library.exists():
        if shutil.which("cc") is None:
            raise HostsError("another clock needs cc, not found in PATH; apt-get install gcc")
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_HERE / "clock.c")]
        subprocess.run(command, check=True)
    return library


def enter_apart() -> None:
    """Move this process to a network namespace of its own, before it has threads."""
    check_here()
    if _LIBC.unshare(_CLONE_NEWNET):
        raise HostsError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def end_with_parent() -> None:
    """Let the calling process be killed when the one that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Program:
    """A program on a host, with what it started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill it with all that is in its process group."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def kill_tree(self) -> None:
        """Kill it with all that it has started, in whatever process group that is."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        self.kill()

    def terminate(self, most_s: float = 30.0) -> None:
        """Ask it to end, and kill it if it does not in time."""
        self._signal(signal.SIGTERM)
        try:
            self.process.wait(most_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def said(self, most: int = 4000) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-most:]

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@dataclass
class Host:
    """A host of a network; `Network.add` makes it."""

    name: str
    address: str
    network: "Network"
    disk: str
    clock_offset_s: float = 0.0
    programs: list[Program] = field(default_factory=list)
    _init: subprocess.Popen[str] | None = None
    pid: int = 0

    @property
    def temporary(self) -> str:
        """Its folder for temporary files, which is empty at first.

        Not /tmp: a host has the checkout at the checkout's own path, and that may lie below /tmp.
        """
        return f"/run/{self.name}/tmp"

    def switch_on(self) -> None:
        """Start the host, with an empty disk."""
        kept = [str(ROOT), sys.prefix, sys.base_prefix]
        command = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork"]
        command += ["--kill-child=SIGKILL", sys.executable, str(_HERE / "init.py")]
        self._init = subprocess.Popen(
            [*command, self.name, self.disk, *kept],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent,
        )
        assert self._init.stdout is not None
        if self._init.stdout.readline().strip() != "ready":
            raise HostsError(f"host {self.name} does not start, see its message above")
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text()
        self.pid = int(children.split()[0])
        self.network.tell(do="attach", name=self.name, pid=self.pid, address=f"{self.address}/24")

    def switch_off(self) -> None:
        """Take its power: no connection is closed, and what it had on its disk is gone."""
        self.network.tell(do="detach", name=self.name)
        if self._init is not None:
            self._init.kill()
            self._init.wait()
            self._init = None
        for program in self.programs:
            program.process.wait()
        self.programs.clear()

    def cut(self) -> None:
        """Pull its cable."""
        self.network.tell(do="cut", name=self.name)

    def mend(self) -> None:
        """Put its cable back."""
        self.network.tell(do="mend", name=self.name)

    def start(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program; its output goes to a file on the machine, and a name is one file."""
        log = self.network.logs / f"{self.name}-{name}.log"
        with log.open("ab") as out:
            process: subprocess.Popen[bytes] = self._popen(command, environment, out)
        program = Program(name, process, log)
        self.programs.append(program)
        return program

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, most_s: float = 180.0
    ) -> str:
        """Run a program to its end; what it said. Raises HostsError if that is a bad one."""
        process = self._popen(command, environment, subprocess.PIPE)
        try:
            said, _ = process.communicate(timeout=most_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise HostsError(f"{self.name}: {' '.join(command)} took over {most_s:g} s") from None
        if process.returncode:
            text = said.decode(errors="replace")[-2000:]
            raise HostsError(f"{self.name}: {' '.join(command)} ended badly: {text}")
        return str(said.decode(errors="replace"))

    def path(self, place: str) -> Path:
        """Where a file of the host is for this process."""
        return Path(f"/proc/{self.pid}/root{place}")

    def fill(self) -> None:
        """Fill its disk to the last byte."""
        with (
            contextlib.suppress(OSError),
            self.path(f"{self.temporary}/filling").open("ab", 0) as file,
        ):
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def empty(self) -> None:
        """Take away what filled it."""
        self.path(f"{self.temporary}/filling").unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """What its programs find: nothing of the machine's user but the path."""
        found = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        found |= {"HOME": f"/home/{self.name}", "TMPDIR": self.temporary, "OMP_NUM_THREADS": "1"}
        return found

    def _popen(
        self, command: Sequence[str], environment: Mapping[str, str] | None, out: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        self.path(f"/home/{self.name}").mkdir(exist_ok=True)
        if not (temporary := self.path(self.temporary)).exists():
            temporary.mkdir(parents=True)
            temporary.chmod(0o1777)
        if self.clock_offset_s:
            if not self.path(_CLOCK).exists():
                shutil.copy(build_clock(self.network.logs), self.path(_CLOCK))
            offset = f"CLOCK_OFFSET_S={self.clock_offset_s:.0f}"
            command = ["env", f"LD_PRELOAD={_CLOCK}", offset, *command]
        names = [f"--{kind}" for kind in ("net", "mount", "pid", "uts", "ipc")]
        # Of the host: --wd would open the folder of the machine, and let programs write there.
        names.append(f"--wdns={self.temporary}")
        return subprocess.Popen(
            ["nsenter", "--target", str(self.pid), *names, "--", *command],
            env={**self.environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Network:
    """Hosts and what joins them. Use as a context manager; `logs` is a directory of the machine."""

    def __init__(self, logs: Path, latency_s: float = 0.0005, loss: float = 0.0) -> None:
        check_here()
        self.logs, self.hosts = logs, dict[str, Host]()
        logs.mkdir(parents=True, exist_ok=True)
        self._latency_s, self._loss = latency_s, loss
        self._telling = threading.Lock()

    def __enter__(self) -> Self:
        self._switch = subprocess.Popen(
            [sys.executable, str(_HERE / "switch.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent,
        )
        self.delay(self._latency_s, self._loss)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.hosts.values():
            host.switch_off()
        self._switch.kill()
        self._switch.wait()

    def add(self, name: str, disk: str = "1g", clock_offset_s: float = 0.0) -> Host:
        """Add a host that is switched on."""
        address = f"{PREFIX}.{DESK + 1 + len(self.hosts)}"
        host = self.hosts[name] = Host(name, address, self, disk, clock_offset_s)
        host.switch_on()
        return host

    def join(self) -> None:
        """Put this process's network namespace, that of `enter_apart`, on the network."""
        self.tell(do="attach", name="desk", pid=os.getpid(), address=f"{PREFIX}.{DESK}/24")

    def delay(self, latency_s: float, loss: float) -> None:
        """Let every frame take so long from host to host, and that share of them get lost."""
        self.tell(do="delay", latency_s=latency_s, loss=loss)

    def tell(self, **order: Any) -> None:
        """Tell the switch, and wait until it has followed. Raises HostsError if it could not."""
        assert self._switch.stdin is not None and self._switch.stdout is not None
        with self._telling:
            self._switch.stdin.write(json.dumps(order) + "\n")
            self._switch.stdin.flush()
            answer = self._switch.stdout.readline()
        if not answer:
            raise HostsError("the network between the hosts has ended")
        if trouble := json.loads(answer).get("error"):
            raise HostsError(f"the network could not {order}: {trouble}")


def until(condition: Callable[[], object], what: str, most_s: float, pause_s: float = 0.25) -> Any:
    """Return what `condition` returns as soon as it is true. Raises HostsError after `most_s`."""
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        if found := condition():
            return found
        time.sleep(pause_s)
    raise HostsError(f"not within {most_s:g} s: {what}")
