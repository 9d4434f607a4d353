"""A server's log-probabilities of given tokens, in one of three ways.

ScoredAnswer log-probabilities of tokens: exact ones, and bounds of others
find_way     the first way that a server has
score        one answer, by one request

token_ids   of vLLM: the next token after each of some beginnings of the text, with the
            log-probabilities of tokens that the request lists (`logprob_token_ids`); with a salt,
            so that no cache answers
echo        of OpenAI's first protocol, with `logprobs`: all tokens of a prompt
top         the next token after each of some beginnings. Where the server generates the token in
            question, or has it among the few best, its log-probability is exact. Elsewhere the
            least of the best is a bound: a probe with a higher one is contradicted

All of it is one request, so that one replica gives the whole answer.

vLLM's own log-probabilities of prompts (`prompt_logprobs` or `echo`) are not used: with adapters
and several requests in a batch, vLLM 0.32 on a CPU ends with an error of shapes, and the server
with it.
"""

import math
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nip_lm_server.engines.vllm.adapter_proof import PLACES
from nip_lm_server.lora.probes import choose_places
from nip_lm_server.proving.stranger import RefusedError, Stranger

FEW_PLACES, FEW_TOKENS = 12, 48
"""Places, and the first tokens with them, in float32, which has hardly any noise."""
BEST = 5
"""Most alternatives of OpenAI's completions."""
TOP_PLACES = 64
"""Most places of a text for `top`. A rule of thumb: each is a prompt for the server."""
TOP_REPEATS = 4
"""Most requests for a name by `top`, for the same reason."""
_NAMED = "token_id:"
_ROUNDING = 1e-3  # a rounded sum may be this much above 0


class NoLogprobsError(Exception):
    """No way gives log-probabilities of given tokens; the message has a reason for each."""


@dataclass(frozen=True)
class ScoredAnswer:
    """A server's log-probabilities: place p has token p + 1, given all tokens before it."""

    logprobs: tuple[float | None, ...]
    bounds: tuple[float | None, ...]
    """An upper bound, where the log-probability is not known; None: there is no bound."""
    calls_itself: str | None = None

    def fill(self, reference: Sequence[float]) -> list[float]:
        """Fill each missing value with the nearest one to `reference` within its bound."""
        return [
            exact if exact is not None else expected if bound is None else min(expected, bound)
            for exact, bound, expected in zip(self.logprobs, self.bounds, reference, strict=True)
        ]

    def telling(self, reference: Sequence[float]) -> list[int]:
        """List the places that could contradict `reference`: exact ones, and bounds below it."""
        return [
            place
            for place, (exact, bound) in enumerate(zip(self.logprobs, self.bounds, strict=True))
            if exact is not None or (bound is not None and bound < reference[place])
        ]

    @property
    def is_exact(self) -> bool:
        """Say whether the answer has no bounds instead of values."""
        return all(bound is None for bound in self.bounds)


class _NotGivenError(Exception):
    """An answer came without the log-probabilities."""


Way = Callable[[Stranger, str, Sequence[int], int | None, int], Awaitable[ScoredAnswer]]


async def find_way(server: Stranger, model: str, tokens: Sequence[int]) -> str:
    """Return the name of the first working way. Raises NoLogprobsError."""
    reasons = []
    for name, way in WAYS.items():
        if name == "echo" and server.is_vllm:
            continue
        try:
            answer = await way(server, model, tokens, None, PLACES)
        except (RefusedError, _NotGivenError) as error:
            reasons.append(f"{name}: {error}")
            continue
        if any(value is not None for value in (*answer.logprobs, *answer.bounds)):
            return name
        reasons.append(f"{name}: none of the tokens in question")
    raise NoLogprobsError("; ".join(reasons))


async def score(
    server: Stranger,
    way: str,
    model: str,
    tokens: Sequence[int],
    rank: int | None = None,
    most_places: int = PLACES,
) -> ScoredAnswer:
    """Ask once for log-probabilities of tokens; `token_ids` asks at `most_places` at most.

    Raises RefusedError, or NoLogprobsError if the answer has none.
    """
    try:
        return await WAYS[way](server, model, tokens, rank, most_places)
    except _NotGivenError as error:
        raise NoLogprobsError(f"{way}: {error}") from None


async def _by_token_ids(
    server: Stranger, model: str, tokens: Sequence[int], rank: int | None, most_places: int
) -> ScoredAnswer:
    places = choose_places(len(tokens) - 1, most_places)
    return await _ask_token_ids(server, model, tokens, places, rank, secrets.token_hex(8))


async def score_at(
    server: Stranger,
    model: str,
    tokens: Sequence[int],
    places: Sequence[int],
    rank: int | None,
    salt: str | None,
) -> list[float]:
    """Ask by `token_ids` at some places, with or without a salt. Raises as `score` does."""
    try:
        answer = await _ask_token_ids(server, model, tokens, places, rank, salt)
    except _NotGivenError as error:
        raise NoLogprobsError(str(error)) from None
    return [value for value in answer.logprobs if value is not None]


async def _ask_token_ids(
    server: Stranger,
    model: str,
    tokens: Sequence[int],
    places: Sequence[int],
    rank: int | None,
    salt: str | None,
) -> ScoredAnswer:
    body: dict[str, Any] = {
        "model": model,
        "prompt": [list(tokens[: place + 1]) for place in places],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 1,
        "logprob_token_ids": sorted({tokens[place + 1] for place in places}),
        "return_tokens_as_token_ids": True,
    }
    if salt is not None:
        body["cache_salt"] = salt
    answer = await server.complete(body, rank)
    logprobs: list[float | None] = [None] * (len(tokens) - 1)
    with _reading():
        for place, choice in zip(places, _sort(answer["choices"]), strict=True):
            (by_token,) = choice["logprobs"]["top_logprobs"]
            logprobs[place] = _finite(by_token[f"{_NAMED}{tokens[place + 1]}"])
    return ScoredAnswer(tuple(logprobs), (None,) * len(logprobs), _own_name(answer))


async def _by_echo(
    server: Stranger, model: str, tokens: Sequence[int], rank: int | None, most_places: int
) -> ScoredAnswer:
    body = {
        "model": model,
        "prompt": list(tokens),
        "max_tokens": 1,
        "temperature": 0,
        "echo": True,
        "logprobs": 1,
    }
    answer = await server.complete(body, rank)
    with _reading():
        (choice,) = answer["choices"]
        values = (choice.get("logprobs") or {}).get("token_logprobs")
        # Some servers leave the prompt out, and give the generated token alone.
        if not values or len(values) < len(tokens):
            raise _NotGivenError("the answer has none of the prompt")
        # Such a server has put tokens of its own before the prompt.
        if len(values) > len(tokens) + 1:
            raise _NotGivenError(f"{len(values)} log-probabilities for {len(tokens)} tokens and 1")
        logprobs = tuple(_finite(value) for value in values[1 : len(tokens)])
    return ScoredAnswer(logprobs, (None,) * len(logprobs), _own_name(answer))


async def _by_top(
    server: Stranger, model: str, tokens: Sequence[int], rank: int | None, most_places: int
) -> ScoredAnswer:
    """Ask for the likeliest tokens, with their ids in the two ways that servers have."""
    places = choose_places(len(tokens) - 1, TOP_PLACES)
    body = {
        "model": model,
        "prompt": [list(tokens[: place + 1]) for place in places],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": BEST,
    }
    try:
        answer = await server.complete({**body, "return_tokens_as_token_ids": True}, rank)
    except RefusedError:
        answer = await server.complete({**body, "return_token_ids": True}, rank)
    logprobs: list[float | None] = [None] * (len(tokens) - 1)
    bounds: list[float | None] = [None] * (len(tokens) - 1)
    with _reading():
        choices = _sort(answer["choices"])
        if len(choices) != len(places):
            raise _NotGivenError(f"{len(choices)} choices for {len(places)} prompts")
        for place, choice in zip(places, choices, strict=True):
            logprobs[place], bounds[place] = _read_top(choice, tokens[place + 1])
    return ScoredAnswer(tuple(logprobs), tuple(bounds), _own_name(answer))


def _read_top(choice: Any, token: int) -> tuple[float | None, float | None]:
    """Return (the token's log-probability or None, its upper bound or None)."""
    lists = choice.get("logprobs")
    if not lists or not lists.get("token_logprobs"):
        raise _NotGivenError("the answer has none")
    logprob = _finite(lists["token_logprobs"][0])
    token_name = str(lists["tokens"][0])
    ids = choice.get("token_ids")
    if token_name.startswith(_NAMED):
        chosen_id = int(token_name.removeprefix(_NAMED))
    elif ids:
        chosen_id = int(ids[0])
    else:
        raise _NotGivenError("tokens are named by their texts, and a text may be of several")
    if chosen_id == token:
        return logprob, None
    # All other tokens together have the rest of the probability.
    rest_logprob = math.log(max(-math.expm1(min(logprob, 0.0)), 1e-30))
    best = (lists.get("top_logprobs") or [None])[0] or {}
    by_id = {
        int(name.removeprefix(_NAMED)): _finite(value)
        for name, value in best.items()
        if name.startswith(_NAMED)
    }
    if token in by_id:
        return by_id[token], None
    lowest = min(by_id.values()) if by_id else logprob
    return None, min(rest_logprob, lowest)


@contextmanager
def _reading() -> Iterator[None]:
    """Turn the errors of a malformed answer into _NotGivenError."""
    try:
        yield
    # The message is left out: it may have all of the server's words, however many.
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise _NotGivenError(f"the answer can't be read ({type(error).__name__})") from None


def _sort(choices: list[Any]) -> list[Any]:
    """Sort choices by their `index`, the number of the prompt that each belongs to."""
    if not any("index" in choice for choice in choices):
        return choices
    by_index = {choice["index"]: choice for choice in choices}
    if sorted(by_index) != [*range(len(choices))]:
        raise _NotGivenError(f"{len(choices)} choices, and their `index` is not one of each")
    return [by_index[number] for number in range(len(choices))]


def _own_name(answer: Any) -> str | None:
    name = answer.get("model")
    return name if isinstance(name, str) else None


def _finite(value: Any) -> float:
    """Read a log-probability. A NaN is refused: every comparison with it would be false."""
    number = float(value)
    if math.isnan(number) or number > _ROUNDING:
        raise _NotGivenError("a log-probability is no number of at most 0")
    return min(max(number, -1e4), 0.0)


WAYS: dict[str, Way] = {
    "token_ids": _by_token_ids,
    "echo": _by_echo,
    "top": _by_top,
}
"""Tried in this order: the first has the most exact values."""
