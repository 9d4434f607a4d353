"""The layers around a sandbox's code: namespaces, mounts, users, capabilities, resource limits.

    Confinement       the layers in force
    enter_namespaces  leave the network and the process table of the system
    isolate_mounts    see everything read-only, and homes, sockets and other processes not at all
    choose_user       find a user of no process
    drop_privileges   become that user, for good
    set_limits        the limits that the kernel counts for each process
    list_lacking      the layers that are not in force
    list_descendants  the processes of a sandbox
    find_excess       their use of a resource together, over its limit
    empty_directory   remove the files that code left behind, however deep

Each step tells its success and goes on after a refusal. `sandbox` lists the dangers that all of
this protects from, and those that it doesn't. Imported by `sandbox_child`, which runs without
site-packages: nothing is imported here but the standard library.
"""

import contextlib
import ctypes
import math
import os
import resource
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_sandbox import sandbox_wire as wire
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PDEATHSIG, DUMPABLE, _CAPBSET_DROP, CHILD_SUBREAPER, _NO_NEW_PRIVS = 1, 4, 24, 36, 38
_MS_NOSUID_NODEV, _MS_BIND, _MS_REC_PRIVATE = 2 | 4, 0x1000 | 0x4000, 0x4000 | 0x40000
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1
_MASKED = ("/run", "/tmp", "/var/tmp", "/dev/shm", "/home", "/root", "/srv", "/mnt", "/media")  # noqa: S108
_FIRST_FREE_UID = 1_900_000_000


class Confinement:
    """The layers that the system allowed beyond plain resource limits."""

    def __init__(self) -> None:
        self.network = self.processes = self.filesystem = False
        self.uid: int | None = None  # the unprivileged user the code runs as; None: not changed
        self.mounts = False  # may be changed unseen by other processes
        self.own_proc = False  # /proc shows this sandbox alone
        self.ruleset: int | None = None  # of paths, see `sandbox_filters`
        self.program: bytes | None = None  # for system calls, see `sandbox_filters`
        self.reason = ""  # why there are no namespaces


def list_lacking(isolation: Confinement) -> list[str]:
    """List what keeps untrusted code in and is not in force here, in words; [] if all of it is."""
    layers = {
        "a process table of its own": isolation.processes,
        "its own view of the file system": isolation.filesystem,
        "a network of its own": isolation.network,
        "a filter of system calls": isolation.program is not None,
    }
    return [name for name, is_there in layers.items() if not is_there]


def is_separate(isolation: Confinement) -> bool:
    """Tell whether code can't reach what belongs to other processes: memory, files, environment."""
    layers = (isolation.processes, isolation.uid is not None, isolation.ruleset is not None)
    return any(layers)


def _libc() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    except OSError:
        return None


LIBC: Any = _libc()


def prctl(option: int, value: int) -> bool:
    return LIBC is not None and bool(LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)


def _unshare(flag: int) -> bool:
    return LIBC is not None and bool(LIBC.unshare(flag) == 0)


def _mount(
    source: bytes | None, target: str, kind: bytes | None, flags: int, data: bytes = b""
) -> bool:
    return bool(LIBC.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), data) == 0)


def _set_mount(path: str, flags: int, attr_set: int, attr_clear: int) -> bool:
    attributes = (ctypes.c_uint64 * 4)(attr_set, attr_clear, 0, 0)
    result = LIBC.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_uint(flags),
        ctypes.byref(attributes),
        ctypes.c_size_t(32),
    )
    return bool(result == 0)


def write_file(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def enter_namespaces(isolation: Confinement, refuse: list[str]) -> None:
    """Leave the network, the process table and the mounts, as far as the system lets us."""
    if LIBC is None or "namespaces" in refuse:
        isolation.reason = "this system has none" if LIBC is None else "refused by argument"
        return
    uid, gid = os.geteuid(), os.getegid()
    if not _unshare(_NEWNS):
        if not _unshare(_NEWUSER):
            isolation.reason = f"unshare: {os.strerror(ctypes.get_errno())}"
            return
        try:
            write_file("/proc/self/setgroups", "deny")
            write_file("/proc/self/uid_map", f"{uid} {uid} 1")
            write_file("/proc/self/gid_map", f"{gid} {gid} 1")
        except OSError as error:
            isolation.reason = str(error)
            return
        isolation.mounts = _unshare(_NEWNS)
    else:
        isolation.mounts = True
    _unshare(_NEWIPC)
    isolation.network = "network" not in refuse and _unshare(_NEWNET)
    isolation.processes = _unshare(_NEWPID)
    if not isolation.processes:
        isolation.reason = f"unshare: {os.strerror(ctypes.get_errno())}"


def list_interpreter_directories() -> list[str]:
    """List the directories of the running interpreter, none inside another."""
    directories: list[str] = []
    paths = [sys.base_prefix, sys.base_exec_prefix, os.path.dirname(sys.executable), *sys.path]
    for path in sorted({os.path.realpath(path) for path in paths if os.path.isdir(path)}):
        if not any(_below(path, directory) for directory in directories):
            directories.append(path)
    return directories


def _below(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(ancestor.rstrip("/") + "/")


def _mask(path: str, visible_paths: list[str], aside: str) -> bool:
    """Hide `path` under an empty tmpfs, with `visible_paths` in their old places."""
    for k, keep in enumerate(visible_paths):
        os.mkdir(f"{aside}/{k}")
        if not _mount(os.fsencode(keep), f"{aside}/{k}", None, _MS_BIND):
            return False
    if not _mount(b"tmpfs", path, b"tmpfs", _MS_NOSUID_NODEV, b"size=256k,mode=0755"):
        return False
    for k, keep in enumerate(visible_paths):
        os.makedirs(keep)
        if not _mount(f"{aside}/{k}".encode(), keep, None, _MS_BIND):
            return False
        LIBC.umount2(f"{aside}/{k}".encode(), 2)
        os.rmdir(f"{aside}/{k}")
    return True


def isolate_mounts(isolation: Confinement, cwd: str, disk_mb: int) -> None:
    """Make everything read-only but a small tmpfs at `cwd`; hide homes, sockets and /proc."""
    if not isolation.mounts or not _mount(None, "/", None, _MS_REC_PRIVATE):
        return
    # 1. A place in memory that will be the working directory.
    needed = list_interpreter_directories()
    options = f"size={disk_mb}m,nr_inodes=4096,mode=0777".encode()
    _mount(b"tmpfs", cwd, b"tmpfs", _MS_NOSUID_NODEV, options)
    # The parent of `cwd` comes last: hiding it hides the place where the kept directories wait.
    for path in sorted(_MASKED, key=lambda path: _below(cwd, path)):
        visible = [need for need in needed if _below(need, path)]
        if not os.path.isdir(path) or os.path.islink(path) or path in visible:
            continue
        if _below(cwd, path) and visible:
            continue
        try:
            _mask(path, visible, cwd)
        except OSError:
            return
    # 2. The working directory again, which may have been hidden with its parent.
    os.makedirs(cwd, exist_ok=True)
    own_cwd = _mount(b"tmpfs", cwd, b"tmpfs", _MS_NOSUID_NODEV, options)
    # 3. Only its own processes.
    isolation.own_proc = isolation.processes and _mount(
        b"proc", "/proc", b"proc", _MS_NOSUID_NODEV | 8
    )
    hidden = isolation.own_proc or _mount(b"tmpfs", "/proc", b"tmpfs", _MS_NOSUID_NODEV, b"size=4k")
    # 4. Everything else read-only.
    isolation.filesystem = (
        own_cwd
        and hidden
        and _set_mount("/", _AT_RECURSIVE, _ATTR_RDONLY, 0)
        and _set_mount(cwd, 0, 0, _ATTR_RDONLY)
    )
    os.chdir(cwd)


def _readable_by_all(path: str) -> bool:
    """Tell whether a user without rights could open what is below `path`."""
    while True:
        mode = os.stat(path).st_mode
        if not mode & 0o001:
            return False
        parent = os.path.dirname(path)
        if parent == path:
            return True
        path = parent


def choose_user(isolation: Confinement, cwd: str, refuse: list[str], number: int) -> None:
    """Find a user of its own for the code: only root can change users, and only then needs to.

    No process has the number, so that RLIMIT_NPROC counts this sandbox alone.
    """
    if os.geteuid() != 0 or "user" in refuse:
        return
    if not all(_readable_by_all(path) for path in list_interpreter_directories()):
        return
    for uid in (_FIRST_FREE_UID + number % 4_194_304, 65534):
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                os._exit(0)
            except BaseException:
                os._exit(1)
        if os.waitpid(pid, 0)[1] == 0:
            isolation.uid = uid
            if not isolation.filesystem:
                os.chown(cwd, uid, uid)
            return


def drop_privileges(isolation: Confinement) -> None:
    for capability in range(64):  # first: another user may not
        prctl(_CAPBSET_DROP, capability)
    if isolation.uid is not None:
        os.setgroups([])
        os.setresgid(isolation.uid, isolation.uid, isolation.uid)
        os.setresuid(isolation.uid, isolation.uid, isolation.uid)
    if LIBC is None:
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    LIBC.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    prctl(_NO_NEW_PRIVS, 1)
    # Changing the user cleared it.
    prctl(PDEATHSIG, signal.SIGKILL)


def _pids() -> list[int]:
    """List the visible processes; none where the system doesn't say."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _processes_of(uid: int) -> int:
    """Tell how many processes `uid` has now; 0 where the system doesn't say."""
    count = 0
    for pid in _pids():
        with contextlib.suppress(OSError):
            count += os.stat(f"/proc/{pid}").st_uid == uid
    return count


def set_limits(limit: "wire.Limit", isolation: Confinement) -> None:
    cpu_s = max(1, math.ceil(limit.cpu_s))
    memory = limit.memory_mb << 20
    # The processes counted with this one: none under a user of its own, else the supervisor and
    # the one that started it, or, without a table of processes, all that the user has.
    count = 0
    if isolation.uid is None:
        count = 2 if isolation.processes else max(0, _processes_of(os.geteuid()) - 1)
    for name, soft, hard in (
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_CPU", cpu_s, cpu_s + 1),
        ("RLIMIT_AS", memory, memory),
        ("RLIMIT_FSIZE", limit.file_mb << 20, limit.file_mb << 20),
        ("RLIMIT_NOFILE", limit.open_files, limit.open_files),
        ("RLIMIT_NPROC", limit.processes + count, limit.processes + count),
    ):
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        ceiling = resource.getrlimit(kind)[1]
        allowed = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
        try:
            resource.setrlimit(kind, (min(soft, allowed), allowed))
        except (ValueError, OSError):
            if name != "RLIMIT_AS":  # macOS refuses it
                raise


def list_descendants(isolation: Confinement) -> list[int]:
    """All processes below this one; in a process table of its own, all others."""
    pids = _pids()
    if isolation.own_proc:
        return [pid for pid in pids if pid != os.getpid()]
    parents: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/stat") as file:
                parents[pid] = int(file.read().rpartition(")")[2].split()[1])
    descendants: list[int] = []
    layer = {os.getpid()}
    while layer := {pid for pid, parent in parents.items() if parent in layer}:
        descendants += layer
    return descendants


def _resident_mb(pid: int, exactly: bool) -> float:
    """Measure the memory of `pid` in MB; shared memory counts in parts, if `exactly`."""
    try:
        if exactly:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                sizes = [int(line.split()[1]) for line in file if line.startswith("Pss:")]
            return sizes[0] / 1024
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        return _resident_mb(pid, exactly=False) if exactly else 0.0


def find_excess(limit: "wire.Limit", isolation: Confinement) -> "wire.Stop":
    """Say why a job must be stopped for its processes' use together, or ""."""
    pids = list_descendants(isolation)
    # RLIMIT_NPROC holds root back under none of its names in here.
    if isolation.uid is None and isolation.own_proc and len(pids) > limit.processes:
        return "killed"
    for exactly in (False, True):  # the first is quick, and never too little
        if sum(_resident_mb(pid, exactly) for pid in pids) <= limit.memory_mb:
            return ""
    return "memory"


def empty_directory(path: str) -> None:
    """Remove what is in `path`: links are never followed, and no depth is too deep.

    The content of a directory of `path` moves up before it is removed, so that no name gets long.
    Nothing may work in `path` meanwhile.

    Raises:
        OSError: something can't be removed.
    """
    number = 0
    while names := os.listdir(path):
        for name in names:
            inside = os.path.join(path, name)
            if not stat.S_ISDIR(os.lstat(inside).st_mode):
                os.unlink(inside)
                continue
            os.chmod(inside, 0o700)
            for child in os.listdir(inside):
                entry = os.path.join(inside, child)
                if stat.S_ISDIR(os.lstat(entry).st_mode):
                    os.chmod(entry, 0o700)  # to move it, its entry ".." is written
                    number += 1
                    os.rename(entry, os.path.join(path, f".{number}-{os.urandom(8).hex()}"))
                else:
                    os.unlink(entry)
            os.rmdir(inside)
