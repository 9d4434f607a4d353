"""Method `trajectories`, an extension: a model's actions, and their rewards.

``{"messages": [...], "group_id": str, "reward": number, "advantage"?: number}``
    The conversation as text. The actions are the assistant messages whose weight is not 0. Each
    may have ``"token_ids"``, the tokens that were generated, stop token and thoughts included, and
    ``"logprobs"``, the sampler's log-probability of each of them; without token ids, also
    ``"reasoning_content"``, the thoughts as text.

``{"turns": [{"prompt_token_ids": [...], "completion_token_ids": [...], "logprobs"?: [...]}, ...],
"group_id": str, "reward": number, "advantage"?: number}``
    The same as tokens, one turn for each generation, just as an engine reports it: the whole
    prompt that was completed, and the completion with its stop token. A single generation is a
    list of one turn. Exactly these tokens are trained.

A line is an episode with one reward. Episodes with the same `group_id` answered the same task and
are compared with each other, so a group has at least two, unless the advantages come with the
lines: then every line has one. Log-probabilities are natural logarithms of the distribution that
was sampled from, at temperature 1.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from nip_base.formats.jsonl import (
    MISSING,
    Broken,
    Example,
    Problem,
    describe_wrong,
    find_unknown_keys,
)
from nip_base.formats.messages import (
    Message,
    MessageLine,
    find_learned_problems,
    find_messages_problems,
    parse_message,
)

AdvantageMode = Literal["given", "group", "group_std"]

LOGPROB_TOLERANCE = 1e-3
"""A log-probability may be this much above 0, from rounding."""
LEAST_LOGPROB = -1000.0
"""No token is sampled with less. Some servers write -9999 where they have no value."""

_SHARED_KEYS = ("group_id", "reward", "advantage")
_TURN_KEYS = ("prompt_token_ids", "completion_token_ids", "logprobs")


@dataclass(frozen=True)
class Turn(Example):
    """One generation in tokens. `logprobs` has one entry per token of the completion."""

    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Trajectory(Example):
    """One episode: `messages` or `turns`, the other is empty."""

    group_id: str
    reward: float
    advantage: float | None = None
    messages: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()


class TurnLine(TypedDict):
    """A generation as it stands in a line, once its rules hold."""

    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    logprobs: NotRequired[list[float] | None]


class TrajectoryLine(TypedDict):
    """A line, once its rules hold: it has either `messages` or `turns`."""

    group_id: str
    reward: float
    advantage: NotRequired[float | None]
    messages: NotRequired[list[MessageLine]]
    turns: NotRequired[list[TurnLine]]


def parse(value: TrajectoryLine) -> Trajectory:
    """An episode from a checked line."""
    advantage = value.get("advantage")
    return Trajectory(
        group_id=value["group_id"],
        reward=float(value["reward"]),
        advantage=None if advantage is None else float(advantage),
        messages=tuple(map(parse_message, value.get("messages", ()))),
        turns=tuple(map(_parse_turn, value.get("turns", ()))),
    )


def _parse_turn(turn: TurnLine) -> Turn:
    logprobs = turn.get("logprobs")
    return Turn(
        prompt_token_ids=tuple(turn["prompt_token_ids"]),
        completion_token_ids=tuple(turn["completion_token_ids"]),
        logprobs=None if logprobs is None else tuple(map(float, logprobs)),
    )


class AcrossLines:
    """The rules between the lines of a file."""

    def __init__(self, mode: AdvantageMode | None):
        self._mode = mode
        self._first: tuple[int, bool] | None = None  # the first line, and has it an advantage
        self._told_mixed = False
        self._groups: dict[str, list[int]] = {}  # group -> first line, number of lines

    def find_problems(self, line: int, value: TrajectoryLine) -> Iterator[Broken]:
        """Compare a line with the earlier ones: have they advantages, and has it?"""
        # Settled at the end of the file: groups may stand scattered over it.
        self._groups.setdefault(value["group_id"], [line, 0])[1] += 1
        has = value.get("advantage") is not None
        if self._first is None:
            self._first = (line, has)
        first, expected = self._first
        if self._mode == "given" and not has:
            reason = "'advantage' is missing, but the setting 'advantage' is 'given'"
            yield "missing_advantage", reason
        elif self._mode is None and has != expected and not self._told_mixed:
            self._told_mixed = True
            first_count, this_count = "an" if expected else "no", "one" if has else "none"
            reason = f"line {first} has {first_count} 'advantage' and this line has {this_count}"
            yield "mixed_advantages", f"{reason}: give it in every line or in none"

    def find_problems_at_end(self) -> Iterator[Problem]:
        """Groups with nothing to compare, where advantages come from groups."""
        from_lines = self._first is not None and self._first[1]
        if self._mode == "given" or (self._mode is None and from_lines):
            return
        for group, (line, count) in self._groups.items():
            if count == 1:
                reason = (
                    f"the group {group[:60]!r} has this line only, so there is nothing to compare"
                )
                remedy = "give it an 'advantage', or another line of the group"
                yield Problem(line, "group_of_one", f"{reason} its reward with: {remedy}")


def find_problems(value: Mapping[str, Any]) -> Iterator[Broken]:
    """The rules of one line."""
    # 1. The episode, in one of two forms.
    if ("messages" in value) == ("turns" in value):
        both = "both are there" if "turns" in value else "neither is there"
        reason = f"exactly one of 'messages' and 'turns' is needed: {both}"
        yield "messages_or_turns", reason
    elif "turns" in value:
        yield from _turns_problems(value["turns"])
    else:
        yield from _messages_problems(value)
    # 2. Its group, and its advantage.
    yield from find_unknown_keys("the example", value, ("messages", "turns", *_SHARED_KEYS))
    group = value.get("group_id", MISSING)
    if group == "":
        yield "invalid_group_id", "'group_id' must be a string, got an empty one"
    elif not isinstance(group, str):
        yield describe_wrong("invalid_group_id", "'group_id'", "a string", group)
    if not _is_finite(reward := value.get("reward", MISSING)):
        yield describe_wrong("invalid_reward", "'reward'", "a finite number", reward)
    advantage = value.get("advantage")
    if advantage is not None and not _is_finite(advantage):
        yield describe_wrong("invalid_advantage", "'advantage'", "a finite number", advantage)


def _messages_problems(value: Mapping[str, Any]) -> Iterator[Broken]:
    broken = [*find_messages_problems("messages", value, ("weight", "token_ids", "logprobs"))]
    yield from broken
    if broken:
        return
    yield from find_learned_problems(value["messages"])
    for index, message in enumerate(value["messages"]):
        place = f"messages[{index}]"
        token_ids, logprobs = message.get("token_ids"), message.get("logprobs")
        if token_ids is None and logprobs is None:
            continue
        if message["role"] != "assistant" or message.get("weight", 1) == 0:
            key = "logprobs" if token_ids is None else "token_ids"
            reason = "is no action: only assistant messages whose weight is not 0 are"
            yield "not_an_action", f"{place} has {key!r}, but {reason}"
        else:
            yield from _action_problems(place, "token_ids", token_ids, logprobs)


def _turns_problems(turns: Any) -> Iterator[Broken]:
    if not isinstance(turns, list) or not turns:
        yield describe_wrong("invalid_turns", "'turns'", "a list of at least one", turns)
        return
    for index, turn in enumerate(turns):
        place = f"turns[{index}]"
        if not isinstance(turn, dict):
            yield describe_wrong("invalid_turns", place, "an object", turn)
            continue
        yield from find_unknown_keys(place, turn, _TURN_KEYS)
        yield from _token_problems(f"{place}.prompt_token_ids", turn.get("prompt_token_ids"))
        completion = turn.get("completion_token_ids")
        if completion is None:
            yield "invalid_token_ids", f"{place}.completion_token_ids is missing"
        else:
            logprobs = turn.get("logprobs")
            yield from _action_problems(place, "completion_token_ids", completion, logprobs)


def _action_problems(place: str, key: str, token_ids: Any, logprobs: Any) -> Iterator[Broken]:
    if token_ids is not None:
        broken = [*_token_problems(f"{place}.{key}", token_ids)]
        yield from broken
        if broken:
            return
    if logprobs is None:
        return
    if not isinstance(logprobs, list) or not logprobs:
        yield describe_wrong("invalid_logprobs", f"{place}.logprobs", "a list of numbers", logprobs)
        return
    # Lists are long: a right one is seen without a look at each item.
    right = set(map(type, logprobs)) == {float} and math.isfinite(sum(logprobs))
    if not right or min(logprobs) < LEAST_LOGPROB or max(logprobs) > LOGPROB_TOLERANCE:
        for index, logprob in enumerate(logprobs):
            if not _is_finite(logprob) or not LEAST_LOGPROB <= logprob <= LOGPROB_TOLERANCE:
                expected = f"a number from {LEAST_LOGPROB:g} to 0"
                yield describe_wrong(
                    "invalid_logprobs", f"{place}.logprobs[{index}]", expected, logprob
                )
                return
    # Each token has one, and each one a token.
    if token_ids is not None and len(token_ids) != len(logprobs):
        reason = f"{place} has {len(token_ids)} {key} but {len(logprobs)} logprobs"
        yield "lengths_differ", f"{reason}: each token needs one"


def _token_problems(place: str, token_ids: Any) -> Iterator[Broken]:
    if not isinstance(token_ids, list) or not token_ids:
        yield describe_wrong(
            "invalid_token_ids", place, "a list of at least one token id", token_ids
        )
        return
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < 2**31:
        return
    for index, token in enumerate(token_ids):
        if type(token) is not int or not 0 <= token < 2**31:
            expected = "a token id (an integer from 0)"
            yield describe_wrong("invalid_token_ids", f"{place}[{index}]", expected, token)
            return


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
