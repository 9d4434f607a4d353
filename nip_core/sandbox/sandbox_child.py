"""The trusted program that a sandbox child process runs; see `sandbox` for what it promises.

Started as a script by `sandbox_process.Child` with an empty environment and standard library only.
It reads messages from stdin, each 8 bytes of length and JSON: a header, then jobs, each when its
turn has come. It writes lines of JSON to stdout: what is in force here, then one line per job.

    main            harden this process (`sandbox_isolation`), become init of a new process table
    _supervise      fork a worker for one job, read what it says, kill it and all it left behind
    _worker         inside the fork: limits, no privileges, then the untrusted code

What a worker says is read as flat text of bounded length (`_reports`), never as a language that
could nest. Runs without site-packages: nothing is imported but the standard library and its sister
files.
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_core.sandbox import sandbox_filters as filters
    from nip_core.sandbox import sandbox_isolation as guard
else:
    # Modules of this project, which must not stay importable for the code that runs here.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import sandbox_filters as filters
    import sandbox_isolation as guard

    sys.path.pop()

Job = dict[str, Any]
Report = Callable[[str, str], None]

_REPORT_BYTES = 4_000_000
_DETAIL_CHARACTERS = 300
_REAP_S = 5.0
_WATCH_S = 0.02


class _Stop(BaseException):
    """A test used up its steps or its CPU time. Not an Exception, so `except Exception` passes."""


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS]
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
        report("memory", "")
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
        report("load", _describe(error))
        return 0
    for test in job["tests"]:
        try:
            _guarded(test, "test.py", *limits)
        except _Stop as error:
            report("timeout", _describe(error))
            break
        except AssertionError as error:
            report("failed", _describe(error))
        except BaseException as error:
            report("error", _describe(error))
        else:
            report("passed", "")
    report("end", "")
    return 0


def _worker(job: Job, header: dict[str, Any], isolation: guard.Isolation, files: list[int]) -> None:
    """In the fork: never returns. `files` are stdin, stdout, stderr and the report pipe."""
    code = 255
    try:
        # 1. Its own session, and its own four files at places that nothing else has.
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        ruleset = isolation.ruleset
        for target, file in enumerate([*files, *([] if ruleset is None else [ruleset])]):
            os.dup2(file, 200 + target)
        for target in range(4):
            os.dup2(200 + target, target)
        os.set_inheritable(3, False)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["program.py"]
        os.chdir(header["cwd"])
        # 2. Limits first, then no privileges, then no way back.
        guard.set_limits(header["limits"], isolation)
        guard.drop_privileges(isolation)
        # The supervisor can't be looked into, and so could not this process: let it be counted.
        guard.prctl(guard.DUMPABLE, 1)
        if ruleset is not None:
            filters.confine(guard.LIBC, 204)
        os.closerange(4, 4096)
        if isolation.program is not None:
            filters.filter_calls(guard.LIBC, isolation.program)

        def report(kind: str, detail: str) -> None:
            text = f"{kind} {detail}".replace("\0", "\\0")
            os.write(3, text.encode("utf-8", "backslashreplace") + b"\0")

        code = _run_suite(job, report) if "tests" in job else _run_program(job["code"], report)
        sys.stdout.flush()
        sys.stderr.flush()
    except MemoryError:
        code = 254
    except BaseException:
        traceback.print_exc()
        code = 255
    finally:
        os._exit(code)


def _reports(data: bytes, at_most: int) -> list[dict[str, Any]]:
    """Return what a worker said, as `sandbox` reads it; a message of no known kind is {}."""
    messages: list[dict[str, Any]] = []
    for piece in data.split(b"\0")[:-1][:at_most]:
        kind, _, text = piece.decode("utf-8", "replace").partition(" ")
        detail = text[:_DETAIL_CHARACTERS]
        if kind in ("passed", "failed", "error", "timeout"):
            messages.append({"outcome": kind, "detail": detail})
        elif kind in ("load", "end", "memory"):
            messages.append({kind: detail})
        else:
            messages.append({})
    return messages


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
            for pid in guard.descendants(isolation):  # orphans come to us, the subreaper
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            raise SystemExit("a process of the sandbox does not die")
        time.sleep(0.001)


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
    pid: int, pipes: _Pipes, deadline: float, isolation: guard.Isolation, limits: dict[str, Any]
) -> tuple[str, int | None]:
    """Read until the worker has ended or must.

    Returns why it has to be stopped, "" if it ended, and its status, if it was already asked for.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        pidfd = None
    count = isolation.uid is None and isolation.own_proc
    watch = count or limits["processes"] > 1  # a single process is held by its own limits
    next_watch = time.monotonic() + _WATCH_S
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout", None
            readers = [pipes.readers[k] for k in pipes.open]
            step = left if pidfd is not None and not watch else min(left, _WATCH_S)
            ready = select.select(
                [*readers, *([pidfd] if pidfd is not None else [])], [], [], step
            )[0]
            for index in list(pipes.open):
                if pipes.readers[index] in ready:
                    pipes.read(index)
            if pipes.overflowed():
                return "output_limit", None
            if watch and time.monotonic() >= next_watch:
                if over := guard.goes_over(limits, isolation):
                    return over, None
                next_watch = time.monotonic() + _WATCH_S
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
    # 1. What the job reads from and writes to.
    pipes = _Pipes([limits["output_bytes"], limits["output_bytes"], _REPORT_BYTES])
    stdin = _stdin_file(job.get("stdin", ""))
    null = os.open(os.devnull, os.O_WRONLY)
    # 2. Run it in a fork, until it ends or must.
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        out = [null, null] if suite else pipes.writers[:2]
        _worker(job, header, isolation, [stdin, *out, pipes.writers[2]])
    for file in [stdin, null, *pipes.writers]:
        os.close(file)
    stopped, status = _wait(pid, pipes, started + limits["wall_s"], isolation, limits)
    wall_s = time.monotonic() - started
    if stopped:
        os.kill(pid, signal.SIGKILL)
    if status is None:
        status = os.waitpid(pid, 0)[1]
    # 3. Leave nothing of it: processes, output, files.
    _kill_everything(pid, isolation)
    pipes.drain()
    pipes.close()
    guard.empty_directory(header["cwd"])
    code = os.waitstatus_to_exitcode(status)
    if not stopped and pipes.overflowed():
        stopped = "output_limit"
    # 4. Say how it ended.
    messages = _reports(bytes(pipes.data[2]), len(job.get("tests", ())) + 1)
    if not stopped:
        if code == 254 or any("memory" in message for message in messages):
            stopped = "memory"
        elif code in (-signal.SIGXCPU, -signal.SIGKILL) and wall_s >= limits["cpu_s"]:
            stopped = "timeout"
        elif code < 0:
            stopped = "killed"
        else:
            stopped = "ok" if code == 0 else "error"
    result: dict[str, Any] = {"status": stopped, "exit_code": code, "wall_s": wall_s}
    if suite:
        result["messages"] = messages
    else:
        for name, data in (("stdout", pipes.data[0]), ("stderr", pipes.data[1])):
            result[name] = bytes(data[: limits["output_bytes"]]).decode("utf-8", "replace")
    return result


def _receive() -> Any:
    """The next message on stdin, or None. Nothing is read ahead: a worker would inherit it."""
    length = int.from_bytes(os.read(0, 8), "big")
    data = b""
    while len(data) < length:
        data += os.read(0, length - len(data))
    return json.loads(data) if data else None


def _send(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _serve(header: dict[str, Any], isolation: guard.Isolation) -> None:
    refuse = header["refuse"]
    # 1. Prepare what every worker is held by.
    if "system_calls" not in refuse:
        isolation.program = filters.calls(
            guard.LIBC, network="network" in refuse, attributes=isolation.filesystem
        )
        isolation.network |= isolation.program is not None and "network" not in refuse
    if "landlock" not in refuse:
        readable = [*guard.interpreter(), *(["/proc"] if isolation.own_proc else [])]
        isolation.ruleset = filters.paths(guard.LIBC, readable, [header["cwd"]])
    # 2. See that an empty program runs under it.
    trial = _supervise({"code": ""}, header, isolation)
    if trial["status"] != "ok":
        raise SystemExit(f"an empty program does not run: {trial['status']}, {trial['stderr']}")
    lacking, separate = guard.lacking(isolation), guard.is_separate(isolation)
    about = {"lacking": lacking, "separate": separate, "reason": isolation.reason}
    _send({"isolation": isolation.as_dict(), **about})
    if lacking and not (separate and header["allow_without_namespaces"]):
        return
    # 3. Jobs, one after the other.
    while (job := _receive()) is not None:
        result = _supervise(job, header, isolation)
        result["isolation"] = isolation.as_dict()
        _send(result)


def main() -> None:
    guard.prctl(guard.PDEATHSIG, signal.SIGKILL)
    header = _receive()
    if os.getppid() != header["parent"]:  # it died before we were watching
        raise SystemExit("the parent is gone")
    refuse = header["refuse"]
    isolation = guard.Isolation()
    number = os.getpid()  # in the new process table it will be 1 for every sandbox
    with contextlib.suppress(OSError):
        guard.write("/proc/self/oom_score_adj", "1000")
    guard.enter_namespaces(isolation, refuse)
    # From here on nobody opens this process's memory, files or environment, whoever it runs as.
    guard.prctl(guard.DUMPABLE, 0)
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
    _serve(header, isolation)


if __name__ == "__main__":
    main()
