"""Trains a job at the service, block by block, and goes on after any death.

Driver      one job: `run` trains until it ends, is cancelled, or raises

A block is a number of steps between two named states. Its note says what is about to happen before
anything is sent. After a death:

level 1     the block's state is looked for, if its saving had begun. Found, it is adopted; else the
            block is done again from the state before it. At most one block is paid twice.
level 2     where the service takes a number that comes again for the same request, the same
            requests are sent again to the same model, and nothing is paid twice. If its session is
            gone, level 1.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nip_core.errors import CorruptionError, ParkedError
from nip_core.jobs.job import BackendTrouble, Refused
from nip_lm_server.client import training_text
from nip_tinker.datums import (
    Example,
    count_tokens,
    digest_rows,
    encode_rows,
    load_text,
    make_gradients,
    make_probe,
    mean_loss,
    sum_logprobs,
)
from nip_tinker.notes import BlockNote, Figures, JobNote, Notes, Sent, Status
from nip_tinker.options import Options
from nip_tinker.preferences import weigh_pairs
from nip_tinker.proof import state_of
from nip_tinker.run_files import RunFiles
from nip_tinker.states import (
    LIFETIME_S,
    delete_states,
    describe_model,
    describe_state,
    find_state,
    load_state,
    name_state,
    renew,
)
from nip_tinker.steps import BETA1, BETA2, EPSILON, Steps
from nip_tinker.wire import (
    Floats,
    Json,
    NeedsPayment,
    RequestFailed,
    Send,
    TinkerClient,
    json_send,
    split_path,
)

MOST_TRIES = 3
"""Models that are made for one block before the job fails."""
BEAT_S = 10.0
_WINDOW = 2  # steps on their way at once: the service computes one while the next one comes
_GONE = (404, 410)
_FETCHED = "fetched before"
"""In the words of nip's server: the request was done, and its result is not kept any more."""
_log = logging.getLogger(__name__)


@dataclass
class _Live:
    """A model at the service that this process goes on with."""

    session: str
    model: str
    seq: int
    """The number of its next request."""


class _GoneError(Exception):
    """The model, or a request of it, is not at the service any more."""


@dataclass
class Newest:
    """The newest step, for whoever looks."""

    step: int = 0
    loss: float | None = None
    tokens: int = 0
    left_s: float | None = None


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
        self._live: _Live | None = None
        self.newest = Newest()
        self.job: JobNote | None = None

    async def run(self) -> JobNote:
        """Train to the end, and return the job's note.

        Raises ParkedError where the account has no money, NoAnswer where the service is away,
        LeaseError where another runner has the run, SettingsError where there is no tokenizer.
        Running again goes on.
        """
        job = self._notes.read_job()
        if job is None:
            raise Refused("there is no such job", 404)
        if job.status not in ("queued", "running"):
            return job
        self._job = self.job = job
        beats = asyncio.create_task(self._beat())
        try:
            await self._prepare()
            await self._finish(await self._train())
        except NeedsPayment as error:
            job.waits = str(error)
            self._notes.write_job(job)
            raise ParkedError(
                f"job {job.key} stands still, because the account has no money ({error}); put some "
                "in and run again"
            ) from None
        except training_text.TrainingError as error:
            await self._fail(str(error))
        except Refused as error:
            if error.status in (401, 403):  # the key is at fault, not the job
                raise
            await self._fail(str(error))
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
        return job

    async def _beat(self) -> None:
        """Say that the session is in use; its requests notice its end."""
        while True:
            await self._sleep(BEAT_S)
            if self._live is not None:
                with contextlib.suppress(BackendTrouble):
                    await self._client.beat(self._live.session)

    # The job

    async def _prepare(self) -> None:
        """Read the job's data, and know its steps."""
        job, plan = self._job, self._job.plan
        base = job.base or job.parent
        if base.startswith("tinker://"):
            base, _ = await self._client.look_up_state(state_of(job.parent))
        text = await asyncio.to_thread(load_text, base, self._options.tokenizer, plan.max_length)
        with tempfile.TemporaryDirectory() as folder:
            file = await asyncio.to_thread(self._notes.copy_data, job, Path(folder))
            self._rows: list[Example] = await asyncio.to_thread(encode_rows, plan, file, text)
        useless = plan.method == "trajectories" and not any(
            getattr(row, "advantage", 0.0) for row in self._rows
        )
        # Where no episode is better than another nothing is learned, and nothing paid.
        self._steps = Steps(plan, 0 if useless else len(self._rows))
        self._digest = _digest([plan.model_dump(), job.parent, digest_rows(self._rows)])
        if job.status == "queued" or job.waits is not None:
            job.status, job.base, job.waits = "running", base, None
            job.steps, job.tokens = self._steps.total, plan.n_epochs * count_tokens(self._rows)
            self._notes.write_job(job)
        for earlier in list_jobs(self._notes.files):
            if earlier.key != job.key:
                await delete_states(self._client, Notes(self._notes.files, earlier.key), earlier)
        await delete_states(self._client, self._notes, job)

    async def _train(self) -> BlockNote:
        """Do all blocks; returns the last."""
        job = self._job
        block = self._notes.read_block(job.blocks - 1) if job.blocks else None
        if block is not None and block.is_done:
            await self._tidy(block)  # a death may have come before that
            if await renew(self._client, block, self._now()):
                block.saved_at = self._now()
                self._notes.write_block(block)
        while True:
            if block is not None and not block.is_done:
                await self._do_block(block)
            if block is not None and block.end >= self._steps.total:
                return block
            block = self._begin_block(block)

    def _begin_block(self, previous: BlockNote | None) -> BlockNote:
        """Put the intent of the next block on record."""
        job = self._job
        block = self._notes.read_block(job.blocks)
        if block is None or block.is_done:
            first = 0 if previous is None else previous.end
            end = min(self._steps.total, first + self._choose_size(previous))
            digest = _digest([self._digest, first, end, previous and previous.digest])
            block = BlockNote(
                number=job.blocks,
                first=first,
                end=end,
                digest=digest,
                name=name_state(job.key, job.blocks, digest),
                start=previous and previous.state,
            )
            if self._live is not None:
                block.session, block.model = self._live.session, self._live.model
                block.runs, block.first_seq = [self._live.model], self._live.seq
                block.tries = 1
            self._notes.write_block(block)
        job.blocks += 1
        self._notes.write_job(job)
        return block

    def _choose_size(self, previous: BlockNote | None) -> int:
        """Choose the number of steps of a block, by time and by money."""
        options, job = self._options, self._job
        size = float(options.first_steps)
        if previous is not None and previous.seconds and previous.end > previous.first:
            step_s = previous.seconds / (previous.end - previous.first)
            size = options.block_minutes * 60 / max(step_s, 1e-3)
        if options.block_usd is not None and options.train_usd > 0 and job.steps:
            step_usd = (job.tokens or 0) / job.steps * options.train_usd / 1e6
            size = min(size, options.block_usd / max(step_usd, 1e-12))
        return max(1, math.floor(min(size, options.most_steps or math.inf)))

    # A block

    async def _do_block(self, block: BlockNote) -> None:
        """Bring a block to its state."""
        expected = _digest(
            [self._digest, block.first, block.end, self._digest_before(block.number)]
        )
        if block.digest != expected:
            raise CorruptionError(
                f"block {block.number} of job {self._job.key} was begun with other data or "
                f"settings (digest {block.digest}, now {expected}): use the tokenizer and the "
                "files of before, or train it again: nip train --rerun-from ITERATION:train"
            )
        for tries_left in reversed(range(MOST_TRIES)):
            try:
                live = await self._take_up(block)
                if live is not None:
                    await self._do_steps(block, live)
                    await self._save(block, live)
                break
            except _GoneError as error:
                _log.warning("job %s: the model is gone (%s)", self._job.key, error)
                self._lose(str(error))
                if not tries_left:
                    raise Refused(f"{MOST_TRIES} models for one block were lost: {error}") from None
        await self._tidy(block)

    def _digest_before(self, number: int) -> str | None:
        previous = self._notes.read_block(number - 1) if number else None
        return None if previous is None else previous.digest

    def _lose(self, reason: str) -> None:
        """Go on without the model."""
        self._live = None
        if self._job.level == 2:
            self._job.level, self._job.level_reason = 1, f"the session was gone: {reason}"[:300]
            self._notes.write_job(self._job)

    async def _take_up(self, block: BlockNote) -> _Live | None:
        """Find or make the model for a block; None: its state was found, and the block is done."""
        live = self._live
        if live is not None and live.model == block.model:
            return live
        # 1. Level 2: the model of before, at the block's first request.
        if self._job.level == 2 and block.session is not None and block.model is not None:
            with self._watch_for_gone():
                await self._client.beat(block.session)
            self._live = _Live(block.session, block.model, block.first_seq)
            return self._live
        # 2. Level 1: the state, if it may have been saved.
        if block.saving_at is not None and await self._adopt(block):
            return None
        # 3. Else a new model, from the state before.
        if block.figures:
            self._job.steps_again += len(block.figures)
            self._job.tokens_again += sum(figures.tokens for figures in block.figures)
            self._notes.write_job(self._job)
        block.tries, block.model, block.first_seq = block.tries + 1, None, 1
        block.sent, block.figures, block.weights, block.pair_losses = [], [], {}, {}
        block.saving_at = block.save_seq = None
        live = await self._open(block, block.start, optimizer=True)
        if self._job.level is None:
            await self._find_level(block, live)
        elif block.first_seq != live.seq:
            block.first_seq = live.seq
            self._notes.write_block(block)
        return live

    async def _adopt(self, block: BlockNote) -> bool:
        """Look for the state of a block, and take it if it is there."""
        state, doubles = await find_state(
            self._client,
            block,
            "weights",
            runs=block.runs,
            since_s=block.saving_at or 0.0,
            settle_s=self._options.settle_s,
            now=self._now,
            sleep=self._sleep,
        )
        if state is None:
            return False
        block.state, block.saved_at = state.path, self._now()
        self._notes.write_block(block)
        # Of this run alone: one of the same name may be another run's with the same job.
        self._job.deletions += [double.path for double in doubles if double.run in block.runs]
        return True

    async def _open(self, block: BlockNote, state: str | None, *, optimizer: bool) -> _Live:
        """Begin a session with a model: from a state, from the parent, or over the base."""
        job, client = self._job, self._client
        session = await client.create_session({"nip_job": job.key})
        job.sessions.append(session)
        self._notes.write_job(job)
        block.session = session
        self._notes.write_block(block)
        create = describe_model(str(job.base), job.plan.lora_rank, job.plan.seed)
        path = state or (state_of(job.parent) if job.plan.continues else None)
        with self._watch_for_gone():
            if path is None:
                create |= {"session_id": session, "model_seq_id": 0}
                answer = await self._do(json_send("create_model", create))
                model, seq = str(answer["model_id"]), 1
            else:
                await self._check_there(path)
                with_optimizer = optimizer and state is not None
                model, seq = await load_state(client, session, create, path, with_optimizer)
        block.model = model
        block.runs.append(model)
        self._notes.write_block(block)
        self._live = _Live(session, model, seq)
        return self._live

    async def _check_there(self, path: str) -> None:
        """Raise Refused for a state that is gone, which no new model would bring back."""
        try:
            await self._client.look_up_state(path)
        except Refused as error:
            if error.status not in _GONE:
                raise
            raise Refused(
                f"{path} is not at the service any more ({error}): it has expired, or was deleted; "
                "train again: nip train --rerun-from ITERATION:train, of the job that made it"
            ) from None

    async def _do(self, send: Send) -> Json:
        """Send a request and wait for its result."""
        return await self._client.fetch_json(await self._client.submit(send))

    async def _find_level(self, block: BlockNote, live: _Live) -> None:
        """Find out whether a number that comes again is the same request."""
        job = self._job
        send = make_probe((5, 6)).send(live.model, live.seq, forward_only=True)
        with self._watch_for_gone():
            first = await self._client.submit(send)
            try:
                second = await self._client.submit(send)
            except Refused as error:
                second = str(error)
            await self._client.fetch_output(first)
        live.seq += 1
        block.first_seq = live.seq  # before the level, by which the block is taken up from there
        self._notes.write_block(block)
        job.scored_tokens += 1
        job.level = 2 if self._options.takes_level_2 and first == second else 1
        if job.level == 1:
            job.level_reason = (
                "a request that came twice was two" if first != second else "the options say so"
            )
            _log.warning("job %s: level 1, because %s", job.key, job.level_reason)
        self._notes.write_job(job)

    @contextlib.contextmanager
    def _watch_for_gone(self) -> Iterator[None]:
        """Tell a model that is gone, or a failure of the service, from other refusals."""
        try:
            yield
        except NeedsPayment:
            raise
        except RequestFailed as error:
            if error.category == "user":
                raise
            raise _GoneError(str(error)) from None
        except Refused as error:
            if error.status in _GONE:
                raise _GoneError(str(error)) from None
            raise

    # Steps

    async def _do_steps(self, block: BlockNote, live: _Live) -> None:
        """Take all steps of a block that have no result on record."""
        began_s = self._now()
        if self._job.plan.method == "dpo":
            await self._score_references(block, live)
        figures = {figure.step: figure for figure in block.figures}
        under_way: deque[_Step] = deque()
        for number in range(block.first, block.end):
            if (figure := figures.get(number)) is not None:
                live.seq += figure.requests
                continue
            under_way.append(await self._send_step(block, live, number))
            if len(under_way) >= _WINDOW:
                await self._collect(block, under_way.popleft())
        while under_way:
            await self._collect(block, under_way.popleft())
        block.seconds = self._now() - began_s

    async def _send_step(self, block: BlockNote, live: _Live, number: int) -> "_Step":
        """Send the gradients of a step, and the step itself."""
        plan, first_seq = self._job.plan, live.seq
        indices = self._steps.list_examples(number)
        examples = [self._rows[index] for index in indices]
        weights = None
        if plan.method == "dpo":
            weights = await self._weigh(block, live, number, indices)
        gradients = make_gradients(plan, examples, weights)
        sends = [g.send(live.model, live.seq + place) for place, g in enumerate(gradients)]
        live.seq += len(sends)
        adam = {
            "learning_rate": self._steps.find_rate(number),
            "beta1": BETA1,
            "beta2": BETA2,
            "eps": EPSILON,
            "weight_decay": plan.weight_decay,
            "grad_clip_norm": plan.max_grad_norm,
        }
        body = {"model_id": live.model, "seq_id": live.seq, "adam_params": adam}
        sends.append(json_send("optim_step", {**body, "type": "optim_step"}))
        live.seq += 1
        self._note_sends(block, live.seq - len(sends), sends)
        with self._watch_for_gone():
            ids = [await self._client.submit(send) for send in sends]
        tokens = count_tokens(examples)
        requests = live.seq - first_seq
        return _Step(number, ids, tokens, adam["learning_rate"], requests, examples)

    async def _collect(self, block: BlockNote, step: "_Step") -> None:
        """Wait for a step, and put its figures on record."""
        *gradients, last = step.ids
        losses: list[float] = []
        logprobs: list[Floats] = []
        with self._watch_for_gone():
            for id in gradients:
                metrics, values = await self._fetch_output(id)
                logprobs += values
                if "loss:sum" in metrics:
                    losses.append(metrics["loss:sum"])
            try:
                await self._client.fetch_json(last)
            except RequestFailed as error:
                if _FETCHED not in str(error):
                    raise
        if not losses and logprobs and self._job.plan.method == "supervised":
            losses = [mean_loss(step.examples, logprobs)]  # not every service tells the sum
        loss = block.pair_losses.get(step.number, sum(losses) if losses else None)
        block.figures.append(
            Figures(
                step=step.number,
                loss=loss,
                tokens=step.tokens,
                learning_rate=step.rate,
                at=self._now(),
                requests=step.requests,
            )
        )
        self._notes.write_block(block)
        seconds = [b.at - a.at for a, b in zip(block.figures, block.figures[1:], strict=False)]
        rest = self._steps.total - step.number - 1
        self.newest = Newest(
            step.number + 1,
            loss,
            self.newest.tokens + step.tokens,
            rest * sum(seconds) / len(seconds) if seconds else None,
        )

    async def _fetch_output(self, id: str) -> tuple[dict[str, float], list[Floats]]:
        try:
            return await self._client.fetch_output(id)
        except RequestFailed as error:
            if _FETCHED not in str(error):
                raise
            return {}, []

    def _note_sends(self, block: BlockNote, seq: int, sends: Sequence[Send]) -> None:
        """Put requests on record before they are sent, where they may have to be sent again."""
        if self._job.level != 2:
            return
        on_record = {request.seq: request.digest for request in block.sent}
        news = []
        for number, send in enumerate(sends, seq):
            if on_record.get(number, send.digest) != send.digest:
                raise CorruptionError(
                    f"request {number} of block {block.number}, job {self._job.key}: is "
                    f"{send.digest}, on record {on_record[number]}; use the files and the version "
                    "of nip of before, or train it again: nip train --rerun-from ITERATION:train"
                )
            if number not in on_record:
                news.append(Sent(seq=number, digest=send.digest))
        if news:
            block.sent += news
            self._notes.write_block(block)

    # DPO

    async def _score_references(self, block: BlockNote, live: _Live) -> None:
        """Score all pairs by the model that the job starts from, before its first step."""
        first = block if block.number == 0 else self._notes.read_block(0)
        if first is None or first.references is None:
            sums = await self._score(block, live, self._rows)
            pairs = sums.reshape(-1, 2)
            block.references = [(float(a), float(b)) for a, b in pairs]
            block.first_seq = live.seq  # with the references, in one write
            self._notes.write_block(block)
            first = block
        self._references = first.references or []

    async def _weigh(
        self, block: BlockNote, live: _Live, number: int, indices: Sequence[int]
    ) -> Floats:
        """Find the weights of a step's pairs, by the model as it is before the step."""
        examples = [self._rows[index] for index in indices]
        if number in block.weights:
            live.seq += len(make_gradients(self._job.plan, examples))
            return np.asarray(block.weights[number])
        sums = await self._score(block, live, examples)
        references = [self._references[index] for index in indices]
        loss, weights = weigh_pairs(sums[0::2], sums[1::2], references, self._job.plan.beta)
        block.weights[number], block.pair_losses[number] = [float(w) for w in weights], loss
        self._notes.write_block(block)
        return weights

    async def _score(self, block: BlockNote, live: _Live, examples: Sequence[Example]) -> Floats:
        """Score examples by the model, as sums by answer."""
        gradients = make_gradients(self._job.plan, examples)
        sends = [
            gradient.send(live.model, live.seq + place, forward_only=True)
            for place, gradient in enumerate(gradients)
        ]
        self._note_sends(block, live.seq, sends)
        live.seq += len(sends)
        logprobs: list[Floats] = []
        with self._watch_for_gone():
            ids = [await self._client.submit(send) for send in sends]
            for id in ids:
                logprobs += (await self._client.fetch_output(id))[1]
        self._job.scored_tokens += count_tokens(examples)
        return sum_logprobs(examples, logprobs)

    # States

    def _is_last(self, block: BlockNote) -> bool:
        return block.end >= self._steps.total

    async def _save(self, block: BlockNote, live: _Live) -> None:
        """Save a block's state under its name."""
        if block.save_seq is None:
            block.save_seq, block.saving_at = live.seq, self._now()
            self._notes.write_block(block)
        body: Json = {
            "model_id": live.model,
            "seq_id": live.seq,
            "path": block.name,
            "user_metadata": describe_state(self._job, block),
            "type": "save_weights",
        }
        if not self._is_last(block):
            body["ttl_seconds"] = LIFETIME_S
        live.seq += 1
        try:
            with self._watch_for_gone():
                answer = await self._do(json_send("save_weights", body))
            path = str(answer["path"])
        except (_GoneError, Refused) as error:
            # A name that is there already is an answer, too; and so is one that was saved unheard.
            if isinstance(error, NeedsPayment):
                raise
            if await self._adopt(block):
                self._live = None
                return
            if isinstance(error, Refused) and error.status == 409:
                # The name is taken by a saving that never ended: only another model can have it.
                raise _GoneError(str(error)) from None
            raise
        block.state, block.saved_at = path, self._now()
        self._notes.write_block(block)

    async def _tidy(self, block: BlockNote) -> None:
        """Note the job's new state, and delete the one before the last."""
        job = self._job
        job.state = block.state
        older = self._notes.read_block(block.number - 2) if block.number >= 2 else None
        if older is not None and older.state is not None and older.state not in job.deletions:
            job.deletions.append(older.state)
        self._notes.write_job(job)
        await delete_states(self._client, self._notes, job)

    # The end

    async def _finish(self, block: BlockNote) -> None:
        """Give the trained weights to a sampler; then the job has succeeded."""
        job = self._job
        for tries_left in reversed(range(MOST_TRIES)):
            if block.sampler is not None:
                break
            try:
                await self._save_sampler(block)
            except _GoneError as error:
                self._lose(str(error))
                if not tries_left:
                    raise Refused(f"the sampler's weights can't be saved: {error}") from None
        job.model, job.state = block.sampler, block.state
        await end_job(self._client, self._notes, job, "succeeded", self._now())

    async def _save_sampler(self, block: BlockNote) -> None:
        """Save the sampler's weights beside the state, by the model that has saved it."""
        assert block.state is not None
        if block.sampling_at is not None and await self._adopt_sampler(block):
            return
        live = self._live
        is_there = block.session is not None and split_path(block.state)[0] == block.model
        if (live is None or live.model != block.model) and (
            self._job.level == 2 and is_there and block.save_seq is not None
        ):
            assert block.session is not None and block.model is not None
            with self._watch_for_gone():
                await self._client.beat(block.session)
            live = self._live = _Live(block.session, block.model, block.save_seq + 1)
        if live is None or live.model != split_path(block.state)[0]:
            # The model is gone: its state is loaded, and saved again beside the sampler's weights.
            earlier = block.state
            block.saving_at = block.save_seq = block.sampling_at = None
            live = await self._open(block, earlier, optimizer=True)
            await self._save(block, live)
            if block.state != earlier:
                self._job.deletions.append(earlier)
                self._notes.write_job(self._job)
            if self._live is None:
                raise _GoneError("its name was there already")
        if block.sampling_at is None:
            block.sampling_at = self._now()
            self._notes.write_block(block)
        body = {
            "model_id": live.model,
            "seq_id": live.seq,
            "path": block.name,
            "kind": "snapshot",
            "user_metadata": describe_state(self._job, block),
            "type": "save_weights_for_sampler",
        }
        live.seq += 1
        try:
            with self._watch_for_gone():
                answer = await self._do(json_send("save_weights_for_sampler", body))
            block.sampler = str(answer["path"])
        except Refused as error:
            if isinstance(error, NeedsPayment):
                raise
            if not await self._adopt_sampler(block):
                if error.status == 409:  # the name is taken, as in `_save`
                    block.session = None
                    raise _GoneError(str(error)) from None
                raise
        self._notes.write_block(block)

    async def _adopt_sampler(self, block: BlockNote) -> bool:
        """Take the sampler's weights if they are there beside the state."""
        assert block.state is not None
        state, _ = await find_state(
            self._client,
            block,
            "sampler_weights",
            runs=[split_path(block.state)[0]],
            since_s=block.sampling_at or 0.0,
            settle_s=self._options.settle_s,
            now=self._now,
            sleep=self._sleep,
        )
        if state is None or state.run != split_path(block.state)[0]:
            return False
        block.sampler = state.path
        self._notes.write_block(block)
        return True

    async def _fail(self, reason: str) -> None:
        """End the job without a model."""
        self._job.error, self._job.state = reason, None
        await end_job(self._client, self._notes, self._job, "failed", self._now())


_REASONS = {"succeeded": "success", "failed": "errored", "cancelled": "interrupted"}


async def end_job(
    client: TinkerClient, notes: Notes, job: JobNote, status: Status, now: float
) -> None:
    """End a job: its sessions are finished, and the states deleted that it does not leave."""
    # Older states are gone already; one that can't be deleted now stays on record.
    blocks = notes.list_blocks(job)
    states = {block.state for block in blocks[-2:] if block.state is not None}
    # After a death a saving that was under way may have ended later than it was looked for.
    for run in {run for block in blocks if len(block.runs) > 1 for run in block.runs}:
        with contextlib.suppress(BackendTrouble):
            listed = await client.list_run_states(run)
            states |= {state.path for state in listed if state.name.startswith(f"nip-{job.key}-")}
    spared = {job.state, job.model} if status == "succeeded" else set()
    job.deletions = sorted({*job.deletions, *states} - spared)
    notes.write_job(job)
    await delete_states(client, notes, job)
    sessions = []
    for session in job.sessions:
        try:
            await client.finish_session(session, _REASONS[status])
        except Refused:
            continue  # it is gone, or the service has no such call: then it ends by itself
        except BackendTrouble:
            sessions.append(session)
    job.sessions, job.status, job.finished_at = sessions, status, now
    figures = [step for block in blocks for step in block.figures]
    job.trained_tokens = job.tokens_again + sum(step.tokens for step in figures)
    notes.write_job(job)
    is_open = ("queued", "running")
    if not any(o.file == job.file and o.status in is_open for o in list_jobs(notes.files)):
        notes.files.remove(f"files/{job.file}")


def list_jobs(files: RunFiles) -> list[JobNote]:
    """List the jobs that a run has notes of."""
    keys = {name.split("/")[0] for name in files.list() if name.endswith("/job.json")}
    jobs = (Notes(files, key).read_job() for key in sorted(keys))
    return [job for job in jobs if job is not None]


@dataclass(frozen=True)
class _Step:
    """A step that was sent."""

    number: int
    ids: Sequence[str]
    tokens: int
    rate: float
    requests: int
    examples: Sequence[Example]


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
