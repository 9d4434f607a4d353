"""The states of a job at the service: saved under their names, or found there.

save_block     the state after a block, with the optimizer's
adopt_block    the state of a block whose saving may have come to its end before a death
save_sampler   the trained weights, for a sampler
"""

from collections.abc import Sequence

from nip_core.jobs.job import Refused
from nip_tinker.record.notes import BlockNote
from nip_tinker.states import LIFETIME_S, describe_state, find_state
from nip_tinker.training.live_models import Course, GoneError, LiveModel, open_model, watch_for_gone
from nip_tinker.wire import Checkpoint, Json, NeedsPayment, json_send, split_path


async def save_block(course: Course, block: BlockNote, live: LiveModel) -> None:
    """Save a block's state under its name. Raises GoneError."""
    if block.save_seq is None:
        block.save_seq, block.saving_at = live.seq, course.now()
        course.notes.write_block(block)
    body: Json = {
        "model_id": live.model,
        "seq_id": live.seq,
        "path": block.name,
        "user_metadata": describe_state(course.job, block),
        "type": "save_weights",
    }
    if not course.is_last(block):
        body["ttl_seconds"] = LIFETIME_S
    live.seq += 1
    try:
        path = await _send_saving(course, "save_weights", body)
    except (GoneError, Refused) as error:
        # A name that is there already is an answer, too; and so is one that was saved unheard.
        if isinstance(error, NeedsPayment):
            raise
        if await adopt_block(course, block):
            course.live = None
            return
        if isinstance(error, Refused) and error.status == 409:
            # The name is taken by a saving that never ended: only another model can have it.
            raise GoneError(str(error)) from None
        raise
    block.state, block.saved_at = path, course.now()
    course.notes.write_block(block)


async def _send_saving(course: Course, route: str, body: Json) -> str:
    with watch_for_gone():
        answer = await course.client.fetch_json(await course.client.submit(json_send(route, body)))
        return str(answer["path"])


async def adopt_block(course: Course, block: BlockNote) -> bool:
    """Look for the state of a block, and take it if it is there."""
    state, doubles = await _find(course, block, "weights", block.runs, block.saving_at)
    if state is None:
        return False
    block.state, block.saved_at = state.path, course.now()
    course.notes.write_block(block)
    course.job.deletions += [double.path for double in doubles]
    return True


async def _find(
    course: Course, block: BlockNote, kind: str, runs: Sequence[str], began_s: float | None
) -> tuple[Checkpoint | None, list[Checkpoint]]:
    return await find_state(
        course.client,
        block,
        kind,
        runs=runs,
        since_s=began_s or 0.0,
        settle_s=course.options.settle_s,
        now=course.now,
        sleep=course.sleep,
    )


async def save_sampler(course: Course, block: BlockNote) -> None:
    """Save the sampler's weights beside the state, by the model that has saved it.

    Raises GoneError.
    """
    if block.sampling_at is not None and await _adopt_sampler(course, block):
        return
    live = await _find_saver(course, block)
    if block.sampling_at is None:
        block.sampling_at = course.now()
        course.notes.write_block(block)
    body = {
        "model_id": live.model,
        "seq_id": live.seq,
        "path": block.name,
        "kind": "snapshot",
        "user_metadata": describe_state(course.job, block),
        "type": "save_weights_for_sampler",
    }
    live.seq += 1
    try:
        block.sampler = await _send_saving(course, "save_weights_for_sampler", body)
    except Refused as error:
        if isinstance(error, NeedsPayment):
            raise
        if not await _adopt_sampler(course, block):
            if error.status == 409:  # the name is taken, as in `save_block`
                block.session = None
                raise GoneError(str(error)) from None
            raise
    course.notes.write_block(block)


async def _find_saver(course: Course, block: BlockNote) -> LiveModel:
    """Find the model that has saved a block's state, or load that state, and save it again."""
    assert block.state is not None
    live, saver = course.live, split_path(block.state)[0]
    is_there = block.session is not None and saver == block.model
    is_numbered = course.job.level == 2 and block.save_seq is not None
    if (live is None or live.model != block.model) and is_numbered and is_there:
        assert block.session is not None and block.model is not None
        assert block.save_seq is not None
        with watch_for_gone():
            await course.client.beat(block.session)
        live = course.live = LiveModel(block.session, block.model, block.save_seq + 1)
    if live is not None and live.model == saver:
        return live
    earlier = block.state
    block.saving_at = block.save_seq = block.sampling_at = None
    live = await open_model(course, block, earlier, optimizer=True)
    await save_block(course, block, live)
    if block.state != earlier:
        course.job.deletions.append(earlier)
        course.notes.write_job(course.job)
    if course.live is None:
        raise GoneError("its name was there already")
    return live


async def _adopt_sampler(course: Course, block: BlockNote) -> bool:
    """Take the sampler's weights if they are there beside the state."""
    assert block.state is not None
    runs = [split_path(block.state)[0]]
    state, _ = await _find(course, block, "sampler_weights", runs, block.sampling_at)
    if state is None:
        return False
    block.sampler = state.path
    course.notes.write_block(block)
    return True
