"""The engine in one process: any causal model with a chat template, and LoRA adapters over it.

EmbeddedEngine    the `Engine` interface; a thread of its own owns the model

Requests wait in a queue. Between two tokens the thread takes waiting commands (load, unload,
prove) and lets waiting requests join the batch, each with its own adapter, settings and random
numbers. What a request gets depends on its own seed alone, up to float rounding.

Log-probabilities are the model's own, before temperature, penalty and top-p.
"""

import asyncio
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from nip_core.lm_server import chat_template, probe
from nip_core.lm_server.engines.base import (
    ChatRequest,
    ChatResult,
    Choice,
    EngineError,
    EngineRequestError,
    Proof,
)
from nip_core.lm_server.engines.batching import Decoder, Row
from nip_core.lm_server.engines.lora import LoraAdapter, LoraFiles, RowwiseLora, read_lora
from nip_core.lm_server.engines.sampling import RowRandom, Settings

JOIN_EVERY_STEPS = 8
"""Requests join a running batch at most this often: joining copies the cache."""
STOP_TIMEOUT_S = 30.0
_IDLE_WAIT_S = 1.0
_MAX_RIVALS = 14  # other adapters that a proof compares with

_T = TypeVar("_T")


@dataclass(eq=False)
class _Pending:
    """A request that waits or runs, and where its answer goes."""

    rows: list[Row]
    done: "Future[None]" = field(default_factory=Future)
    unfinished: int = 0


class EmbeddedEngine:
    """Serves `model_path` (a directory or a hub name) and adapters over it.

    `device` is "auto", "cpu" or "cuda"; `dtype` "auto" (float32 on CPU, bfloat16 on CUDA),
    "float32", "bfloat16" or "float16". `max_batch` rows run at once, within `cache_bytes` of keys
    and values (None: 2 GiB on CPU, 60 % of what the model leaves free on CUDA). An idle engine
    waits `max_wait_s` for company after a first request. `threads` None means OMP_NUM_THREADS or
    half the processors: small models gain little from more, and threads that must share a
    processor with another program slow each other down many times over.
    """

    name = "embedded"

    def __init__(
        self,
        model_path: str,
        served_name: str | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_batch: int = 64,
        max_wait_s: float = 0.002,
        max_model_len: int | None = None,
        cache_bytes: int | None = None,
        threads: int | None = None,
        epoch: int = 0,
    ):
        self.model_path = model_path
        local = Path(model_path).expanduser()
        self.base_model = served_name or (local.resolve().name if local.is_dir() else model_path)
        self.epoch = epoch
        self._device_name, self._dtype_name = device, dtype
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
        self._max_model_len, self._cache_bytes = max_model_len, cache_bytes
        self._threads = threads
        self._state = "stopped"
        self._template_shapes: dict[str, bool] = {}
        self._adapters: dict[str, LoraAdapter] = {}
        self._waiting: deque[_Pending] = deque()
        self._running: list[_Pending] = []
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._tokenizer_lock = threading.Lock()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._requests = self._generated = self._batches = 0

    # The interface

    async def start(self) -> None:
        """Load the model. Raises EngineError with the reason if it can't be served."""
        if self._thread is not None:
            return
        self.epoch += 1
        self._closing, self._state = False, "starting"
        loaded: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(loaded,), name="embedded-engine", daemon=True
        )
        self._thread.start()
        try:
            await asyncio.wrap_future(loaded)
        except BaseException:
            self._state = "failed"
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the thread and free the model. What still waits or runs fails with EngineError."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(thread.join, STOP_TIMEOUT_S)
        if thread.is_alive():
            raise EngineError(f"the engine did not stop within {STOP_TIMEOUT_S:.0f} s")
        self._adapters = {}
        if self._state != "failed":
            self._state = "stopped"

    async def chat(self, request: ChatRequest) -> ChatResult:
        """Answer, or raise EngineRequestError. Cancelling the await abandons the request."""
        adapter = self._find(request.model)
        prompt = await self._encode(request.messages)
        max_tokens = self._room_for(len(prompt), request.max_tokens)
        seed = secrets.randbits(63) if request.seed is None else request.seed
        settings = Settings(request.temperature, request.top_p, request.repetition_penalty)
        rows = [
            Row(
                prompt=prompt,
                adapter=adapter,
                max_tokens=max_tokens,
                settings=settings,
                random=RowRandom(seed, choice),
                stop=request.stop,
                wants_logprobs=request.logprobs,
            )
            for choice in range(request.n)
        ]
        if len(rows) > self._max_batch:
            raise EngineRequestError(
                f"n is {request.n}, this engine runs at most {self._max_batch} rows at once",
                code="invalid_value",
                param="n",
            )
        pending = _Pending(rows, unfinished=len(rows))
        self._submit(pending)
        try:
            await asyncio.wrap_future(pending.done)
        finally:
            for row in rows:
                row.cancelled = True  # of no effect once finished
        self._requests += 1
        choices = tuple(self._choice(row, request) for row in rows)
        return ChatResult(
            model=request.model,
            choices=choices,
            prompt_tokens=len(prompt),
            prompt_token_ids=tuple(prompt) if request.return_token_ids else None,
        )

    async def tokenize(self, model: str, messages: tuple[dict[str, Any], ...]) -> tuple[int, ...]:
        """Token ids of the prompt these messages give, generation prompt included."""
        self._find(model)
        return tuple(await self._encode(messages))

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens. Known once the engine has started."""
        if self._max_model_len is None:
            raise EngineError("the engine has not been started, so its context is not known")
        return self._max_model_len

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` answer to `name` without stopping anything.

        Loading the same weights again does nothing; other weights under a name that is in use
        raise EngineError, and so do files that aren't a LoRA adapter over this base.
        """
        if name == self.base_model:
            raise EngineError(f"{name!r} is the base model's name")
        files = await asyncio.to_thread(read_lora, path)
        present = self._adapters.get(name)
        if present is not None:
            if present.digest == files.digest:
                return
            raise EngineError(f"an adapter with other weights already answers to {name!r}")
        await self._command(lambda: self._attach(name, files))

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Requests that are running with it end with it."""
        if name not in self._adapters:
            raise EngineError(f"no adapter answers to {name!r}")
        await self._command(lambda: self._adapters.pop(name, None))

    def loaded_adapters(self) -> tuple[str, ...]:
        """Names of the adapters that answer now, in the order they were loaded."""
        return tuple(self._adapters)

    async def prove(self, name: str, path: Path) -> Proof:
        """Check that `name` answers with the weights in `path`; see `nip_core.lm_server.probe`."""
        self._find(name)
        files = await asyncio.to_thread(read_lora, path)
        return await self._command(lambda: self._prove(name, files))

    def status(self) -> dict[str, Any]:
        """JSON-encodable facts: state, epoch, requests served, device, versions."""
        import transformers

        return {
            "engine": self.name,
            "state": self._state,
            "epoch": self.epoch,
            "base_model": self.base_model,
            "adapters": list(self._adapters),
            "device": str(self._device_name),
            "dtype": str(self._dtype_name),
            "threads": self._threads,
            "max_batch": self._max_batch,
            "max_model_len": self._max_model_len,
            "chat_template": dict(self._template_shapes),
            "requests": self._requests,
            "generated_tokens": self._generated,
            "waiting": len(self._waiting),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }

    # Before the queue: on the caller's event loop

    def _find(self, model: str) -> LoraAdapter | None:
        if self._state != "running":
            raise EngineError(f"the engine is {self._state}")
        if model == self.base_model:
            return None
        adapter = self._adapters.get(model)
        if adapter is None:
            known = ", ".join([self.base_model, *self._adapters])
            raise EngineRequestError(
                f"no model answers to {model!r}; known: {known}",
                code="model_not_found",
                param="model",
            )
        return adapter

    async def _encode(self, messages: tuple[dict[str, Any], ...]) -> list[int]:
        try:
            with self._tokenizer_lock:
                return chat_template.encode_prompt(self._tokenizer, messages)
        except chat_template.ChatTemplateError as error:
            raise EngineRequestError(str(error), code="chat_template", param="messages") from error

    def _room_for(self, prompt_tokens: int, max_tokens: int | None) -> int:
        room = self.max_model_len - prompt_tokens
        if max_tokens is not None and max_tokens < 1:
            raise EngineRequestError(
                f"max_tokens must be at least 1, got {max_tokens}", "invalid_value", "max_tokens"
            )
        if room < (max_tokens or 1):
            asked = f" and {max_tokens} for the answer" if max_tokens else ""
            raise EngineRequestError(
                f"This model's context is {self.max_model_len} tokens; the messages take "
                f"{prompt_tokens}{asked}. Shorten the messages or lower max_tokens.",
                code="context_length_exceeded",
                param="messages",
            )
        return max_tokens or room

    def _choice(self, row: Row, request: ChatRequest) -> Choice:
        with self._tokenizer_lock:
            text = self._decode(self._without_stop_token(row.generated))
            tokens = (
                tuple(self._decode_raw([i]) for i in row.generated) if request.logprobs else None
            )
        cuts = [text.index(stop) for stop in row.stop if stop in text]
        return Choice(
            text=text[: min(cuts)] if cuts else text,
            finish_reason=row.finish_reason or "length",
            completion_tokens=len(row.generated),
            tokens=tokens,
            token_ids=tuple(row.generated) if request.return_token_ids else None,
            logprobs=tuple(row.logprobs) if request.logprobs else None,
        )

    def _without_stop_token(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[:-1] if ids and ids[-1] in self._stop_tokens else ids

    def _decode(self, ids: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _decode_raw(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def _decode_locked(self, ids: Sequence[int]) -> str:
        with self._tokenizer_lock:
            return self._decode(ids)

    def _submit(self, pending: _Pending) -> None:
        with self._wake:
            if self._closing or self._thread is None:
                raise EngineError("the engine is stopping")
            self._waiting.append(pending)
            self._wake.notify()

    async def _command(self, action: Callable[[], _T]) -> _T:
        """Run `action` in the engine's thread, between two forward passes."""
        result: Future[_T] = Future()

        def run() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(action())
            except Exception as error:
                result.set_exception(error)

        with self._wake:
            if self._closing or self._thread is None:
                raise EngineError("the engine is not running")
            self._commands.append(run)
            self._wake.notify()
        return await asyncio.wrap_future(result)

    # In the engine's thread

    def _work(self, loaded: "Future[None]") -> None:
        try:
            with torch.inference_mode():
                self._load()
                self._check_batching()
        except EngineError as error:
            loaded.set_exception(error)
            return
        except Exception as error:
            failure = EngineError(f"can't serve {self.model_path!r}: {error!r}")
            failure.__cause__ = error
            loaded.set_exception(failure)
            return
        self._state = "running"
        loaded.set_result(None)
        try:
            with torch.inference_mode():
                self._loop()
        except BaseException:
            self._state = "failed"
            raise
        finally:
            self._fail_all(EngineError("the engine was stopped"))
            self._release()

    def _load(self) -> None:
        from transformers import AutoModelForCausalLM

        if self._threads is None:
            self._threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, _processors() // 2))
        torch.set_num_threads(self._threads)
        if self._device_name == "auto":
            self._device_name = "cuda" if torch.cuda.is_available() else "cpu"
        if self._dtype_name == "auto":
            self._dtype_name = "float32" if self._device_name == "cpu" else "bfloat16"
        try:
            self._tokenizer = chat_template.load_tokenizer(self.model_path)
            self._template_shapes = chat_template.check_shapes(self._tokenizer)
            if not self._template_shapes["user"]:
                raise chat_template.ChatTemplateError(
                    f"the chat template of {self.model_path!r} refuses a single user message"
                )
            self._model = AutoModelForCausalLM.from_pretrained(
                self.model_path,
                dtype=getattr(torch, self._dtype_name),
                local_files_only=chat_template.offline(),
                trust_remote_code=False,
                use_safetensors=True,
            )
        except (chat_template.ModelPathError, chat_template.ChatTemplateError) as error:
            raise EngineError(str(error)) from error
        except (OSError, ValueError) as error:
            raise EngineError(f"can't load the model {self.model_path!r}: {error}") from error
        self._model.to(self._device_name).eval().requires_grad_(False)
        limit = chat_template.context_length(self._tokenizer, self._model.config)
        self._max_model_len = self._max_model_len or limit
        if self._max_model_len is None:
            raise EngineError(
                f"neither the configuration nor the tokenizer of {self.model_path!r} says how long "
                "its context is: set max_model_len"
            )
        self._stop_tokens = chat_template.stop_token_ids(
            self._tokenizer, getattr(self._model, "generation_config", None)
        )
        self._lora = RowwiseLora(self._model)
        self._decoder = Decoder(
            self._model, self._lora, self._stop_tokens, self._decode_locked, pad_token=0
        )

    def _check_batching(self) -> None:
        """Refuse a model that answers differently in a padded batch; learn the cache's size."""
        user = ({"role": "user", "content": "Is the code right?"},)
        long = chat_template.encode_prompt(self._tokenizer, user)
        short = long[-max(2, len(long) // 2) :]

        def first_logits(rows: list[list[int]]) -> torch.Tensor:
            cache, logits = self._decoder.prefill([_probe_row(ids) for ids in rows])
            used = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
            self._token_bytes = used // (len(rows) * max(map(len, rows)))
            return logits[-1].float()

        alone, padded = first_logits([short]), first_logits([long, short])
        difference = float((alone - padded).abs().max())
        if not difference <= 0.05 * float(alone.abs().max()):
            raise EngineError(
                f"{self.model_path!r} can't be served in batches: the logits of a padded prompt "
                f"differ by {difference:.3g} from those of the prompt alone"
            )
        if self._cache_bytes is None and self._device_name == "cpu":
            self._cache_bytes = 2 << 30
        elif self._cache_bytes is None:
            self._cache_bytes = int(0.6 * torch.cuda.mem_get_info()[0])

    def _loop(self) -> None:
        steps = JOIN_EVERY_STEPS
        while True:
            with self._wake:
                while not (self._closing or self._commands or self._waiting or self._running):
                    self._wake.wait(_IDLE_WAIT_S)
                if self._closing:
                    return
            self._run_commands()
            if not self._running and len(self._waiting) < self._max_batch:
                self._await_company()
            if steps >= JOIN_EVERY_STEPS or not self._running:
                steps = 0
                self._guarded(self._admit)
            self._guarded(self._decoder.step)
            steps += 1

    def _await_company(self) -> None:
        """Give requests that are sent at the same time the chance to run together."""
        deadline = time.monotonic() + self._max_wait_s
        while len(self._waiting) < self._max_batch and time.monotonic() < deadline:
            before = len(self._waiting)
            time.sleep(self._max_wait_s / 4)
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
            self._decoder.clear()
            failure = EngineError(f"generation failed: {error!r}")
            failure.__cause__ = error
            for pending in self._running:
                _settle(pending, failure)
            self._running = []
            return
        self._generated += sum(len(row.generated) for row in finished)
        for pending in self._running:
            pending.unfinished = sum(row.finish_reason is None for row in pending.rows)
            if pending.unfinished == 0:
                _settle(pending, None)
        self._running = [p for p in self._running if p.unfinished and not p.rows[0].cancelled]

    def _admit(self) -> list[Row]:
        taken: list[_Pending] = []
        rows, longest = self._decoder.rows, self._decoder.longest
        budget = (self._cache_bytes or 0) // max(1, self._token_bytes)
        with self._wake:
            while self._waiting:
                pending = self._waiting[0]
                if pending.rows[0].cancelled:
                    self._waiting.popleft()
                    continue
                need = len(pending.rows[0].prompt) + pending.rows[0].max_tokens
                total = rows + len(pending.rows)
                over = total > self._max_batch or total * max(longest, need) > budget
                if over and rows:
                    break
                self._waiting.popleft()
                taken.append(pending)
                rows, longest = total, max(longest, need)
        if not taken:
            return []
        self._running += taken
        self._batches += 1
        return self._decoder.admit([pending.rows for pending in taken])

    def _attach(self, name: str, files: LoraFiles) -> None:
        adapter = self._lora.prepare(name, files)
        self._lora.attach(adapter)
        self._adapters[name] = adapter

    def _prove(self, name: str, files: LoraFiles) -> Proof:
        adapter = self._adapters.get(name)
        if adapter is None:
            raise EngineError(f"no adapter answers to {name!r}")
        rivals = [other for key, other in self._adapters.items() if key != name][-_MAX_RIVALS:]
        with self._tokenizer_lock:
            tokens = probe.probe_tokens(self._tokenizer, self.max_model_len)
        return probe.prove(
            self._model, self._decoder, adapter, files, rivals, tokens, str(self._dtype_name)
        )

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
        self._decoder.clear()
        del self._decoder, self._lora, self._model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _settle(pending: _Pending, failure: EngineError | None) -> None:
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
