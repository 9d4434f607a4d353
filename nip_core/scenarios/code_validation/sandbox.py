"""Runs Python code that nobody vouches for: mutated code loops, and eats memory.

    Limits                 what a run may use
    run_python             a program: its output, its exit code, how it ended
    run_tests              a solution and its tests: which pass
    run_tests_batch        thousands of such pairs, quickly, still one process each
    SandboxResult, TestReport, Isolation   what comes back

One child interpreter (`sandbox_child`) is started with `-S -s -P` and an empty environment but
for PYTHONHASHSEED=0, so that the order of sets, and with it every label, is the same each time
(`-I` is the same switches without the one variable). It hardens itself, then forks one worker per
job, so a job never meets what an earlier one left in memory, on disk or in the process table.

What is covered:

- Time (wall clock and CPU), address space per process, number of processes, file size, open
  files, bytes of output. What goes over is killed and reported as such.
- The whole group: every process that a job started, also one that made a session of its own, is
  dead before the result comes back. If the calling process dies, the child dies with it.
- The environment: no variable of the caller reaches the code; stdin is empty or what was given.
- Where the system allows (Linux with user namespaces, or root), reported in `Isolation`:
  `network` no interface at all, not even loopback; `processes` a process table of its own;
  `filesystem` everything read-only but a working directory in memory of `disk_mb`, with /proc
  fresh or hidden, and home directories, /run and temporary directories hidden unless the
  interpreter lives below them; `user` the code runs as a user that nobody is. Capabilities are
  dropped in any case on Linux.

What is not covered:

- A weakness of the kernel or of the interpreter. This is a fence, not a virtual machine.
- Reading files that the user (or, as root, anybody) may read and that are not hidden as above.
- Memory is limited per process: `processes` of them may use `processes` times as much, and the
  working directory `disk_mb` more.
- The verdict against code that means to cheat: tests run in the same process as the solution, so
  a hostile solution could report results of its own making. It can't harm more than its report.
- Where `Isolation` says False: without `network` the code may open connections; without
  `filesystem` it may write wherever its user may; without `processes` it may signal processes of
  the same user, and what left its session is found through /proc only; without `user`, root stays
  uid 0 (without capabilities), for which the number of processes is watched, not limited.
- Systems other than Linux: limits that the system knows (macOS ignores the one on memory) and the
  process group, no more.
"""

import contextlib
import json
import os
import selectors
import shutil
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
    """Address space of each process, the interpreter's own 20 to 40 included."""
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
    processes: bool
    filesystem: bool
    user: bool


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
    code: str, *, stdin: str = "", limits: Limits | None = None, refuse: Collection[str] = ()
) -> SandboxResult:
    """Run `code` as a main program in a sandbox.

    Args:
        code: source text.
        stdin: what it can read from standard input.
        limits: what it may use.
        refuse: layers to do without ("namespaces", "network", "user"), to test the others.

    Raises:
        SandboxError: the child could not be started or stopped.
    """
    job = {"code": code, "stdin": stdin}
    result = _run_jobs([job], limits or Limits(), refuse)[0]
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
    refuse: Collection[str] = (),
) -> TestReport:
    """Load `solution`, then run each of `tests` in its namespace; see `run_tests_batch`."""
    suite = Suite(solution, tuple(tests))
    return run_tests_batch([suite], limits=limits, max_steps=max_steps, refuse=refuse)[0]


def run_tests_batch(
    suites: Sequence[Suite],
    *,
    limits: Limits | None = None,
    max_steps: int = 0,
    workers: int = 1,
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
        refuse: see `run_python`.

    Returns:
        One report per suite, in order.

    Raises:
        SandboxError: a child could not be started or stopped.
    """
    limits = limits or Limits()
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
        done = list(pool.map(lambda share: _run_jobs(share, limits, refuse), shares))
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


def _run_jobs(
    jobs: Sequence[dict[str, Any]], limits: Limits, refuse: Collection[str]
) -> list[dict[str, Any]]:
    """Run all jobs; a job that takes the whole child down is `killed`, the next child goes on."""
    results: list[dict[str, Any]] = []
    while len(results) < len(jobs):
        before = len(results)
        error = "no output"
        with _Child(jobs[before:], limits, refuse) as child:
            for line in child.lines():
                results.append(json.loads(line))
            error = child.error()
        if len(results) == len(jobs):
            break
        if len(results) == before and before == 0 and "started" not in error:
            raise SandboxError(f"the sandbox's child process does not run here: {error}")
        isolation = {"network": False, "processes": False, "filesystem": False, "user": False}
        lost = {"status": "killed", "exit_code": -9, "wall_s": 0.0, "isolation": isolation}
        results.append({**lost, "messages": [], "stdout": "", "stderr": error})
    return results


class _Child:
    """One child interpreter, from start to the death of everything it started."""

    def __init__(
        self, jobs: Sequence[dict[str, Any]], limits: Limits, refuse: Collection[str]
    ) -> None:
        self._stack = contextlib.ExitStack()
        self._deadline = time.monotonic() + _START_S + len(jobs) * (limits.wall_s + 5.0)
        try:
            self._start(jobs, limits, refuse)
        except BaseException:
            self._stack.close()
            raise

    def _start(
        self, jobs: Sequence[dict[str, Any]], limits: Limits, refuse: Collection[str]
    ) -> None:
        cwd = os.path.realpath(tempfile.mkdtemp(prefix="nip-sandbox-"))
        self._stack.callback(shutil.rmtree, cwd, ignore_errors=True)
        stdin: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._stderr: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        header = {
            "cwd": cwd,
            "limits": asdict(limits),
            "refuse": sorted(refuse),
            "parent": os.getpid(),
        }
        for message in (header, *jobs):
            stdin.write(json.dumps(message).encode() + b"\n")
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

    def lines(self) -> Iterator[bytes]:
        """The lines of the child's output, until it ends or the deadline is over."""
        assert self._process.stdout is not None
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, self._deadline - time.monotonic())):
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    return
                *complete, pending = (pending + piece).split(b"\n")
                yield from complete
                if len(pending) > _RESULT_BYTES:
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
