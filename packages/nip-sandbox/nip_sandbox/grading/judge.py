"""Assertions about untrusted code, run on its answers.

Task        code, the name of its function, and assertions about it
Judge       runs the assertions of many tasks, several in one child interpreter
Judgement   whether a task passed, or which mistake its code has made
Unjudged    why the assertions of a task judge nothing

The code runs in one sandbox, which is told the arguments of calls, and its tests in another one,
which is told the answers as plain data (see `in_sandbox`). Which calls the tests make is learned
once for each problem, as far as it does not follow from answers; the tests ask for the others. A
call that they don't make in the end counts for nothing: code that fails on it is asked again.

Covered: code that reports for the tests, gives objects that equal everything, looks for the tests,
or does not end. Not covered: tests that are weak, and code that is right when it can tell that it
is being tested. One child interpreter runs several tasks one after the other, and in its memory
code might find the answers of an earlier task: a batch must not have two codes of one problem.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nip_sandbox.grading.in_sandbox import LATER, Answers, Calls, Loaded, Verdict, encode_task
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
_ROUNDS = 16  # of calls that tests make, each after the answers to those before
_STRAY_ROUNDS = 3  # in which tests don't make the calls that they have just asked for
_ENDLESS_CALLS = 100  # asked for at first where tests do not end without answers
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


@dataclass(frozen=True)
class _Learned:
    """The calls that tests make, as far as that is known without answers."""

    calls: list[str]
    later_calls: list[str]
    """These may follow from answers, so tests perhaps make others."""
    ends: bool = True
    """Whether the tests end without answers."""


@dataclass
class _Work:
    """A task on its way to a judgement."""

    task: Task
    learned: _Learned
    calls: list[str] = field(init=False)
    """Those that the code is asked for next."""
    later_calls: list[str] = field(init=False)
    """Those that it is asked for as soon as the tests ask for one of them."""
    answers: dict[str, str] = field(default_factory=dict)
    """The first that was given to each call."""
    failure: str | None = None
    """The mistake at the last of `tried_calls`, which perhaps no test makes."""
    tried_calls: list[str] = field(default_factory=list)
    new_calls: list[str] = field(default_factory=list)
    """Those that the tests have asked for last."""
    stray_rounds: int = 0
    is_judged: bool = False
    mistake: str | None = None
    detail: str = ""
    unjudged: Unjudged | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.calls, self.later_calls = self.learned.calls, self.learned.later_calls

    def end(self, mistake: str | None, detail: str = "") -> None:
        """Note the mistake of the code; None: it has passed."""
        self.is_judged, self.mistake, self.detail = True, mistake, detail

    def end_unjudged(self, reason: str) -> None:
        """Note that the tests judge nothing."""
        self.is_judged = True
        self.unjudged = Unjudged(f"the tests of {self.task.entry_point} {reason}")

    def take_answers(self, result: SandboxResult) -> None:
        """Note the answers of the code, up to its end."""
        first, *lines = result.stdout.split("\n")
        answers = lines[:-1]  # the last line is empty, or cut short
        self.failure = None
        if result.status != "ok":
            self.failure = ENDS[result.status]
        elif Loaded.OUT_OF_STEPS in (first, *lines):
            self.failure = "timeout"
        elif first != Loaded.DONE or len(answers) < len(self.calls):
            self.failure = "crash"
        if Loaded.OUT_OF_STEPS in answers:
            answers = answers[: answers.index(Loaded.OUT_OF_STEPS)]
        if self.failure and (first != Loaded.DONE or len(answers) >= len(self.calls)):
            return self.end(self.failure)  # at no call
        self.tried_calls = self.calls[: len(answers) + 1]
        self.answers = {**dict(zip(self.calls, answers, strict=False)), **self.answers}
        return None

    def ask(self, calls: Sequence[str]) -> None:
        """Note the calls that the tests have made, of which some have no answer yet."""
        if self.failure is not None and {*self.tried_calls} <= {*calls}:
            return self.end(self.failure)
        if not {*self.new_calls} <= {*calls}:
            self.stray_rounds += 1
            if self.stray_rounds == _STRAY_ROUNDS:
                return self.end_unjudged("go on to other calls each time; mend them")
        self.new_calls = [call for call in calls if call not in self.answers]
        if self.failure is not None:
            self.calls, self.later_calls = list(calls), []  # and none that no test makes
            return None
        self.calls = list(dict.fromkeys([*self.calls, *calls]))
        if not {*self.new_calls}.isdisjoint(self.later_calls):
            self.calls = list(dict.fromkeys([*self.calls, *self.later_calls]))
            self.later_calls = []
        return None


class Judge:
    """Judges tasks. Made once: it keeps which calls the tests of each problem make."""

    def __init__(self, limits: Limits, max_steps: int, allow_without_namespaces: bool):
        self._limits, self._max_steps = limits, max_steps
        self._allow = allow_without_namespaces
        self._calls: dict[tuple[str, str], _Learned | Unjudged] = {}

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
                work.append(_Work(task, _Learned([], []), is_judged=True, unjudged=of_task))
            else:
                work.append(_Work(task, of_task))
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
    ) -> dict[tuple[str, str], _Learned | Unjudged]:
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
            if result.status == "ok" and first in (Loaded.NO_FUNCTION, Loaded.FAILED):
                part.end(first, lines[0] if lines else "")
            else:
                part.take_answers(result)

    def _test(self, work: Sequence[_Work], stopped: Callable[[], bool]) -> None:
        """Run the tests of each on the answers; some may ask for further calls."""
        jobs = [
            Answers(part.task.entry_point, part.task.tests, part.answers, only_asks=False)
            for part in work
        ]
        for part, result in zip(work, self._run(jobs, stopped), strict=True):
            part.seconds += result.wall_s
            verdict, *calls = result.stdout.split("\n")[:-1] or [Verdict.WRONG]
            if result.status == "timeout" and not part.learned.ends:
                part.end_unjudged("do not end, neither with answers nor without; mend them")
            elif result.status != "ok":
                part.end("timeout" if result.status == "timeout" else str(Verdict.WRONG))
            elif verdict == Verdict.PASSED:
                part.end(None)
            elif verdict == Verdict.LACKS:
                part.end_unjudged(
                    f"use the name {calls[0]!r}, which they don't define; tests see no other "
                    "function of the code: define it in them"
                )
            elif verdict == Verdict.UNTOLD:
                part.end_unjudged(
                    f"give it an argument of type {calls[0]}, which can't be told to the code; "
                    "give it numbers, texts, lists and the like alone"
                )
            elif verdict == Verdict.ASKS:
                part.ask(calls)
            else:
                part.end(part.failure or str(verdict))

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


def _calls_made(entry_point: str, result: SandboxResult) -> _Learned | Unjudged:
    """Read which calls tests have made before they met a solution."""
    *lines, _ = result.stdout.split("\n")  # the last line is empty, or cut short
    own_calls = [line for line in lines if not line.startswith((LATER, Verdict.ASKS))]
    later_calls = [line.removeprefix(LATER) for line in lines if line.startswith(LATER)]
    calls = own_calls or later_calls
    if result.status in ("timeout", "output_limit") and calls:
        return _Learned(calls[:_ENDLESS_CALLS], [], ends=False)
    if result.status != "ok":
        end = "do not end" if result.status == "timeout" else f"end with {result.status}"
        return Unjudged(f"the tests of {entry_point} {end} before they meet a solution; mend them")
    if not calls:
        return Unjudged(f"the tests of {entry_point} never call it with plain values; mend them")
    return _Learned(calls, later_calls if own_calls else [])


def _judgement(work: _Work) -> Judgement | Unjudged:
    if not work.is_judged:
        work.end_unjudged(
            f"ask for calls more than {_ROUNDS} times, each time after the answers to those "
            "before; take fewer arguments from answers, or make several tests of them"
        )
    if work.unjudged is not None:
        return work.unjudged
    return Judgement(work.mistake, round(work.seconds, 4), work.detail)
