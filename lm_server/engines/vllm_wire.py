"""Requests and answers of vLLM's HTTP interface as the engine interface has them.

request_of      a GenerationRequest -> (path, body)
result_of       a whole answer -> GenerationResult
delta_of        a chunk of a stream -> Deltas
events          the data of server-sent events, as they come
error_of        an error's body -> the exception to raise
forced          a completion that asks for one token's log-probability, and what it says
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from nip_lm_server.engines.base import (
    Choice,
    Delta,
    EngineError,
    EngineRequestError,
    GenerationRequest,
    GenerationResult,
    TopLogprob,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_TOP_LOGPROBS = 20


def request_of(request: GenerationRequest, *, stream: bool = False) -> tuple[str, dict[str, Any]]:
    """Where to send a request, and its body. Raises EngineRequestError for a form of the answer:
    such requests reach vLLM as they came from the client, not by this way."""
    if request.schema is not None or request.tools:
        raise EngineRequestError("an engine's own requests have no form", "unsupported_value")
    body: dict[str, Any] = {
        "model": request.model,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "repetition_penalty": request.repetition_penalty,
        "n": request.n,
        "return_token_ids": request.return_token_ids,
        # Null: as far as the context goes. Left out, a completion would end after 16 tokens.
        "max_tokens": request.max_tokens,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if request.stop:
        body["stop"] = list(request.stop)
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if request.prompt is None:
        body["messages"] = list(request.messages)
        if request.logprobs:
            body["logprobs"] = True
            body["top_logprobs"] = request.top_logprobs
        return CHAT, body
    prompt = request.prompt
    body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    # A prompt is taken as it is: what it should begin with is the sender's business.
    body["add_special_tokens"] = False
    if request.logprobs:
        body["logprobs"] = request.top_logprobs
    return COMPLETIONS, body


def result_of(request: GenerationRequest, answer: Mapping[str, Any]) -> GenerationResult:
    """A whole answer. Raises EngineError if it is not what was asked for."""
    try:
        usage = answer["usage"]
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        each = [_choice(request, choice) for choice in choices]
        if request.n == 1:
            # The count includes a stop token, whose text nobody sees.
            each = [_with_count(each[0], usage["completion_tokens"])]
        prompt_ids = answer.get("prompt_token_ids") or choices[0].get("prompt_token_ids")
        return GenerationResult(
            model=answer["model"],
            choices=tuple(each),
            prompt_tokens=usage["prompt_tokens"],
            prompt_token_ids=tuple(prompt_ids) if request.return_token_ids else None,
        )
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise EngineError(f"vLLM's answer is not as expected: {error!r}") from error


def delta_of(request: GenerationRequest, chunk: Mapping[str, Any], first: bool) -> Iterator[Delta]:
    """The pieces in one chunk of a stream; `first` adds what is said once."""
    usage = chunk.get("usage") or {}
    for choice in chunk.get("choices", ()):
        chat = request.prompt is None
        text = (choice["delta"].get("content") if chat else choice["text"]) or ""
        tokens, logprobs, top = _logprobs(request, choice.get("logprobs"))
        ids = tuple(choice.get("token_ids") or ())
        prompt_ids = chunk.get("prompt_token_ids") or choice.get("prompt_token_ids")
        yield Delta(
            index=choice["index"],
            text=text,
            finish_reason=choice.get("finish_reason"),
            tokens=tokens,
            token_ids=ids if request.return_token_ids else (),
            logprobs=logprobs,
            top_logprobs=top,
            completion_tokens=len(ids),
            prompt_tokens=usage.get("prompt_tokens") if first else None,
            prompt_token_ids=tuple(prompt_ids)
            if first and prompt_ids and request.return_token_ids
            else None,
        )
        first = False


async def events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a stream up to its end mark. Raises EngineError on an error in between."""
    async for line in content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise error_of(200, chunk)
        yield chunk
    raise EngineError("vLLM's stream ended in the middle")


def error_of(status: int, body: Any) -> EngineError:
    """What to raise for an error of vLLM's: 4xx is the request's fault."""
    error = body.get("error") if isinstance(body, Mapping) else None
    error = error if isinstance(error, Mapping) else {"message": str(error or body)}
    message = str(error.get("message") or f"status {status}")
    if 400 <= status < 500 and status not in (401, 403, 429):
        code = "model_not_found" if status == 404 else "invalid_value"
        if "context length" in message or "max_model_len" in message:
            code = "context_length_exceeded"
        return EngineRequestError(message, code=code, param=error.get("param"))
    return EngineError(f"vLLM answered with {status}: {message}")


def forced(model: str, tokens: Sequence[int], salt: str) -> dict[str, Any]:
    """The body of a completion that can only be the last of `tokens`, given all before it.

    What it says of that token's log-probability is the model's own: the restriction comes later.
    """
    return {
        "model": model,
        "prompt": list(tokens[:-1]),
        "allowed_token_ids": [tokens[-1]],
        "max_tokens": 1,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "temperature": 0,
        "logprobs": 0,
        "return_token_ids": True,
        "cache_salt": salt,
    }


def forced_logprob(body: Mapping[str, Any], answer: Mapping[str, Any]) -> float:
    """The log-probability in the answer to `forced`. Raises EngineError."""
    try:
        (choice,) = answer["choices"]
        if answer["model"] != body["model"] or choice["token_ids"] != body["allowed_token_ids"]:
            raise ValueError(f"{answer['model']} answered with {choice['token_ids']}")
        (logprob,) = choice["logprobs"]["token_logprobs"]
        return float(logprob)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"vLLM gave no log-probability of the probe: {error!r}") from error


def _choice(request: GenerationRequest, choice: Mapping[str, Any]) -> Choice:
    text = choice["message"]["content"] if request.prompt is None else choice["text"]
    tokens, logprobs, top = _logprobs(request, choice.get("logprobs"))
    ids = choice.get("token_ids")
    return Choice(
        text=text or "",
        finish_reason=choice["finish_reason"] or "length",
        completion_tokens=len(ids or logprobs),
        tokens=tokens if request.logprobs else None,
        token_ids=tuple(ids or ()) if request.return_token_ids else None,
        logprobs=logprobs if request.logprobs else None,
        top_logprobs=top if request.logprobs and request.top_logprobs else None,
    )


def _with_count(choice: Choice, count: int) -> Choice:
    return replace(choice, completion_tokens=count)


_Scores = tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[TopLogprob, ...], ...]]


def _logprobs(request: GenerationRequest, value: Any) -> _Scores:
    """(tokens, log-probabilities, alternatives), empty where they weren't asked for."""
    if not request.logprobs or not value:
        return (), (), ()
    if request.prompt is None:
        entries = value["content"] or ()
        tokens = tuple(entry["token"] for entry in entries)
        logprobs = tuple(entry["logprob"] for entry in entries)
        top = tuple(
            tuple(
                TopLogprob(t["token"], t["logprob"])
                for t in entry["top_logprobs"][: request.top_logprobs]
            )
            for entry in entries
        )
    else:
        tokens, logprobs = tuple(value["tokens"]), tuple(value["token_logprobs"])
        # The sampled token is among them even where it is not one of the best.
        top = tuple(
            tuple(
                TopLogprob(token, logprob)
                for token, logprob in sorted(each.items(), key=lambda item: -item[1])[
                    : request.top_logprobs
                ]
            )
            for each in value["top_logprobs"]
        )
    return tokens, logprobs, top if request.top_logprobs else ()
