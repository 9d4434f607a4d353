"""The labels of solutions from an unknown hand, by their tests.

Labeller   labels tasks, several at a time, in the sandbox
Workers    the same for callers that wait, so many at a time as there are workers

`nip_sandbox.grading.judge` runs the tests, and says which faults are covered. One child interpreter
runs several solutions one after the other, but never two of the same problem: in its memory code
might find an earlier solution.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Event

from nip_core.concurrency import in_thread
from nip_core.errors import StageError
from nip_core.scenarios.base import Label, NoLabel
from nip_sandbox.grading.judge import Judge, Judgement, Task, Unjudged
from nip_sandbox.sandbox import Limits, SandboxError

__all__ = ["Labeller", "Task", "Workers"]

_MOST_AT_ONCE = 32


class Labeller:
    """Labels tasks. Made once: it keeps which calls the tests of each problem make."""

    def __init__(self, limits: Limits, max_steps: int, allow_without_namespaces: bool):
        self._judge = Judge(limits, max_steps, allow_without_namespaces)

    def label(
        self, tasks: Sequence[Task], stopped: Callable[[], bool] = lambda: False
    ) -> list[Label | NoLabel]:
        """Return for each task its label, or the reason why it has none.

        Raises SandboxError if the sandbox fails. If `stopped` returns true, the method lets the
        running program end and then raises SandboxError.
        """
        return [_label(judgement) for judgement in self._judge.judge(tasks, stopped)]


def _label(judgement: Judgement | Unjudged) -> Label | NoLabel:
    if isinstance(judgement, Unjudged):
        return NoLabel(judgement.reason)
    if judgement.mistake is None:
        return Label(1, seconds=judgement.seconds)
    return Label(0, judgement.mistake, judgement.seconds)


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
        """Label the waiting tasks, several of different problems at a time, until none is left."""
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
                work.exception()  # known, as no caller waits for it any more
                raise
            except Exception as error:  # any error: callers that wait must learn of it
                is_named = isinstance(error, SandboxError)
                reported_error = (
                    StageError(f"solutions can't be labelled: {error}") if is_named else error
                )
                for _, future in batch:
                    if not future.done():
                        future.set_exception(reported_error)
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
