"""The engine in one process: any causal model with a chat template, and LoRA adapters over it.

EmbeddedEngine    the `Engine` interface; the thread behind it is `worker.ModelWorker`

Requests wait in a queue. Between two tokens the thread takes waiting commands (load, unload,
prove) and lets waiting requests join the batch, each with its own adapter, settings and random
numbers. What a request gets depends on its own seed alone, up to float rounding.

Log-probabilities are the model's own, before temperature, penalty and top-p.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nip_lm_server.engines import probe
from nip_lm_server.engines.base import (
    Capabilities,
    Delta,
    EngineError,
    EngineRequestError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    Proof,
)
from nip_lm_server.engines.loading import WorkerSettings
from nip_lm_server.engines.lora import LoraAdapter, LoraFiles, read_lora
from nip_lm_server.engines.requests import (
    MAX_TOP_LOGPROBS,
    abandon,
    check_counts,
    choice_of,
    encode_prompt,
    make_guide,
    make_readers,
    make_rows,
    refuse_tools,
    refuse_unguided,
    with_calls,
)
from nip_lm_server.engines.worker import Listener, ModelWorker, Pending

SLEEP_TIMEOUT_S = 60.0
"""Time that running requests have to end when the engine is put to sleep."""
_MAX_RIVALS = 14  # other adapters that a proof compares with


class EmbeddedEngine:
    """Serves `model_path` (a directory or a hub name) and adapters over it.

    `device` is "auto", "cpu" or "cuda"; `dtype` "auto" (float32 on CPU, bfloat16 on CUDA),
    "float32", "bfloat16" or "float16". `max_batch` rows run at once, within `cache_bytes` of keys
    and values (None: 2 GiB on CPU, 60 % of what the model leaves free on CUDA). An idle engine
    waits `max_wait_s` for company after a first request. `threads` None means OMP_NUM_THREADS or
    half the processors: small models gain little from more, and threads that must share a
    processor with another program slow each other down many times over. Adapters of a higher rank
    than `max_lora_rank` are refused.
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
        max_lora_rank: int = 512,
        cache_bytes: int | None = None,
        threads: int | None = None,
        epoch: int = 0,
    ):
        self.model_path = model_path
        local = Path(model_path).expanduser()
        self.base_model = served_name or (local.resolve().name if local.is_dir() else model_path)
        self.epoch = epoch
        self._settings = WorkerSettings(
            model_path,
            device,
            dtype,
            max_batch,
            max_wait_s,
            max_model_len,
            max_lora_rank,
            cache_bytes,
            threads,
        )
        self._worker: ModelWorker | None = None
        self._failed = False  # at the last start
        self._died = asyncio.Event()
        self._death = ""
        self._requests = 0

    # Life

    async def start(self) -> None:
        """Load the model. Raises EngineError with the reason if it can't be served."""
        if self._worker is not None and self._worker.state != "failed":
            return
        await self.stop()
        self.epoch += 1
        loop = asyncio.get_running_loop()
        worker: ModelWorker

        def died(reason: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._note_death, worker, reason)

        worker = self._worker = ModelWorker(self._settings, died)
        try:
            await worker.start()
        except BaseException:
            await self.stop()
            self._failed = True
            raise

    async def stop(self) -> None:
        """End the thread and free the model. What still waits or runs fails with EngineError."""
        worker, self._worker = self._worker, None
        self._failed = False
        self._died.clear()
        if worker is not None:
            await worker.stop()

    async def sleep(self) -> None:
        """Refuse requests, finish those there are, free the cache and, on CUDA, the weights.

        The weights and the adapters stay in the machine's memory. What has not ended after
        SLEEP_TIMEOUT_S fails with EngineError. An engine that sleeps is left asleep.
        """
        if self.state != "sleeping":
            await self._serving().sleep(SLEEP_TIMEOUT_S)

    async def wake(self) -> None:
        """Bring the weights back; the adapters answer again. No error if it is awake."""
        worker = self._worker
        if worker is None or worker.state not in ("sleeping", "running"):
            raise EngineError(f"the engine is {self.state}")
        if worker.state == "sleeping":
            await worker.wake()

    async def wait_dead(self) -> str:
        """Return why, once the model's thread has ended without being asked to."""
        await self._died.wait()
        return self._death

    def _note_death(self, worker: ModelWorker, reason: str) -> None:
        if worker is self._worker:  # not one that was stopped meanwhile
            self._death = reason
            self._died.set()

    # Answering

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Answer, or raise EngineRequestError. Cancelling the await abandons the request."""
        worker, pending = await self._prepare(request)
        worker.submit(pending)
        try:
            await asyncio.wrap_future(pending.done)
        finally:
            abandon(pending.rows)
        refuse_unguided(pending.rows)
        self._requests += 1
        choices = []
        for reader in make_readers(worker, pending.rows, request):
            whole = reader.read()
            assert whole is not None, "a row that has ended has something to tell"
            choices.append(choice_of(with_calls(worker, whole, request), request))
        prompt = pending.rows[0].prompt
        return GenerationResult(
            model=request.model,
            choices=tuple(choices),
            prompt_tokens=len(prompt),
            prompt_token_ids=tuple(prompt) if request.return_token_ids else None,
        )

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Answer piece by piece. Closing the iterator abandons the request.

        What is wrong with the request is raised before the first delta.
        """
        worker, pending = await self._prepare(request)
        progress = asyncio.Event()
        pending.listener = Listener(asyncio.get_running_loop(), progress)
        worker.submit(pending)
        readers = make_readers(worker, pending.rows, request)
        prompt = pending.rows[0].prompt
        is_first = True
        try:
            while not all(reader.finished for reader in readers):
                await progress.wait()
                progress.clear()
                if pending.done.done():
                    pending.done.result()  # raises what ended it early
                refuse_unguided(pending.rows)
                for row, reader in zip(pending.rows, readers, strict=True):
                    # Whether a text is a call is known at its end.
                    waits = bool(request.tools) and row.finish_reason is None
                    delta = None if reader.finished or waits else reader.read()
                    if delta is None:
                        continue
                    delta = with_calls(worker, delta, request)
                    if is_first:
                        ids = tuple(prompt) if request.return_token_ids else None
                        delta = replace(delta, prompt_tokens=len(prompt), prompt_token_ids=ids)
                        is_first = False
                    yield delta
        finally:
            abandon(pending.rows)
        self._requests += 1

    async def tokenize(self, model: str, messages: tuple[dict[str, Any], ...]) -> tuple[int, ...]:
        """Token ids of the prompt these messages give, generation prompt included."""
        worker, _ = self._find(model)
        refuse_tools(worker, messages)
        return tuple(await worker.prompts.counted(messages))

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens. Known once the engine has started."""
        worker = self._worker
        if worker is None or worker.state not in ("running", "sleeping"):
            raise EngineError(f"the engine is {self.state}")
        return worker.loaded.max_model_len

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` answer to `name` without stopping anything.

        Loading the same weights again does nothing; other weights under a name that is in use
        raise EngineError, and so do files that aren't a LoRA adapter over this base.
        """
        if name == self.base_model:
            raise EngineError(f"{name!r} is the base model's name")
        files = await asyncio.to_thread(read_lora, path)
        if files.rank > self._settings.max_lora_rank:
            raise EngineError(
                f"the adapter in {path} has rank {files.rank}, but this engine takes at most "
                f"{self._settings.max_lora_rank}: raise max_lora_rank"
            )
        worker = self._serving()
        await worker.run(lambda: self._attach(worker, name, files))

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; one that isn't loaded is no error.

        Requests that are running with it are finished with it.
        """
        worker = self._worker
        if worker is not None and worker.state != "failed" and name in worker.adapters:
            await worker.run(lambda: worker.adapters.pop(name, None))

    def loaded_adapters(self) -> tuple[str, ...]:
        """Names of the adapters that answer now, in the order they were loaded."""
        return tuple(self._worker.adapters) if self._worker else ()

    async def prove(self, name: str, path: Path) -> Proof:
        """Check that `name` answers with the weights in `path`; see `nip_lm_server.engines.probe`.

        `name` is an adapter, or the base model with `path` a model's directory.
        """
        worker, adapter = self._find(name)
        if adapter is None:
            return await worker.run(lambda: _prove_base(worker, path))
        files = await asyncio.to_thread(read_lora, path)
        return await worker.run(lambda: _prove(worker, name, files))

    @property
    def state(self) -> EngineState:
        """What the engine is doing."""
        if self._worker is None:
            return "failed" if self._failed else "stopped"
        return self._worker.state

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(
            logprobs=True,
            max_top_logprobs=MAX_TOP_LOGPROBS,
            sleep=True,
            max_lora_rank=self._settings.max_lora_rank,
        )

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
            "state": self.state,
            "epoch": self.epoch,
            "base_model": self.base_model,
            "adapters": list(self.loaded_adapters()),
            "max_batch": self._settings.max_batch,
            "requests": self._requests,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        if worker is not None and worker.state in ("running", "sleeping"):
            loaded = worker.loaded
            facts |= {
                "device": loaded.device,
                "dtype": loaded.dtype,
                "threads": loaded.threads,
                "max_model_len": loaded.max_model_len,
                "chat_template": dict(loaded.template_shapes),
                "tools": loaded.tool_form is not None,
                "generated_tokens": worker.generated_tokens,
                "waiting": worker.waiting,
            }
        return facts

    def _serving(self) -> ModelWorker:
        worker = self._worker
        if worker is None or worker.state != "running":
            raise EngineError(f"the engine is {self.state}")
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

    async def _prepare(self, request: GenerationRequest) -> tuple[ModelWorker, Pending]:
        """Check a request and make its rows. Raises EngineRequestError."""
        worker, adapter = self._find(request.model)
        check_counts(request, self._settings.max_batch)
        guide = None
        if request.schema is not None or request.tools:
            guide = await asyncio.to_thread(make_guide, worker, request)  # the first takes seconds
        prompt = await encode_prompt(worker, request)
        return worker, Pending(make_rows(worker, request, prompt, adapter, guide))

    def _attach(self, worker: ModelWorker, name: str, files: LoraFiles) -> None:
        """In the worker's thread, so that two loads of one name come one after the other."""
        present = worker.adapters.get(name)
        if present is not None and present.digest != files.digest:
            raise EngineError(f"an adapter with other weights already answers to {name!r}")
        if present is None:
            adapter = worker.lora.prepare(name, files)
            worker.lora.attach(adapter)
            worker.adapters[name] = adapter


def _prove(worker: ModelWorker, name: str, files: LoraFiles) -> Proof:
    """In the worker's thread."""
    adapter = worker.adapters.get(name)
    if adapter is None:
        raise EngineError(f"no adapter answers to {name!r}")
    rivals = [other for key, other in worker.adapters.items() if key != name][-_MAX_RIVALS:]
    return probe.prove(worker.decoder, worker.loaded, adapter, files, rivals)


def _prove_base(worker: ModelWorker, path: Path) -> Proof:
    """In the worker's thread."""
    return probe.prove_base(worker.decoder, worker.loaded, path)
