"""The parts of a provider's answer, read strictly.

read_answers        all choices of a response
split_count         a count of all choices over them
refuse_other_model  an answer of another model than the one asked for
make_storable       a text as it can be stored
read_calls          of tools
read_ids, read_logprobs   tokens
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from nip_base.formats.bounds import parse_json
from nip_core.game.answer_rows import RecordedToken, TokenLogprob
from nip_core.rollouts.client.completions import ChatAnswer
from nip_core.rollouts.client.thoughts import MalformedAnswer, read_message, read_usage


def read_answers(
    raw: bytes, names: Sequence[str] | None, attempt: int, latency_s: float
) -> list[ChatAnswer]:
    """Read the choices of a response, in the order of their indices.

    `names` are the requested model and its aliases; None: any model may answer.

    Raises MalformedAnswer for a response that is no answer of that model.
    """
    try:
        answer = parse_json(raw, max_depth=None)
        choices = sorted(answer["choices"], key=lambda choice: int(choice.get("index") or 0))
        served_model = str(answer["model"])
        if names is not None:
            refuse_other_model(names, served_model)
        if not choices:
            raise MalformedAnswer("malformed answer (no choices)")
        usage = read_usage(answer.get("usage") or {})
        # Servers count all choices together. Each choice is a row, and the rows sum up to the bill.
        completion = split_count(usage.completion_tokens, len(choices))
        thought = split_count(usage.reasoning_tokens, len(choices))
        contents = [read_message(choice["message"]) for choice in choices]
        return [
            ChatAnswer(
                text=None if text is None else make_storable(text),
                finish_reason=make_storable(choice.get("finish_reason") or "unknown"),
                model=served_model,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=completion[number] or 0,
                transport_retries=attempt,
                latency_s=latency_s,
                tokens=read_logprobs(choice.get("logprobs")),
                # OpenAI has no words for these; the names are vLLM's.
                prompt_token_ids=read_ids(answer.get("prompt_token_ids")),
                token_ids=read_ids(choice.get("token_ids")),
                reasoning=None if reasoning is None else make_storable(reasoning),
                reasoning_tokens=thought[number],
                # Once for all answers, as the prompt is paid.
                cached_tokens=None if number else usage.cached_tokens,
                calls=read_calls(choice["message"].get("tool_calls")),
            )
            for number, (choice, (text, reasoning)) in enumerate(
                zip(choices, contents, strict=True)
            )
        ]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise MalformedAnswer(f"malformed answer ({type(error).__name__}: {error})") from None


def split_count(total: int | None, parts: int) -> Sequence[int | None]:
    """Split a count over the choices; the first has the remainder."""
    if total is None:
        return [None] * parts
    share = total // parts
    return [total - share * (parts - 1)] + [share] * (parts - 1)


def refuse_other_model(names: Sequence[str], served_model: str) -> None:
    """Raise MalformedAnswer for an answer of another model: the call is sent again.

    A provider may answer an alias with its dated name: gpt-4o-2024-08-06 is gpt-4o, gpt-4o-mini
    is not.
    """
    if not any(
        served_model == name or re.fullmatch(re.escape(name) + r"-\d[\d-]*", served_model)
        for name in names
    ):
        raise MalformedAnswer(
            f"asked for model {names[0]!r} but {served_model!r} answered; if that is the same "
            "model by a gateway's name, set served_as"
        )


def make_storable(text: Any) -> str:
    """Replace half a surrogate pair: JSON may carry it, UTF-8 and Parquet can't."""
    storable = str(text)
    # Nearly every text is; there may be thousands of tokens in an answer.
    return storable if storable.isascii() else storable.encode("utf-8", "replace").decode()


def read_calls(calls: Any) -> tuple[tuple[str, str], ...]:
    """Read the names and arguments of calls of functions; of others the name is empty."""
    functions = [call.get("function") or {} for call in calls or () if isinstance(call, dict)]
    return tuple(
        (
            make_storable(function.get("name", "")),
            make_storable(given if isinstance(given, str) else json.dumps(given)),
        )
        for function in functions
        for given in [function.get("arguments")]
    )


def read_ids(ids: Any) -> list[int] | None:
    """Read token ids."""
    return None if ids is None else [int(token) for token in ids]


def read_logprobs(logprobs: Any) -> list[RecordedToken] | None:
    """Read tokens with their log-probabilities. Raises ValueError for one that is no number."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if content is None:
        return None

    def one(entry: Any) -> TokenLogprob:
        logprob = float(entry["logprob"])
        if not logprob < math.inf:  # JSON as Python writes it has NaN, which would reach rewards
            raise ValueError(f"a log-probability of {logprob}")
        return {"token": make_storable(entry["token"]), "logprob": logprob}

    return [{**one(e), "top": [one(t) for t in e.get("top_logprobs") or ()]} for e in content]
