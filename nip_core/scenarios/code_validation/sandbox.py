"""Runs Python code that nobody vouches for: mutated code loops, and eats memory.

    Limits                 what a run may use
    run_python             a program: its output, its exit code, how it ended
    run_tests              a solution and its tests: which pass
    run_tests_batch        thousands of such pairs, quickly, still one process each
    SandboxResult, TestReport, Isolation   what comes back
    examine                which of the layers below this system gives

One child interpreter (`sandbox_child`) is started with `-S -s -P` and an empty environment but
for PYTHONHASHSEED=0, so that the order of sets, and with it every label, is the same each time
(`-I` is the same switches without the one variable). It hardens itself, then forks one worker per
job, so a job never meets what an earlier one left in memory, on disk or in the process table.

What is covered, always:

- Time (wall clock and CPU), address space per process, resident memory of all of them together,
  number of processes, file size, open files, bytes of output. What goes over is killed and
  reported as such. Memory that no process owns is refused: shared memory of any kind, memory file
  systems, namespaces (seccomp; `Isolation.system_calls`).
- The whole group: every process that a job started, also one that made a session of its own, is
  dead before the result comes back. If the calling process dies, the child dies with it.
- Other processes, and what they hold: no variable of the caller's environment, nor of any other
  process's; no memory, file or limit of another process. stdin is empty or what was given.
- The results of other jobs: each job has a pipe of its own; the supervisor, which holds the jobs
  that wait and the way home, can't be looked into (it is not dumpable), and it has read no further
  than the job that runs. Whatever a job says or leaves behind, it fails alone.
- The network: no socket can be made, and where the system allows there is no interface, not even
  loopback.
- Files: with Landlock nothing is read but the interpreter and the system's libraries, nothing
  written but the working directory. With namespaces everything is read-only but that, which is
  in memory, of `disk_mb`; /proc is the sandbox's own; home directories, /run and temporary
  directories are hidden unless the interpreter lives below them.
- Privileges: none. Root's code runs as a user that nobody is, where the interpreter can be read
  by everyone.

What holds is in `Isolation`. Where this system lacks namespaces (a container, a hardened
distribution) or seccomp, nothing is run unless `allow_without_namespaces` says so. The promises
above then hold by Landlock or, for root, by a user of its own; where there is neither, as on
systems other than Linux, nothing is run at all.

What is not covered:

- A weakness of the kernel or of the interpreter. This is a fence, not a virtual machine.
- Without Landlock: reading files that the user (or, as root, anybody) may read and that are not
  hidden as above.
- Resident memory of several processes is watched, every 20 ms, not limited; the working directory
  may hold `disk_mb` more.
- The verdict against code that means to cheat: tests run in the same process as the solution, so
  a hostile solution could report results of its own making, for itself.
- Without `filesystem`: the size of the working directory is not limited, only that of each file,
  and names and sizes of other files can be asked for. Without `processes`: what left its session
  is found through /proc only, and before Linux 6.12 it may send signals to processes of the same
  user. Without `user`, root stays uid 0 (without capabilities), for which the number of processes
  is watched, not limited.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from nip_core.errors import NipError
from nip_core.scenarios.code_validation.sandbox_isolation import empty_directory

Status = Literal["ok", "error", "timeout", "memory", "output_limit", "killed"]
Outcome = Literal["passed", "failed", "error", "timeout", "not_run"]

_CHILD = Path(__file__).with_name("sandbox_child.py")
_START_S = 30.0
_RESULT_BYTES = 64_000_000


class SandboxError(NipError, RuntimeError):
    """The sandbox itself does not work here; nothing is known about the code."""


@dataclass(frozen=True)
class Limits:
    """What one run may use."""

    wall_s: float = 10.0
    """Seconds from start to end."""
    cpu_s: float = 10.0
    """Seconds of CPU time of each process, rounded up to whole seconds."""
    test_cpu_s: float = 2.0
    """Seconds of CPU time of each test, and of loading the solution."""
    memory_mb: int = 512
    """Address space of each process, the interpreter's own 20 to 40 included, and what all of them
    together hold resident."""
    processes: int = 8
    """Processes and threads that may exist at once, the first included."""
    file_mb: int = 16
    """Size of each file."""
    disk_mb: int = 64
    """Size of the working directory, where `Isolation.filesystem`."""
    open_files: int = 64
    output_bytes: int = 1_000_000
    """Bytes on stdout, and as many on stderr."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"Limits.{name} must be above 0 (got {value})")


@dataclass(frozen=True)
class Isolation:
    """What was in force beyond plain limits; see the module's docstring."""

    network: bool
    """No connection can be made."""
    processes: bool
    """A process table of its own."""
    filesystem: bool
    """A view of the file system of its own."""
    user: bool
    """A user that nobody is."""
    landlock: bool
    """Only some directories can be read, and one written."""
    system_calls: bool
    """Calls for memory that no limit counts, and for other processes, are refused."""


@dataclass(frozen=True)
class SandboxResult:
    """How a program ended and what it said."""

    status: Status
    """`ok` is exit code 0. `memory`: it died of a MemoryError. `killed`: by a signal."""
    stdout: str
    stderr: str
    exit_code: int
    """Negative: the signal that ended it."""
    wall_s: float
    isolation: Isolation

    @property
    def network_isolated(self) -> bool:
        return self.isolation.network


@dataclass(frozen=True)
class TestReport:
    """Which tests a solution passed."""

    __test__: ClassVar[bool] = False  # not a test class, whatever pytest thinks of the name

    status: Status
    """`ok`: it ran to its end, whatever the tests said. `timeout`: steps or time ran out."""
    outcomes: tuple[Outcome, ...]
    """One for each test, in order."""
    details: tuple[str, ...]
    """The exception of each test that has one, else ""."""
    load_error: str | None
    """Why the solution could not be loaded: no test was run then."""
    wall_s: float
    isolation: Isolation
    passed: int = field(init=False)
    failed: int = field(init=False)
    """Tests whose assertion was wrong."""
    errors: int = field(init=False)
    """Tests that raised something else, ran out of time, or were not run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "passed", self.outcomes.count("passed"))
        object.__setattr__(self, "failed", self.outcomes.count("failed"))
        object.__setattr__(self, "errors", len(self.outcomes) - self.passed - self.failed)

    @property
    def all_passed(self) -> bool:
        return self.load_error is None and self.passed == len(self.outcomes) > 0


@dataclass(frozen=True)
class Suite:
    """A solution with tests to run on it; each test is source that raises unless it passes."""

    solution: str
    tests: tuple[str, ...]


def run_python(
    code: str,
    *,
    stdin: str = "",
    limits: Limits | None = None,
    allow_without_namespaces: bool = False,
    refuse: Collection[str] = (),
) -> SandboxResult:
    """Run `code` as a main program in a sandbox.

    Args:
        code: source text.
        stdin: what it can read from standard input.
        limits: what it may use.
        allow_without_namespaces: run it also where this system gives no namespaces, with what is
            left; the module's docstring says what that is.
        refuse: layers to do without ("namespaces", "network", "user", "landlock",
            "system_calls"), to test the others.

    Raises:
        SandboxError: this system can't keep the code in, or the child does not run.
    """
    job = {"code": code, "stdin": stdin}
    setting = _Setting(limits or Limits(), allow_without_namespaces, refuse)
    result = _run_jobs([job], setting)[0]
    return SandboxResult(
        status=result["status"],
        stdout=result["stdout"],
        stderr=result["stderr"],
        exit_code=result["exit_code"],
        wall_s=result["wall_s"],
        isolation=Isolation(**result["isolation"]),
    )


def run_tests(
    solution: str,
    tests: Sequence[str],
    *,
    limits: Limits | None = None,
    max_steps: int = 0,
    allow_without_namespaces: bool = False,
    refuse: Collection[str] = (),
) -> TestReport:
    """Load `solution`, then run each of `tests` in its namespace; see `run_tests_batch`."""
    suite = Suite(solution, tuple(tests))
    return run_tests_batch(
        [suite],
        limits=limits,
        max_steps=max_steps,
        allow_without_namespaces=allow_without_namespaces,
        refuse=refuse,
    )[0]


def run_tests_batch(
    suites: Sequence[Suite],
    *,
    limits: Limits | None = None,
    max_steps: int = 0,
    workers: int = 1,
    allow_without_namespaces: bool = False,
    refuse: Collection[str] = (),
) -> list[TestReport]:
    """Run many suites, each in a forked process of its own, several hundred a second and worker.

    A test that runs out of steps or time ends its suite: the tests after it are `not_run`.

    Args:
        suites: solutions with their tests.
        limits: what each suite may use.
        max_steps: lines and calls of Python that loading, and each test, may execute; 0 for no
            limit. Unlike seconds it gives the same outcome on every machine.
        workers: child interpreters to share the suites among.
        allow_without_namespaces: see `run_python`.
        refuse: see `run_python`.

    Returns:
        One report per suite, in order.

    Raises:
        SandboxError: this system can't keep the code in, or a child does not run.
    """
    limits = limits or Limits()
    setting = _Setting(limits, allow_without_namespaces, refuse)
    jobs = [
        {
            "solution": suite.solution,
            "tests": list(suite.tests),
            "max_steps": max_steps,
            "test_cpu_s": limits.test_cpu_s,
        }
        for suite in suites
    ]
    shares = [jobs[k::workers] for k in range(workers)] if workers > 1 else [jobs]
    with ThreadPoolExecutor(max_workers=max(1, len(shares))) as pool:
        done = list(pool.map(lambda share: _run_jobs(share, setting), shares))
    results: list[dict[str, Any]] = [{}] * len(jobs)
    for k, share in enumerate(done):
        results[k :: len(shares)] = share
    return [_test_report(suite, result) for suite, result in zip(suites, results, strict=True)]


def _test_report(suite: Suite, result: dict[str, Any]) -> TestReport:
    outcomes: list[Outcome] = []
    details: list[str] = []
    load_error = None
    ended = False
    for message in result["messages"][: len(suite.tests) + 1]:
        if "load" in message:
            load_error = str(message["load"])
        elif message.get("outcome") in ("passed", "failed", "error", "timeout"):
            outcomes.append(message["outcome"])
            details.append(str(message.get("detail", "")))
        ended = ended or "end" in message or "load" in message
    status: Status = result["status"]
    if status == "ok" and ("timeout" in outcomes or (load_error or "").startswith("_Stop")):
        status = "timeout"
    if status == "ok" and not ended:  # it left without saying so, for example through os._exit
        status = "error"
    if not ended and load_error is None and len(outcomes) < len(suite.tests):
        # The test that was running when the worker was stopped.
        outcomes.append("timeout" if status == "timeout" else "error")
        details.append(f"the process ended: {status}")
    missing = len(suite.tests) - len(outcomes)
    return TestReport(
        status=status,
        outcomes=(*outcomes, *(["not_run"] * missing)),  # type: ignore[arg-type]
        details=(*details, *([""] * missing)),
        load_error=load_error,
        wall_s=result["wall_s"],
        isolation=Isolation(**result["isolation"]),
    )


def examine() -> tuple[Isolation, str]:
    """Which layers this system gives, and why it gives no namespaces, or "". Runs no code.

    Raises:
        SandboxError: the child does not run.
    """
    with _Child([], _Setting(Limits(), True, ())) as child:
        about = child.about()
    return Isolation(**about["isolation"]), _why_not(about)


@dataclass(frozen=True)
class _Setting:
    limits: Limits
    allow_without_namespaces: bool
    refuse: Collection[str]


def _why_not(about: dict[str, Any]) -> str:
    """What is missing to keep untrusted code in, or ""."""
    if not about["lacking"]:
        return ""
    reason = f" ({about['reason']})" if about["reason"] else ""
    return f"this system does not give the sandbox {', '.join(about['lacking'])}{reason}"


def _check(about: dict[str, Any], setting: _Setting) -> None:
    why_not = _why_not(about)
    if not why_not:
        return
    if not about["separate"]:
        raise SandboxError(
            f"untrusted code can't be run here: {why_not}, and no Landlock keeps the code from "
            f"other processes of this user; use Linux 5.13 or newer with Landlock, or allow user "
            f"namespaces"
        )
    if not setting.allow_without_namespaces:
        raise SandboxError(
            f"untrusted code is not run here: {why_not}; allow user namespaces, or pass "
            f"allow_without_namespaces=True to do with what is left (`nip doctor` says what)"
        )


def _run_jobs(jobs: Sequence[dict[str, Any]], setting: _Setting) -> list[dict[str, Any]]:
    """Run all jobs; a job that takes the whole child down is `killed`, the next child goes on."""
    results: list[dict[str, Any]] = []
    while len(results) < len(jobs):
        with _Child(jobs[len(results) :], setting) as child:
            about = child.about()
            _check(about, setting)
            for line in child.lines():
                results.append(json.loads(line))
            error = child.error()
        if len(results) < len(jobs):
            lost = {"status": "killed", "exit_code": -9, "wall_s": 0.0, "messages": []}
            results.append({**lost, "isolation": about["isolation"], "stdout": "", "stderr": error})
    return results


class _Child:
    """One child interpreter, from start to the death of everything it started."""

    def __init__(self, jobs: Sequence[dict[str, Any]], setting: _Setting) -> None:
        self._stack = contextlib.ExitStack()
        self._pending = b""
        self._deadline = time.monotonic() + _START_S + len(jobs) * (setting.limits.wall_s + 5.0)
        try:
            self._start(jobs, setting)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, jobs: Sequence[dict[str, Any]], setting: _Setting) -> None:
        cwd = os.path.realpath(tempfile.mkdtemp(prefix="nip-sandbox-"))
        self._stack.callback(_remove, cwd)
        stdin: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._stderr: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        header = {
            "cwd": cwd,
            "limits": asdict(setting.limits),
            "allow_without_namespaces": setting.allow_without_namespaces,
            "refuse": sorted(setting.refuse),
            "parent": os.getpid(),
        }
        for message in (header, *jobs):
            data = json.dumps(message).encode()
            stdin.write(len(data).to_bytes(8, "big") + data)
        stdin.seek(0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-s", "-P", "-B", str(_CHILD)],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=cwd,
                env={"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"can't start {sys.executable}: {error}") from error
        self._stack.callback(self._stop)

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def about(self) -> dict[str, Any]:
        """What the child says of itself before it runs anything.

        Raises:
            SandboxError: it says nothing.
        """
        for line in self.lines():
            about: dict[str, Any] = json.loads(line)
            return about
        raise SandboxError(f"the sandbox's child process does not run here: {self.error()}")

    def lines(self) -> Iterator[bytes]:
        """The next lines of the child's output, until it ends or the deadline is over."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._pending.partition(b"\n")
                if newline:
                    self._pending = rest
                    yield line
                    continue
                if not selector.select(max(0.0, self._deadline - time.monotonic())):
                    return
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                self._pending += piece
                if not piece or len(self._pending) > _RESULT_BYTES:
                    return

    def error(self) -> str:
        """What the child said on stderr, and its exit code, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        self._stderr.seek(0)
        said = self._stderr.read(4000).decode("utf-8", "replace").strip()
        return f"exit code {self._process.poll()}, {said or 'nothing on stderr'}"

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=10.0)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        empty_directory(directory)
        os.rmdir(directory)
