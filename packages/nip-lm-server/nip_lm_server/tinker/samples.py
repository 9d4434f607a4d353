"""Samples: a prompt in tokens -> sequences in tokens, by the engine that serves the model.

check_sample   refuses options that are not here, by name
Sampler        runs the samples of a server, each once, and again after a kill

A sample without a seed gets one when it is entered, and its payload keeps it: after a kill the same
tokens are drawn again.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial

from nip_base.api_errors import ApiError
from nip_base.disk import is_full
from nip_lm_server import aside
from nip_lm_server.engines.base import (
    Delta,
    Engine,
    EngineError,
    EngineRequestError,
    GenerationRequest,
)
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.tinker.storage.records import Category, SamplerRow
from nip_lm_server.tinker.storage.store import TinkerStore
from nip_lm_server.tinker.tinker_bodies import Refused, Sample
from nip_lm_server.tinker.tinker_messages import Likeliest, SampledSequence, Samples, encode_samples

WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses before a sample is tried again, as its engine is away or its result had no room on the
disk; the last one is repeated."""
PATIENCE_S = 600.0
"""So long a sample waits for an engine to come back: a large model takes minutes to start."""

_log = logging.getLogger("nip.lm_server.tinker")


def check_sample(body: Sample) -> None:
    """Raise Refused for options that are not here."""
    if any(chunk.type != "encoded_text" or chunk.tokens is None for chunk in body.prompt.chunks):
        raise Refused(
            "the prompt has something else than encoded_text: this server samples text, so leave "
            "images out"
        )
    for name, is_set in (
        ("record_stability_info", body.record_stability_info),
        ("prompt_alt_tokens_k", body.prompt_alt_tokens_k),
        ("target_prompt_logprobs", body.target_prompt_logprobs is not None),
    ):
        if is_set:
            hint = "; use loss_fn=importance_sampling" if name == "record_stability_info" else ""
            raise Refused(f"{name} is not here: leave it out{hint}")
    last = body.prompt_logprobs_last_n
    count = sum(len(chunk.tokens or ()) for chunk in body.prompt.chunks)
    if last is not None and not (body.prompt_logprobs and 1 <= last <= count - 1):
        raise Refused(
            f"prompt_logprobs_last_n is {last}, expected 1 to {count - 1}, with prompt_logprobs"
        )


def give_seed(body: Sample) -> Sample:
    """Return the sample with a seed, drawn if it has none."""
    if body.sampling_params.seed is not None:
        return body
    params = body.sampling_params.model_copy(update={"seed": secrets.randbits(48)})
    return body.model_copy(update={"sampling_params": params})


class Sampler:
    """The samples of one server. `report` hears of each that is over."""

    def __init__(self, store: TinkerStore, pool: EnginePool, report: Callable[[str, int], None]):
        self._store, self._pool, self._report = store, pool, report
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def take_up(self) -> None:
        """Begin the samples that an earlier server has not answered."""
        for owner, seq in self._store.list_pending_samples():
            sampler = self._store.find_sampler(owner)
            # A sample of another base model waits for a server that serves it.
            if sampler is None or sampler.base_model in self._pool.base_models():
                self.submit(owner, seq)

    def submit(self, owner: str, seq: int) -> None:
        """Answer a sample that is on record."""
        key = (owner, seq)
        if key not in self._tasks:
            task = asyncio.create_task(self._answer(owner, seq), name=f"sample {owner} {seq}")
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def stop(self) -> None:
        """Break off the running samples: the next server does them again."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, owner: str, seq: int) -> None:
        try:
            body = await self._sample(owner, seq)
        except (ApiError, EngineError) as error:
            own = isinstance(error, EngineRequestError) or (
                isinstance(error, ApiError) and error.status < 500
            )
            category: Category = "user" if own else "server"
            end = partial(self._store.fail_request, owner, seq, str(error), category)
        except Exception as error:
            _log.exception("sample %s of %s", seq, owner)
            message = f"the server broke: {type(error).__name__}"
            end = partial(self._store.fail_request, owner, seq, message, "server")
        else:
            end = partial(self._store.end_request, owner, seq, body, True)
        await self._write(owner, seq, end)
        self._report(owner, seq)

    async def _write(self, owner: str, seq: int, end: Callable[[], None]) -> None:
        """Write a sample's end. It waits for a full disk; a result that can't be written fails."""
        for attempt in itertools.count():
            try:
                with self._store.transaction():
                    self._store.drop_payload(owner, seq)
                    end()
            except Exception as error:
                _log.exception("sample %s of %s is not on record yet", seq, owner)
                if not is_full(error):
                    message = f"its result can't be written: {error}"
                    end = partial(self._store.fail_request, owner, seq, message, "server")
                # A failure that can't be written either is tried again after a pause.
                if attempt or is_full(error):
                    await asyncio.sleep(WAITS[min(attempt, len(WAITS) - 1)])
            else:
                return

    async def _sample(self, owner: str, seq: int) -> bytes:
        sampler, row = self._store.find_sampler(owner), self._store.find_request(owner, seq)
        if sampler is None or row is None or row.payload is None:
            raise EngineError(f"sample {seq} of {owner} is not on record")
        body = Sample.model_validate_json(row.payload)
        waited_s = 0.0
        for attempt in range(1000):
            try:
                async with self._pool.using(sampler.served_name) as engine:
                    samples = await _draw(engine, sampler, body)
                return await aside.run(_count_bytes(samples), encode_samples, samples)
            except EngineRequestError:
                raise
            except (ApiError, EngineError) as error:
                # An engine that starts, or died under it: the client only sees a wait.
                helps = not isinstance(error, ApiError) or "Retry-After" in error.headers
                if not helps or waited_s >= PATIENCE_S:
                    raise
                pause_s = WAITS[min(attempt, len(WAITS) - 1)]
                waited_s += pause_s
                await asyncio.sleep(pause_s)
        raise AssertionError("PATIENCE_S is over before")


async def _draw(engine: Engine, sampler: SamplerRow, body: Sample) -> Samples:
    prompt = tuple(token for chunk in body.prompt.chunks for token in chunk.tokens or ())
    params = body.sampling_params
    stop = params.stop
    texts = (stop,) if isinstance(stop, str) else tuple(s for s in stop or () if isinstance(s, str))
    ids = tuple(s for s in stop or () if isinstance(s, int))
    request = GenerationRequest(
        model=sampler.served_name,
        prompt=prompt,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=max(0, params.top_k),
        n=body.num_samples,
        seed=params.seed,
        stop=texts,
        # Only without a list does the model's own end of text stop it.
        stop_tokens=None if stop is None else ids,
        logprobs=True,
        top_logprobs=body.topk_sample_logprobs,
        return_token_ids=True,
    )
    # 1. Its scores of the prompt.
    prompt_logprobs: Sequence[float | None] | None = None
    likeliest: Likeliest | None = None
    if body.prompt_logprobs or body.topk_prompt_logprobs:
        scores = await engine.score_prompt(sampler.served_name, prompt, body.topk_prompt_logprobs)
        first = len(prompt) - (body.prompt_logprobs_last_n or len(prompt))
        if body.prompt_logprobs:
            every = [None, *scores.logprobs]
            prompt_logprobs = [None if i < first else value for i, value in enumerate(every)]
        if body.topk_prompt_logprobs:
            places: list[Sequence[tuple[int, float]]] = [(), *scores.likeliest]
            likeliest = [() if i < first else place for i, place in enumerate(places)]
    # 2. Its answer.
    answer = await engine.generate(request)
    return Samples(
        sequences=[_sequence(choice) for choice in answer.choices],
        prompt_logprobs=prompt_logprobs,
        prompt_likeliest=likeliest,
        prompt_width=body.topk_prompt_logprobs,
        sample_width=body.topk_sample_logprobs,
    )


def _count_bytes(samples: Samples) -> int:
    """Estimate the bytes of an answer."""
    tokens = sum(len(sequence.tokens) for sequence in samples.sequences)
    cells = len(samples.prompt_likeliest or ()) * samples.prompt_width
    return 8 * (tokens * (1 + samples.sample_width) + cells)


def _sequence(choice: Delta) -> SampledSequence:
    return SampledSequence(
        tokens=choice.token_ids,
        logprobs=[value for value in choice.logprobs if value is not None],  # no prompt is echoed
        stopped=choice.finish_reason == "stop",
        likeliest=[
            [(one.token_id or 0, one.logprob) for one in place] for place in choice.top_logprobs
        ],
    )
