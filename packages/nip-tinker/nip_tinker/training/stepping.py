"""The steps of a block: gradients sent, results put on record.

Stepper     takes the steps of one block by one model
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nip_core.errors import CorruptionError
from nip_core.jobs.job import NoAnswer
from nip_tinker.datums import Example, count_tokens, make_gradients, mean_loss, sum_logprobs
from nip_tinker.record.notes import BlockNote, Figures, Sent
from nip_tinker.record.steps import BETA1, BETA2, EPSILON
from nip_tinker.training.live_models import Course, GoneError, LiveModel, Newest, watch_for_gone
from nip_tinker.training.preferences import weigh_pairs
from nip_tinker.wire import Floats, RequestFailed, Send, json_send

_WINDOW = 2  # steps on their way at once: the service computes one while the next one comes
_FETCHED = "fetched before"
"""In the words of nip's server: the request was done, and its result is not kept any more."""


@dataclass(frozen=True)
class _Step:
    """A step that was sent."""

    number: int
    ids: Sequence[str]
    tokens: int
    rate: float
    requests: int
    examples: Sequence[Example]


class Stepper:
    """Takes the steps of a block by a model."""

    def __init__(self, course: Course, block: BlockNote, live: LiveModel) -> None:
        """Sends nothing."""
        self._course, self._block, self._live = course, block, live
        self._client, self._job = course.client, course.job

    async def take_all(self) -> None:
        """Take all steps that have no result on record. Raises GoneError."""
        began_s = self._course.now()
        if self._job.plan.method == "dpo":
            await self._score_references()
        figures = {figure.step: figure for figure in self._block.figures}
        under_way: deque[_Step] = deque()
        for number in range(self._block.first, self._block.end):
            if (figure := figures.get(number)) is not None:
                self._live.seq += figure.requests
                continue
            under_way.append(await self._send_step(number))
            if len(under_way) >= _WINDOW:
                await self._collect(under_way.popleft())
        while under_way:
            await self._collect(under_way.popleft())
        self._block.seconds = self._course.now() - began_s

    async def _send_step(self, number: int) -> _Step:
        """Send the gradients of a step, and the step itself."""
        plan, live, steps = self._job.plan, self._live, self._course.steps
        first_seq = live.seq
        indices = steps.list_examples(number)
        examples = [self._course.rows[index] for index in indices]
        weights = await self._weigh(number, indices) if plan.method == "dpo" else None
        gradients = make_gradients(plan, examples, weights)
        sends = [g.send(live.model, live.seq + place) for place, g in enumerate(gradients)]
        live.seq += len(sends)
        rate = steps.find_rate(number)
        adam = {
            "learning_rate": rate,
            "beta1": BETA1,
            "beta2": BETA2,
            "eps": EPSILON,
            "weight_decay": plan.weight_decay,
            "grad_clip_norm": plan.max_grad_norm,
        }
        body = {"model_id": live.model, "seq_id": live.seq, "adam_params": adam}
        sends.append(json_send("optim_step", {**body, "type": "optim_step"}))
        live.seq += 1
        tokens = count_tokens(examples)
        is_new = number not in self._block.begun
        self._block.begun[number] = tokens
        self._note_sends(live.seq - len(sends), sends, is_new)
        ids = [await self._submit(send) for send in sends]
        return _Step(number, ids, tokens, rate, live.seq - first_seq, examples)

    async def _submit(self, send: Send) -> str:
        """Send a request; without an answer again where its number makes that safe."""
        keeps_numbers = self._job.keeps_numbers
        try:
            with watch_for_gone():
                return await self._client.submit(send, again=keeps_numbers)
        except NoAnswer as error:
            if keeps_numbers:
                raise
            # It may have counted, and would count twice: the block is done again by a new model.
            raise GoneError(f"it may have been done, and has no answer: {error}") from None

    async def _collect(self, step: _Step) -> None:
        """Wait for a step, and put its figures on record."""
        block = self._block
        *gradients, last = step.ids
        losses: list[float] = []
        logprobs: list[Floats] = []
        with watch_for_gone():
            for request in gradients:
                metrics, values = await self._fetch_output(request)
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
        figures = Figures(
            step=step.number,
            loss=loss,
            tokens=step.tokens,
            learning_rate=step.rate,
            at=self._course.now(),
            requests=step.requests,
        )
        block.figures.append(figures)
        self._course.notes.write_block(block)
        self._show(step, loss)

    def _show(self, step: _Step, loss: float | None) -> None:
        figures, newest = self._block.figures, self._course.newest
        seconds = [b.at - a.at for a, b in itertools.pairwise(figures)]
        rest = self._course.steps.total - step.number - 1
        left_s = rest * sum(seconds) / len(seconds) if seconds else None
        self._course.newest = Newest(step.number + 1, loss, newest.tokens + step.tokens, left_s)

    async def _fetch_output(self, request: str) -> tuple[dict[str, float], list[Floats]]:
        try:
            return await self._client.fetch_output(request)
        except RequestFailed as error:
            if _FETCHED not in str(error):
                raise
            return {}, []

    def _note_sends(self, seq: int, sends: Sequence[Send], is_new: bool) -> None:
        """Put requests on record before they are sent: they may be paid, and sent again.

        `is_new`: they have a step that is not on record.
        """
        block, news = self._block, list[Sent]()
        if self._job.level == 2:
            on_record = {request.seq: request.digest for request in block.sent}
            for number, send in enumerate(sends, seq):
                if on_record.get(number, send.digest) != send.digest:
                    raise CorruptionError(
                        f"request {number} of block {block.number}, job {self._job.key}: is "
                        f"{send.digest}, on record {on_record[number]}; use the files and the "
                        "version of nip of before, or train it again: nip train --rerun-from "
                        "ITERATION:train"
                    )
                if number not in on_record:
                    news.append(Sent(seq=number, digest=send.digest))
            block.sent += news
        if news or is_new:
            self._course.notes.write_block(block)

    # DPO

    async def _score_references(self) -> None:
        """Score all pairs by the model that the job starts from, before its first step."""
        block = self._block
        first = block if block.number == 0 else self._course.notes.read_block(0)
        if first is None or first.references is None:
            sums = await self._score(self._course.rows)
            pairs = sums.reshape(-1, 2)
            block.references = [(float(a), float(b)) for a, b in pairs]
            block.first_seq = self._live.seq  # with the references, in one write
            self._course.notes.write_block(block)
            first = block
        self._references = first.references or []

    async def _weigh(self, number: int, indices: Sequence[int]) -> Floats:
        """Find the weights of a step's pairs, by the model as it is before the step."""
        block, plan = self._block, self._job.plan
        examples = [self._course.rows[index] for index in indices]
        if number in block.weights:
            self._live.seq += len(make_gradients(plan, examples))
            return np.asarray(block.weights[number])
        sums = await self._score(examples)
        references = [self._references[index] for index in indices]
        loss, weights = weigh_pairs(sums[0::2], sums[1::2], references, plan.beta)
        block.weights[number], block.pair_losses[number] = [float(w) for w in weights], loss
        self._course.notes.write_block(block)
        return weights

    async def _score(self, examples: Sequence[Example]) -> Floats:
        """Score examples by the model, as sums by answer."""
        live = self._live
        gradients = make_gradients(self._job.plan, examples)
        sends = [
            gradient.send(live.model, live.seq + place, forward_only=True)
            for place, gradient in enumerate(gradients)
        ]
        self._note_sends(live.seq, sends, is_new=False)
        live.seq += len(sends)
        logprobs: list[Floats] = []
        with watch_for_gone():
            ids = [await self._client.submit(send) for send in sends]
            for request in ids:
                logprobs += (await self._client.fetch_output(request))[1]
        self._job.scored_tokens += count_tokens(examples)
        return sum_logprobs(examples, logprobs)
