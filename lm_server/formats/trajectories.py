"""Method `trajectories`, an extension: what a model did, and how it was rewarded.

``{"messages": [...], "group_id": str, "reward": number, "advantage"?: number}``
    The conversation as text. The actions are the assistant messages whose weight is not 0. Each
    may have ``"token_ids"``, the tokens that were generated, stop token included, and
    ``"logprobs"``, the sampler's log-probability of each of them.

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
from typing import Any, Literal

from nip_lm_server.formats.jsonl import Problem, kind, unknown_keys
from nip_lm_server.formats.messages import (
    Message,
    learned_problems,
    messages_problems,
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
class Turn:
    """One generation in tokens. `logprobs` has one entry per token of the completion."""

    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The turn as it stands in a JSONL line."""
        data: dict[str, Any] = {
            "prompt_token_ids": list(self.prompt_token_ids),
            "completion_token_ids": list(self.completion_token_ids),
        }
        if self.logprobs is not None:
            data["logprobs"] = list(self.logprobs)
        return data


@dataclass(frozen=True)
class Trajectory:
    """One episode: `messages` or `turns`, the other is empty."""

    group_id: str
    reward: float
    advantage: float | None = None
    messages: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The episode as it stands in a JSONL line."""
        data: dict[str, Any] = {"group_id": self.group_id, "reward": self.reward}
        if self.advantage is not None:
            data["advantage"] = self.advantage
        if self.turns:
            data["turns"] = [turn.to_dict() for turn in self.turns]
        else:
            data["messages"] = [message.to_dict() for message in self.messages]
        return data


def parse(value: Mapping[str, Any]) -> Trajectory:
    """An episode from a checked line."""
    advantage = value.get("advantage")
    return Trajectory(
        group_id=value["group_id"],
        reward=float(value["reward"]),
        advantage=None if advantage is None else float(advantage),
        messages=tuple(map(parse_message, value.get("messages", ()))),
        turns=tuple(map(_parse_turn, value.get("turns", ()))),
    )


def _parse_turn(turn: Mapping[str, Any]) -> Turn:
    logprobs = turn.get("logprobs")
    return Turn(
        prompt_token_ids=tuple(turn["prompt_token_ids"]),
        completion_token_ids=tuple(turn["completion_token_ids"]),
        logprobs=None if logprobs is None else tuple(map(float, logprobs)),
    )


class AcrossLines:
    """The rules of a file: those of each line, and those that hold between lines."""

    def __init__(self, mode: AdvantageMode | None):
        self._mode = mode
        self._first: tuple[int, bool] | None = None  # the first line, and has it an advantage
        self._told_mixed = False
        self._groups: dict[str, list[int]] = {}  # group -> first line, number of lines

    def problems(self, line: int, value: Any) -> Iterator[Problem]:
        """The rules of one line, and whether it has an advantage where the first one has."""
        found = list(_line_problems(line, value))
        yield from found
        if found:
            return
        self._groups.setdefault(value["group_id"], [line, 0])[1] += 1
        has = value.get("advantage") is not None
        if self._first is None:
            self._first = (line, has)
        first, expected = self._first
        if self._mode == "given" and not has:
            yield Problem(
                line,
                "missing_advantage",
                "'advantage' is missing, but the setting 'advantage' is 'given'",
            )
        elif self._mode is None and has != expected and not self._told_mixed:
            self._told_mixed = True
            yield Problem(
                line,
                "mixed_advantages",
                f"line {first} has {'an' if expected else 'no'} 'advantage' and this line has "
                f"{'one' if has else 'none'}: give it in every line or in none",
            )

    def problems_at_end(self) -> Iterator[Problem]:
        """Groups with nothing to compare, where advantages come from groups."""
        given = self._first is not None and self._first[1]
        if self._mode == "given" or (self._mode is None and given):
            return
        for group, (line, count) in self._groups.items():
            if count == 1:
                yield Problem(
                    line,
                    "group_of_one",
                    f"the group {group[:60]!r} has this line only, so there is nothing to compare "
                    "its reward with: give it an 'advantage', or another line of the group",
                )


def _line_problems(line: int, value: Any) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(line, "invalid_example", f"expected an object, got {kind(value)}")
        return
    if ("messages" in value) == ("turns" in value):
        both = "both are there" if "turns" in value else "neither is there"
        yield Problem(
            line, "messages_or_turns", f"exactly one of 'messages' and 'turns' is needed: {both}"
        )
    elif "turns" in value:
        yield from _turns_problems(line, value["turns"])
    else:
        yield from _messages_problems(line, value)
    yield from unknown_keys(line, "the example", value, ("messages", "turns", *_SHARED_KEYS))
    group = value.get("group_id")
    if not isinstance(group, str) or not group:
        got = "an empty one" if group == "" else kind(group) if "group_id" in value else "nothing"
        yield Problem(line, "invalid_group_id", f"'group_id' must be a string, got {got}")
    if not _is_finite(value.get("reward")):
        got = kind(value["reward"]) if "reward" in value else "nothing"
        yield Problem(line, "invalid_reward", f"'reward' must be a finite number, got {got}")
    advantage = value.get("advantage")
    if advantage is not None and not _is_finite(advantage):
        yield Problem(
            line, "invalid_advantage", f"'advantage' must be a finite number, got {kind(advantage)}"
        )


def _messages_problems(line: int, value: Mapping[str, Any]) -> Iterator[Problem]:
    extra = ("weight", "token_ids", "logprobs")
    found = [*messages_problems(line, "messages", value, extra)]
    yield from found
    if found:
        return
    yield from learned_problems(line, value["messages"])
    for index, message in enumerate(value["messages"]):
        at = f"messages[{index}]"
        given = [key for key in ("token_ids", "logprobs") if message.get(key) is not None]
        if given and (message["role"] != "assistant" or message.get("weight", 1) == 0):
            yield Problem(
                line,
                "not_an_action",
                f"{at} has {given[0]!r}, but is no action: only assistant messages whose weight is "
                "not 0 are",
            )
        elif given:
            yield from _action_problems(
                line, at, "token_ids", message.get("token_ids"), message.get("logprobs")
            )


def _turns_problems(line: int, turns: Any) -> Iterator[Problem]:
    if not isinstance(turns, list) or not turns:
        yield Problem(
            line, "invalid_turns", f"'turns' must be a list of at least one, got {kind(turns)}"
        )
        return
    for index, turn in enumerate(turns):
        at = f"turns[{index}]"
        if not isinstance(turn, dict):
            yield Problem(line, "invalid_turns", f"{at} must be an object, got {kind(turn)}")
            continue
        yield from unknown_keys(line, at, turn, _TURN_KEYS)
        yield from _token_problems(line, f"{at}.prompt_token_ids", turn.get("prompt_token_ids"))
        completion = turn.get("completion_token_ids")
        if completion is None:
            yield Problem(line, "invalid_token_ids", f"{at}.completion_token_ids is missing")
        else:
            yield from _action_problems(
                line, at, "completion_token_ids", completion, turn.get("logprobs")
            )


def _action_problems(
    line: int, at: str, key: str, token_ids: Any, logprobs: Any
) -> Iterator[Problem]:
    if token_ids is not None:
        found = [*_token_problems(line, f"{at}.{key}", token_ids)]
        yield from found
        if found:
            return
    if logprobs is None:
        return
    if not isinstance(logprobs, list) or not logprobs:
        yield Problem(
            line,
            "invalid_logprobs",
            f"{at}.logprobs must be a list of numbers, got {kind(logprobs)}",
        )
        return
    for index, logprob in enumerate(logprobs):
        if not _is_finite(logprob) or not LEAST_LOGPROB <= logprob <= LOGPROB_TOLERANCE:
            yield Problem(
                line,
                "invalid_logprobs",
                f"{at}.logprobs[{index}] must be a number from {LEAST_LOGPROB:g} to 0, got "
                f"{kind(logprob)}",
            )
            return
    if token_ids is not None and len(token_ids) != len(logprobs):
        yield Problem(
            line,
            "lengths_differ",
            f"{at} has {len(token_ids)} {key} but {len(logprobs)} logprobs: each token needs one",
        )


def _token_problems(line: int, at: str, token_ids: Any) -> Iterator[Problem]:
    if not isinstance(token_ids, list) or not token_ids:
        yield Problem(
            line,
            "invalid_token_ids",
            f"{at} must be a list of at least one token id, got {kind(token_ids)}",
        )
        return
    for index, token in enumerate(token_ids):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            yield Problem(
                line,
                "invalid_token_ids",
                f"{at}[{index}] must be a token id (an integer from 0), got {kind(token)}",
            )
            return


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
