"""What a server says of given tokens, in whichever way it can be asked.

ScoredAnswer log-probabilities of tokens: exact ones, and bounds of others
find_way     the first way that a server has
score        one answer, by one request

token_ids   of vLLM: the next token after each of some beginnings of the text, with the
            log-probabilities of tokens that are named (`logprob_token_ids`); with a salt, so
            that nothing in a cache answers
echo        of OpenAI's first protocol, with `logprobs`: all tokens of a prompt
top         the next token after each of some beginnings. Where it is the token in question, or that
            is among the few best, its log-probability is known. Elsewhere it has less than the
            least of those, which contradicts whoever says that it has more

One request for all of it, so that one replica gives the whole answer.

Not asked for are vLLM's own log-probabilities of prompts, by `prompt_logprobs` or by `echo`: with
adapters and several requests in a batch, vLLM 0.32 on a CPU ends with an error of shapes, and with
it the server.
"""

import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nip_lm_server.engines.vllm.adapter_proof import PLACES
from nip_lm_server.lora.probes import choose_places
from nip_lm_server.proving.stranger import RefusedError, Stranger

BEST = 5
"""So many alternatives OpenAI's completions give at most."""
TOP_PLACES = 64
"""At so many places of a text `top` asks. A rule of thumb: each is a prompt to be read."""
TOP_REPEATS = 4
"""So many answers `top` is asked for at most, for the same reason."""
_NAMED = "token_id:"
_ROUNDING = 1e-3  # above 0, of a sum that was rounded


class NoLogprobsError(Exception):
    """No way gives log-probabilities of given tokens; the message has a reason for each."""


@dataclass(frozen=True)
class ScoredAnswer:
    """What a server gave for tokens; place p is for token p + 1, given all before it."""

    logprobs: tuple[float | None, ...]
    bounds: tuple[float | None, ...]
    """Where the log-probability is not known: it is at most this; None: nothing is known."""
    calls_itself: str | None = None

    def fill(self, reference: Sequence[float]) -> list[float]:
        """Complete what is not known by what is nearest to `reference` within the bounds."""
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
        """Say whether all that was asked for is known."""
        return all(bound is None for bound in self.bounds)


class _NotGivenError(Exception):
    """An answer came without the log-probabilities."""


class _UnreadableError(ValueError):
    """A part of an answer is not what it should be; the message has none of its words."""


Way = Callable[[Stranger, str, Sequence[int], int | None, int], Awaitable[ScoredAnswer]]


async def find_way(server: Stranger, model: str, tokens: Sequence[int]) -> str:
    """Return the name of the first way that works. Raises NoLogprobsError."""
    reasons = []
    for name, way in WAYS.items():
        if name == "echo" and server.is_vllm:
            continue
        try:
            answer = await way(server, model, tokens, None, PLACES)
        except (RefusedError, _NotGivenError) as error:
            reasons.append(f"{name}: {error}")
            continue
        if any(map(_is_known, answer.logprobs, answer.bounds)):
            return name
        reasons.append(f"{name}: none of the tokens in question")
    raise NoLogprobsError("; ".join(reasons))


async def score(
    server: Stranger,
    way: str,
    model: str,
    tokens: Sequence[int],
    rank: int | None = None,
    most: int = PLACES,
) -> ScoredAnswer:
    """Ask once for log-probabilities of tokens, by `token_ids` of `most` at most.

    Raises RefusedError, or NoLogprobsError if there are none in the answer.
    """
    try:
        return await WAYS[way](server, model, tokens, rank, most)
    except _NotGivenError as error:
        raise NoLogprobsError(f"{way}: {error}") from None


def _is_known(exact: float | None, bound: float | None) -> bool:
    return exact is not None or bound is not None


async def _by_token_ids(
    server: Stranger, model: str, tokens: Sequence[int], rank: int | None, most: int
) -> ScoredAnswer:
    places = choose_places(len(tokens) - 1, most)
    return await _ask_token_ids(server, model, tokens, places, rank, secrets.token_hex(8))


async def score_at(
    server: Stranger,
    model: str,
    tokens: Sequence[int],
    places: Sequence[int],
    rank: int | None,
    salt: str | None,
) -> list[float]:
    """Ask by `token_ids` at some places, without a salt too. Raises what `score` raises."""
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
    with _Reading():
        for place, choice in zip(places, _sort(answer["choices"]), strict=True):
            (named,) = choice["logprobs"]["top_logprobs"]
            logprobs[place] = _finite(named[f"{_NAMED}{tokens[place + 1]}"])
    return ScoredAnswer(tuple(logprobs), (None,) * len(logprobs), _own_name(answer))


async def _by_echo(
    server: Stranger, model: str, tokens: Sequence[int], rank: int | None, most: int
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
    with _Reading():
        (choice,) = answer["choices"]
        values = (choice.get("logprobs") or {}).get("token_logprobs")
        # Some leave out what they don't know, and give the token that was generated alone.
        if not values or len(values) < len(tokens):
            raise _NotGivenError("the answer has none of the prompt")
        # Such a server has put tokens of its own before the prompt.
        if len(values) > len(tokens) + 1:
            raise _NotGivenError(f"{len(values)} log-probabilities for {len(tokens)} tokens and 1")
        return _whole([_finite(value) for value in values[1 : len(tokens)]], answer)


async def _by_top(
    server: Stranger, model: str, tokens: Sequence[int], rank: int | None, most: int
) -> ScoredAnswer:
    """See this module. Ids of tokens are asked for in the two ways that servers have."""
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
    with _Reading():
        choices = _sort(answer["choices"])
        if len(choices) != len(places):
            raise _NotGivenError(f"{len(choices)} choices for {len(places)} prompts")
        for place, choice in zip(places, choices, strict=True):
            logprobs[place], bounds[place] = _read_top(choice, tokens[place + 1])
    return ScoredAnswer(tuple(logprobs), tuple(bounds), _own_name(answer))


def _read_top(choice: Any, token: int) -> tuple[float | None, float | None]:
    """Return (the token's log-probability, or what it is at most)."""
    lists = choice.get("logprobs")
    if not lists or not lists.get("token_logprobs"):
        raise _NotGivenError("the answer has none")
    chosen = _finite(lists["token_logprobs"][0])
    named = str(lists["tokens"][0])
    ids = choice.get("token_ids")
    if named.startswith(_NAMED):
        chosen_id = int(named.removeprefix(_NAMED))
    elif ids:
        chosen_id = int(ids[0])
    else:
        raise _NotGivenError("tokens are named by their texts, and a text may be of several")
    if chosen_id == token:
        return chosen, None
    # The rest of the probability is for all others together.
    unchosen = math.log(max(-math.expm1(min(chosen, 0.0)), 1e-30))
    best = (lists.get("top_logprobs") or [None])[0] or {}
    by_id = {
        int(name.removeprefix(_NAMED)): _finite(value)
        for name, value in best.items()
        if name.startswith(_NAMED)
    }
    if token in by_id:
        return by_id[token], None
    least = min(by_id.values()) if by_id else chosen
    return None, min(unchosen, least)


class _Reading:
    """Within, an answer that is not built as it should be is one without log-probabilities."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _UnreadableError):
            raise _NotGivenError(str(error)) from None
        wrong = KeyError | TypeError | ValueError | IndexError | AttributeError | OverflowError
        # Not its words: they may have all that the server said, however long.
        if isinstance(error, wrong):
            raise _NotGivenError(f"the answer can't be read ({type(error).__name__})") from None


def _sort(choices: list[Any]) -> list[Any]:
    """Sort choices by their `index`, by which a server says which prompt each is for."""
    if not any("index" in choice for choice in choices):
        return choices
    by_index = {choice["index"]: choice for choice in choices}
    if sorted(by_index) != [*range(len(choices))]:
        raise _UnreadableError(f"{len(choices)} choices, and their `index` is not one of each")
    return [by_index[number] for number in range(len(choices))]


def _whole(values: list[float], answer: Any) -> ScoredAnswer:
    return ScoredAnswer(tuple(values), (None,) * len(values), _own_name(answer))


def _own_name(answer: Any) -> str | None:
    name = answer.get("model")
    return name if isinstance(name, str) else None


def _finite(value: Any) -> float:
    """Read a log-probability. With a NaN every comparison would fail in silence."""
    number = float(value)
    if math.isnan(number) or number > _ROUNDING:
        raise _UnreadableError("a log-probability is no number of at most 0")
    return min(max(number, -1e4), 0.0)


WAYS: dict[str, Way] = {
    "token_ids": _by_token_ids,
    "echo": _by_echo,
    "top": _by_top,
}
"""In the order in which they are tried: from the one that tells most."""
