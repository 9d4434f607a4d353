"""The first process of a host: it makes its files and buries orphans.

    unshare --net --mount --pid ... python init.py NAME SIZE KEPT...

Everything that was there becomes read-only, and a tmpfs of SIZE takes the place of all that is
written: /tmp, /home, /run, /var/tmp. The directories KEPT stay visible, read-only, also
where they lie below one of these. Prints "ready", and ends with its standard input.
"""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

OWN = ("tmp", "home", "run", "var/tmp")
DISK = Path("/mnt")
_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE, _RDONLY = -100, 0x8000, 1


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _freeze() -> None:
    """Make every mount read-only for this host."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = _Attributes(set=_RDONLY)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    if libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, ctypes.byref(wanted), size):
        raise OSError(ctypes.get_errno(), "mount_setattr /")


def make_files(size: str, kept: list[str]) -> None:
    """Give this mount namespace a disk of its own, and nothing else to write to."""
    _mount("--make-rprivate", "/")
    _freeze()
    _mount("-t", "tmpfs", "-o", f"size={size},mode=755", "disk", str(DISK))
    covered = [k for k in kept if any(Path(k).is_relative_to(f"/{own}") for own in OWN)]
    for number, place in enumerate(covered):
        (DISK / f"kept-{number}").mkdir()
        _mount("--bind", place, str(DISK / f"kept-{number}"))
    for own in OWN:
        here = DISK / own
        here.mkdir(parents=True)
        here.chmod(0o1777)
        _mount("--bind", str(here), f"/{own}")
    for number, place in enumerate(covered):
        Path(place).mkdir(parents=True, exist_ok=True)
        _mount("--bind", str(DISK / f"kept-{number}"), place)
    _mount("-t", "tmpfs", "-o", "size=64m,mode=1777", "shm", "/dev/shm")  # of memory, not of disk
    _mount("-t", "proc", "proc", "/proc")


def main() -> None:
    """Stay until standard input closes; then the host's processes end with this one."""
    name, size, *kept = sys.argv[1:]
    socket.sethostname(name)
    make_files(size, kept)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the wait below
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready and not os.read(0, 4096):
            return
        if woken in ready:
            os.read(woken, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue


if __name__ == "__main__":
    main()
