"""The trusted program that a sandbox child process runs; see `sandbox` for what it promises.

Started as a script by `sandbox._Child` with an empty environment and standard library only. It
reads a header line and one job per line from stdin and writes one JSON line per job to stdout.

    main            harden this process, enter namespaces, become init of the new pid namespace
    Isolation       what of that the system allowed
    _supervise      fork a worker for one job, read what it says, kill it and all it left behind
    _worker         inside the fork: limits, no privileges, then the untrusted code

Imports nothing of this project: the file must run alone, without site-packages.
"""

import contextlib
import ctypes
import json
import math
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO

Limits = dict[str, Any]
Job = dict[str, Any]
Report = Callable[[dict[str, Any]], None]

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_PDEATHSIG, _CAPBSET_DROP, _CHILD_SUBREAPER, _NO_NEW_PRIVS = 1, 24, 36, 38
_MS_NOSUID_NODEV, _MS_BIND, _MS_REC_PRIVATE = 2 | 4, 0x1000 | 0x4000, 0x4000 | 0x40000
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1
_MASKED = ("/run", "/tmp", "/var/tmp", "/dev/shm", "/home", "/root", "/srv", "/mnt", "/media")  # noqa: S108
_FIRST_FREE_UID = 1_900_000_000
_REPORT_BYTES = 4_000_000
_REAP_S = 5.0


class Isolation:
    """What the system allowed beyond plain resource limits."""

    def __init__(self) -> None:
        self.network = self.processes = self.filesystem = False
        self.uid: int | None = None  # the unprivileged user the code runs as; None: not changed
        self.mounts = False  # may be changed without anybody noticing
        self.own_proc = False  # /proc shows this sandbox alone

    def as_dict(self) -> dict[str, bool]:
        return {
            "network": self.network,
            "processes": self.processes,
            "filesystem": self.filesystem,
            "user": self.uid is not None,
        }


class _Stop(BaseException):
    """A test used up its steps or its CPU time. Not an Exception, so `except Exception` passes."""


def _libc() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    except OSError:
        return None


LIBC: Any = _libc()


def _prctl(option: int, value: int) -> bool:
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


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _enter_namespaces(isolation: Isolation, refuse: list[str]) -> None:
    """Leave the network, the process table and the mounts, as far as the system lets us."""
    if LIBC is None or "namespaces" in refuse:
        return
    uid, gid = os.geteuid(), os.getegid()
    if not _unshare(_NEWNS):
        if not _unshare(_NEWUSER):
            return
        try:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        except OSError:
            return
        isolation.mounts = _unshare(_NEWNS)
    else:
        isolation.mounts = True
    _unshare(_NEWIPC)
    isolation.network = "network" not in refuse and _unshare(_NEWNET)
    isolation.processes = _unshare(_NEWPID)


def _interpreter() -> list[str]:
    """The directories that the running interpreter needs, none inside another."""
    found: list[str] = []
    paths = [sys.base_prefix, sys.base_exec_prefix, os.path.dirname(sys.executable), *sys.path]
    for path in sorted({os.path.realpath(path) for path in paths if os.path.isdir(path)}):
        if not any(_below(path, other) for other in found):
            found.append(path)
    return found


def _below(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(ancestor.rstrip("/") + "/")


def _mask(path: str, kept: list[str], stage: str) -> bool:
    """Hide `path` under an empty tmpfs, with the directories `kept` in their old places."""
    for k, keep in enumerate(kept):
        os.mkdir(f"{stage}/{k}")
        if not _mount(os.fsencode(keep), f"{stage}/{k}", None, _MS_BIND):
            return False
    if not _mount(b"tmpfs", path, b"tmpfs", _MS_NOSUID_NODEV, b"size=256k,mode=0755"):
        return False
    for k, keep in enumerate(kept):
        os.makedirs(keep)
        if not _mount(f"{stage}/{k}".encode(), keep, None, _MS_BIND):
            return False
        LIBC.umount2(f"{stage}/{k}".encode(), 2)
        os.rmdir(f"{stage}/{k}")
    return True


def _isolate_mounts(isolation: Isolation, cwd: str, disk_mb: int) -> None:
    """Make everything read-only but a small tmpfs at `cwd`; hide homes, sockets and /proc."""
    if not isolation.mounts or not _mount(None, "/", None, _MS_REC_PRIVATE):
        return
    needed = _interpreter()
    options = f"size={disk_mb}m,nr_inodes=4096,mode=0777".encode()
    _mount(b"tmpfs", cwd, b"tmpfs", _MS_NOSUID_NODEV, options)
    # What holds `cwd` comes last: hiding it hides the place where the kept directories wait.
    for path in sorted(_MASKED, key=lambda path: _below(cwd, path)):
        kept = [need for need in needed if _below(need, path)]
        if not os.path.isdir(path) or os.path.islink(path) or path in kept:
            continue
        if _below(cwd, path) and kept:
            continue
        try:
            _mask(path, kept, cwd)
        except OSError:
            return
    os.makedirs(cwd, exist_ok=True)
    own_cwd = _mount(b"tmpfs", cwd, b"tmpfs", _MS_NOSUID_NODEV, options)
    isolation.own_proc = isolation.processes and _mount(
        b"proc", "/proc", b"proc", _MS_NOSUID_NODEV | 8
    )
    hidden = isolation.own_proc or _mount(b"tmpfs", "/proc", b"tmpfs", _MS_NOSUID_NODEV, b"size=4k")
    isolation.filesystem = (
        own_cwd
        and hidden
        and _set_mount("/", _AT_RECURSIVE, _ATTR_RDONLY, 0)
        and _set_mount(cwd, 0, 0, _ATTR_RDONLY)
    )
    os.chdir(cwd)


def _readable_by_all(path: str) -> bool:
    """Whether a user without rights could open what is below `path`."""
    while True:
        mode = os.stat(path).st_mode
        if not mode & 0o001:
            return False
        parent = os.path.dirname(path)
        if parent == path:
            return True
        path = parent


def _choose_uid(isolation: Isolation, cwd: str, refuse: list[str], number: int) -> None:
    """Find a user of its own for the code: only root can change users, and only then needs to.

    A number that nobody has, so that RLIMIT_NPROC counts this sandbox alone.
    """
    if os.geteuid() != 0 or "user" in refuse:
        return
    if not all(_readable_by_all(path) for path in _interpreter()):
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


def _drop_privileges(isolation: Isolation) -> None:
    for capability in range(64):  # first: another user may not
        _prctl(_CAPBSET_DROP, capability)
    if isolation.uid is not None:
        os.setgroups([])
        os.setresgid(isolation.uid, isolation.uid, isolation.uid)
        os.setresuid(isolation.uid, isolation.uid, isolation.uid)
    if LIBC is None:
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    LIBC.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    _prctl(_NO_NEW_PRIVS, 1)
    # Changing the user cleared it.
    _prctl(_PDEATHSIG, signal.SIGKILL)


def _processes_of(uid: int) -> int:
    """How many processes `uid` has now; 0 where the system doesn't say."""
    count = 0
    try:
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    count += os.stat("/proc/" + name).st_uid == uid
                except OSError:
                    continue
    except OSError:
        return 0
    return count


def _set_limits(limits: Limits, isolation: Isolation) -> None:
    cpu_s = max(1, math.ceil(limits["cpu_s"]))
    memory = limits["memory_mb"] << 20
    others = 0
    if isolation.uid is None and not isolation.processes:
        others = _processes_of(os.geteuid())
    for name, soft, hard in (
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_CPU", cpu_s, cpu_s + 1),
        ("RLIMIT_AS", memory, memory),
        ("RLIMIT_FSIZE", limits["file_mb"] << 20, limits["file_mb"] << 20),
        ("RLIMIT_NOFILE", limits["open_files"], limits["open_files"]),
        ("RLIMIT_NPROC", limits["processes"] + others, limits["processes"] + others),
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


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        return type(error).__name__


def _run_program(code: str, report: Report) -> int:
    """Run `code` as a main program; returns the exit code."""
    try:
        exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})  # noqa: S102
        return 0
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 255
        print(stop.code, file=sys.stderr)
        return 1
    except MemoryError:
        report({"memory": True})
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def _guarded(
    source: str, name: str, namespace: dict[str, Any], max_steps: int, cpu_s: float
) -> None:
    """Execute `source`; raises _Stop after `max_steps` lines or `cpu_s` seconds of CPU time."""
    steps = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > max_steps:
            raise _Stop("steps")
        return count

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stop("CPU time")

    signal.signal(signal.SIGPROF, stop)
    try:
        # It repeats, for code that catches everything.
        signal.setitimer(signal.ITIMER_PROF, cpu_s, 0.05)
        code = compile(source, name, "exec")
        if max_steps:
            sys.settrace(count)
        exec(code, namespace)  # noqa: S102
    finally:
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _run_suite(job: Job, report: Report) -> int:
    """Load the solution, then run its tests in order in the same namespace."""
    namespace: dict[str, Any] = {"__name__": "solution"}
    guard = (namespace, job["max_steps"], job["test_cpu_s"])
    try:
        _guarded(job["solution"], "solution.py", *guard)
    except BaseException as error:
        report({"load": _describe(error)})
        return 0
    for test in job["tests"]:
        try:
            _guarded(test, "test.py", *guard)
        except _Stop as error:
            report({"outcome": "timeout", "detail": _describe(error)})
            break
        except AssertionError as error:
            report({"outcome": "failed", "detail": _describe(error)})
        except BaseException as error:
            report({"outcome": "error", "detail": _describe(error)})
        else:
            report({"outcome": "passed"})
    report({"end": True})
    return 0


def _worker(job: Job, header: dict[str, Any], isolation: Isolation, files: list[int]) -> None:
    """In the fork: never returns. `files` are stdin, stdout, stderr and the report pipe."""
    code = 255
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for target, file in enumerate(files):
            os.dup2(file, 200 + target)
        for target in range(4):
            os.dup2(200 + target, target)
        os.closerange(4, 4096)
        os.set_inheritable(3, False)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["program.py"]
        os.chdir(header["cwd"])
        _set_limits(header["limits"], isolation)
        _drop_privileges(isolation)

        def report(message: dict[str, Any]) -> None:
            os.write(3, json.dumps(message).encode() + b"\n")

        code = _run_suite(job, report) if "tests" in job else _run_program(job["code"], report)
        sys.stdout.flush()
        sys.stderr.flush()
    except MemoryError:
        code = 254
    except BaseException:
        code = 255
    finally:
        os._exit(code)


def _children() -> list[int]:
    """The direct children of this process."""
    found: list[int] = []
    me = os.getpid()
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == me:
                found.append(int(name))
    return found


def _kill_everything(worker: int, isolation: Isolation) -> None:
    """Kill the worker and whatever it started, also in other sessions, and reap all of it."""
    deadline = time.monotonic() + _REAP_S
    while True:
        try:
            if isolation.processes:
                os.kill(-1, signal.SIGKILL)  # as init: everyone else in this namespace
            else:
                os.killpg(worker, signal.SIGKILL)
        except OSError:
            pass
        if not isolation.processes:
            for pid in _children():  # orphans come to us, the subreaper
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            raise SystemExit("a process of the sandbox does not die")
        time.sleep(0.001)


def _clean(cwd: str) -> None:
    """Empty the working directory; symbolic links are removed, never followed."""
    for root, directories, files in os.walk(cwd, topdown=False):
        for name in files:
            os.unlink(os.path.join(root, name))
        for name in directories:
            path = os.path.join(root, name)
            if os.path.islink(path):
                os.unlink(path)
            else:
                os.chmod(path, 0o700)
                os.rmdir(path)


class _Pipes:
    """What a worker says on stdout, stderr and the report pipe, each up to its limit in bytes."""

    def __init__(self, limits: list[int]) -> None:
        self.limits = limits
        pipes = [os.pipe() for _ in limits]
        self.readers = [pair[0] for pair in pipes]
        self.writers = [pair[1] for pair in pipes]
        self.data = [bytearray() for _ in limits]
        self.open = list(range(len(limits)))
        for reader in self.readers:
            os.set_blocking(reader, False)

    def overflowed(self) -> bool:
        return any(len(self.data[k]) > self.limits[k] for k in range(len(self.limits)))

    def read(self, index: int) -> bool:
        try:
            piece = os.read(self.readers[index], 65536)
        except BlockingIOError:
            return False
        if not piece:
            self.open.remove(index)
            return False
        room = self.limits[index] + 1 - len(self.data[index])
        self.data[index] += piece[:room]
        return True

    def drain(self) -> None:
        for index in list(self.open):
            while not self.overflowed() and self.read(index):
                pass

    def close(self) -> None:
        for reader in self.readers:
            os.close(reader)


def _wait(
    pid: int, pipes: _Pipes, deadline: float, isolation: Isolation, max_processes: int
) -> str:
    """Read until the worker has ended or must; returns why it was stopped ("" if it ended)."""
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        pidfd = None
    watch = isolation.uid is None and isolation.own_proc
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            readers = [pipes.readers[k] for k in pipes.open]
            step = left if pidfd is not None and not watch else min(left, 0.02)
            ready = select.select(
                [*readers, *([pidfd] if pidfd is not None else [])], [], [], step
            )[0]
            for index in list(pipes.open):
                if pipes.readers[index] in ready:
                    pipes.read(index)
            if pipes.overflowed():
                return "output_limit"
            # RLIMIT_NPROC doesn't hold root back, whatever root is called in here.
            if watch and sum(name.isdigit() for name in os.listdir("/proc")) - 1 > max_processes:
                return "killed"
            if pidfd in ready or (pidfd is None and _has_ended(pid)):
                return ""
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _stdin_file(text: str) -> int:
    if not text:
        return os.open(os.devnull, os.O_RDONLY)
    path = "stdin"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    data = text.encode("utf-8", "surrogatepass")
    while data:
        data = data[os.write(file, data) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _supervise(job: Job, header: dict[str, Any], isolation: Isolation) -> dict[str, Any]:
    """Run one job in a fork of its own and say how it ended, as a JSON-encodable dict."""
    limits = header["limits"]
    suite = "tests" in job
    pipes = _Pipes([limits["output_bytes"], limits["output_bytes"], _REPORT_BYTES])
    stdin = _stdin_file(job.get("stdin", ""))
    null = os.open(os.devnull, os.O_WRONLY)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        out = [null, null] if suite else pipes.writers[:2]
        _worker(job, header, isolation, [stdin, *out, pipes.writers[2]])
    for file in [stdin, null, *pipes.writers]:
        os.close(file)
    stopped = _wait(pid, pipes, started + limits["wall_s"], isolation, limits["processes"])
    wall_s = time.monotonic() - started
    if stopped:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    _kill_everything(pid, isolation)
    pipes.drain()
    pipes.close()
    _clean(header["cwd"])
    code = os.waitstatus_to_exitcode(status)
    if not stopped and pipes.overflowed():
        stopped = "output_limit"
    messages = []
    for line in bytes(pipes.data[2]).split(b"\n")[:-1]:
        try:
            messages.append(json.loads(line))
        except ValueError:
            messages.append({})
    if not stopped:
        if code == 254 or any(isinstance(m, dict) and "memory" in m for m in messages):
            stopped = "memory"
        elif code in (-signal.SIGXCPU, -signal.SIGKILL) and wall_s >= limits["cpu_s"]:
            stopped = "timeout"
        elif code < 0:
            stopped = "killed"
        else:
            stopped = "ok" if code == 0 else "error"
    result: dict[str, Any] = {"status": stopped, "exit_code": code, "wall_s": wall_s}
    if suite:
        result["messages"] = [m for m in messages if isinstance(m, dict)]
    else:
        for name, data in (("stdout", pipes.data[0]), ("stderr", pipes.data[1])):
            result[name] = bytes(data[: limits["output_bytes"]]).decode("utf-8", "replace")
    return result


def _serve(jobs: TextIO, out: TextIO, header: dict[str, Any], isolation: Isolation) -> None:
    for line in jobs:
        result = _supervise(json.loads(line), header, isolation)
        result["isolation"] = isolation.as_dict()
        out.write(json.dumps(result) + "\n")
        out.flush()


def main() -> None:
    _prctl(_PDEATHSIG, signal.SIGKILL)
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    header = json.loads(jobs.readline())
    if os.getppid() != header["parent"]:  # it died before we were watching
        raise SystemExit("the parent is gone")
    refuse = header["refuse"]
    isolation = Isolation()
    number = os.getpid()  # in the new process table it will be 1 for every sandbox
    with contextlib.suppress(OSError):
        _write("/proc/self/oom_score_adj", "1000")
    _enter_namespaces(isolation, refuse)
    if isolation.processes:
        init = os.fork()
        if init:
            status = os.waitpid(init, 0)[1]
            os._exit(0 if status == 0 else 1)
        _prctl(_PDEATHSIG, signal.SIGKILL)
    else:
        _prctl(_CHILD_SUBREAPER, 1)
    _isolate_mounts(isolation, header["cwd"], header["limits"]["disk_mb"])
    os.chdir(header["cwd"])
    _choose_uid(isolation, header["cwd"], refuse, number)
    _serve(jobs, out, header, isolation)


if __name__ == "__main__":
    main()
