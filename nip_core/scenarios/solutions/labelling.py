"""What tests say of solutions that nobody vouches for.

Task       a solution and the tests that are to tell whether it is right
Labeller   labels tasks, several at a time, in the sandbox
Workers    the same for callers that wait, so many at a time as there are workers

Each solution runs in one sandbox, which is told the arguments of calls, and its tests in another
one, which is told the answers as plain data (see `in_sandbox`). Which calls the tests make is
learned once for each problem. One child interpreter runs several solutions one after the other, but
never two of the same problem: in its memory code might find what an earlier solution was.

Covered: a solution that reports for the tests, gives objects that equal everything, looks for the
tests, or does not end. Not covered: tests that are weak, and a solution that is right when it can
tell that it is being tested.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event

from nip_core.concurrency import in_thread
from nip_core.errors import StageError
from nip_core.scenarios.base import Label, NoLabel
from nip_core.scenarios.solutions.in_sandbox import Answers, Calls, Loaded, Verdict, encode_task
from nip_sandbox.sandbox import Limits, Program, SandboxError, SandboxResult, run_python_batch
from nip_sandbox.sandbox_wire import Status

_PROGRAM = Path(__file__).with_name("in_sandbox.py").read_text(encoding="utf-8")
_OUTPUT_BYTES = 1_000_000
_ROUNDS = 4  # of calls that tests make, each after the answers to those before
_MOST_AT_ONCE = 32
_ENDS: Mapping[Status, str] = {
    "timeout": "timeout",
    "memory": "memory",
    "output_limit": "output",
    "killed": "crash",
    "error": "crash",
}
"""The kind of mistake by how the sandbox ended."""


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


@dataclass
class _Work:
    """A task on its way to a label."""

    task: Task
    calls: list[str]
    answers: dict[str, str] = field(default_factory=dict)
    label: Label | NoLabel | None = None
    seconds: float = 0.0

    def ends(self, mutation: str) -> None:
        """Label the solution as wrong, with this kind of mistake."""
        self.label = Label(0, str(mutation))


class Labeller:
    """Labels tasks. Made once: it keeps which calls the tests of each problem make."""

    def __init__(self, limits: Limits, max_steps: int, allow_without_namespaces: bool):
        self._limits, self._max_steps = limits, max_steps
        self._allow = allow_without_namespaces
        self._calls: dict[tuple[str, str], list[str] | NoLabel] = {}

    def label(
        self, tasks: Sequence[Task], stopped: Callable[[], bool] = lambda: False
    ) -> list[Label | NoLabel]:
        """The label of each, or why there is none.

        Raises SandboxError, also after the solution that runs once `stopped` says so.
        """
        # 1. Which calls the tests make.
        new = list({task.problem: task for task in tasks if task.problem not in self._calls})
        self._learn(new, stopped)
        work = []
        for task in tasks:
            calls = self._calls[task.problem]
            if isinstance(calls, NoLabel):
                work.append(_Work(task, [], label=calls))
            else:
                work.append(_Work(task, list(calls)))
        # 2. Answers of the solutions, and tests on them, until none asks for more.
        for _ in range(_ROUNDS):
            left = [part for part in work if part.label is None]
            if not left:
                break
            self._answer(left, stopped)
            self._test([part for part in left if part.label is None], stopped)
        # 3. What it took.
        return [_with_seconds(part) for part in work]

    def _learn(self, problems: Sequence[tuple[str, str]], stopped: Callable[[], bool]) -> None:
        jobs = [Answers(entry_point, tests, {}, only_asks=True) for entry_point, tests in problems]
        for problem, result in zip(problems, self._run(jobs, stopped), strict=True):
            _, *calls = result.stdout.split("\n")[:-1] or [""]
            if result.status != "ok":
                end = "do not end" if result.status == "timeout" else f"end with {result.status}"
                self._calls[problem] = NoLabel(
                    f"the tests of {problem[0]} {end} before they meet a solution; mend them"
                )
            elif not calls:
                self._calls[problem] = NoLabel(
                    f"the tests of {problem[0]} never call it with plain values; mend them"
                )
            else:
                self._calls[problem] = calls

    def _answer(self, work: Sequence[_Work], stopped: Callable[[], bool]) -> None:
        """Let each solution answer the known calls of its tests."""
        jobs = [
            Calls(part.task.solution, part.task.entry_point, part.calls, self._max_steps)
            for part in work
        ]
        for part, result in zip(work, self._run(jobs, stopped), strict=True):
            part.seconds += result.wall_s
            first, *lines = result.stdout.split("\n")
            if result.status != "ok":
                part.ends(_ENDS[result.status])
            elif first in (Loaded.NO_FUNCTION, Loaded.FAILED):
                part.ends(first)
            elif Loaded.OUT_OF_STEPS in (first, *lines):
                part.ends("timeout")
            elif first != Loaded.DONE or len(lines) <= len(part.calls):
                part.ends("crash")
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
            ended, *calls = result.stdout.split("\n")[:-1] or [Verdict.WRONG]
            if result.status != "ok":
                part.ends("timeout" if result.status == "timeout" else Verdict.WRONG)
            elif ended == Verdict.PASSED:
                part.label = Label(1)
            elif ended == Verdict.ASKS:
                part.calls = list(dict.fromkeys([*part.calls, *calls]))
            else:
                part.ends(ended)

    def _run(
        self, jobs: Sequence[Calls | Answers], stopped: Callable[[], bool]
    ) -> list[SandboxResult]:
        if not jobs:
            return []
        programs = [Program(_PROGRAM, encode_task(job)) for job in jobs]
        return run_python_batch(
            programs,
            limits=self._limits,
            allow_without_namespaces=self._allow,
            stopped=stopped,
        )


def _with_seconds(work: _Work) -> Label | NoLabel:
    label = work.label
    if label is None:
        return NoLabel(
            f"the tests of {work.task.entry_point} go on to other calls each time; mend them"
        )
    if isinstance(label, NoLabel):
        return label
    return Label(label.y, label.mutation, round(work.seconds, 4))


class Workers:
    """Labels for callers that wait, in the order in which they come."""

    def __init__(self, labeller: Labeller, workers: int):
        self._labeller, self._most = labeller, workers
        self._waiting: deque[tuple[Task, asyncio.Future[Label | NoLabel]]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def label(self, task: Task) -> Label:
        """Wait for the label of a task. Raises NoLabel, or StageError where nothing can run."""
        entry = task, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        self._running = {worker for worker in self._running if not worker.done()}
        if len(self._running) < self._most:
            self._running.add(asyncio.create_task(self._work()))
        try:
            label: Label | NoLabel = await entry[1]
        finally:
            with suppress(ValueError):
                self._waiting.remove(entry)
        if isinstance(label, NoLabel):
            raise label
        return label

    async def _work(self) -> None:
        """Label what waits, several of different problems at a time, until nothing does."""
        await asyncio.sleep(0)  # others may come at the same moment
        while batch := self._next_batch():
            tasks = [task for task, _ in batch]
            stop = Event()
            work = asyncio.ensure_future(
                in_thread(partial(self._labeller.label, tasks, stop.is_set))
            )
            try:
                labels = await asyncio.shield(work)
            except asyncio.CancelledError:
                stop.set()  # it ends with the solution that runs
                await asyncio.wait({work})
                work.exception()  # known, as nobody waits for it any more
                raise
            except Exception as error:  # whatever it is, who waits must learn of it
                known = isinstance(error, SandboxError)
                told = StageError(f"solutions can't be labelled: {error}") if known else error
                for _, future in batch:
                    if not future.done():
                        future.set_exception(told)
                continue
            for (_, future), label in zip(batch, labels, strict=True):
                if not future.done():
                    future.set_result(label)

    def _next_batch(self) -> list[tuple[Task, asyncio.Future[Label | NoLabel]]]:
        size = min(_MOST_AT_ONCE, -(-len(self._waiting) // self._most))
        batch: dict[tuple[str, str], tuple[Task, asyncio.Future[Label | NoLabel]]] = {}
        for entry in list(self._waiting):
            if len(batch) >= size:
                break
            if entry[0].problem not in batch:
                batch[entry[0].problem] = entry
                self._waiting.remove(entry)
        return list(batch.values())
