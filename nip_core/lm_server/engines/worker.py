"""The thread that owns a model: it loads it, runs its batches and takes commands in between.

WorkerSettings    what is loaded and how much runs at once
Pending           a request that waits or runs, and where its end is told
ModelWorker       the thread; other threads only call its public methods

Between two tokens the thread takes waiting commands (load, unload, prove) and lets waiting
requests join the batch.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from nip_core.lm_server import chat_template
from nip_core.lm_server.engines.base import EngineError
from nip_core.lm_server.engines.batching import Decoder, Row
from nip_core.lm_server.engines.lora import LoraAdapter, RowwiseLora
from nip_core.lm_server.engines.sampling import RowRandom, Settings

JOIN_EVERY_STEPS = 8
"""Requests join a running batch at most this often: joining copies the cache."""
STOP_TIMEOUT_S = 30.0
_IDLE_WAIT_S = 1.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class WorkerSettings:
    """See `EmbeddedEngine` for each."""

    model_path: str
    device: str = "auto"
    dtype: str = "auto"
    max_batch: int = 64
    max_wait_s: float = 0.002
    max_model_len: int | None = None
    cache_bytes: int | None = None
    threads: int | None = None


@dataclass(eq=False)
class Pending:
    """A request that waits or runs; its rows share one prompt. `done` ends with the last row."""

    rows: list[Row]
    done: "Future[None]" = field(default_factory=Future)
    unfinished: int = 0


class ModelWorker:
    """Loads the model and serves it until it is stopped; used once.

    After `start`: `tokenizer`, `model`, `lora`, `decoder`, `stop_tokens`, `max_model_len`,
    `device`, `dtype`, `threads` and `template_shapes` say what was loaded. `adapters` (by served
    name) is changed by commands alone.
    """

    tokenizer: Any
    model: Any
    lora: RowwiseLora
    decoder: Decoder
    stop_tokens: frozenset[int]
    max_model_len: int

    def __init__(self, settings: WorkerSettings):
        self._settings = settings
        self.state = "starting"
        self.device, self.dtype, self.threads = settings.device, settings.dtype, settings.threads
        self.template_shapes: dict[str, bool] = {}
        self.adapters: dict[str, LoraAdapter] = {}
        self.generated_tokens = 0
        self._cache_tokens = 0
        self._waiting: deque[Pending] = deque()
        self._running: list[Pending] = []
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._tokenizer_lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="embedded-engine", daemon=True)
        self._loaded: Future[None] = Future()

    # Called by other threads

    async def start(self) -> None:
        """Load the model. Raises EngineError with the reason if it can't be served."""
        self._thread.start()
        await asyncio.wrap_future(self._loaded)

    async def stop(self) -> None:
        """End the thread and free the model. What still waits or runs fails with EngineError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise EngineError(f"the engine did not stop within {STOP_TIMEOUT_S:.0f} s")

    @property
    def waiting(self) -> int:
        """Requests that have not joined the batch yet."""
        return len(self._waiting)

    def submit(self, pending: Pending) -> None:
        """Queue a request. Setting `cancelled` on its rows abandons it."""
        pending.unfinished = len(pending.rows)
        with self._wake:
            self._refuse_if_closing()
            self._waiting.append(pending)
            self._wake.notify()

    async def run(self, action: Callable[[], _T]) -> _T:
        """Run `action` in this thread, between two forward passes."""
        result: Future[_T] = Future()

        def command() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(action())
            except Exception as error:
                result.set_exception(error)

        with self._wake:
            self._refuse_if_closing()
            self._commands.append(command)
            self._wake.notify()
        return await asyncio.wrap_future(result)

    def encode_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a prompt. Raises ChatTemplateError."""
        with self._tokenizer_lock:
            return chat_template.encode_prompt(self.tokenizer, messages)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids; `special` keeps the special tokens."""
        with self._tokenizer_lock:
            return str(
                self.tokenizer.decode(
                    ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False
                )
            )

    def _refuse_if_closing(self) -> None:
        if self._closing or self.state != "running":
            raise EngineError("the engine is not running")

    # In the thread itself

    def _work(self) -> None:
        try:
            with torch.inference_mode():
                self._load()
                self._check_batching()
        except EngineError as error:
            self._fail_start(error)
            return
        except Exception as error:
            failure = EngineError(f"can't serve {self._settings.model_path!r}: {error!r}")
            failure.__cause__ = error
            self._fail_start(failure)
            return
        self.state = "running"
        self._loaded.set_result(None)
        try:
            with torch.inference_mode():
                self._loop()
        except BaseException:
            self.state = "failed"
            raise
        finally:
            self._fail_all(EngineError("the engine was stopped"))
            self._release()

    def _fail_start(self, failure: EngineError) -> None:
        self.state = "failed"
        self._loaded.set_exception(failure)

    def _load(self) -> None:
        from transformers import AutoModelForCausalLM

        path = self._settings.model_path
        if self.threads is None:
            self.threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, _processors() // 2))
        torch.set_num_threads(self.threads)
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.dtype == "auto":
            self.dtype = "float32" if self.device == "cpu" else "bfloat16"
        try:
            self.tokenizer = chat_template.load_tokenizer(path)
            self.template_shapes = chat_template.check_shapes(self.tokenizer)
            if not self.template_shapes["user"]:
                raise chat_template.ChatTemplateError(
                    f"the chat template of {path!r} refuses a single user message"
                )
            self.model = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=getattr(torch, self.dtype),
                local_files_only=chat_template.offline(),
                trust_remote_code=False,
                use_safetensors=True,
            )
        except (chat_template.ModelPathError, chat_template.ChatTemplateError) as error:
            raise EngineError(str(error)) from error
        except (OSError, ValueError) as error:
            raise EngineError(f"can't load the model {path!r}: {error}") from error
        self.model.to(self.device).eval().requires_grad_(False)
        limit = self._settings.max_model_len or chat_template.context_length(
            self.tokenizer, self.model.config
        )
        if limit is None:
            raise EngineError(
                f"neither the configuration nor the tokenizer of {path!r} says how long its "
                "context is: set max_model_len"
            )
        self.max_model_len = limit
        self.stop_tokens = chat_template.stop_token_ids(
            self.tokenizer, getattr(self.model, "generation_config", None)
        )
        self.lora = RowwiseLora(self.model)
        self.decoder = Decoder(self.model, self.lora, self.stop_tokens, self.decode, pad_token=0)

    def _check_batching(self) -> None:
        """Refuse a model that answers differently in a padded batch; learn the cache's size."""
        user = ({"role": "user", "content": "Is the code right?"},)
        long = chat_template.encode_prompt(self.tokenizer, user)
        short = long[-max(2, len(long) // 2) :]

        def first_logits(rows: list[list[int]]) -> tuple[torch.Tensor, int]:
            cache, logits = self.decoder.prefill([_probe_row(ids) for ids in rows])
            used = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
            token_bytes = used // (len(rows) * max(map(len, rows)))
            return logits[-1].float(), token_bytes

        alone, token_bytes = first_logits([short])
        padded, _ = first_logits([long, short])
        difference = float((alone - padded).abs().max())
        if not difference <= 0.05 * float(alone.abs().max()):
            raise EngineError(
                f"{self._settings.model_path!r} can't be served in batches: the logits of a padded "
                f"prompt differ by {difference:.3g} from those of the prompt alone"
            )
        room = self._settings.cache_bytes
        if room is None:
            room = 2 << 30 if self.device == "cpu" else int(0.6 * torch.cuda.mem_get_info()[0])
        self._cache_tokens = room // max(1, token_bytes)

    def _loop(self) -> None:
        steps = JOIN_EVERY_STEPS
        while True:
            with self._wake:
                while not (self._closing or self._commands or self._waiting or self._running):
                    self._wake.wait(_IDLE_WAIT_S)
                if self._closing:
                    return
            self._run_commands()
            if not self._running and len(self._waiting) < self._settings.max_batch:
                self._await_company()
            if steps >= JOIN_EVERY_STEPS or not self._running:
                steps = 0
                self._guarded(self._admit)
            self._guarded(self.decoder.step)
            steps += 1

    def _await_company(self) -> None:
        """Give requests that are sent at the same time the chance to run together."""
        deadline = time.monotonic() + self._settings.max_wait_s
        while len(self._waiting) < self._settings.max_batch and time.monotonic() < deadline:
            before = len(self._waiting)
            time.sleep(self._settings.max_wait_s / 4)
            if before and len(self._waiting) == before:
                return

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _guarded(self, advance: Callable[[], list[Row]]) -> None:
        """Advance the batch; if that fails, fail its requests and go on with the next ones."""
        try:
            finished = advance()
        except Exception as error:
            self.decoder.clear()
            failure = EngineError(f"generation failed: {error!r}")
            failure.__cause__ = error
            for pending in self._running:
                _settle(pending, failure)
            self._running = []
            return
        self.generated_tokens += sum(len(row.generated) for row in finished)
        for pending in self._running:
            pending.unfinished = sum(row.finish_reason is None for row in pending.rows)
            if pending.unfinished == 0:
                _settle(pending, None)
        self._running = [p for p in self._running if p.unfinished and not p.rows[0].cancelled]

    def _admit(self) -> list[Row]:
        taken: list[Pending] = []
        rows, longest = self.decoder.rows, self.decoder.longest
        with self._wake:
            while self._waiting:
                pending = self._waiting[0]
                if pending.rows[0].cancelled:
                    self._waiting.popleft()
                    continue
                need = len(pending.rows[0].prompt) + pending.rows[0].max_tokens
                total = rows + len(pending.rows)
                too_large = total * max(longest, need) > self._cache_tokens
                if rows and (total > self._settings.max_batch or too_large):
                    break
                self._waiting.popleft()
                taken.append(pending)
                rows, longest = total, max(longest, need)
        if not taken:
            return []
        self._running += taken
        return self.decoder.admit([pending.rows for pending in taken])

    def _fail_all(self, failure: EngineError) -> None:
        with self._wake:
            pending = [*self._running, *self._waiting]
            self._running, self._closing = [], True
            self._waiting.clear()
            commands = list(self._commands)
            self._commands.clear()
        for one in pending:
            _settle(one, failure)
        for command in commands:
            command()

    def _release(self) -> None:
        self.decoder.clear()
        del self.decoder, self.lora, self.model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _settle(pending: Pending, failure: EngineError | None) -> None:
    if pending.done.done() or not pending.done.set_running_or_notify_cancel():
        return
    if failure is None:
        pending.done.set_result(None)
    else:
        pending.done.set_exception(failure)


def _probe_row(ids: list[int]) -> Row:
    return Row(ids, None, 1, Settings(temperature=0.0), RowRandom(0))


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
