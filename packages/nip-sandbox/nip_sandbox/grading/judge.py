"""Assertions about untrusted code, run on its answers.

Task        code, the name of its function, and assertions about it
Judge       runs the assertions of many tasks, several in one child interpreter
Judgement   whether a task passed, or which mistake its code has made
Unjudged    why the assertions of a task judge nothing

The code runs in one sandbox, which is told the arguments of calls, and its tests in another one,
which is told the answers as plain data (see `in_sandbox`). Which calls the tests make is learned
once for each problem.

Covered: code that reports for the tests, gives objects that equal everything, looks for the tests,
or does not end. Not covered: tests that are weak, and code that is right when it can tell that it
is being tested. One child interpreter runs several tasks one after the other, and in its memory
code might find the answers of an earlier task: a batch must not have two codes of one problem.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nip_sandbox.grading.in_sandbox import Answers, Calls, Loaded, Verdict, encode_task
from nip_sandbox.sandbox import Limits, Program, SandboxResult, run_python_batch
from nip_sandbox.sandbox_wire import Status

PROGRAM = (Path(__file__).parent / "in_sandbox.py").read_text(encoding="utf-8")
ENDS: Mapping[Status, str] = {
    "timeout": "timeout",
    "memory": "memory",
    "output_limit": "output",
    "killed": "crash",
    "error": "crash",
}
"""The kind of mistake by how the sandbox ended."""
_ROUNDS = 4  # of calls that tests make, each after the answers to those before
_KEPT_PROBLEMS = 4096


@dataclass(frozen=True)
class Task:
    """A solution and the tests that are to tell whether it is right."""

    solution: str
    entry_point: str
    tests: str

    @property
    def problem(self) -> tuple[str, str]:
        """Equal for solutions to the same problem."""
        return self.entry_point, self.tests


@dataclass(frozen=True)
class Judgement:
    """The outcome of the tests of a task."""

    mistake: str | None
    """None: the tests passed."""
    seconds: float
    detail: str = ""
    """Why the code does not load, in words of the code."""


@dataclass(frozen=True)
class Unjudged:
    """The reason why tests judge nothing; it is no mistake of the code."""

    reason: str


@dataclass
class _Work:
    """A task on its way to a judgement."""

    task: Task
    calls: list[str]
    answers: dict[str, str] = field(default_factory=dict)
    is_judged: bool = False
    mistake: str | None = None
    detail: str = ""
    unjudged: Unjudged | None = None
    seconds: float = 0.0

    def end(self, mistake: str | None, detail: str = "") -> None:
        """Note the mistake of the code; None: it has passed."""
        self.is_judged, self.mistake, self.detail = True, mistake, detail


class Judge:
    """Judges tasks. Made once: it keeps which calls the tests of each problem make."""

    def __init__(self, limits: Limits, max_steps: int, allow_without_namespaces: bool):
        self._limits, self._max_steps = limits, max_steps
        self._allow = allow_without_namespaces
        self._calls: dict[tuple[str, str], list[str] | Unjudged] = {}

    def judge(
        self, tasks: Sequence[Task], stopped: Callable[[], bool] = lambda: False
    ) -> list[Judgement | Unjudged]:
        """Judge each of the tasks, of which no two with different code are of one problem.

        Raises SandboxError, also after the program that runs once `stopped` says so.
        """
        # 1. Which calls the tests make.
        calls = self._find_calls(tasks, stopped)
        work = []
        for task in tasks:
            of_task = calls[task.problem]
            if isinstance(of_task, Unjudged):
                work.append(_Work(task, [], is_judged=True, unjudged=of_task))
            else:
                work.append(_Work(task, list(of_task)))
        # 2. Answers of the solutions, and tests on them, until none asks for more.
        for _ in range(_ROUNDS):
            open_work = [part for part in work if not part.is_judged]
            if not open_work:
                break
            self._answer(open_work, stopped)
            self._test([part for part in open_work if not part.is_judged], stopped)
        return [_judgement(part) for part in work]

    def _find_calls(
        self, tasks: Sequence[Task], stopped: Callable[[], bool]
    ) -> dict[tuple[str, str], list[str] | Unjudged]:
        """List by problem the calls that its tests make; those that are new are learned."""
        if len(self._calls) > _KEPT_PROBLEMS:
            self._calls = {}
        calls = dict(self._calls)
        problems = list({task.problem: None for task in tasks if task.problem not in calls})
        jobs = [Answers(entry_point, tests, {}, only_asks=True) for entry_point, tests in problems]
        for problem, result in zip(problems, self._run(jobs, stopped), strict=True):
            calls[problem] = _calls_made(problem[0], result)
            self._calls[problem] = calls[problem]
        return calls

    def _answer(self, work: Sequence[_Work], stopped: Callable[[], bool]) -> None:
        """Let each solution answer the calls of its tests."""
        jobs = [
            Calls(part.task.solution, part.task.entry_point, part.calls, self._max_steps)
            for part in work
        ]
        for part, result in zip(work, self._run(jobs, stopped), strict=True):
            part.seconds += result.wall_s
            first, *lines = result.stdout.split("\n")
            if result.status != "ok":
                part.end(ENDS[result.status])
            elif first in (Loaded.NO_FUNCTION, Loaded.FAILED):
                part.end(first, lines[0] if lines else "")
            elif Loaded.OUT_OF_STEPS in (first, *lines):
                part.end("timeout")
            elif first != Loaded.DONE or len(lines) <= len(part.calls):
                part.end("crash")
            else:
                part.answers = dict(zip(part.calls, lines, strict=False))

    def _test(self, work: Sequence[_Work], stopped: Callable[[], bool]) -> None:
        """Run the tests of each on the answers; some may ask for further calls."""
        jobs = [
            Answers(part.task.entry_point, part.task.tests, part.answers, only_asks=False)
            for part in work
        ]
        for part, result in zip(work, self._run(jobs, stopped), strict=True):
            part.seconds += result.wall_s
            verdict, *calls = result.stdout.split("\n")[:-1] or [Verdict.WRONG]
            if result.status != "ok":
                part.end("timeout" if result.status == "timeout" else str(Verdict.WRONG))
            elif verdict == Verdict.PASSED:
                part.end(None)
            elif verdict == Verdict.LACKS:
                part.is_judged, part.unjudged = True, _lack(part.task, calls)
            elif verdict == Verdict.UNTOLD:
                part.is_judged, part.unjudged = True, _untold(part.task, calls)
            elif verdict == Verdict.ASKS:
                part.calls = list(dict.fromkeys([*part.calls, *calls]))
            else:
                part.end(str(verdict))

    def _run(
        self, jobs: Sequence[Calls | Answers], stopped: Callable[[], bool]
    ) -> list[SandboxResult]:
        if not jobs:
            return []
        return run_python_batch(
            [Program(PROGRAM, encode_task(job)) for job in jobs],
            limits=self._limits,
            allow_without_namespaces=self._allow,
            stopped=stopped,
        )


def _calls_made(entry_point: str, result: SandboxResult) -> list[str] | Unjudged:
    """Read which calls tests have made before they met a solution."""
    _, *calls = result.stdout.split("\n")[:-1] or [""]
    if result.status != "ok":
        end = "do not end" if result.status == "timeout" else f"end with {result.status}"
        return Unjudged(f"the tests of {entry_point} {end} before they meet a solution; mend them")
    if not calls:
        return Unjudged(f"the tests of {entry_point} never call it with plain values; mend them")
    return calls


def _lack(task: Task, names: Sequence[str]) -> Unjudged:
    return Unjudged(
        f"the tests of {task.entry_point} use the name {names[0] if names else ''!r}, which they "
        "don't define; tests see no other function of the code: define it in them"
    )


def _untold(task: Task, types: Sequence[str]) -> Unjudged:
    return Unjudged(
        f"the tests of {task.entry_point} give it an argument of type {types[0] if types else ''}, "
        "which can't be told to the code; give it numbers, texts, lists and the like alone"
    )


def _judgement(work: _Work) -> Judgement | Unjudged:
    if work.unjudged is not None:
        return work.unjudged
    if not work.is_judged:
        return Unjudged(
            f"the tests of {work.task.entry_point} go on to other calls each time; mend them"
        )
    return Judgement(work.mistake, round(work.seconds, 4), work.detail)
