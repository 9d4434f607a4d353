"""A model's requests, one after the other in the order of their numbers; models in turns.

Executor   of one base model: `submit` a request on record, `start`, `stop`

The executor waits for a number that has not come, since clients send several at once; after `GAP_S`
it and those behind it fail. A trainer that ends is started again (`trainers`), and every model is
restored from its last state on disk and the payloads since: a client sees that as a wait. No step
is taken with a gradient of which a part failed: that step fails, and the parts are taken back.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nip_base.disk import is_full
from nip_lm_server.engines.base import EngineError
from nip_lm_server.tinker.steps import Failed, Steps, UnusableGradient
from nip_lm_server.tinker.storage.records import Category, RequestRow, TinkerModelRow
from nip_lm_server.tinker.storage.store import TinkerStore
from nip_lm_server.training.resident.resident_client import ResidentDied

GAP_S = 6 * 60.0
"""The SDK sends a request again for five minutes. With less, a late one would be given up."""
MOST_RESIDENT = 16
"""Models that a trainer keeps. A request for another one makes the idlest leave, to the disk."""
DURABLE_BYTES = 32 * 1024 * 1024
"""Bytes of payloads after which a model's state is written: a model takes so much of the disk for
them."""
DURABLE_S = 30.0
"""Seconds of computing after which it is written: after a kill a model is back in about this time.
"""
MOST_AHEAD = 10_000
"""Numbers between a model's next request and the highest that is taken: each that never comes is a
row."""
MOST_PAYLOADS = 1024 * 1024 * 1024
"""Bytes of a model's requests that are kept: the waiting ones, and those newer than the state on
disk. Two hundred times the size of one request of the SDK."""
MOST_DEATHS = 3
"""So often a trainer may end over one request before the request fails."""
PAUSE_S = 1.0
"""Pause after a problem that is no request's fault, such as a full disk."""

_log = logging.getLogger("nip.lm_server.tinker")


@dataclass
class ModelTurn:
    """The progress of a model."""

    model_id: str
    next_seq: int
    waiting: dict[int, int] = field(default_factory=dict)  # number -> order of arrival
    is_resident: bool = False
    broken: str | None = None  # the reason why the gradient so far is not whole
    has_gradient: bool = False  # that waits for its step
    gap_since: float | None = None
    deaths: int = 0
    bytes_kept: int = 0  # of payloads, or more: they are counted anew when it seems too much
    bytes_since: int = 0
    seconds_since: float = 0.0
    used: float = 0.0


class Executor:
    """The requests of all models over one base model. `report` hears of each that is over."""

    def __init__(
        self,
        store: TinkerStore,
        steps: Steps,
        report: Callable[[str, int], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store, self._steps, self._report = store, steps, report
        self._clock = clock
        self._turns: dict[str, ModelTurn] = {}
        self._arrived = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to execute."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="tinker requests")

    async def stop(self) -> None:
        """End between two requests, or within one: it is done again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def take_up(self, model: TinkerModelRow) -> None:
        """Know a model on record, and all its waiting requests."""
        if model.id in self._turns:
            return
        turn = ModelTurn(model.id, self._store.next_seq(model.id))
        turn.broken = self._store.find_broken(model.id)
        turn.bytes_kept = self._store.payload_bytes(model.id)
        self._turns[model.id] = turn
        for seq in self._store.list_pending(model.id):
            self._add(turn, seq)

    def submit(self, model_id: str, seq: int) -> None:
        """Execute a request that is on record, when its turn comes."""
        self._add(self._turns[model_id], seq)
        self._wake.set()

    def is_too_far(self, model_id: str, seq: int) -> bool:
        """Say whether so many numbers before this one are missing that no client has them yet."""
        return seq - self._turns[model_id].next_seq > MOST_AHEAD

    def keep(self, model_id: str, size: int) -> int | None:
        """Count the bytes of a request that is to be kept. Returns their sum if it is too large."""
        turn = self._turns[model_id]
        if turn.bytes_kept + size > MOST_PAYLOADS:
            turn.bytes_kept = self._store.payload_bytes(model_id)
            if turn.bytes_kept + size > MOST_PAYLOADS:
                return turn.bytes_kept + size
        turn.bytes_kept += size
        return None

    def forget(self, model_id: str) -> bool:
        """Let go of a model of a session that is over, in trainer and on disk; its requests fail.

        Returns False where this executor does not have the model.
        """
        turn = self._turns.get(model_id)
        if turn is not None:
            turn.broken = "the session is over"
            turn.waiting[-1] = -1  # before all numbers: taken as the order to leave
            self._wake.set()
        return turn is not None

    def _add(self, turn: ModelTurn, seq: int) -> None:
        if seq not in turn.waiting and seq >= turn.next_seq:
            self._arrived += 1
            turn.waiting[seq] = self._arrived

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                turn = self._choose()
                if turn is None:
                    await self._wait()
                    continue
                await self._advance(turn)
            except Exception as error:
                # Such as a disk without room: the result is not on record, so the request is done
                # again from the last state, and clients wait.
                _log.exception("requests can't be executed, trying again")
                for each in self._turns.values():
                    each.is_resident = False
                await asyncio.sleep(PAUSE_S * (10 if is_full(error) else 1))

    def _choose(self) -> ModelTurn | None:
        """The model with the request that came first, among those that are next in their order."""
        now = self._clock()
        ready = []
        for turn in self._turns.values():
            if -1 in turn.waiting:
                return turn
            if turn.next_seq in turn.waiting:
                turn.gap_since = None
                ready.append((turn.waiting[turn.next_seq], turn))
            elif turn.waiting:
                turn.gap_since = now if turn.gap_since is None else turn.gap_since
                if now - turn.gap_since >= GAP_S:
                    self._give_up_gap(turn)
            else:
                turn.gap_since = None
        return min(ready, key=lambda one: one[0])[1] if ready else None

    async def _wait(self) -> None:
        since = [turn.gap_since for turn in self._turns.values() if turn.gap_since is not None]
        timeout = max(0.01, min(since) + GAP_S - self._clock()) if since else None
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except TimeoutError:
            return

    def _give_up_gap(self, turn: ModelTurn) -> None:
        """Fail a number that never came, and the requests behind it."""
        gap, last = turn.next_seq, max(turn.waiting)
        reason = (
            f"request {gap} of {turn.model_id} never came, for {GAP_S / 60:.0f} minutes: it "
            "and those sent after it are given up, with the gradient so far"
        )
        with self._store.transaction():
            for seq in range(gap, last + 1):
                if seq not in turn.waiting:
                    self._store.add_request(turn.model_id, seq, "gap", "", b"")
                self._store.fail_request(turn.model_id, seq, reason, "server")
            self._store.void_since_step(turn.model_id, last)
        turn.is_resident, turn.has_gradient = False, False
        # The next requests may be the rest of the same gradient.
        turn.broken = self._store.find_broken(turn.model_id)
        failures, turn.waiting, turn.gap_since = [*turn.waiting], {}, None
        turn.next_seq = last + 1
        for seq in failures:
            self._report(turn.model_id, seq)

    async def _advance(self, turn: ModelTurn) -> None:
        """Execute a model's next request, and write down its result."""
        if -1 in turn.waiting:
            await self._leave(turn)
            return
        model = self._store.find_model(turn.model_id)
        row = self._store.find_request(turn.model_id, turn.next_seq)
        if model is None or row is None:
            raise EngineError(f"request {turn.next_seq} of {turn.model_id} is not on record")
        start_s = self._clock()
        try:
            if row.kind == "optim_step" and turn.broken is not None:
                await self._take_back(turn, row)
            if not turn.is_resident and not row.kind.startswith("refused"):
                await self._make_room(turn)
                if row.seq == 0:
                    await self._steps.drop(turn.model_id)  # of an attempt that is not on record
                else:
                    await self._steps.restore(model, row.seq)
                    turn.has_gradient = self._store.has_gradient(turn.model_id)
                    turn.is_resident = True
            result = await self._steps.run(model, row)
            if row.kind == "load_weights":
                # The checkpoint may be deleted at any time, so no replay can begin there: the state
                # is on disk before the result is on record.
                await self._steps.make_durable(model, row.seq, result)
            else:
                # On record before the report: no client gets a result that a kill could take back.
                self._store.end_request(turn.model_id, row.seq, result.body, result.is_protobuf)
        except UnusableGradient as failure:
            self._end_unusable(turn, row, failure)
            return
        except Failed as failure:
            self._end_failed(turn, row, failure.message, failure.category)
            return
        except ResidentDied as error:
            self._note_death(turn, row, error)
            return
        except Exception as error:
            if is_full(error):
                raise
            _log.exception("request %s of %s", row.seq, turn.model_id)
            self._note_death(turn, row, error)
            return
        self._note_done(turn, row, self._clock() - start_s)
        self._end_turn(turn, row.seq)
        await self._write_state(turn, model, row)

    def _note_done(self, turn: ModelTurn, row: RequestRow, seconds: float) -> None:
        """Note the effect of a request that is on record as done on its model."""
        turn.deaths, turn.used = 0, self._clock()
        turn.bytes_since += len(row.payload or b"")
        turn.seconds_since += seconds
        if row.kind == "create_model":
            turn.is_resident = True
        elif row.kind == "load_weights":
            turn.is_resident, turn.bytes_since, turn.seconds_since = True, 0, 0.0
        if row.kind == "forward_backward":
            turn.has_gradient = True
        elif row.kind == "optim_step":
            turn.has_gradient = False
        elif row.seq:
            self._store.drop_payload(turn.model_id, row.seq)

    async def _write_state(self, turn: ModelTurn, model: TinkerModelRow, row: RequestRow) -> None:
        """Write the model's state where enough has come since the last one."""
        enough = turn.bytes_since >= DURABLE_BYTES or turn.seconds_since >= DURABLE_S
        if enough and row.kind == "optim_step":
            try:
                await self._steps.make_durable(model, row.seq)
            except Failed as failure:
                _log.error("the state of %s is not written: %s", model.id, failure.message)
            except ResidentDied:
                self._forget_residents()
            else:
                turn.bytes_since, turn.seconds_since = 0, 0.0

    async def _take_back(self, turn: ModelTurn, row: RequestRow) -> None:
        """Refuse a step with a part of a gradient, and let go of that part."""
        reason, turn.broken = turn.broken, None
        self._let_go_of_gradient(turn, row)
        raise Failed(
            f"this step would be taken with a part of its gradient, since {reason}: nothing was "
            "changed, and the parts are taken back"
        )

    def _let_go_of_gradient(self, turn: ModelTurn, row: RequestRow) -> None:
        """Leave out the gradient before a step; the trainer next restores the model without it."""
        self._store.void_since_step(turn.model_id, row.seq)
        if turn.has_gradient:
            turn.is_resident, turn.has_gradient = False, False

    def _end_unusable(self, turn: ModelTurn, row: RequestRow, failure: Failed) -> None:
        """Refuse a step with an unusable gradient, and let go of all of it."""
        message = f"{failure.message}; the model is as it was, and this gradient is taken back"
        # Together: after a kill in between, a step of nothing would be taken.
        with self._store.transaction():
            self._let_go_of_gradient(turn, row)
            self._store.fail_request(turn.model_id, row.seq, message, failure.category)
        self._note_failed(turn, row, message)

    def _end_failed(
        self, turn: ModelTurn, row: RequestRow, message: str, category: Category
    ) -> None:
        if row.kind == "optim_step" and self._store.has_gradient(turn.model_id):
            message += (
                "; the gradient so far stays: send the step again under the next number, and its "
                "forward_backward not again"
            )
        self._store.fail_request(turn.model_id, row.seq, message, category)
        self._note_failed(turn, row, message)

    def _note_failed(self, turn: ModelTurn, row: RequestRow, message: str) -> None:
        """Note the effect of a request that is on record as failed on its model."""
        if row.kind in ("forward_backward", "refused"):
            turn.broken = turn.broken or f"request {row.seq} failed ({message[:300]})"
        elif row.kind in ("create_model", "load_weights") and row.seq == 0:
            turn.broken = f"the model could not be made: {message}"
        elif row.kind == "load_weights":
            # The weights may be in the trainer without a state behind them.
            turn.broken, turn.is_resident = f"request {row.seq} failed ({message[:300]})", False
        self._store.drop_payload(turn.model_id, row.seq)
        turn.deaths = 0
        self._end_turn(turn, row.seq)

    def _note_death(self, turn: ModelTurn, row: RequestRow, error: Exception) -> None:
        _log.warning("request %s of %s is done again: %s", row.seq, turn.model_id, error)
        self._forget_residents()
        turn.deaths += 1
        if turn.deaths >= MOST_DEATHS:
            message = f"this request was begun {turn.deaths} times and broke: {error}"
            self._end_failed(turn, row, message, "server")

    def _forget_residents(self) -> None:
        self._steps.trainer_restarted()
        for each in self._turns.values():
            each.is_resident = False

    def _end_turn(self, turn: ModelTurn, seq: int) -> None:
        turn.waiting.pop(seq, None)
        turn.next_seq = seq + 1
        self._report(turn.model_id, seq)

    async def _make_room(self, turn: ModelTurn) -> None:
        resident = [each for each in self._turns.values() if each.is_resident and each is not turn]
        if len(resident) < MOST_RESIDENT:
            return
        idlest = min(resident, key=lambda each: each.used)
        model = self._store.find_model(idlest.model_id)
        # With a gradient that waits for its step, it is restored from its payloads.
        if model is not None and not idlest.has_gradient and idlest.next_seq > 1:
            try:
                await self._steps.make_durable(model, idlest.next_seq - 1)
            except (Failed, OSError) as error:
                # It is restored so, too, where its state can't be written, as on a full disk.
                _log.error("%s leaves without a new state: %s", model.id, error)
        await self._steps.drop(idlest.model_id)
        idlest.is_resident = False

    async def _leave(self, turn: ModelTurn) -> None:
        """Let go of the model of a session that is over."""
        del self._turns[turn.model_id]
        for seq in sorted(turn.waiting):
            if seq >= 0:
                self._store.fail_request(turn.model_id, seq, "the session is over", "user")
                self._report(turn.model_id, seq)
        try:
            if turn.is_resident:
                await self._steps.drop(turn.model_id)
        except ResidentDied:
            self._forget_residents()
        # Only now: the executor may have been writing one of them until here.
        self._steps.remove_states(turn.model_id)


def explain_payloads(seq: int, size: int) -> str:
    """Say why a request is refused: its model has too many bytes on record that wait for a step."""
    return (
        f"with request {seq} this model would have {size} bytes of requests on record that wait or "
        f"are not behind a step yet, at most {MOST_PAYLOADS} are kept: wait for results, and call "
        "optim_step after fewer of them, which lets them go"
    )
