"""The trusted program that a sandbox child process runs; see `sandbox` for what it promises.

Started as a script by `sandbox._Child` with an empty environment and standard library only. It
reads a header line and one job per line from stdin and writes one JSON line per job to stdout.

    main            harden this process (`sandbox_isolation`), become init of a new process table
    _supervise      fork a worker for one job, read what it says, kill it and all it left behind
    _worker         inside the fork: limits, no privileges, then the untrusted code

Runs without site-packages: nothing is imported but the standard library and its sister file.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from nip_core.scenarios.code_validation import sandbox_isolation as guard
else:
    # The one module of this project, which must not stay importable for the code that runs here.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import sandbox_isolation as guard

    sys.path.pop()

Job = dict[str, Any]
Report = Callable[[dict[str, Any]], None]

_REPORT_BYTES = 4_000_000
_REAP_S = 5.0


class _Stop(BaseException):
    """A test used up its steps or its CPU time. Not an Exception, so `except Exception` passes."""


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
    limits = (namespace, job["max_steps"], job["test_cpu_s"])
    try:
        _guarded(job["solution"], "solution.py", *limits)
    except BaseException as error:
        report({"load": _describe(error)})
        return 0
    for test in job["tests"]:
        try:
            _guarded(test, "test.py", *limits)
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


def _worker(job: Job, header: dict[str, Any], isolation: guard.Isolation, files: list[int]) -> None:
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
        guard.set_limits(header["limits"], isolation)
        guard.drop_privileges(isolation)

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


def _kill_everything(worker: int, isolation: guard.Isolation) -> None:
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
    for root, directories, _ in os.walk(cwd):
        for name in directories:
            if not os.path.islink(os.path.join(root, name)):
                with contextlib.suppress(OSError):
                    os.chmod(os.path.join(root, name), 0o700)
    for root, directories, files in os.walk(cwd, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(root, name))
        for name in directories:
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                os.unlink(path) if os.path.islink(path) else os.rmdir(path)


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
    pid: int, pipes: _Pipes, deadline: float, isolation: guard.Isolation, max_processes: int
) -> tuple[str, int | None]:
    """Read until the worker has ended or must.

    Returns why it has to be stopped, "" if it ended, and its status, if it was already asked for.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        pidfd = None
    watch = isolation.uid is None and isolation.own_proc
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout", None
            readers = [pipes.readers[k] for k in pipes.open]
            step = left if pidfd is not None and not watch else min(left, 0.02)
            ready = select.select(
                [*readers, *([pidfd] if pidfd is not None else [])], [], [], step
            )[0]
            for index in list(pipes.open):
                if pipes.readers[index] in ready:
                    pipes.read(index)
            if pipes.overflowed():
                return "output_limit", None
            # RLIMIT_NPROC doesn't hold root back, whatever root is called in here.
            if watch and sum(name.isdigit() for name in os.listdir("/proc")) - 1 > max_processes:
                return "killed", None
            if pidfd in ready:
                return "", None
            if pidfd is None:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return "", status
    finally:
        if pidfd is not None:
            os.close(pidfd)


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


def _supervise(job: Job, header: dict[str, Any], isolation: guard.Isolation) -> dict[str, Any]:
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
    stopped, status = _wait(pid, pipes, started + limits["wall_s"], isolation, limits["processes"])
    wall_s = time.monotonic() - started
    if stopped:
        os.kill(pid, signal.SIGKILL)
    if status is None:
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


def _serve(jobs: TextIO, out: TextIO, header: dict[str, Any], isolation: guard.Isolation) -> None:
    for line in jobs:
        result = _supervise(json.loads(line), header, isolation)
        result["isolation"] = isolation.as_dict()
        out.write(json.dumps(result) + "\n")
        out.flush()


def main() -> None:
    guard.prctl(guard.PDEATHSIG, signal.SIGKILL)
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    header = json.loads(jobs.readline())
    if os.getppid() != header["parent"]:  # it died before we were watching
        raise SystemExit("the parent is gone")
    refuse = header["refuse"]
    isolation = guard.Isolation()
    number = os.getpid()  # in the new process table it will be 1 for every sandbox
    with contextlib.suppress(OSError):
        guard.write("/proc/self/oom_score_adj", "1000")
    guard.enter_namespaces(isolation, refuse)
    if isolation.processes:
        init = os.fork()
        if init:
            status = os.waitpid(init, 0)[1]
            os._exit(0 if status == 0 else 1)
        guard.prctl(guard.PDEATHSIG, signal.SIGKILL)
    else:
        guard.prctl(guard.CHILD_SUBREAPER, 1)
    guard.isolate_mounts(isolation, header["cwd"], header["limits"]["disk_mb"])
    os.chdir(header["cwd"])
    guard.choose_user(isolation, header["cwd"], refuse, number)
    _serve(jobs, out, header, isolation)


if __name__ == "__main__":
    main()
