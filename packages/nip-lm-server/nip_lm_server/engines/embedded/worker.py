"""The thread that owns a model: it loads it, runs its batches and takes commands in between.

Pending           a request that waits or runs, with the event of its progress
ModelWorker       the thread; other threads only call its public methods

Between two tokens the thread takes waiting commands (load, unload, prove) and lets waiting
requests join the batch. Streamed requests run in the same batch as the others: after each step
the thread sets the events of all listeners in one call, and goes on. The listeners read the rows
themselves.
"""

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

import torch

from nip_lm_server.engines.base import EngineError, EngineState
from nip_lm_server.engines.embedded.decoding.answers import may_begin, wake_listeners
from nip_lm_server.engines.embedded.decoding.batching import Decoder, Row
from nip_lm_server.engines.embedded.decoding.kv_cache import find_cache_room
from nip_lm_server.engines.embedded.decoding.loaded_model import (
    EmbeddedOptions,
    LoadedModel,
    check_batching,
    is_fatal,
    is_out_of_memory,
    load_engine_model,
)
from nip_lm_server.engines.embedded.decoding.slot_decoder import make_decoder
from nip_lm_server.engines.embedded.prompt_tokens import PromptEncoder
from nip_lm_server.engines.guided import Guide, begin_matching, make_vocabulary
from nip_lm_server.lora.rowwise_lora import LoraAdapter, RowwiseLora

JOIN_EVERY_STEPS = 8
"""Steps between two joinings of a running batch: joining copies the cache. A rule of thumb: with
far fewer, the copies cost more than the steps; with far more, a first token comes late."""
STOP_TIMEOUT_S = 30.0
"""Time for the pass that is under way, which nothing can interrupt. A rule of thumb: with far less,
a long prompt would count as a thread that hangs; with far more, such a thread holds up the server's
own end."""
_IDLE_WAIT_S = 1.0
"""Requests and commands wake the thread; this only bounds the delay of a lost wake-up."""
_DRAIN_INTERVAL_S = 0.02
"""Each look is a command that runs between two steps: more looks than steps would find nothing
new."""
_T = TypeVar("_T")
_log = logging.getLogger("nip.lm_server.engine")
_KEPT_GRAMMARS = 32


@dataclass(eq=False)
class Pending:
    """A waiting or running request; its rows share one prompt.

    It belongs to the event loop that it is made on. `progress` is set there once the request has
    `ended` or has a `failure`, and for a `streamed` one also after every step that may have added
    tokens.
    """

    rows: list[Row]
    streamed: bool
    failure: EngineError | None = None
    ended: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    progress: asyncio.Event = field(default_factory=asyncio.Event)


class ModelWorker:
    """Loads the model and serves it until it is stopped; used once.

    After `start`, `loaded` is the model. Only commands change `adapters` (by served name). `state`
    is starting, running, sleeping or failed; `death` has the reason once the thread has ended after
    `start` without `stop`.
    """

    loaded: LoadedModel
    lora: RowwiseLora
    decoder: Decoder
    prompts: PromptEncoder

    def __init__(self, model_path: str, options: EmbeddedOptions):
        self._model_path, self._options = model_path, options
        self.death: Future[str] = Future()
        self.state: EngineState = "starting"
        self.adapters: dict[str, LoraAdapter] = {}
        self.commands_done = 0
        self._cache_tokens = 0
        self._waiting: deque[Pending] = deque()
        self._running: list[Pending] = []
        self._commands: deque[Callable[[EngineError | None], None]] = deque()
        self._wake = threading.Condition()
        # The event loop encodes prompts while this thread decodes answers, and the tokenizer
        # allows one at a time.
        self._tokenizer_lock = threading.Lock()
        # The text of one token, special or not. Cached, since the likeliest ones come again.
        self.show_token = cache(lambda token: self.decode([token], special=True))
        # Whether a token may begin one of these words.
        self.begins = lru_cache(maxsize=8)(
            lambda words: cache(lambda token: may_begin(self.show_token(token), words))
        )
        self._guides_lock = threading.Lock()
        self._vocabulary: Any = None
        self._guides: dict[str, Guide] = {}
        self._closing = False
        # A daemon: nothing can interrupt a pass, and a pass that hangs must not keep the server
        # from ending.
        self._thread = threading.Thread(target=self._work, name="embedded-engine", daemon=True)
        self._started: Future[None] = Future()

    # Called by other threads

    async def start(self) -> None:
        """Load the model. Raises EngineError with the reason if it can't be served."""
        self._thread.start()
        await asyncio.wrap_future(self._started)

    async def stop(self) -> None:
        """End the thread and free the model. Waiting and running requests fail with EngineError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        # In a thread: the event loop answers for other engines meanwhile.
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise EngineError(f"the engine did not stop within {STOP_TIMEOUT_S:.0f} s")

    async def sleep(self, timeout_s: float) -> None:
        """Refuse new requests, finish the others, and free the device's memory.

        Requests that have not ended after `timeout_s` fail with EngineError.
        """
        # 1. No more requests.
        with self._wake:
            self._refuse_unless("running")
            self.state = "sleeping"
        # 2. Running requests may end. Commands go on, and so does the thread.
        deadline = time.monotonic() + timeout_s
        while await self.run(lambda: bool(self._running or self._waiting)):
            # A long answer must not hold up the next user of the device.
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_DRAIN_INTERVAL_S)
        # 3. The remaining requests fail.
        await self.run(self._leave_device)

    async def wake(self) -> None:
        """Undo `sleep`. Raises EngineError if the device has too little memory now."""
        await self.run(self._return_to_device)
        self.state = "running"

    @property
    def waiting(self) -> int:
        """Count the requests not yet in the batch."""
        return len(self._waiting)

    def submit(self, pending: Pending) -> None:
        """Queue a request. Setting `cancelled` on its rows abandons it."""
        with self._wake:
            self._refuse_unless("running")
            self._waiting.append(pending)
            self._wake.notify()

    def unload(self, name: str) -> None:
        """Forget an adapter; as a command, in the thread."""
        if adapter := self.adapters.pop(name, None):
            self.decoder.forget(adapter)

    async def run(self, action: Callable[[], _T]) -> _T:
        """Run `action` in this thread, between two forward passes.

        Raises the action's error; EngineError where the device's memory was too small for it.
        """
        result: Future[_T] = Future()

        def command(failure: EngineError | None) -> None:
            if not result.set_running_or_notify_cancel():  # its sender was cancelled
                return
            if failure is not None:
                result.set_exception(failure)
                return
            try:
                result.set_result(action())
            # The error of a command goes to its sender; the batch goes on.
            except Exception as error:
                result.set_exception(
                    _describe_lost_memory(error) if is_out_of_memory(error) else error
                )
            except BaseException as error:
                # It ends the thread. The sender, who waits, gets an error first.
                result.set_exception(EngineError(f"the engine died: {error!r}"))
                raise

        with self._wake:
            self._refuse_unless("running", "sleeping")
            self._commands.append(command)
            self._wake.notify()
        return await asyncio.wrap_future(result)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; `special` keeps the special tokens."""
        with self._tokenizer_lock:
            return str(
                self.loaded.tokenizer.decode(
                    ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False
                )
            )

    def guide(self, grammar: str, param: str) -> Guide:
        """Begin an answer with a grammar. Raises EngineRequestError for too large a grammar.

        The first call makes the model's vocabulary. The guides of the newest grammars are kept at
        their beginning: players send the same few again and again.
        """
        # One of several requests makes the vocabulary, and the others wait for it.
        with self._guides_lock:
            if self._vocabulary is None:
                with self._tokenizer_lock:
                    loaded, config = self.loaded, self.loaded.model.config.get_text_config()
                    self._vocabulary = make_vocabulary(
                        loaded.tokenizer, config.vocab_size, loaded.stop_tokens
                    )
            guide = self._guides.pop(grammar, None)
            if guide is None:
                guide = Guide(begin_matching(self._vocabulary, grammar, param))
            self._guides[grammar] = guide
            if len(self._guides) > _KEPT_GRAMMARS:
                del self._guides[next(iter(self._guides))]
            return guide.copy()

    def _refuse_unless(self, *states: EngineState) -> None:
        if self._closing or self.state not in states:
            state = "stopped" if self._closing and self.state != "failed" else self.state
            raise EngineError(f"the engine is {state}")

    # In the thread itself

    def _work(self) -> None:
        # 1. Load. From here on, a cancelled `start` does not cancel the future that the thread
        #    reports to.
        if not self._started.set_running_or_notify_cancel():
            return
        try:
            with torch.inference_mode():
                self._load()
        # Any error: one that ended the thread silently would leave `start` waiting for ever.
        except BaseException as error:
            self.state = "failed"
            failure = EngineError(f"can't serve {self._model_path!r}: {error!r}")
            failure.__cause__ = error
            self._started.set_exception(error if isinstance(error, EngineError) else failure)
            return
        # In this order: a caller that `start` returns to may submit at once.
        self.state = "running"
        self._started.set_result(None)
        # 2. Serve until it is stopped, or an error ends it.
        reason: str | None = None
        try:
            with torch.inference_mode():
                self._loop()
        # Any error, for the same reason: step 3 wakes the callers that wait.
        except BaseException as error:
            reason = f"out of memory: {error}" if is_out_of_memory(error) else repr(error)
            _log.exception("the engine of %s died", self._model_path)
            self.state = "failed"
        # 3. Fail all requests that wait, free the model, and give the reason.
        ending = "was stopped" if reason is None else f"died: {reason}"
        self._fail_all(EngineError(f"the engine {ending}"))
        self._release()
        # Last: its reader may start another engine, for which the memory has to be free.
        if reason is not None:
            self.death.set_result(reason)

    def _load(self) -> None:
        # 1. The model, its prompts and its adapters.
        loaded = self.loaded = load_engine_model(self._model_path, self._options)
        self.prompts = PromptEncoder(loaded.tokenizer, self._tokenizer_lock, loaded.max_model_len)
        self.lora = RowwiseLora(loaded.model)
        # 2. Refuse a model that answers otherwise in a batch than alone; measure a token's bytes.
        library = Decoder(loaded.model, self.lora, loaded.stop_tokens)
        token_bytes = check_batching(library, loaded, self._model_path)
        # 3. The decoder, with our own pass where that computes the same.
        self.decoder = make_decoder(loaded, self.lora)
        # 4. Room for the cache, now that the model is on the device.
        room = self.decoder.most_bytes = find_cache_room(self._options.cache_bytes, loaded.device)
        self._cache_tokens = room // token_bytes

    def _loop(self) -> None:
        steps = JOIN_EVERY_STEPS
        while True:
            # 1. Wait for something to do.
            with self._wake:
                while not (self._closing or self._commands or self._waiting or self._running):
                    self._wake.wait(_IDLE_WAIT_S)
                    self.decoder.heed_memory()  # other programs may want it meanwhile
                # Before the commands: a stop waits for no load or proof. `_fail_all` answers their
                # senders.
                if self._closing:
                    return
            # 2. Adapt the number of threads. Load, unload and prove, while no pass is under way.
            self.loaded.threads.look()
            while self._commands:
                self._commands.popleft()(None)
                self.commands_done += 1
            # 3. Let requests join the batch.
            # Only an idle engine waits: at work, requests join later anyway.
            if not self._running and len(self._waiting) < self._options.max_batch:
                self._await_company()
            # Joining copies the cache of all running rows, so it waits for a few of their tokens.
            if steps >= JOIN_EVERY_STEPS or not self._running:
                steps = 0
                self._advance_safely(self._admit)
            # 4. One more token for every row.
            self._advance_safely(self.decoder.step)
            steps += 1

    def _await_company(self) -> None:
        """Wait a moment for requests sent at the same time: they can then run together."""
        deadline = time.monotonic() + self._options.max_wait_s
        while self._waiting and len(self._waiting) < self._options.max_batch:
            count = len(self._waiting)
            time.sleep(self._options.max_wait_s / 4)
            # No request came for a moment, so no other was sent at the same time.
            if len(self._waiting) == count or time.monotonic() > deadline:
                return

    def _advance_safely(self, advance: Callable[[], list[Row]]) -> None:
        """Advance the batch; if this fails, fail its requests and go on with the next ones."""
        try:
            advance()
        except Exception as error:
            if is_fatal(error):
                raise  # ends the thread and the engine, which is then started anew
            # The cache may be half written, so no row of the batch can go on.
            self.decoder.clear()
            failure = EngineError(f"generation failed: {error!r}")
            failure.__cause__ = error
            self._fail_running(failure)
            return
        # The reader of a whole answer is woken at its end, of a stream after every step.
        for pending in self._running:
            pending.ended = all(row.finish_reason is not None for row in pending.rows)
        wake_listeners([each for each in self._running if each.ended or each.streamed])
        self._running = [p for p in self._running if not (p.ended or p.rows[0].cancelled)]

    def _admit(self) -> list[Row]:
        # 1. Take requests in their order, as long as rows and cache have room for the next one. A
        #    request that is too large by itself runs alone.
        admitted: list[Pending] = []
        rows, longest = self.decoder.rows, self.decoder.longest
        with self._wake:
            while self._waiting:
                pending = self._waiting[0]
                # It was abandoned, so its prompt need not be run.
                if pending.rows[0].cancelled:
                    self._waiting.popleft()
                    continue
                needed_tokens = len(pending.rows[0].prompt) + pending.rows[0].max_tokens
                total_rows = rows + len(pending.rows)
                is_too_large = total_rows * max(longest, needed_tokens) > self._cache_tokens
                # Strictly in order: else a large request would wait for ever behind small ones.
                if rows and (total_rows > self._options.max_batch or is_too_large):
                    break
                self._waiting.popleft()
                admitted.append(pending)
                rows, longest = total_rows, max(longest, needed_tokens)
        if not admitted:
            return []
        # 2. Run their prompts. As running requests, they get an error that ends the pass.
        self._running += admitted
        return self.decoder.admit([pending.rows for pending in admitted])

    def _leave_device(self) -> None:
        """Fail the remaining requests, and move everything to the machine's memory.

        First the requests, since no pass may run on a model that moves. Waiting ones fail too:
        the engine may sleep for any time.
        """
        with self._wake:
            self._running += self._waiting
            self._waiting.clear()
        self._fail_running(EngineError("the engine went to sleep before the answer was ready"))
        self.decoder.clear()
        # On a CPU the weights would stay in the same memory, so only the cache is given back.
        if self.loaded.device != "cpu":
            self.decoder.leave_model()
            self._move("cpu")
            # torch keeps freed memory for itself, and a training could not have it.
            torch.cuda.empty_cache()

    def _return_to_device(self) -> None:
        if self.loaded.device != "cpu":
            self._move(self.loaded.device)
            self.decoder.return_to_model()

    def _move(self, device: str) -> None:
        self.loaded.model.to(device)
        for adapter in self.adapters.values():
            adapter.move(device)

    def _fail_running(self, failure: EngineError) -> None:
        for pending in self._running:
            pending.failure = failure
        wake_listeners(self._running)
        self._running = []

    def _fail_all(self, failure: EngineError) -> None:
        with self._wake:
            # First, so that later requests are refused instead of never being answered.
            self._closing = True
            self._running += self._waiting
            self._waiting.clear()
            commands = list(self._commands)
            self._commands.clear()
        self._fail_running(failure)
        for command in commands:
            command(failure)

    def _release(self) -> None:
        self.prompts.close()
        self.decoder.clear()
        self.adapters.clear()
        del self.decoder, self.lora
        self.loaded = replace(self.loaded, model=None)  # ended answers are still decoded
        gc.unfreeze()  # the server's start may have frozen objects that hold the model
        # A model's modules hold each other, and the collector might run late: on a card the weights
        # would stay beside the training that the engine was stopped for.
        gc.collect()
        if torch.cuda.is_available():
            with contextlib.suppress(Exception):  # an error on the device makes it refuse
                torch.cuda.empty_cache()


def _describe_lost_memory(error: Exception) -> EngineError:
    # Without the error's traceback, which would hold the memory of its frames.
    return EngineError(f"the device's memory is too small for this: {error}")
