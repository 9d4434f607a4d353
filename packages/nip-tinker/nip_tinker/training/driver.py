"""Trains a job at the service, block by block, and goes on after any death.

Driver        one job: `run` trains until it ends, is cancelled, or raises
choose_size   the number of steps of a block

A block is a number of steps between two named states. Its note has the intent before anything is
sent. After a death:

level 1     the block's state is looked for, if its saving had begun. Found, it is adopted; else the
            block is done again from the state before it. At most one block is paid twice.
level 2     where the service takes a number that comes again for the same request, the same
            requests are sent again to the same model, and nothing is paid twice. If its session is
            gone, level 1.

Only data and requests at fault end a job. Whatever a service, a network or an account says
otherwise leaves it standing, with its states, until it is run again.
"""

import asyncio
import contextlib
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from nip_core.errors import CorruptionError, ParkedError
from nip_core.jobs.job import BackendTrouble, Refused
from nip_lm_server.client import training_text
from nip_tinker.datums import count_tokens, digest_rows, encode_rows, load_text
from nip_tinker.options import Options
from nip_tinker.proof import state_of
from nip_tinker.record.notes import BlockNote, JobNote, Notes
from nip_tinker.record.steps import Steps
from nip_tinker.states import delete_states, name_state, renew
from nip_tinker.training.ends import end_job, list_jobs
from nip_tinker.training.live_models import Course, GoneError, Newest, take_up
from nip_tinker.training.saving import adopt_block, save_block, save_sampler
from nip_tinker.training.stepping import Stepper
from nip_tinker.wire import NeedsPayment, RequestFailed, TinkerClient

MOST_TRIES = 3
"""Models that are lost one after the other before the job stands still."""
BEAT_S = 10.0


class Driver:
    """Trains one job."""

    def __init__(
        self,
        client: TinkerClient,
        notes: Notes,
        options: Options,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Sends nothing. Not for two at once of one job."""
        self._client, self._notes, self._options = client, notes, options
        self._now, self._sleep = now, sleep
        self._course: Course | None = None

    @property
    def job(self) -> JobNote | None:
        """The job, once it is driven."""
        return None if self._course is None else self._course.job

    @property
    def newest(self) -> Newest:
        """The newest step."""
        return Newest() if self._course is None else self._course.newest

    async def run(self) -> JobNote:
        """Train to the end, and return the job's note.

        Raises ParkedError where the account has no money or the service refuses, NoAnswer where it
        is away, LeaseError where another runner has the run, SettingsError where there is no
        tokenizer. Running again goes on.
        """
        job = self._notes.read_job()
        if job is None:
            raise Refused("there is no such job", 404)
        if job.status not in ("queued", "running"):
            return job
        course = self._course = Course(
            self._client, self._notes, self._options, job, self._now, self._sleep
        )
        beats = asyncio.create_task(_beat(course))
        try:
            await _prepare(course)
            await _finish(course, await _train(course))
        except training_text.TrainingError as error:
            await _fail(course, str(error))
        except RequestFailed as error:
            if error.category == "user":
                await _fail(course, str(error))
            else:
                _park(course, str(error))
        except NeedsPayment as error:
            _park(course, f"the account has no money ({error}); put some in")
        except Refused as error:
            if error.status in (401, 403):  # the key is at fault, and polling says so
                raise
            _park(course, str(error))
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
        return job


def _park(course: Course, reason: str) -> None:
    """Put on record why a job stands still. Raises ParkedError."""
    course.job.waits = reason
    course.notes.write_job(course.job)
    raise ParkedError(
        f"job {course.job.key} stands still: {reason}; when that is put right, run again: what is "
        "paid is kept"
    ) from None


async def _beat(course: Course) -> None:
    """Say that the session is in use; its requests notice its end."""
    while True:
        await course.sleep(BEAT_S)
        if course.live is not None:
            with contextlib.suppress(BackendTrouble):
                await course.client.beat(course.live.session)


async def _prepare(course: Course) -> None:
    """Read the job's data, and know its steps."""
    job, plan, notes = course.job, course.job.plan, course.notes
    base = job.base or job.parent
    if base.startswith("tinker://"):
        base, _ = await course.client.look_up_state(state_of(job.parent))
    text = await asyncio.to_thread(load_text, base, course.options.tokenizer, plan.max_length)
    with tempfile.TemporaryDirectory() as folder:
        file = await asyncio.to_thread(notes.copy_data, job, Path(folder))
        course.rows = await asyncio.to_thread(encode_rows, plan, file, text)
    useless = plan.method == "trajectories" and not any(
        getattr(row, "advantage", 0.0) for row in course.rows
    )
    # Where no episode is better than another nothing is learned, and nothing paid.
    course.steps = Steps(plan, 0 if useless else len(course.rows))
    course.digest = _digest([plan.model_dump(), job.parent, digest_rows(course.rows)])
    if job.status == "queued" or job.waits is not None:
        job.status, job.base, job.waits = "running", base, None
        job.steps, job.tokens = course.steps.total, plan.n_epochs * count_tokens(course.rows)
        notes.write_job(job)
    for earlier in list_jobs(notes.files):
        # Of this group: another one's is driven beside it, at another service perhaps.
        if earlier.group == job.group and earlier.key != job.key:
            await delete_states(course.client, Notes(notes.files, earlier.key), earlier)
    await delete_states(course.client, notes, job)


async def _train(course: Course) -> BlockNote:
    """Do all blocks; returns the last."""
    job, notes = course.job, course.notes
    block = notes.read_block(job.blocks - 1) if job.blocks else None
    if block is not None and block.is_done:
        await _tidy(course, block)  # a death may have come before that
    newest = block
    if block is not None and not block.is_done and block.number:
        newest = notes.read_block(block.number - 1)
    if newest is not None and await renew(course.client, newest, course.now()):
        newest.saved_at = course.now()
        notes.write_block(newest)
    while True:
        if block is not None and not block.is_done:
            await _do_block(course, block)
        if block is not None and course.is_last(block):
            return block
        block = _begin_block(course, block)


def _begin_block(course: Course, previous: BlockNote | None) -> BlockNote:
    """Put the intent of the next block on record."""
    job, live = course.job, course.live
    block = course.notes.read_block(job.blocks)
    if block is None or block.is_done:
        first = 0 if previous is None else previous.end
        end = min(course.steps.total, first + choose_size(course.options, job, previous))
        digest = _digest([course.digest, first, end, previous and previous.digest])
        block = BlockNote(
            number=job.blocks,
            first=first,
            end=end,
            digest=digest,
            name=name_state(job.key, job.blocks, digest),
            start=previous and previous.state,
        )
        if live is not None:
            block.session, block.model = live.session, live.model
            block.runs, block.first_seq = [live.model], live.seq
            block.tries = 1
        course.notes.write_block(block)
    job.blocks += 1
    course.notes.write_job(job)
    return block


def choose_size(options: Options, job: JobNote, previous: BlockNote | None) -> int:
    """Choose the number of steps of a block, by time and by money."""
    size = float(options.first_steps)
    if previous is not None and previous.seconds and previous.end > previous.first:
        step_s = previous.seconds / (previous.end - previous.first)
        size = options.block_minutes * 60 / max(step_s, 1e-3)
    if options.block_usd is not None and options.train_usd > 0 and job.steps:
        step_usd = (job.tokens or 0) / job.steps * options.train_usd / 1e6
        size = min(size, options.block_usd / max(step_usd, 1e-12))
    return max(1, math.floor(min(size, options.most_steps or math.inf)))


async def _do_block(course: Course, block: BlockNote) -> None:
    """Bring a block to its state."""
    previous = course.notes.read_block(block.number - 1) if block.number else None
    expected = _digest([course.digest, block.first, block.end, previous and previous.digest])
    if block.digest != expected:
        raise CorruptionError(
            f"block {block.number} of job {course.job.key} was begun with other data or "
            f"settings (digest {block.digest}, now {expected}): use the tokenizer and the "
            "files of before, or train it again: nip train --rerun-from ITERATION:train"
        )
    for tries_left in reversed(range(MOST_TRIES)):
        try:
            await _bring(course, block)
            break
        except GoneError as error:
            course.lose(str(error))
            if not tries_left:
                raise Refused(f"{MOST_TRIES} models for one block were lost: {error}") from None
    await _tidy(course, block)


async def _bring(course: Course, block: BlockNote) -> None:
    """Find a block's state, or train and save it. Raises GoneError."""
    live = course.live
    is_here = live is not None and live.model == block.model
    is_replayed = course.job.level == 2 and block.session is not None and block.model is not None
    may_be_saved = block.saving_at is not None and not (is_here or is_replayed)
    if may_be_saved and await adopt_block(course, block):
        return
    live = await take_up(course, block)
    await Stepper(course, block, live).take_all()
    await save_block(course, block, live)


async def _tidy(course: Course, block: BlockNote) -> None:
    """Note the job's new state, and delete the one before the last."""
    job = course.job
    job.state = block.state
    older = course.notes.read_block(block.number - 2) if block.number >= 2 else None
    if older is not None and older.state is not None and older.state not in job.deletions:
        job.deletions.append(older.state)
    course.notes.write_job(job)
    await delete_states(course.client, course.notes, job)


async def _finish(course: Course, block: BlockNote) -> None:
    """Give the trained weights to a sampler; then the job has succeeded."""
    job = course.job
    for tries_left in reversed(range(MOST_TRIES)):
        if block.sampler is not None:
            break
        try:
            await save_sampler(course, block)
        except GoneError as error:
            course.lose(str(error))
            if not tries_left:
                raise Refused(f"the sampler's weights can't be saved: {error}") from None
    job.model, job.state = block.sampler, block.state
    await end_job(course.client, course.notes, job, "succeeded", course.options.settle_s)


async def _fail(course: Course, reason: str) -> None:
    """End the job without a model."""
    course.job.error, course.job.state = reason, None
    await end_job(course.client, course.notes, course.job, "failed", course.options.settle_s)


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
