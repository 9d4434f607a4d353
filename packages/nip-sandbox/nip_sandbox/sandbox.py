"""Runs untrusted Python code: mutated code loops, and eats memory.

    Limits                 the resources that a run may use
    run_python             a program: its output, its exit code, how it ended
    run_python_batch       several in one child interpreter, each in a process of its own
    run_python_each        the same, one result at a time
    run_tests              a solution and its tests: which pass
    run_tests_batch        thousands of such pairs, quickly, still one process each
    SandboxResult, TestReport, Isolation   the results
    examine                which of the layers below this system gives

One child interpreter (`sandbox_child`) is started with `-S -s -P` and an empty environment but
for PYTHONHASHSEED=0, so that the order of sets, and with it every label, is the same each time
(`-I` is the same switches without the one variable). It hardens itself, then forks one worker per
job, so a job never meets what an earlier one left in memory, on disk or in the process table.

Covered, always:

- Time (wall clock and CPU), address space per process, resident memory of all of them together,
  number of processes, file size, open files, bytes of output. A job that goes over is killed and
  reported as such. Memory that no process owns is refused: shared memory of any kind, memory file
  systems, namespaces (seccomp; `Isolation.system_calls`).
- The whole group: every process that a job started, also one that made a session of its own, is
  dead before the result comes back. If the calling process dies, the child dies with it.
- Other processes, and their data: no variable of the caller's environment, nor of any other
  process's; no memory, file or limit of another process. stdin is empty or the given text.
- The results of other jobs: each job has a pipe of its own; the supervisor, which holds the jobs
  that wait and the way home, can't be looked into (it is not dumpable), and it has read no further
  than the job that runs. A job fails alone: its output and its remains reach no other.
- The network: no socket can be made, and where the system allows there is no interface, not even
  loopback.
- Files: with Landlock nothing is read but the interpreter and the system's libraries, nothing
  written but the working directory. With namespaces everything is read-only but that, which is
  in memory, of `disk_mb`; /proc is the sandbox's own; home directories, /run and temporary
  directories are hidden unless the interpreter lives below them.
- Privileges: none. Root's code runs as a user of no process, where the interpreter can be read
  by everyone.

`Isolation` has the promises that hold. Where this system lacks namespaces (a container, a hardened
distribution) or seccomp, nothing is run unless `allow_without_namespaces` says so. The promises
above then hold by Landlock or, for root, by a user of its own; where there is neither, as on
systems other than Linux, nothing is run at all.

Not covered:

- A weakness of the kernel or of the interpreter. This is a fence, not a virtual machine.
- Without Landlock: reading files that the code's user may read and that are not hidden as above;
  without `filesystem` as well, also writing them, in memory file systems among others.
- Resident memory of several processes is watched, every 20 ms, not limited; the working directory
  may hold `disk_mb` more.
- The verdict against code that means to cheat: tests run in the same process as the solution, so
  a hostile solution could report results of its own making, for itself. In its memory it may
  also read the remains of the jobs before it.
- Without `filesystem`: the size of the working directory is not limited, only that of each file,
  and names and sizes of other files can be asked for. Without `processes`: a process that left its
  session is found through /proc only, and before Linux 6.12 it may send signals to processes of the
  same user. Without `user`, root stays uid 0 (without capabilities), for which the number of
  processes is watched, not limited.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from nip_sandbox.sandbox_process import (
    Child,
    SandboxError,
    Setting,
    check_layers,
    describe_lacking,
)
from nip_sandbox.sandbox_wire import Ending, Job, Layers, Limit, Outcome, Status, decode_ending

__all__ = [
    "Isolation",
    "Limits",
    "Program",
    "SandboxError",
    "SandboxResult",
    "Suite",
    "TestReport",
    "examine",
    "run_python",
    "run_python_batch",
    "run_python_each",
    "run_tests",
    "run_tests_batch",
]


@dataclass(frozen=True)
class Limits:
    """The resources that one run may use."""

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
    """The layers in force beyond plain limits; see the module's docstring."""

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
    """A program's end and its output."""

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

    __test__: ClassVar[bool] = False  # not a test class, in spite of its name

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


@dataclass(frozen=True)
class Program:
    """A main program with its standard input."""

    code: str
    stdin: str = ""


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
        stdin: the text of its standard input.
        limits: the resources that it may use.
        allow_without_namespaces: run it also where this system gives no namespaces, with the
            layers left; the module's docstring names them.
        refuse: layers to do without ("namespaces", "network", "user", "landlock",
            "system_calls"), to test the others.

    Raises:
        SandboxError: this system can't keep the code in, or the child does not run.
    """
    return run_python_batch(
        [Program(code, stdin)],
        limits=limits,
        allow_without_namespaces=allow_without_namespaces,
        refuse=refuse,
    )[0]


def run_python_batch(
    programs: Sequence[Program],
    *,
    limits: Limits | None = None,
    allow_without_namespaces: bool = False,
    refuse: Collection[str] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> list[SandboxResult]:
    """Run programs one after the other in one child interpreter, each as `run_python` does.

    Once `stopped` says so, SandboxError is raised after the program that runs.
    """
    results: list[SandboxResult] = []
    with closing(
        run_python_each(
            programs,
            limits=limits,
            allow_without_namespaces=allow_without_namespaces,
            refuse=refuse,
        )
    ) as iterator:
        for result in iterator:
            results.append(result)
            if stopped():
                raise SandboxError(f"stopped after {len(results)} of {len(programs)} programs")
    return results


def run_python_each(
    programs: Sequence[Program],
    *,
    limits: Limits | None = None,
    allow_without_namespaces: bool = False,
    refuse: Collection[str] = (),
) -> Generator[SandboxResult, None, None]:
    """Run programs as `run_python_batch` does, and give each result when it is there.

    Who stops asking and closes the iterator ends the child interpreter with the programs left.
    """
    jobs = [Job(program.code, program.stdin) for program in programs]
    setting = Setting(_limit(limits or Limits()), allow_without_namespaces, refuse)
    with closing(_iterate_jobs(jobs, setting)) as endings:
        for ending in endings:
            yield SandboxResult(
                status=ending.status,
                stdout=ending.stdout,
                stderr=ending.stderr,
                exit_code=ending.exit_code,
                wall_s=ending.wall_s,
                isolation=_isolation(ending.layers),
            )


def _limit(limits: Limits) -> Limit:
    return Limit(**asdict(limits))


def _isolation(layers: Layers) -> Isolation:
    return Isolation(**layers._asdict())


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
        limits: the resources that each suite may use.
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
    setting = Setting(_limit(limits or Limits()), allow_without_namespaces, refuse)
    jobs = [Job(suite.solution, "", list(suite.tests), max_steps) for suite in suites]
    shares = [jobs[k::workers] for k in range(workers)] if workers > 1 else [jobs]
    with ThreadPoolExecutor(max_workers=max(1, len(shares))) as pool:
        results = list(pool.map(lambda share: list(_iterate_jobs(share, setting)), shares))
    # Shares are dealt like cards, so the k-th ending of a share is that of suite k * workers + it.
    endings = {
        first + k * len(shares): ending
        for first, share in enumerate(results)
        for k, ending in enumerate(share)
    }
    return [_test_report(suite, endings[number]) for number, suite in enumerate(suites)]


def _test_report(suite: Suite, ending: Ending) -> TestReport:
    outcomes: list[Outcome] = []
    details: list[str] = []
    load_error = None
    is_over = False
    for kind, detail in ending.messages[: len(suite.tests) + 1]:
        if kind == "load":
            load_error = _writable(detail)
        elif kind in ("passed", "failed", "error", "timeout"):
            outcomes.append(kind)
            details.append(_writable(detail))
        is_over = is_over or kind in ("end", "load")
    status = ending.status
    if status == "ok" and ("timeout" in outcomes or (load_error or "").startswith("_Stop")):
        status = "timeout"
    if status == "ok" and not is_over:  # it left without saying so, for example through os._exit
        status = "error"
    if not is_over and load_error is None and len(outcomes) < len(suite.tests):
        # The test that was running when the worker was stopped.
        outcomes.append("timeout" if status == "timeout" else "error")
        details.append(f"the process ended: {status}")
    missing_count = len(suite.tests) - len(outcomes)
    not_run: list[Outcome] = ["not_run"] * missing_count
    return TestReport(
        status=status,
        outcomes=(*outcomes, *not_run),
        details=(*details, *([""] * missing_count)),
        load_error=load_error,
        wall_s=ending.wall_s,
        isolation=_isolation(ending.layers),
    )


def _writable(text: str) -> str:
    """Escape what UTF-8 can't hold: an exception of untrusted code may have any text."""
    return text.encode("utf-8", "backslashreplace").decode()


def examine() -> tuple[Isolation, str]:
    """Tell the layers of this system, and why it gives no namespaces, or "". Runs no code.

    Raises:
        SandboxError: the child does not run.
    """
    with Child([], Setting(_limit(Limits()), True, ())) as child:
        about = child.about()
    return _isolation(about.layers), describe_lacking(about)


def _iterate_jobs(jobs: Sequence[Job], setting: Setting) -> Generator[Ending, None, None]:
    """Run all jobs; where one takes the child down it is `killed`, and a new child goes on."""
    count = 0
    while count < len(jobs):
        with Child(jobs[count:], setting) as child:
            about = child.about()
            check_layers(about, setting)
            for line in child.lines():
                count += 1
                yield decode_ending(line)
            error = child.error()
        if count < len(jobs):
            count += 1
            yield Ending("killed", -9, 0.0, about.layers, [], stderr=error)
