"""The engine in one process: any causal model with a chat template, and LoRA adapters over it.

EmbeddedEngine    the `Engine` interface; the thread behind it is `worker.ModelWorker`

Requests wait in a queue. Between two tokens the thread takes waiting commands (load, unload,
prove) and lets waiting requests join the batch, each with its own adapter, settings and random
numbers. A request's answer depends on its own seed alone, up to float rounding.

Log-probabilities are the model's own, before temperature, penalty and top-p.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nip_base.proof import Proof
from nip_base.spec import ENGINES, base_served_name
from nip_lm_server import aside
from nip_lm_server.engines.base import (
    COUNTED_CONTEXTS,
    Capabilities,
    Delta,
    Engine,
    EngineError,
    EngineRequestError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    PromptScores,
    WorkDone,
    room_for_answer,
)
from nip_lm_server.engines.embedded.decoding.loaded_model import EmbeddedOptions
from nip_lm_server.engines.embedded.decoding.sampling import MAX_TOP_LOGPROBS
from nip_lm_server.engines.embedded.requests import (
    RowReader,
    abandon,
    check_counts,
    check_scored,
    echo_prompt,
    encode_request,
    make_guide,
    make_rows,
    refuse_broken,
    refuse_unguided,
    score_prompt,
    separate_calls,
)
from nip_lm_server.engines.embedded.worker import ModelWorker, Pending
from nip_lm_server.lora.probes import MAX_RIVALS
from nip_lm_server.lora.prove_weights import prove, prove_base
from nip_lm_server.lora.rowwise_lora import LoraAdapter, read_lora

SLEEP_TIMEOUT_S = 60.0
"""Time for running requests to end when the engine is put to sleep. A rule of thumb: with far less,
nearly whole answers fail; with far more, a training waits for its device."""


class EmbeddedEngine(Engine):
    """Serves `model_path` (a directory or a hub name) and adapters over it.

    `options` are the fields of `loaded_model.EmbeddedOptions`.
    """

    name = "embedded"

    def __init__(self, model_path: str, served_name: str | None = None, **options: Any):
        self.base_model = base_served_name(model_path) if served_name is None else served_name
        self._model_path = model_path
        self._options = EmbeddedOptions(**options)
        self._worker: ModelWorker | None = None
        self._requests = 0

    # Life

    async def _start(self) -> None:
        self._worker = ModelWorker(self._model_path, self._options)
        await self._worker.start()

    async def stop(self) -> None:
        """End the thread and free the model. Waiting and running requests fail with EngineError."""
        # Before the await: a request that comes meanwhile is refused and does not join.
        worker, self._worker = self._worker, None
        self._state = "stopped"
        if worker is not None:
            await worker.stop()

    async def sleep(self) -> None:
        """Refuse new requests, finish the others, free the cache and, on CUDA, the weights.

        The weights and the adapters stay in the machine's memory. Requests that have not ended
        after SLEEP_TIMEOUT_S fail with EngineError.
        """
        if self.state != "sleeping":
            await self._serving().sleep(SLEEP_TIMEOUT_S)

    async def wake(self) -> None:
        self._refuse_unless("sleeping", "running")
        if self._worker is not None and self.state == "sleeping":
            await self._worker.wake()

    async def wait_dead(self) -> str:
        """Wait until the model's thread ends without `stop`, and return the reason."""
        if self._worker is None:
            raise EngineError(f"the engine is {self.state}")
        # Shielded: a cancelled caller would cancel the future that the thread reports to.
        return await asyncio.shield(asyncio.wrap_future(self._worker.death))

    async def measure_work(self) -> WorkDone | None:
        """Count the thread's work; None while it does not run."""
        worker = self._worker
        if worker is None or worker.state != "running":
            return None
        decoder = worker.decoder
        return WorkDone(decoder.prompt_tokens_done, decoder.generated_tokens, worker.commands_done)

    # Answering

    async def read_prompts(
        self, requests: Sequence[GenerationRequest]
    ) -> Sequence[GenerationRequest]:
        worker, readable = self._serving(), []
        for request in requests:
            check_counts(request, self._options.max_batch)
            prompt = await encode_request(worker, request)
            room_for_answer(request, len(prompt), worker.loaded.max_model_len)
            readable.append(replace(request, prompt=tuple(prompt)))
            await asyncio.sleep(0)  # a body may have very many, and other tasks get a turn
        return readable

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        # Not streamed: it is woken once, at the end, so that each choice is one piece.
        choices = [choice async for choice in self._pieces(request, streamed=False)]
        first = choices[0]
        if request.echo:
            choices = await self._echo(request, choices)
        return GenerationResult(
            request.model, tuple(choices), first.prompt_tokens or 0, first.prompt_token_ids
        )

    async def _echo(self, request: GenerationRequest, choices: Sequence[Delta]) -> list[Delta]:
        """Put the prompt before each choice, scored where the request wants log-probabilities."""
        worker, _ = self._find(request.model)
        ids = await encode_request(worker, request)
        scores = PromptScores(())
        if request.logprobs:
            scores = await self.score_prompt(request.model, ids, request.top_logprobs)
        text = request.prompt if isinstance(request.prompt, str) else worker.decode(ids)
        return [echo_prompt(worker, request, choice, ids, text, scores) for choice in choices]

    def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        return self._pieces(request, streamed=True)

    async def _pieces(self, request: GenerationRequest, *, streamed: bool) -> AsyncIterator[Delta]:
        # 1. Queue the rows. All refusals come before.
        worker, pending = await self._prepare(request, streamed)
        worker.submit(pending)
        readers = [RowReader(worker, row, index, request) for index, row in enumerate(pending.rows)]
        prompt = pending.rows[0].prompt
        first_facts: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "prompt_token_ids": tuple(prompt) if request.return_token_ids else None,
        }
        try:
            while not all(reader.finished for reader in readers):
                # 2. Wait for tokens, or for the end.
                await pending.progress.wait()
                pending.progress.clear()
                if pending.failure is not None:
                    raise pending.failure
                refuse_broken(pending.rows)
                refuse_unguided(pending.rows, request.form_parameter)
                # 3. Yield the text of every row that is certain by now.
                for row, reader in zip(pending.rows, readers, strict=True):
                    # Only the end of a text shows whether it is a call.
                    is_waiting = bool(request.tools) and row.finish_reason is None
                    delta = None if reader.finished or is_waiting else reader.read()
                    if delta is None:
                        continue
                    delta = separate_calls(worker, delta, request)
                    yield replace(delta, **first_facts) if first_facts else delta
                    first_facts = {}
        finally:
            # A reader that leaves early must not leave rows in the batch.
            abandon(pending.rows)
        self._requests += 1

    async def score_prompt(self, model: str, tokens: Sequence[int], top: int) -> PromptScores:
        worker, adapter = self._find(model)
        request = GenerationRequest(model=model, prompt=tuple(tokens))
        # The last token is scored and never read: it needs no room in the context.
        ids = await encode_request(worker, replace(request, prompt=tuple(tokens[:-1] or tokens)))
        score_bytes = 8 if worker.loaded.dtype == "float64" else 4
        check_scored(len(ids), worker.loaded.vocabulary, top, score_bytes)
        await encode_request(worker, replace(request, prompt=tuple(tokens[-1:])))
        return await worker.run(lambda: score_prompt(worker.decoder, tokens, adapter, top))

    async def tokenize(self, request: GenerationRequest) -> tuple[int, ...]:
        worker, _ = self._find(request.model)
        return tuple(await encode_request(worker, request, contexts=COUNTED_CONTEXTS))

    @property
    def max_model_len(self) -> int:
        return self._serving("sleeping").loaded.max_model_len

    # Adapters

    async def load_adapter(self, name: str, path: Path) -> None:
        # Under the base's name the adapter would never answer.
        if name == self.base_model:
            raise EngineError(f"{name!r} is the base model's name")
        files = await asyncio.to_thread(read_lora, path)
        if files.rank > self._options.max_lora_rank:
            raise EngineError(
                f"the adapter in {path} has rank {files.rank}, but this engine takes at most "
                f"{self._options.max_lora_rank}: raise max_lora_rank"
            )
        worker = self._serving()

        # In the worker's thread, so that two loads of one name run one after the other.
        def attach() -> None:
            current = worker.adapters.get(name)
            if current is None:
                worker.adapters[name] = worker.lora.attach(name, files)
            elif current.digest != files.digest:
                raise EngineError(f"an adapter with other weights already answers to {name!r}")

        await worker.run(attach)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Running requests are finished with it."""
        worker = self._worker
        # A dead thread has lost its adapters and runs no command.
        if worker is not None and worker.state != "failed" and name in worker.adapters:
            await worker.run(lambda: worker.unload(name))

    def loaded_adapters(self) -> tuple[str, ...]:
        return tuple(self._worker.adapters) if self._worker else ()

    async def prove(self, name: str, path: Path) -> Proof:
        """Compare the answers of `name` with the weights in `path`; see `prove_weights`.

        `name` is an adapter, or the base model with `path` a model's directory.
        """
        worker, adapter = self._find(name)
        if adapter is None:
            # Between two passes, as the proof runs passes of its own on the same model.
            return await worker.run(lambda: prove_base(worker.decoder, worker.loaded, path))
        files = await asyncio.to_thread(read_lora, path)

        def compare() -> Proof:
            loaded_adapter = worker.adapters.get(name)
            if loaded_adapter is None:  # it was unloaded while the files were read
                raise EngineError(f"no adapter answers to {name!r}")
            # Every rival may be one more row of the proof's pass, so there is a limit.
            rivals = [rival for key, rival in worker.adapters.items() if key != name]
            return prove(worker.decoder, worker.loaded, loaded_adapter, files, rivals[-MAX_RIVALS:])

        return await worker.run(compare)

    # Facts

    @property
    def state(self) -> EngineState:
        return self._state if self._worker is None else self._worker.state

    @property
    def capabilities(self) -> Capabilities:
        return replace(
            ENGINES[self.name],
            logprobs=True,
            max_top_logprobs=MAX_TOP_LOGPROBS,
            max_lora_rank=self._options.max_lora_rank,
        )

    def status(self) -> dict[str, Any]:
        import transformers

        worker = self._worker
        facts = super().status() | {
            "max_batch": self._options.max_batch,
            "max_lora_rank": self._options.max_lora_rank,
            "requests": self._requests,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        if worker is not None and worker.state in ("running", "sleeping"):
            loaded = worker.loaded
            facts |= {
                "device": loaded.device,
                "dtype": loaded.dtype,
                "threads": loaded.threads.count,
                "max_model_len": loaded.max_model_len,
                "chat_template": dict(loaded.template_shapes),
                "template_facts": dict(loaded.template_facts),
                "tools": loaded.tool_form is not None,
                "prompt_tokens_asked": worker.decoder.prompt_tokens_asked,
                "prompt_tokens_done": worker.decoder.prompt_tokens_done,
                "prompt_tokens_reused": worker.decoder.prompt_tokens_reused,
                "generated_tokens": worker.decoder.generated_tokens,
                "waiting": worker.waiting,
            }
        return facts

    def _serving(self, *also: EngineState) -> ModelWorker:
        worker = self._worker
        if worker is None or worker.state not in ("running", *also):
            raise EngineError(f"the engine is {self.state}")
        return worker

    def _find(self, model: str) -> tuple[ModelWorker, LoraAdapter | None]:
        worker = self._serving()
        if model == self.base_model:
            return worker, None
        adapter = worker.adapters.get(model)
        if adapter is None:
            names = ", ".join([self.base_model, *worker.adapters])
            raise EngineRequestError(
                f"no model answers to {model!r}; known: {names}",
                code="model_not_found",
                param="model",
            )
        return worker, adapter

    async def _prepare(
        self, request: GenerationRequest, streamed: bool
    ) -> tuple[ModelWorker, Pending]:
        """Check a request and make its rows. Raises EngineRequestError."""
        worker, adapter = self._find(request.model)
        check_counts(request, self._options.max_batch)
        guide = None
        if request.has_form:
            guide = await aside.follow_form(make_guide, worker, request)  # takes seconds once
        prompt = await encode_request(worker, request)
        return worker, Pending(make_rows(worker, request, prompt, adapter, guide), streamed)
