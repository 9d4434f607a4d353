"""Telling processes apart, ending them, ending with a parent, and why one ended.

A pid alone names no process: it is reused. Every pid that is written down goes with an identity
made of the boot and the start time, and nothing is signalled whose identity differs. Standard
library only.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nip_base.machine.control_groups import PROC, find_groups, read_number

WORKING_THREADS = {"GOMP_SPINCOUNT": "1000"}
"""How threads of engines and trainers wait for the next operation: awake for some microseconds.

Measured on two cores with steps of the tiny model: asleep at once 20 steps a second, so 40, and as
torch has it (300 times as long) 42; but that fell to 1 to 4 where other programs had the cores.
Where they do, `processors` leaves one thread, which waits for none."""


def working_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a computing child: its threads wait as in `WORKING_THREADS`.

    A policy that the user has set stays.
    """
    return {**({} if "OMP_WAIT_POLICY" in environment else WORKING_THREADS), **environment}


def process_identity(pid: int) -> str | None:
    """Return a string unique to this process for all time, or None if `pid` is not alive.

    A zombie counts as not alive.
    """
    if sys.platform.startswith("linux"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except (OSError, ValueError):
            return None
        # The name of the program comes first, in brackets, and may have any character.
        fields = stat[stat.rindex(")") + 2 :].split()
        return None if fields[0] in ("Z", "X") else f"{boot[:8]}:{fields[19]}"
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.3f}"
    except psutil.Error:
        return None


def is_alive(pid: int, identity: str) -> bool:
    """Say whether the very process of this `identity` still runs under `pid`."""
    return process_identity(pid) == identity


def end_process(pid: int, identity: str, *, grace_s: float, group: bool = False) -> bool:
    """SIGTERM, then SIGKILL after `grace_s`. True once it is gone, False if it could not be ended.

    With `group`, the process group that `pid` leads is signalled. Does nothing to a process that
    merely reuses the pid.
    """
    send = os.killpg if group else os.kill
    # Its identity is looked at before each signal: the pid may be another's by then.
    for signal_number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        if not is_alive(pid, identity):
            return True
        try:
            send(pid, signal_number)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not is_alive(pid, identity):
                return True
            time.sleep(0.01)
    return not is_alive(pid, identity)


def signal_group(group: int, signal_number: signal.Signals) -> None:
    """Send a signal to every process of a group, if there is one and it is ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal_number)


def die_with_parent_process(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; exit at once if it is gone already.

    Linux only, elsewhere it does nothing. The kernel goes by the parent's *thread*: only call
    this in a child of a process that spawns from a thread that lives as long as it does.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def watch_parent(
    parent: int, pipe: int | None, on_death: Callable[[], None], *, poll_s: float = 0.5
) -> None:
    """Call `on_death` once, from a thread, when the parent is gone.

    Two signs, either is enough: `pipe` (a read end whose write end only the parent holds) ends,
    at once; the parent's pid is no longer ours, within `poll_s`.
    """
    fired = threading.Lock()

    def fire() -> None:
        if fired.acquire(blocking=False):
            on_death()

    def read_pipe(descriptor: int) -> None:
        while os.read(descriptor, 1024):
            pass
        fire()

    def poll() -> None:
        while os.getppid() == parent:
            time.sleep(poll_s)
        fire()

    # Daemons: neither is worth waiting for at an end that comes from elsewhere.
    if pipe is not None:
        threading.Thread(target=read_pipe, args=(pipe,), daemon=True).start()
    threading.Thread(target=poll, daemon=True).start()


def read_tail(path: Path, limit: int = 2000) -> str:
    """The last `limit` characters of a log, from a line's beginning; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - limit)
            file.seek(start)
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return text.partition("\n")[2].strip() if start and "\n" in text else text.strip()


def count_oom_kills(proc: Path = PROC) -> int:
    """Count the processes killed by the kernel for want of memory; 0 if it doesn't tell.

    Those of this process's control group where that is counted, otherwise of the machine. A
    child that died of SIGKILL while this grew was, most likely, one of them.
    """
    sources = [
        group / name
        for group in find_groups("memory", proc)
        for name in ("memory.events", "memory.oom_control")  # of version 2, and of version 1
    ]
    for source in [*sources, proc / "vmstat"]:
        if (count := read_number(source, "oom_kill")) is not None:
            return count
    return 0
