"""The shapes of an answer: OpenAI's chat completion, and its legacy completion of a prompt.

CHAT          messages with calls of tools; log-probabilities as a list of tokens
COMPLETION    text; log-probabilities as parallel lists, with offsets in characters from the
              beginning of the completion
"""

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

from nip_lm_server.api.generation_parameters import Delivery, parse_chat, parse_completion
from nip_lm_server.chats.chat_types import CalledFunction
from nip_lm_server.chats.tool_calls import ToolCall
from nip_lm_server.engines.base import Delta, GenerationRequest, TopLogprob

VERY_UNLIKELY = -9999.0
"""Stands for a log-probability for which JSON has no number."""


class CompletionTokensDetails(TypedDict):
    """Kinds of generated tokens that are counted by themselves."""

    accepted_prediction_tokens: int
    audio_tokens: int
    reasoning_tokens: int
    rejected_prediction_tokens: int


class PromptTokensDetails(TypedDict):
    """Kinds of a prompt's tokens that are counted by themselves."""

    audio_tokens: int
    cached_tokens: int


class UsageDetails(TypedDict, total=False):
    """The kinds that a chat's usage names."""

    completion_tokens_details: CompletionTokensDetails
    prompt_tokens_details: PromptTokensDetails


class AnswerCall(TypedDict):
    """A call of a tool; in a stream it has its place among the calls."""

    id: str
    type: str
    function: CalledFunction
    index: NotRequired[int]


class AnswerMessage(TypedDict, total=False):
    """The message of a chat's answer; a piece of it has the new part."""

    role: str
    content: str | None
    refusal: str | None
    tool_calls: list[AnswerCall]


class TokenLogprob(TypedDict):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class GeneratedToken(TokenLogprob):
    """A generated token with its alternatives."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """The log-probabilities of a chat's answer."""

    content: list[GeneratedToken]
    refusal: list[GeneratedToken] | None


class ChatTokens(TypedDict):
    """The tokens of a choice or a piece of it; null, and no ids, where no client wants them."""

    logprobs: ChatLogprobs | None
    token_ids: NotRequired[tuple[int, ...]]


class ChatChoice(ChatTokens):
    """A chat's whole choice."""

    index: int
    message: AnswerMessage
    finish_reason: str | None


class ChatPiece(ChatTokens):
    """A streamed piece of a chat's choice."""

    index: int
    delta: AnswerMessage
    finish_reason: str | None


class ParallelLogprobs(TypedDict):
    """The legacy log-probabilities: lists with an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(TypedDict):
    """A choice of a completion, or a streamed piece of it."""

    index: int
    text: str
    logprobs: ParallelLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[tuple[int, ...]]
    prompt_token_ids: NotRequired[tuple[int, ...]]


_CHAT_DETAILS: UsageDetails = {
    "completion_tokens_details": {
        "accepted_prediction_tokens": 0,
        "audio_tokens": 0,
        "reasoning_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
    "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0},
}


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """A checked body: one request per prompt. The requests differ in their prompt alone."""

    prompts: Sequence[GenerationRequest]
    delivery: Delivery

    @property
    def first(self) -> GenerationRequest:
        """The settings of all prompts."""
        return self.prompts[0]


@dataclass(frozen=True)
class Shape:
    """Reads the requests of a route, and writes the answers to them."""

    path: str
    id_prefix: str
    object: str
    chunk_object: str
    is_chat: bool
    usage_details: UsageDetails
    parse: Callable[[Mapping[str, Any], int], PromptBatch]
    """Check a body of so many bytes. Raises ApiError 400."""
    choice: Callable[[int, Delta, PromptBatch], ChatChoice | TextChoice]
    """Write a whole choice, by its index."""
    pieces: Callable[[int, Delta, PromptBatch, int | None], Iterator[ChatPiece | TextChoice]]
    """Write a new part of a choice, with its characters so far; None: it is the first part."""


# Chats


def _parse_chat(body: Mapping[str, Any], body_bytes: int) -> PromptBatch:
    request, delivery = parse_chat(body, body_bytes)
    return PromptBatch((request,), delivery)


def _chat_choice(index: int, choice: Delta, batch: PromptBatch) -> ChatChoice:
    message: AnswerMessage = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.tool_calls:
        message["tool_calls"] = _tool_calls(choice.tool_calls)
        message["content"] = choice.text or None
    return {
        "index": index,
        "message": message,
        "finish_reason": choice.finish_reason,
        **_chat_tokens(choice, batch),
    }


def _chat_pieces(
    index: int, delta: Delta, batch: PromptBatch, offset: int | None
) -> Iterator[ChatPiece]:
    def piece(message: AnswerMessage, finish_reason: str | None = None) -> ChatPiece:
        return {
            "index": index,
            "delta": message,
            "logprobs": None,
            "finish_reason": finish_reason,
        }

    # 1. The role, once.
    if offset is None:
        yield piece({"role": "assistant", "content": "", "refusal": None})
    # 2. Text.
    if delta.text or delta.tokens or delta.token_ids:
        yield {**piece({"content": delta.text}), **_chat_tokens(delta, batch)}
    # 3. Calls of tools.
    if delta.tool_calls:
        calls = _tool_calls(delta.tool_calls)
        numbered: list[AnswerCall] = [{"index": i, **call} for i, call in enumerate(calls)]
        yield piece({"tool_calls": numbered})
    # 4. The reason of its end.
    if delta.finish_reason is not None:
        yield piece({}, delta.finish_reason)


def _chat_tokens(piece: Delta, batch: PromptBatch) -> ChatTokens:
    """The log-probabilities and the token ids of a choice or a piece, where a client wants them."""
    body: ChatTokens = {"logprobs": None}
    if batch.first.logprobs:
        tokens: Sequence[str] = piece.tokens or ("",) * len(piece.logprobs)
        if batch.delivery.tokens_as_ids:
            tokens = list(map(_name_id, piece.token_ids))
        top = piece.top_logprobs or [()] * len(piece.logprobs)
        content: list[GeneratedToken] = [
            {**_token(token, logprob), "top_logprobs": [_token(t.token, t.logprob) for t in best]}
            for token, logprob, best in zip(tokens, piece.logprobs, top, strict=True)
        ]
        body["logprobs"] = {"content": content, "refusal": None}
    if batch.first.return_token_ids:
        body["token_ids"] = piece.token_ids
    return body


def _tool_calls(calls: Sequence[ToolCall]) -> list[AnswerCall]:
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def _name_id(token_id: int | None, token: str = "") -> str:
    """Name a token by its id, as vLLM does; an alternative without one keeps its text."""
    return token if token_id is None else f"token_id:{token_id}"


def _token(token: str, logprob: float | None) -> TokenLogprob:
    return {
        "token": token,
        # A chat has no prompt before its answer, so each token has a log-probability.
        "logprob": max(logprob or 0.0, VERY_UNLIKELY),
        "bytes": list(token.encode("utf-8", "surrogatepass")),
    }


# Completions


def _text_choice(index: int, piece: Delta, batch: PromptBatch, offset: int = 0) -> TextChoice:
    body: TextChoice = {
        "index": index,
        "text": piece.text,
        "logprobs": None,
        "finish_reason": piece.finish_reason,
    }
    if batch.first.logprobs:
        texts: Sequence[str] = piece.tokens or ("",) * len(piece.logprobs)
        names: Sequence[str] = texts
        top: Sequence[Sequence[TopLogprob]] = piece.top_logprobs or ()
        if batch.delivery.tokens_as_ids:
            names = list(map(_name_id, piece.token_ids))
            top = [[replace(t, token=_name_id(t.token_id, t.token)) for t in best] for best in top]
        lengths = [len(text) for text in texts]
        body["logprobs"] = _parallel_lists(names, piece.logprobs, top, offset, lengths)
    if batch.first.return_token_ids:
        body["token_ids"] = piece.token_ids
        if piece.prompt_token_ids is not None:
            body["prompt_token_ids"] = piece.prompt_token_ids
    return body


def _parallel_lists(
    tokens: Sequence[str],
    logprobs: Sequence[float | None],
    top_logprobs: Sequence[Sequence[TopLogprob]],
    offset: int,
    lengths: Sequence[int],
) -> ParallelLogprobs:
    """The legacy log-probabilities. With alternatives the token itself is one of them.

    `lengths` count the characters of each token's text.
    """
    floored = [None if value is None else max(value, VERY_UNLIKELY) for value in logprobs]
    # An object, so two tokens of equal text are one entry.
    top: list[dict[str, float] | None] | None = None
    if top_logprobs:
        top = [
            None
            if logprob is None
            else {token: logprob, **{t.token: max(t.logprob, VERY_UNLIKELY) for t in best}}
            for token, logprob, best in zip(tokens, floored, top_logprobs, strict=True)
        ]
    return {
        "tokens": list(tokens),
        "token_logprobs": floored,
        "top_logprobs": top,
        "text_offset": list(itertools.accumulate(lengths, initial=offset))[:-1],
    }


CHAT = Shape(
    path="/v1/chat/completions",
    id_prefix="chatcmpl",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    is_chat=True,
    usage_details=_CHAT_DETAILS,
    parse=_parse_chat,
    choice=_chat_choice,
    pieces=_chat_pieces,
)
COMPLETION = Shape(
    path="/v1/completions",
    id_prefix="cmpl",
    object="text_completion",
    chunk_object="text_completion",
    is_chat=False,
    usage_details={},
    parse=lambda body, body_bytes: PromptBatch(*parse_completion(body, body_bytes)),
    choice=_text_choice,
    pieces=lambda index, delta, batch, at: iter([_text_choice(index, delta, batch, at or 0)]),
)
