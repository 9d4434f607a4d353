"""Takes jobs from created to ended: validates them and gives each its turn on its device.

JobSupervisor.start, stop    take up what an earlier server left; leave what runs to the next
JobSupervisor.submit         a job was created or resumed
JobSupervisor.pause, cancel  the training of a job is to end, with or without a checkpoint

Jobs on one device are trained one after the other, those on different devices beside each other;
what happens in a job's turn is in `run`. Where an engine sleeps for a training, it stays asleep for
those that are queued behind it, up to MOST_UNPUBLISHED, and their models are published together.
Every step may be cut short by a kill: at the next start what is left of the training process is
ended, and the job goes on under the same id. A job for a base model that the server doesn't have
waits for one that does, and holds up no other.
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
"""How long trainings may take for their checkpoints when the server stops. With what requests and
engines get it must stay below `launch.STOP_GRACE_S`, after which the whole server is killed. With
much less, more trainings would lose the steps since their last checkpoint."""
UNAVAILABLE_PAUSE_S = 2.0
"""Pause before a job is tried again whose engine has not run yet. A look costs a query, and a
job begins at most so much later."""
BROKEN_PAUSE_S = 2.0
"""Pause after something went wrong that can't even be written into the job, as on a full disk. Each
try leaves its trace in the server's log: without a pause, thousands of them."""

_log = logging.getLogger("nip.lm_server.jobs")


MOST_UNPUBLISHED = 8
"""So many models wait for others to be trained, before the engine wakes for them: passing the
device on spares the engine's way back, but nobody can play with a model that waits."""


@dataclass
class _Run:
    """A job in training or publication. `turn.stop` asks for a checkpoint, cancelling doesn't."""

    device: str
    turn: DeviceTurn
    task: "asyncio.Task[None]"
    has_device: bool = True


class JobSupervisor:
    """Runs the jobs of one server; its pool says where each is trained."""

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
        """Take up what an earlier server left, and begin."""
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
        # 2. Those that run write checkpoints, for as long as there is time.
        runs = list(self._runs.values())
        for run in runs:
            run.turn.stop.set()
        tasks = {run.task for run in runs}
        # `asyncio.wait` takes no empty set.
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._stop_grace_s)
            # The steps since their last checkpoint are lost, not the jobs. Whoever stops a server
            # does not wait for ever.
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def submit(self) -> None:
        """Wake the loops for a new or resumed job."""
        self._wake_validator.set()
        self._wake_runner.set()

    def pause(self, id: str) -> None:
        """End the training of a paused job, with a checkpoint."""
        # One that does not run is kept from beginning by its row.
        if id in self._runs:
            self._runs[id].turn.stop.set()

    def cancel(self, id: str) -> None:
        """End the training of a job whose status is already `cancelled`, and remove what it leaves.

        The leftovers of one that runs go at the end of its turn, when nothing of it is at work.
        """
        if id in self._runs:
            # Without a checkpoint: nobody goes on with a cancelled job.
            self._runs[id].task.cancel()
        else:
            # One that does not run has no turn at whose end it would be tidied.
            self._runner.remove_leftovers(id)

    def running_jobs(self) -> dict[str, str]:
        """Map each busy device to the id of the job in training there."""
        return {run.device: id for id, run in self._runs.items() if run.has_device}

    def is_healthy(self) -> bool:
        """Return whether jobs are being taken."""
        return bool(self._loops) and not any(task.done() for task in self._loops)

    def _recover(self, row: JobRow) -> None:
        """End what an earlier server left of a job's training, and queue the job again."""
        id = row.id
        if row.child_pid is not None:
            # Before the job is queued: a training that outlived its server and a new one would
            # write the same checkpoints. The whole server waits for it in here, so it has a second
            # for a checkpoint of its own; else it goes on from the last one.
            if not end_process(row.child_pid, row.child_identity or "", grace_s=1.0, group=True):
                # One that hangs in the kernel, or is another user's, may write there at any time.
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
        known = ", ".join(map(repr, self._pool.base_models()))
        self._jobs.events.add_new(
            row.id,
            f"The job waits for a server with the base model {row.base_model!r}; this one has "
            f"{known}",
            level="warn",
        )

    # Validation

    async def _validate_next(self) -> None:
        # Before the look: what is submitted after it wakes the wait below.
        self._wake_validator.clear()
        rows = self._jobs.list_rows_in(("validating_files",))
        if not rows:
            # A look too many of the runner costs one query; one too few would leave a job queued
            # until the next event, such as one that was validated before a restart.
            self._wake_runner.set()
            await self._wake_validator.wait()
            return
        try:
            await self._validate(rows[0])
        except Exception as error:
            # Failed, because it would be the first again and again, and hold up all behind it.
            _log.exception("validating %s", rows[0].id)
            self._jobs.fail(rows[0].id, "internal_error", f"Validation broke: {error!r}")

    async def _validate(self, row: JobRow) -> None:
        settings = row.read_settings()
        for param, file_id, least in (
            ("training_file", row.training_file, formats.MIN_EXAMPLES),
            ("validation_file", row.validation_file, 1),
        ):
            if file_id is None:
                continue
            try:
                # The upload may be days old, so it is compared with its digest once more.
                path = await self._jobs.files.find_intact(file_id)
            except ApiError as error:
                # There is no request that it could answer: it is the end of the job.
                self._jobs.fail(row.id, error.code or "file_damaged", error.message, param)
                return
            # In a thread: the whole file is read, while requests are answered.
            problems = await asyncio.to_thread(
                _find_problems, row.method, path, least, settings.advantage
            )
            # A job has one code, so that of the first stands for all; the words have the first few,
            # and how many more there are.
            if problems:
                self._jobs.fail(
                    row.id,
                    problems[0].code,
                    f"The {param.replace('_', ' ')} {file_id} is not valid: "
                    f"{formats.describe_problems(problems)}",
                    param,
                )
                return
        told = "Files validated, moving job to queued state"
        self._jobs.move(row.id, ("validating_files",), "queued", told)
        self._wake_runner.set()

    # Running

    async def _begin_ready(self) -> None:
        # Before the looks: what changes after them ends the wait below at once.
        self._wake_runner.clear()
        waits_for_engine = False
        # 1. What should run and does not, because its end could not be written, is queued again.
        for row in self._jobs.list_rows_in(("running",)):
            if row.id not in self._runs:
                self._jobs.requeue(row.id, "The job's end can't be written; it is run again")
        # 2. The oldest queued job of each device that is free begins.
        for row in self._jobs.list_rows_in(("queued",)):
            if row.base_model not in self._pool.base_models():
                # Not failed: the next start may have the right model. Those queued behind it go on.
                self._tell_of_missing_base(row)
                continue
            # One that is queued again may still be tidying up after its last turn.
            if row.paused or row.id in self._runs:
                continue
            try:
                place = self._pool.training_place(row.base_model)
            except ApiError:
                # An engine that never ran has not told its limits, so its jobs wait for its first
                # start.
                waits_for_engine = True
            else:
                # Trainings on one device take turns: each of them plans with all the memory that is
                # free there.
                if not any(one_queue(place.device, busy) for busy in self.running_jobs()):
                    self._begin(row.id, row, place)
        # 3. Until something changes; an engine that comes up tells nobody here.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._wake_runner.wait(), UNAVAILABLE_PAUSE_S if waits_for_engine else None
            )

    def _begin(self, id: str, row: JobRow, place: TrainingPlace) -> _Run:
        def ended(task: "asyncio.Task[None]") -> None:
            # `JobRunner.run` writes what goes wrong into the job; this is what it could not write.
            if not task.cancelled() and task.exception() is not None:
                _log.error("job %s can't be written down", id, exc_info=task.exception())
                # Begun again at once, it would break again at once, as on a full disk.
                pause_s = BROKEN_PAUSE_S
            else:
                pause_s = 0.0
            del self._runs[id]
            asyncio.get_running_loop().call_later(pause_s, self._wake_runner.set)

        turn = DeviceTurn(partial(self._pass_on, id))
        task = asyncio.create_task(self._runner.run(row, place, turn), name=f"job {id}")
        self._runs[id] = run = _Run(place.device, turn, task)
        task.add_done_callback(ended)
        return run

    async def _pass_on(self, id: str) -> bool:
        """Give a trained job's device to the oldest queued job for it; see `DeviceTurn`."""
        device = self._runs[id].device
        waiting = [
            run for run in self._runs.values() if run.device == device and not run.has_device
        ]
        # Nothing begins while the server stops. And who waits for a model that is trained already
        # waits for all that the engine sleeps through, so these are few.
        if not self._loops or len(waiting) + 1 >= MOST_UNPUBLISHED:
            return False
        # 1. The next one, if it would train just there: then the same engines are away for it.
        for row in self._jobs.list_rows_in(("queued",)):
            known = row.base_model in self._pool.base_models() and row.id not in self._runs
            if known and not row.paused:
                # An engine that has not run yet can't say where it trains, so its jobs are passed
                # over.
                with contextlib.suppress(ApiError):
                    place = self._pool.training_place(row.base_model)
                    # The first that fits begins, so that no job is passed over by a later one.
                    if place.device == device:
                        break
        else:
            return False
        # 2. It begins; the engines are away for it before they could come back from this one.
        self._runs[id].has_device = False
        run = self._begin(row.id, row, place)
        # Either will do: one that ends before it has begun needs the engines away no longer.
        begun = asyncio.ensure_future(run.turn.begun.wait())
        try:
            await asyncio.wait({run.task, begun}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also when the waiting job is cancelled; the next one goes on by itself.
            begun.cancel()
        return True


async def _repeat(step: Callable[[], Awaitable[None]]) -> None:
    """Run `step` for ever: what goes wrong in it must not end the taking of jobs."""
    while True:
        try:
            await step()
        except Exception:
            _log.exception("jobs can't be taken, trying again")
            await asyncio.sleep(BROKEN_PAUSE_S)


def _find_problems(
    method: str, path: Path, least: int, advantage: formats.AdvantageMode | None
) -> list[formats.Problem]:
    # `validate` reads the lines one by one and lets this through, since other callers want it
    # raised. It stands alone, without what was found in the lines before it: the reading ends there
    # (the file is cut, no JSONL, or beyond a limit), and a list of what is wrong would look as if
    # the rest had been read.
    try:
        return formats.validate(method, formats.read_jsonl(path), least, advantage=advantage)
    except formats.JsonlError as error:
        return [formats.Problem(error.line, "invalid_jsonl", error.message)]
