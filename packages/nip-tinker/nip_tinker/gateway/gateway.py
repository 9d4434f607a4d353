"""Chats answered by samples: prompts by a model's template, answers with ids and log-probabilities.

Gateway    answers chats
"""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nip_core.errors import SettingsError
from nip_core.jobs.job import BackendTrouble, Busy, NoAnswer, Refused
from nip_core.redaction import redact, show_address
from nip_lm_server.client import training_text
from nip_tinker.gateway.chats import ApiError, Chat, read_chat
from nip_tinker.gateway.checks import load_model_text
from nip_tinker.gateway.samples import Choice, SampleClient
from nip_tinker.wire import Json, RequestFailed, json_send

_TRIES = 3
_GONE = (404, 410)
_FINISH_S = 2.0
RETRY_AFTER = "5"
"""Seconds after which a client may ask again, where the service names no pause."""


@dataclass
class Sampler:
    """A sampler of a model, and the number of its next sample."""

    id: str
    text: training_text.Text
    seq: int = 0
    words: dict[int, str] = field(default_factory=dict)

    def show(self, token: int) -> str:
        """Write a token as text; a vocabulary is small beside the tokens of a run."""
        if token not in self.words:
            self.words[token] = str(self.text.tokenizer.decode([token]))
        return self.words[token]


@dataclass
class Gateway:
    """Answers chats by the samples of a service; `make_app` serves it."""

    address: str
    key: str
    tokenizer: str | None = None
    """The folder with the tokenizer of all models; None: it is found by the base's name."""
    patience_s: float = 20.0
    """How long a call to a service that is away is made again: clients have their own patience."""
    _client: SampleClient = field(init=False)
    _samplers: dict[str, Sampler] = field(default_factory=dict)
    _session: str | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    """Of the session's samplers: one that failed has used its number, too."""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _failed: tuple[float, str] = (0.0, "")
    """When the service was last away as a sampler was to be begun, and the words for it."""
    _lacks_top: bool = False
    """The service has given a sample without the likeliest tokens."""

    def __post_init__(self) -> None:
        self._client = SampleClient(self.address, self.key, patience_s=self.patience_s)

    async def aclose(self) -> None:
        """Finish the session."""
        if self._session is not None:
            with contextlib.suppress(BackendTrouble, TimeoutError):  # then it ends by itself
                async with asyncio.timeout(_FINISH_S):
                    await self._client.finish_session(self._session, "success")
        await self._client.aclose()

    async def complete(self, raw: bytes) -> Json:
        """Answer a chat completion's body. Raises ApiError."""
        chat = read_chat(raw)
        if chat.top_logprobs and self._lacks_top:
            raise self._no_top()
        try:
            return await self._complete(chat)
        except BackendTrouble as error:
            raise find_answer(error) from None
        except SettingsError as error:
            raise ApiError(400, str(error)) from None

    async def list_models(self) -> Json:
        """List the base models, as OpenAI's clients read it. Raises ApiError."""
        try:
            bases = await self._client.list_bases()
        except BackendTrouble as error:
            raise find_answer(error) from None
        rows = [{"id": base, "object": "model", "created": 0, "owned_by": ""} for base in bases]
        return {"object": "list", "data": rows}

    async def _complete(self, chat: Chat) -> Json:
        messages = [message.to_dict() for message in chat.messages]
        for attempt in range(_TRIES):
            sampler = await self._open(chat.model)
            try:
                prompt = await asyncio.to_thread(
                    training_text.encode_prompt, sampler.text.tokenizer, messages
                )
            except ValueError as error:  # the template refuses it
                raise ApiError(400, str(error), "invalid_value", "messages") from None
            try:
                choices, cached = await self._sample(sampler, prompt, chat)
                break
            except Refused as error:
                # The session is gone, or this sample is: another one is begun.
                if error.status not in _GONE or attempt == _TRIES - 1:
                    raise
                if self._samplers.get(chat.model) is sampler:  # no other request has begun anew
                    del self._samplers[chat.model]
                    self._session = None
        if chat.top_logprobs and any(one.tokens and one.likeliest is None for one in choices):
            self._lacks_top = True
            raise self._no_top()
        return _answer(chat, sampler, prompt, choices, cached)

    def _no_top(self) -> ApiError:
        return ApiError(
            400,
            f"top_logprobs: {show_address(self.address)} gives no likeliest tokens with a sample; "
            "leave it out (in nip, rollouts.record_p_accept: false and no record_top_logprobs)",
            "unsupported_value",
            "top_logprobs",
        )

    async def _open(self, model: str) -> Sampler:
        """Find or begin the sampler of a model. Raises ApiError 404 for an unknown one."""
        now_s = asyncio.get_running_loop().time
        came_s = now_s()
        async with self._opening:
            if model not in self._samplers:
                # Who stood in the queue has waited as long, and would once more each.
                if self._failed[0] > came_s:
                    raise NoAnswer(self._failed[1])
                is_trained = model.startswith("tinker://")
                try:
                    base = (await self._client.look_up_state(model))[0] if is_trained else model
                    weights = {"model_path" if is_trained else "base_model": model}
                    id = await self._begin(**weights)
                except NoAnswer as error:
                    self._failed = now_s(), error.message
                    raise
                except Refused as error:
                    if error.status not in (400, *_GONE, 422):
                        raise
                    there = "" if is_trained else await self._describe_bases(model, str(error))
                    raise ApiError(
                        404, redact(f"{error}{there}"), "model_not_found", "model"
                    ) from None
                text = await asyncio.to_thread(load_model_text, base, self.tokenizer)
                self._samplers[model] = Sampler(id, text)
            return self._samplers[model]

    async def _begin(self, **weights: str) -> str:
        """Begin a sampler, in another session where the present one is over."""
        create = self._client.create_sampler
        if self._session is not None:
            try:
                return await create(self._session, next(self._numbers), **weights)
            except Refused as error:
                # Either the model is not there or the session.
                if error.status not in _GONE or await self._is_open(self._session):
                    raise
        try:
            self._session = await self._client.create_session({"nip": "gateway"})
        except Refused as error:
            # No model is at fault: the service is another one, or its wire is.
            raise ApiError(
                error.status if error.status in (401, 402, 403) else 502, redact(str(error))
            ) from None
        self._samplers.clear()
        self._numbers = itertools.count()
        return await create(self._session, next(self._numbers), **weights)

    async def _is_open(self, session: str) -> bool:
        """Tell whether the service still has a session."""
        try:
            await self._client.beat(session)
        except Refused as error:
            if error.status not in _GONE:
                raise
            return False
        return True

    async def _describe_bases(self, model: str, words: str) -> str:
        """List the base models, unless the service's words for its lack of `model` do so."""
        with contextlib.suppress(BackendTrouble):
            bases, rest = await self._client.list_bases(), words.replace(model, "")
            if bases and bases[0] not in rest:
                more = f" and {len(bases) - 20} more" if len(bases) > 20 else ""
                return f"; base models there: {', '.join(bases[:20])}{more}"
        return ""

    async def _sample(
        self, sampler: Sampler, prompt: Sequence[int], chat: Chat
    ) -> tuple[list[Choice], int]:
        parameters: Json = {
            "temperature": 1.0 if chat.temperature is None else chat.temperature,
            "top_p": 1.0 if chat.top_p is None else chat.top_p,
        }
        parameters |= {"top_k": chat.top_k} if chat.top_k and chat.top_k > 0 else {}
        parameters |= {"max_tokens": chat.limit} if chat.limit else {}
        parameters |= {} if chat.seed is None else {"seed": chat.seed}
        parameters |= {"stop": sorted(sampler.text.stop_tokens)} if sampler.text.stop_tokens else {}
        seq, sampler.seq = sampler.seq, sampler.seq + 1
        request = {
            "sampling_session_id": sampler.id,
            "seq_id": seq,
            "num_samples": chat.n or 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]},
            "sampling_params": parameters,
            "type": "sample",
            # Left out where they aren't asked for: an older service may not know the field.
            **({"topk_sample_logprobs": chat.top_logprobs} if chat.top_logprobs else {}),
        }
        return await self._client.fetch_choices(
            await self._client.submit(json_send("asample", request))
        )


def _answer(
    chat: Chat, sampler: Sampler, prompt: Sequence[int], sequences: Sequence[Choice], cached: int
) -> Json:
    """Make the answer in OpenAI's words, and vLLM's for token ids."""
    decode, count = sampler.text.tokenizer.decode, sum(len(one.tokens) for one in sequences)

    def show(token: int, logprob: float) -> Json:
        word = sampler.show(token)
        return {"token": word, "logprob": logprob, "bytes": list(word.encode())}

    def show_logprobs(sequence: Choice) -> Json:
        likeliest = sequence.likeliest or [[]] * len(sequence.tokens)
        content = [
            {**show(token, logprob), "top_logprobs": [show(*cell) for cell in top]}
            for token, logprob, top in zip(
                sequence.tokens, sequence.logprobs, likeliest, strict=True
            )
        ]
        return {"content": content, "refusal": None}

    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": str(decode(sequence.tokens, skip_special_tokens=True)),
                "refusal": None,
            },
            "finish_reason": "stop" if sequence.stopped else "length",
            "token_ids": sequence.tokens,
            "logprobs": show_logprobs(sequence) if chat.asks_logprobs else None,
        }
        for index, sequence in enumerate(sequences)
    ]
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": chat.model,
        "choices": choices,
        "prompt_token_ids": list(prompt),
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "total_tokens": len(prompt) + count,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }


def find_answer(error: BackendTrouble) -> ApiError:
    """Find the answer to a client for a call that went wrong at the service."""
    words = redact(str(error))
    if isinstance(error, Busy | NoAnswer):
        pause_s = error.retry_after_s
        status = 429 if isinstance(error, Busy) else 503
        retry_after = RETRY_AFTER if pause_s is None else f"{pause_s:g}"
        return ApiError(status, words, retry_after=retry_after)
    status = error.status if isinstance(error, Refused) else 502
    if isinstance(error, RequestFailed):
        status = 500 if error.category == "server" else 400
    if status == 400 and "context" in words:  # no service has a code for it
        return ApiError(400, words, "context_length_exceeded", "messages")
    return ApiError(status, words)
