"""The engine in one process: any causal model with a chat template, and LoRA adapters over it.

EmbeddedEngine    the `Engine` interface; the thread behind it is `worker.ModelWorker`

Requests wait in a queue. Between two tokens the thread takes waiting commands (load, unload,
prove) and lets waiting requests join the batch, each with its own adapter, settings and random
numbers. What a request gets depends on its own seed alone, up to float rounding.

Log-probabilities are the model's own, before temperature, penalty and top-p.
"""

import asyncio
import secrets
from pathlib import Path
from typing import Any, cast

import torch

from nip_core.lm_server import chat_template, probe
from nip_core.lm_server.engines.base import (
    Capabilities,
    Choice,
    EngineError,
    EngineRequestError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    Proof,
)
from nip_core.lm_server.engines.batching import Row
from nip_core.lm_server.engines.lora import LoraAdapter, LoraFiles, read_lora
from nip_core.lm_server.engines.sampling import RowRandom, Settings
from nip_core.lm_server.engines.worker import ModelWorker, Pending, WorkerSettings

_MAX_RIVALS = 14  # other adapters that a proof compares with


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
        self._settings = WorkerSettings(
            model_path, device, dtype, max_batch, max_wait_s, max_model_len, cache_bytes, threads
        )
        self._worker: ModelWorker | None = None
        self._failed = False
        self._requests = 0

    # The interface

    async def start(self) -> None:
        """Load the model. Raises EngineError with the reason if it can't be served."""
        if self._worker is not None:
            return
        self.epoch += 1
        worker = self._worker = ModelWorker(self._settings)
        self._failed = False
        try:
            await worker.start()
        except BaseException:
            self._failed = True
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the thread and free the model. What still waits or runs fails with EngineError."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Answer, or raise EngineRequestError. Cancelling the await abandons the request."""
        worker, adapter = self._find(request.model)
        prompt = _encode(worker, request.messages)
        max_tokens = _room_for(worker.max_model_len, len(prompt), request.max_tokens)
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
        if len(rows) > self._settings.max_batch:
            raise EngineRequestError(
                f"n is {request.n}, but at most {self._settings.max_batch} rows run at once",
                code="invalid_value",
                param="n",
            )
        pending = Pending(rows)
        worker.submit(pending)
        try:
            await asyncio.wrap_future(pending.done)
        finally:
            for row in rows:
                row.cancelled = True  # of no effect once finished
        self._requests += 1
        return GenerationResult(
            model=request.model,
            choices=tuple(_choice(worker, row, request) for row in rows),
            prompt_tokens=len(prompt),
            prompt_token_ids=tuple(prompt) if request.return_token_ids else None,
        )

    async def tokenize(self, model: str, messages: tuple[dict[str, Any], ...]) -> tuple[int, ...]:
        """Token ids of the prompt these messages give, generation prompt included."""
        worker, _ = self._find(model)
        return tuple(_encode(worker, messages))

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens. Known once the engine has started."""
        return self._serving().max_model_len

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` answer to `name` without stopping anything.

        Loading the same weights again does nothing; other weights under a name that is in use
        raise EngineError, and so do files that aren't a LoRA adapter over this base.
        """
        if name == self.base_model:
            raise EngineError(f"{name!r} is the base model's name")
        files = await asyncio.to_thread(read_lora, path)
        worker = self._serving()
        await worker.run(lambda: self._attach(worker, name, files))

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Requests that are running with it are finished with it."""
        worker = self._serving()
        if name not in worker.adapters:
            raise EngineError(f"no adapter answers to {name!r}")
        await worker.run(lambda: worker.adapters.pop(name, None))

    def loaded_adapters(self) -> tuple[str, ...]:
        """Names of the adapters that answer now, in the order they were loaded."""
        return tuple(self._worker.adapters) if self._worker else ()

    async def prove(self, name: str, path: Path) -> Proof:
        """Check that `name` answers with the weights in `path`; see `nip_core.lm_server.probe`."""
        worker, _ = self._find(name)
        files = await asyncio.to_thread(read_lora, path)
        return await worker.run(lambda: _prove(worker, name, files))

    @property
    def state(self) -> EngineState:
        """What the engine is doing."""
        if self._worker is None:
            return "failed" if self._failed else "stopped"
        return cast(EngineState, self._worker.state)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(logprobs=True)

    @property
    def upstream(self) -> None:
        """Requests are answered here."""
        return None

    def status(self) -> dict[str, Any]:
        """JSON-encodable facts: state, epoch, requests served, device, versions."""
        import transformers

        worker = self._worker
        facts: dict[str, Any] = {
            "engine": self.name,
            "state": worker.state if worker else "failed" if self._failed else "stopped",
            "epoch": self.epoch,
            "base_model": self.base_model,
            "adapters": list(self.loaded_adapters()),
            "max_batch": self._settings.max_batch,
            "requests": self._requests,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        if worker is not None and worker.state == "running":
            facts |= {
                "device": worker.device,
                "dtype": worker.dtype,
                "threads": worker.threads,
                "max_model_len": worker.max_model_len,
                "chat_template": dict(worker.template_shapes),
                "generated_tokens": worker.generated_tokens,
                "waiting": worker.waiting,
            }
        return facts

    def _serving(self) -> ModelWorker:
        worker = self._worker
        if worker is None or worker.state != "running":
            raise EngineError(f"the engine is {self.status()['state']}")
        return worker

    def _find(self, model: str) -> tuple[ModelWorker, LoraAdapter | None]:
        worker = self._serving()
        if model == self.base_model:
            return worker, None
        adapter = worker.adapters.get(model)
        if adapter is None:
            known = ", ".join([self.base_model, *worker.adapters])
            raise EngineRequestError(
                f"no model answers to {model!r}; known: {known}",
                code="model_not_found",
                param="model",
            )
        return worker, adapter

    def _attach(self, worker: ModelWorker, name: str, files: LoraFiles) -> None:
        """In the worker's thread, so that two loads of one name come one after the other."""
        present = worker.adapters.get(name)
        if present is not None and present.digest != files.digest:
            raise EngineError(f"an adapter with other weights already answers to {name!r}")
        if present is None:
            adapter = worker.lora.prepare(name, files)
            worker.lora.attach(adapter)
            worker.adapters[name] = adapter


def _encode(worker: ModelWorker, messages: tuple[dict[str, Any], ...]) -> list[int]:
    try:
        return worker.encode_prompt(messages)
    except chat_template.ChatTemplateError as error:
        raise EngineRequestError(str(error), code="chat_template", param="messages") from error


def _room_for(context: int, prompt_tokens: int, max_tokens: int | None) -> int:
    """Tokens the answer may have."""
    if max_tokens is not None and max_tokens < 1:
        raise EngineRequestError(
            f"max_tokens must be at least 1, got {max_tokens}", "invalid_value", "max_tokens"
        )
    room = context - prompt_tokens
    if room < (max_tokens or 1):
        asked = f" and {max_tokens} for the answer" if max_tokens else ""
        raise EngineRequestError(
            f"This model's context is {context} tokens; the messages take {prompt_tokens}{asked}. "
            "Shorten the messages or lower max_tokens.",
            code="context_length_exceeded",
            param="messages",
        )
    return max_tokens or room


def _choice(worker: ModelWorker, row: Row, request: GenerationRequest) -> Choice:
    ids = row.generated
    text = worker.decode(ids[:-1] if ids[-1] in worker.stop_tokens else ids)
    cuts = [text.index(stop) for stop in row.stop if stop in text]
    tokens = tuple(worker.decode([i], special=True) for i in ids) if request.logprobs else None
    return Choice(
        text=text[: min(cuts)] if cuts else text,
        finish_reason=row.finish_reason or "length",
        completion_tokens=len(ids),
        tokens=tokens,
        token_ids=tuple(ids) if request.return_token_ids else None,
        logprobs=tuple(row.logprobs) if request.logprobs else None,
    )


def _prove(worker: ModelWorker, name: str, files: LoraFiles) -> Proof:
    """In the worker's thread."""
    adapter = worker.adapters.get(name)
    if adapter is None:
        raise EngineError(f"no adapter answers to {name!r}")
    rivals = [other for key, other in worker.adapters.items() if key != name][-_MAX_RIVALS:]
    tokens = probe.probe_tokens(worker.tokenizer, worker.max_model_len)
    return probe.prove(worker.model, worker.decoder, adapter, files, rivals, tokens, worker.dtype)
