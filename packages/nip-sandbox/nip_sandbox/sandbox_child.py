"""The trusted program that a sandbox child process runs; see `sandbox` for its promises.

Started as a script by `sandbox_process.Child` with an empty environment and standard library only.
It reads messages from stdin, each 8 bytes of length and JSON: a header, then jobs, each when its
turn has come. It writes lines of JSON to stdout: the layers in force here, then one line per job.

    run_child   harden this process (`sandbox_isolation`), become init of a new process table
    _supervise  fork a worker for one job, read its output, kill it and all it left behind
    _worker     inside the fork: limits, no privileges, then the untrusted code

A worker's output is read as flat text of bounded length (`_read_messages`), never as a language
that could nest. Runs without site-packages: nothing is imported but the standard library and its
sister files, of which `sandbox_wire` has the messages.
"""

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from nip_sandbox import sandbox_filters as filters
    from nip_sandbox import sandbox_isolation as guard
    from nip_sandbox import sandbox_wire as wire
else:
    # Modules of this project, which must not stay importable for the code that runs here.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import sandbox_filters as filters
    import sandbox_isolation as guard
    import sandbox_wire as wire

    sys.path.pop()

Report = Callable[[wire.Kind, str], None]

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


def _run_suite(job: wire.Job, tests: list[str], cpu_s: float, report: Report) -> int:
    """Load the solution, then run its tests in order in the same namespace."""
    namespace: dict[str, Any] = {"__name__": "solution"}
    limits = (namespace, job.max_steps, cpu_s)
    try:
        _guarded(job.source, "solution.py", *limits)
    except BaseException as error:
        report("load", _describe(error))
        return 0
    for test in tests:
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


def _worker(
    job: wire.Job, header: wire.Header, isolation: guard.Confinement, files: list[int]
) -> None:
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
        os.chdir(header.cwd)
        # 2. Limits first, then no privileges, then no way back.
        guard.set_limits(header.limit, isolation)
        guard.drop_privileges(isolation)
        # The supervisor can't be looked into, and so could not this process: let it be counted.
        guard.prctl(guard.DUMPABLE, 1)
        if ruleset is not None:
            filters.confine(guard.LIBC, 204)
        os.closerange(4, 4096)
        if isolation.program is not None:
            filters.filter_calls(guard.LIBC, isolation.program)

        def report(kind: wire.Kind, detail: str) -> None:
            text = f"{kind} {detail}".replace("\0", "\\0")
            os.write(3, text.encode("utf-8", "backslashreplace") + b"\0")

        if job.tests is None:
            code = _run_program(job.source, report)
        else:
            code = _run_suite(job, job.tests, header.limit.test_cpu_s, report)
        sys.stdout.flush()
        sys.stderr.flush()
    except MemoryError:
        code = 254
    except BaseException:
        traceback.print_exc()
        code = 255
    finally:
        os._exit(code)


def _read_messages(data: bytes, at_most: int) -> list[wire.WorkerMessage]:
    """Read what a worker said on its pipe, at most so many messages."""
    messages: list[wire.WorkerMessage] = []
    for piece in data.split(b"\0")[:-1][:at_most]:
        kind, _, text = piece.decode("utf-8", "replace").partition(" ")
        wire_kind = next((k for k in get_args(wire.Kind) if k == kind), None)
        messages.append(
            wire.WorkerMessage(wire_kind, text[:_DETAIL_CHARACTERS] if wire_kind else "")
        )
    return messages


def _kill_everything(worker: int, isolation: guard.Confinement) -> None:
    """Kill the worker and all it started, also in other sessions, and reap them."""
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
            for pid in guard.list_descendants(isolation):  # orphans come to us, the subreaper
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
    """A worker's stdout, stderr and report pipe, each read up to its limit in bytes."""

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
    pid: int, pipes: _Pipes, deadline: float, isolation: guard.Confinement, limit: wire.Limit
) -> tuple[wire.Stop, int | None]:
    """Read until the worker has ended or must.

    Returns why it has to be stopped, "" if it ended, and its status, if it was already asked for.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        pidfd = None
    count = isolation.uid is None and isolation.own_proc
    watch = count or limit.processes > 1  # a single process is held by its own limits
    next_watch = time.monotonic() + _WATCH_S
    try:
        while True:
            rest_s = deadline - time.monotonic()
            if rest_s <= 0:
                return "timeout", None
            readers = [pipes.readers[k] for k in pipes.open]
            step = rest_s if pidfd is not None and not watch else min(rest_s, _WATCH_S)
            ready = select.select(
                [*readers, *([pidfd] if pidfd is not None else [])], [], [], step
            )[0]
            for index in list(pipes.open):
                if pipes.readers[index] in ready:
                    pipes.read(index)
            if pipes.overflowed():
                return "output_limit", None
            if watch and time.monotonic() >= next_watch:
                if over := guard.find_excess(limit, isolation):
                    return over, None
                next_watch = time.monotonic() + _WATCH_S
            if pidfd in ready:
                return "", None
            if pidfd is None:
                ended_pid, status = os.waitpid(pid, os.WNOHANG)
                if ended_pid:
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


def _layers(isolation: guard.Confinement) -> wire.Layers:
    return wire.Layers(
        network=isolation.network,
        processes=isolation.processes,
        filesystem=isolation.filesystem,
        user=isolation.uid is not None,
        landlock=isolation.ruleset is not None,
        system_calls=isolation.program is not None,
    )


def _supervise(job: wire.Job, header: wire.Header, isolation: guard.Confinement) -> wire.Ending:
    """Run one job in a fork of its own and say how it ended."""
    limit = header.limit
    # 1. The job's input and outputs.
    pipes = _Pipes([limit.output_bytes, limit.output_bytes, _REPORT_BYTES])
    stdin = _stdin_file(job.stdin)
    null = os.open(os.devnull, os.O_WRONLY)
    # 2. Run it in a fork, until it ends or must.
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        out = pipes.writers[:2] if job.tests is None else [null, null]
        _worker(job, header, isolation, [stdin, *out, pipes.writers[2]])
    for file in [stdin, null, *pipes.writers]:
        os.close(file)
    stopped, wait_status = _wait(pid, pipes, started + limit.wall_s, isolation, limit)
    wall_s = time.monotonic() - started
    if stopped:
        os.kill(pid, signal.SIGKILL)
    if wait_status is None:
        wait_status = os.waitpid(pid, 0)[1]
    # 3. Leave nothing of it: processes, output, files.
    _kill_everything(pid, isolation)
    pipes.drain()
    pipes.close()
    guard.empty_directory(header.cwd)
    code = os.waitstatus_to_exitcode(wait_status)
    if not stopped and pipes.overflowed():
        stopped = "output_limit"
    # 4. Say how it ended.
    messages = _read_messages(bytes(pipes.data[2]), len(job.tests or ()) + 1)
    status: wire.Status = "ok" if code == 0 else "error"
    if stopped:
        status = stopped
    elif code == 254 or any(message.kind == "memory" for message in messages):
        status = "memory"
    elif code in (-signal.SIGXCPU, -signal.SIGKILL) and wall_s >= limit.cpu_s:
        status = "timeout"
    elif code < 0:
        status = "killed"
    stdout, stderr = (
        bytes(data[: limit.output_bytes]).decode("utf-8", "replace") for data in pipes.data[:2]
    )
    return wire.Ending(status, code, wall_s, _layers(isolation), messages, stdout, stderr)


def _receive() -> bytes:
    """Read the next message on stdin, b"" at its end. Nothing more: a worker would inherit it."""
    length = int.from_bytes(os.read(0, 8), "big")
    data = b""
    while len(data) < length:
        data += os.read(0, length - len(data))
    return data


def _send(message: wire.About | wire.Ending) -> None:
    data = wire.encode_message(message) + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _serve(header: wire.Header, isolation: guard.Confinement) -> None:
    refuse = header.refuse
    # 1. Prepare what every worker is held by.
    if "system_calls" not in refuse:
        isolation.program = filters.make_call_filter(
            guard.LIBC, network="network" in refuse, attributes=isolation.filesystem
        )
        isolation.network |= isolation.program is not None and "network" not in refuse
    if "landlock" not in refuse:
        readable = [
            *guard.list_interpreter_directories(),
            *(["/proc"] if isolation.own_proc else []),
        ]
        isolation.ruleset = filters.make_path_rules(guard.LIBC, readable, [header.cwd])
    # 2. See that an empty program runs under it.
    trial = _supervise(wire.Job(""), header, isolation)
    if trial.status != "ok":
        raise SystemExit(f"an empty program does not run: {trial.status}, {trial.stderr}")
    lacking, separate = guard.list_lacking(isolation), guard.is_separate(isolation)
    _send(wire.About(_layers(isolation), lacking, separate, isolation.reason))
    if lacking and not (separate and header.allow_without_namespaces):
        return
    # 3. Jobs, one after the other.
    while data := _receive():
        _send(_supervise(wire.decode_job(data), header, isolation))


def run_child() -> None:
    guard.prctl(guard.PDEATHSIG, signal.SIGKILL)
    header = wire.decode_header(_receive())
    if os.getppid() != header.parent:  # it died before we were watching
        raise SystemExit("the parent is gone")
    refuse = header.refuse
    isolation = guard.Confinement()
    number = os.getpid()  # in the new process table it will be 1 for every sandbox
    with contextlib.suppress(OSError):
        guard.write_file("/proc/self/oom_score_adj", "1000")
    guard.enter_namespaces(isolation, refuse)
    # From here on no process opens this one's memory, files or environment, under any user.
    guard.prctl(guard.DUMPABLE, 0)
    if isolation.processes:
        init = os.fork()
        if init:
            status = os.waitpid(init, 0)[1]
            os._exit(0 if status == 0 else 1)
        guard.prctl(guard.PDEATHSIG, signal.SIGKILL)
    else:
        guard.prctl(guard.CHILD_SUBREAPER, 1)
    guard.isolate_mounts(isolation, header.cwd, header.limit.disk_mb)
    os.chdir(header.cwd)
    guard.choose_user(isolation, header.cwd, refuse, number)
    _serve(header, isolation)


if __name__ == "__main__":
    run_child()
