"""Takes jobs from created to ended: validates them and gives each its turn on its device.

JobSupervisor.start, stop    take up an earlier server's jobs; leave running jobs to the next server
JobSupervisor.submit         look for work: a job was created or resumed
JobSupervisor.pause, cancel  end the training of a job, with or without a checkpoint

Jobs on one device are trained one after the other, jobs on different devices at the same time.
`run` has the steps of a job's turn. Where an engine sleeps for a training, it stays asleep for the
jobs that are queued behind it, up to MOST_UNPUBLISHED, and their models are published together.
A kill may cut any step short: the next start ends a training process that still runs, and the job
goes on under the same id. A job for a base model that the server doesn't have waits for a server
that has it, and holds up no other job.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nip_base import formats
from nip_base.api_errors import ApiError
from nip_base.machine.devices import one_queue
from nip_base.machine.processes import end_process
from nip_base.wire import ACTIVE_STATUSES
from nip_lm_server.jobs.run import DeviceTurn, JobRunner
from nip_lm_server.jobs.table import JobTable
from nip_lm_server.serving.training_place import TrainingPlace
from nip_lm_server.state.rows import JobRow

STOP_GRACE_S = 6.0
"""Time that trainings have for their checkpoints when the server stops. Together with the time of
requests and engines it must stay below `launch.STOP_GRACE_S`, after which the whole server is
killed. With much less, more trainings would lose the steps since their last checkpoint."""
UNAVAILABLE_PAUSE_S = 2.0
"""Pause before the next look at a job whose engine has not run yet. A look costs a query, and a job
begins at most this much later."""
BROKEN_PAUSE_S = 2.0
"""Pause after an error that can't be written into the job, as on a full disk. Each try writes a
traceback into the server's log: without a pause, thousands of them."""

_log = logging.getLogger("nip.lm_server.jobs")


MOST_UNPUBLISHED = 8
"""Most models that wait for other trainings before the engine wakes for all of them. Passing the
device on saves a wake of the engine, but no client can use a waiting model."""


@dataclass
class _Run:
    """A job in training or publication. `turn.stop` asks for a checkpoint, cancelling doesn't."""

    device: str
    turn: DeviceTurn
    task: "asyncio.Task[None]"
    has_device: bool = True


class JobSupervisor:
    """Runs the jobs of one server; its pool has the training place of each."""

    def __init__(self, directory: Path, jobs: JobTable, *, stop_grace_s: float = STOP_GRACE_S):
        self._jobs, self._pool = jobs, jobs.pool
        self._runner = JobRunner(directory, jobs)
        self._stop_grace_s = stop_grace_s
        self._wake_validator = asyncio.Event()
        self._wake_runner = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._runs: dict[str, _Run] = {}  # by job
        directory.mkdir(exist_ok=True)
        jobs.events.log_into(directory)

    def start(self) -> None:
        """Take up the unfinished jobs of an earlier server, and begin."""
        for row in self._jobs.list_rows_in(ACTIVE_STATUSES):
            self._recover(row)
        self._loops = [
            asyncio.create_task(_repeat(self._validate_next), name="validate jobs"),
            asyncio.create_task(_repeat(self._begin_ready), name="run jobs"),
        ]

    async def stop(self) -> None:
        """Let the running trainings write checkpoints; the next start goes on from there."""
        # 1. No more jobs begin.
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops = []
        # 2. Running trainings write checkpoints, for as long as there is time.
        runs = list(self._runs.values())
        for run in runs:
            run.turn.stop.set()
        tasks = {run.task for run in runs}
        # `asyncio.wait` takes no empty set.
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._stop_grace_s)
            # The steps since their last checkpoint are lost, not the jobs. The stop of a server
            # must not take for ever.
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def submit(self) -> None:
        """Wake the loops for a new or resumed job."""
        self._wake_validator.set()
        self._wake_runner.set()

    def pause(self, id: str) -> None:
        """End the training of a paused job, with a checkpoint."""
        # The row of a paused job keeps it from beginning.
        if id in self._runs:
            self._runs[id].turn.stop.set()

    def cancel(self, id: str) -> None:
        """End the training of a job whose status is already `cancelled`, and remove its leftovers.

        Those of a running job go at the end of its turn, when none of its processes runs.
        """
        if id in self._runs:
            # Without a checkpoint: a cancelled job never goes on.
            self._runs[id].task.cancel()
        else:
            # Without a turn, there is no end of a turn that removes them.
            self._runner.remove_leftovers(id)

    def running_jobs(self) -> dict[str, str]:
        """Map each busy device to the id of the job in training there."""
        return {run.device: id for id, run in self._runs.items() if run.has_device}

    def is_healthy(self) -> bool:
        """Return whether the loops run and take jobs."""
        return bool(self._loops) and not any(task.done() for task in self._loops)

    def _recover(self, row: JobRow) -> None:
        """End the training process of an earlier server, and queue its job again."""
        id = row.id
        if row.child_pid is not None:
            # The process ends before the job is queued: it and a new training would write the same
            # checkpoints. The whole server waits here, so the process has one second for a
            # checkpoint; else the job goes on from the last one.
            if not end_process(row.child_pid, row.child_identity or "", grace_s=1.0, group=True):
                # A process that hangs in the kernel, or is another user's, may write at any time.
                self._jobs.fail(
                    id,
                    "training_process_stuck",
                    f"The training process {row.child_pid} of an earlier server can't be ended",
                )
                return
            self._jobs.set_child(id, None, None)
        self._jobs.requeue(id, "The server was restarted; the job is run again")

    def _tell_of_missing_base(self, row: JobRow) -> None:
        """Warn in the events of a job for an unknown base model, and leave the job queued.

        Such a job is kept: a server that was started with the wrong model must not end it.
        """
        names = ", ".join(map(repr, self._pool.base_models()))
        self._jobs.events.add_new(
            row.id,
            f"The job waits for a server with the base model {row.base_model!r}; this one has "
            f"{names}",
            level="warn",
        )

    # Validation

    async def _validate_next(self) -> None:
        # Cleared before the look: a job that is submitted after the look ends the wait below.
        self._wake_validator.clear()
        rows = self._jobs.list_rows_in(("validating_files",))
        if not rows:
            # One look of the runner too many costs a query. One too few would leave a job (one that
            # was validated before a restart, say) queued until the next event.
            self._wake_runner.set()
            await self._wake_validator.wait()
            return
        try:
            await self._validate(rows[0])
        except Exception as error:
            # The job fails: it would be the first again and again, and hold up all jobs behind it.
            _log.exception("validating %s", rows[0].id)
            self._jobs.fail(rows[0].id, "internal_error", f"Validation broke: {error!r}")

    async def _validate(self, row: JobRow) -> None:
        settings = row.read_settings()
        for param, file_id, min_examples in (
            ("training_file", row.training_file, formats.MIN_EXAMPLES),
            ("validation_file", row.validation_file, 1),
        ):
            if file_id is None:
                continue
            try:
                # The upload may be days old, so it is compared with its digest once more.
                path = await self._jobs.files.find_intact(file_id)
            except ApiError as error:
                # No request waits for this error, so it ends the job.
                self._jobs.fail(row.id, error.code or "file_damaged", error.message, param)
                return
            # In a thread, because the whole file is read while requests are answered.
            problems = await asyncio.to_thread(
                _find_problems, row.method, path, min_examples, settings.advantage
            )
            # A job has one code: the first problem's. The message has the first few problems, and
            # the number of the rest.
            if problems:
                self._jobs.fail(
                    row.id,
                    problems[0].code,
                    f"The {param.replace('_', ' ')} {file_id} is not valid: "
                    f"{formats.describe_problems(problems)}",
                    param,
                )
                return
        message = "Files validated, moving job to queued state"
        self._jobs.move(row.id, ("validating_files",), "queued", message)
        self._wake_runner.set()

    # Running

    async def _begin_ready(self) -> None:
        # Cleared before the looks: a change after them ends the wait below at once.
        self._wake_runner.clear()
        waits_for_engine = False
        # 1. A job that should run and does not is queued again: its end could not be written.
        for row in self._jobs.list_rows_in(("running",)):
            if row.id not in self._runs:
                self._jobs.requeue(row.id, "The job's end can't be written; it is run again")
        # 2. The oldest queued job of each device that is free begins.
        for row in self._jobs.list_rows_in(("queued",)):
            if row.base_model not in self._pool.base_models():
                # The job does not fail: the next start may have the right model. Later jobs go on.
                self._tell_of_missing_base(row)
                continue
            # A job that was queued again may still tidy up after its last turn.
            if row.paused or row.id in self._runs:
                continue
            try:
                place = self._pool.training_place(row.base_model)
            except ApiError:
                # An engine that never ran has not told its limits, so its jobs wait for its first
                # start.
                waits_for_engine = True
            else:
                # Trainings on one device take turns: each plans with all free memory there.
                if not any(one_queue(place.device, busy) for busy in self.running_jobs()):
                    self._begin(row.id, row, place)
        # 3. Wait for a change. An engine that comes up does not wake this wait.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._wake_runner.wait(), UNAVAILABLE_PAUSE_S if waits_for_engine else None
            )

    def _begin(self, id: str, row: JobRow, place: TrainingPlace) -> _Run:
        def handle_end(task: "asyncio.Task[None]") -> None:
            # `JobRunner.run` writes errors into the job. It raises those that it could not write.
            if not task.cancelled() and task.exception() is not None:
                _log.error("job %s can't be written down", id, exc_info=task.exception())
                # On a full disk, a job that begins again at once breaks again at once.
                pause_s = BROKEN_PAUSE_S
            else:
                pause_s = 0.0
            del self._runs[id]
            asyncio.get_running_loop().call_later(pause_s, self._wake_runner.set)

        turn = DeviceTurn(partial(self._pass_on, id))
        task = asyncio.create_task(self._runner.run(row, place, turn), name=f"job {id}")
        self._runs[id] = run = _Run(place.device, turn, task)
        task.add_done_callback(handle_end)
        return run

    async def _pass_on(self, id: str) -> bool:
        """Give a trained job's device to the oldest queued job for it; see `DeviceTurn`."""
        device = self._runs[id].device
        waiting = [
            run for run in self._runs.values() if run.device == device and not run.has_device
        ]
        # Nothing begins while the server stops. And the trained models wait for every training that
        # the engine sleeps through, so their number has a limit.
        if not self._loops or len(waiting) + 1 >= MOST_UNPUBLISHED:
            return False
        # 1. Find the next job that would train there: the same engines are away for it.
        for row in self._jobs.list_rows_in(("queued",)):
            is_ready = row.base_model in self._pool.base_models() and row.id not in self._runs
            if is_ready and not row.paused:
                # An engine that has not run yet has no training place, so its jobs are passed over.
                with contextlib.suppress(ApiError):
                    place = self._pool.training_place(row.base_model)
                    # The first job that fits begins, so that no later one overtakes it.
                    if place.device == device:
                        break
        else:
            return False
        # 2. Begin it. The engines are away for it before they could come back from this job.
        self._runs[id].has_device = False
        run = self._begin(row.id, row, place)
        # A job that ends before it has begun no longer needs the engines away.
        beginning = asyncio.ensure_future(run.turn.has_begun.wait())
        try:
            await asyncio.wait({run.task, beginning}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also if this job is cancelled meanwhile; the next one goes on by itself.
            beginning.cancel()
        return True


async def _repeat(step: Callable[[], Awaitable[None]]) -> None:
    """Run `step` for ever: an error in it must not keep later jobs from being taken."""
    while True:
        try:
            await step()
        except Exception:
            _log.exception("jobs can't be taken, trying again")
            await asyncio.sleep(BROKEN_PAUSE_S)


def _find_problems(
    method: str, path: Path, min_examples: int, advantage: formats.AdvantageMode | None
) -> list[formats.Problem]:
    # `validate` reads the lines one by one and raises this error, as other callers want. Here it
    # stands alone, without the problems of earlier lines: the reading ends there (the file is cut,
    # no JSONL, or beyond a limit), and a list would look as if the rest had been read.
    try:
        return formats.validate(method, formats.read_jsonl(path), min_examples, advantage=advantage)
    except formats.JsonlError as error:
        return [formats.Problem(error.line, "invalid_jsonl", error.message)]
