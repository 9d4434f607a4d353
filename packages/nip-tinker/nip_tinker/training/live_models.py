"""The model at the service that a job goes on with: found again after a death, or made anew.

Course      a job under way, and all that is known of it here
LiveModel   a model at the service, and the number of its next request
take_up     the model for a block
GoneError   it is not there any more
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from nip_core.errors import ParkedError
from nip_core.jobs.job import Refused
from nip_tinker.datums import Example, make_probe
from nip_tinker.options import Options
from nip_tinker.proof import state_of
from nip_tinker.record.notes import BlockNote, JobNote, Notes
from nip_tinker.record.steps import Steps
from nip_tinker.states import describe_model, load_state
from nip_tinker.wire import NeedsPayment, RequestFailed, TinkerClient, json_send

_GONE = (404, 410)
_log = logging.getLogger(__name__)


@dataclass
class LiveModel:
    """A model at the service that this process goes on with."""

    session: str
    model: str
    seq: int
    """The number of its next request."""


class GoneError(Exception):
    """The model, or a request of it, is not at the service any more."""


@dataclass
class Newest:
    """The newest step, for whoever looks."""

    step: int = 0
    loss: float | None = None
    tokens: int = 0
    left_s: float | None = None


@dataclass
class Course:
    """A job under way: its note, its data, and the model that it goes on with."""

    client: TinkerClient
    notes: Notes
    options: Options
    job: JobNote
    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rows: list[Example] = field(default_factory=list)
    steps: Steps = field(init=False)
    digest: str = ""
    """Of plan, parent and data."""
    live: LiveModel | None = None
    newest: Newest = field(default_factory=Newest)

    def is_last(self, block: BlockNote) -> bool:
        """Return whether the job ends with a block."""
        return block.end >= self.steps.total

    def lose(self, reason: str) -> None:
        """Go on without the model."""
        _log.warning("job %s: the model is gone (%s)", self.job.key, reason)
        self.live = None
        if self.job.level == 2:
            self.job.level, self.job.level_reason = 1, f"the session was gone: {reason}"[:300]
            self.notes.write_job(self.job)


@contextlib.contextmanager
def watch_for_gone() -> Iterator[None]:
    """Tell a model that is gone, or a failure of the service, from other refusals."""
    try:
        yield
    except NeedsPayment:
        raise
    except RequestFailed as error:
        if error.category == "user":
            raise
        raise GoneError(str(error)) from None
    except Refused as error:
        if error.status in _GONE:
            raise GoneError(str(error)) from None
        raise


async def take_up(course: Course, block: BlockNote) -> LiveModel:
    """Find the model for a block, or make it from the state before. Raises GoneError."""
    live, job = course.live, course.job
    if live is not None and live.model == block.model:
        return live
    if job.level == 2 and block.session is not None and block.model is not None:
        with watch_for_gone():
            await course.client.beat(block.session)
        course.live = LiveModel(block.session, block.model, block.first_seq)
        return course.live
    block.start_again()
    course.notes.write_block(block)
    live = await open_model(course, block, block.start, optimizer=True)
    if job.level is None:
        await _find_level(course, block, live)
    elif block.first_seq != live.seq:
        block.first_seq = live.seq
        course.notes.write_block(block)
    return live


async def open_model(
    course: Course, block: BlockNote, state: str | None, *, optimizer: bool
) -> LiveModel:
    """Begin a session with a model: from a state, from the parent, or over the base."""
    job, client = course.job, course.client
    session = await client.create_session({"nip_job": job.key})
    job.sessions.append(session)
    course.notes.write_job(job)
    block.session = session
    course.notes.write_block(block)
    create = describe_model(str(job.base), job.plan.lora_rank, job.plan.seed)
    path = state or (state_of(job.parent) if job.plan.continues else None)
    with watch_for_gone():
        if path is None:
            create |= {"session_id": session, "model_seq_id": 0}
            answer = await client.fetch_json(await client.submit(json_send("create_model", create)))
            model, seq = str(answer["model_id"]), 1
        else:
            await check_there(course, path)
            with_optimizer = optimizer and state is not None
            model, seq = await load_state(client, session, create, path, with_optimizer)
    block.model = model
    block.runs.append(model)
    course.notes.write_block(block)
    course.live = LiveModel(session, model, seq)
    return course.live


async def check_there(course: Course, path: str) -> None:
    """Raise ParkedError for a state that is gone, which no new model would bring back."""
    try:
        await course.client.look_up_state(path)
    except Refused as error:
        if error.status not in _GONE:
            raise
        begun = course.job.address
        elsewhere = ""
        if begun not in (None, course.client.shown):
            elsewhere = f"the job began at {begun}: give that address again; or "
        raise ParkedError(
            f"job {course.job.key} stands still: {path} is not at the service ({error}); "
            f"{elsewhere}it has expired, or was deleted: train again, nip train --rerun-from "
            "ITERATION:train, of the job that made it"
        ) from None


async def _find_level(course: Course, block: BlockNote, live: LiveModel) -> None:
    """Find out whether a number that comes again is the same request."""
    job = course.job
    send = make_probe((5, 6)).send(live.model, live.seq, forward_only=True)
    with watch_for_gone():
        first = await course.client.submit(send)
        try:
            second = await course.client.submit(send)
        except NeedsPayment:
            raise
        except Refused as error:
            second = str(error)
        await course.client.fetch_output(first)
    live.seq += 1
    block.first_seq = live.seq  # before the level, by which the block is taken up from there
    course.notes.write_block(block)
    job.scored_tokens += 1
    job.keeps_numbers = first == second
    job.level = 2 if course.options.takes_level_2 and job.keeps_numbers else 1
    if job.level == 1:
        job.level_reason = (
            "the options say so" if job.keeps_numbers else "a request that came twice was two"
        )
        _log.warning("job %s: level 1, because %s", job.key, job.level_reason)
    course.notes.write_job(job)
