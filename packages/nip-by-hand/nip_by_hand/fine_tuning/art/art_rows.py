"""ART's trajectories as the lines of a job.

training_data    groups of trajectories -> lines of method `trajectories`, and the counts
sft_data         trajectories -> lines of method `supervised`
Data             the bytes, and figures under ART's names

The same items are trained as by ART: of each conversation the `Choice` items that have
log-probabilities; assistant messages that are dicts are context. A conversation ends with the last
of them. A trajectory's additional histories are lines of their own with the same advantage.
Advantages are ART's: the reward less its group's mean, over the group's standard deviation if
`scale_rewards`; every trajectory counts alike however many tokens it has; and all of a step
together are scaled to 1 on average. Trajectories without an advantage, and so groups of equal
rewards, are left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

from nip_base.formats import MIN_EXAMPLES, to_jsonl, validate
from nip_base.formats.advantages import Deviation, group_advantages
from nip_by_hand.fine_tuning.art.art_options import TrainOptions
from nip_by_hand.fine_tuning.job_data import JobLine, LineMessage, SupervisedLine, TrajectoryLine
from nip_core.errors import SettingsError

if TYPE_CHECKING:
    import art

_SMALL = 1e-6
"""ART adds this to the standard deviation."""
_TOKEN_ID = "token_id:"


@dataclass(frozen=True)
class Data:
    """`jsonl` has each line `repeats` times, so that there are as many as a job must have."""

    jsonl: bytes
    lines: int
    repeats: int
    metrics: Mapping[str, float]


class _GivenMessage(BaseModel):
    """The read parts of a program's message. `_data` checks its values, by the receiver's rules."""

    role: Any = None
    content: Any = None
    name: Any = None


@dataclass(frozen=True)
class _Line:
    """One conversation: its messages and the number of tokens that are trained, if known."""

    messages: list[LineMessage]
    tokens: int | None
    without_ids: int  # messages to train whose token ids are not known


@dataclass(frozen=True)
class _Trained:
    """The conversations of a trajectory that is trained."""

    group: str
    reward: float
    advantage: float
    lines: list[_Line]


def training_data(groups: "Sequence[art.TrajectoryGroup]", options: TrainOptions) -> Data:
    """The lines to train on; none if no group prefers a trajectory.

    Raises SettingsError, naming group and trajectory, for data that the server can't take: tools,
    images, roles that it doesn't know, a reward that is no number.
    """
    # 1. Take the trajectories that are better or worse than others of their group.
    trajectories: list[_Trained] = []
    for number, group in enumerate(groups):
        members = list(group)
        advantages = _advantages([t.reward for t in members], options.scale_rewards, number)
        for index, (trajectory, advantage) in enumerate(zip(members, advantages, strict=True)):
            if advantage == 0:
                continue
            place = f"group {number}, trajectory {index}"
            lines = _trajectory_lines(trajectory, place, options)
            if lines:
                balanced = _balance(advantage, options.advantage_balance)
                trajectories.append(_Trained(str(number), trajectory.reward, balanced, lines))
    # 2. Weigh them, and count them.
    rows = _weigh(trajectories)
    used = len({trajectory.group for trajectory in trajectories})
    metrics = {
        "data/step_num_groups_trainable": float(used),
        "data/step_num_groups_dropped": float(len(groups) - used),
        "data/step_num_lines": float(len(rows)),
        "data/step_num_choices_without_token_ids": float(
            sum(line.without_ids for one in trajectories for line in one.lines)
        ),
    }
    token_counts = [line.tokens for one in trajectories for line in one.lines]
    if token_counts and all(tokens is not None for tokens in token_counts):
        metrics["data/step_trainer_tokens"] = float(sum(tokens or 0 for tokens in token_counts))
    return _data("trajectories", rows, metrics)


def sft_data(trajectories: "Iterable[art.Trajectory]") -> Data:
    """The conversations to learn from: every assistant message of each. Raises SettingsError."""
    rows = []
    for index, trajectory in enumerate(trajectories):
        trajectory_place = f"trajectory {index}"
        if trajectory.additional_histories:
            raise SettingsError(
                f"{trajectory_place}: additional_histories can't be learned by train_sft"
            )
        _refuse_tools(trajectory.tools, trajectory_place)
        messages = [
            _message(item, f"{trajectory_place}, message {place}")
            for place, item in enumerate(trajectory.messages_and_choices)
        ]
        rows.append(SupervisedLine(messages=messages))
    return _data("supervised", rows, {"data/step_num_trajectories": float(len(rows))})


# Advantages -----------------------------------------------------------------------------------


def _advantages(rewards: Sequence[float], scale: bool, group: int) -> list[float]:
    """ART's, of one group."""
    if not all(math.isfinite(reward) for reward in rewards):
        raise SettingsError(f"group {group}: its rewards must be finite numbers (got {rewards})")
    divide_by: Deviation | None = "population" if scale else None
    return group_advantages(rewards, divide_by=divide_by, add=_SMALL) or [0.0] * len(rewards)


def _balance(advantage: float, balance: float) -> float:
    if balance > 0 and advantage < 0:
        return advantage * (1 - balance)
    if balance < 0 and advantage > 0:
        return advantage * (1 + balance)
    return advantage


def _weigh(trajectories: Sequence[_Trained]) -> list[TrajectoryLine]:
    """Weigh the lines: trajectories count alike, and their advantages are 1 on average over all
    tokens.

    The server's loss is a mean over tokens, so a trajectory's advantage is divided by the number
    of its tokens. Where that is not known for all of them, tokens count alike.
    """
    # 1. Count the tokens of each trajectory.
    sizes = [[line.tokens for line in item.lines] for item in trajectories]
    is_known = all(size is not None for trajectory in sizes for size in trajectory)
    totals = [sum(size or 0 for size in trajectory) if is_known else 1 for trajectory in sizes]
    # 2. Divide by them, and by the mean of all advantages.
    tokens = sum(totals)
    scale = sum(abs(item.advantage) for item in trajectories) / tokens if tokens else 0.0
    return [
        TrajectoryLine(
            messages=line.messages,
            group_id=item.group,
            reward=item.reward,
            advantage=item.advantage / total / scale if scale else 0.0,
        )
        for item, total in zip(trajectories, totals, strict=True)
        for line in item.lines
    ]


# Conversations --------------------------------------------------------------------------------


def _trajectory_lines(
    trajectory: "art.Trajectory", trajectory_place: str, options: TrainOptions
) -> list[_Line]:
    histories = [trajectory, *trajectory.additional_histories]
    lines = []
    for number, history in enumerate(histories):
        place = (
            trajectory_place
            if number == 0
            else f"{trajectory_place}, additional history {number - 1}"
        )
        _refuse_tools(history.tools, place)
        line = _line(history.messages_and_choices, place, options)
        if line is not None:
            lines.append(line)
    return lines


def _line(items: Sequence[Any], place: str, options: TrainOptions) -> _Line | None:
    """Make a line of a conversation up to its last trained message; None if none is trained."""
    # 1. Find the messages that are trained.
    any_assistant = options.allow_training_without_logprobs
    trained_indices = [
        index
        for index, item in enumerate(items)
        if (isinstance(item, Choice) and (any_assistant or _has_logprobs(item)))
        or (any_assistant and isinstance(item, Mapping) and item.get("role") == "assistant")
    ]
    if not trained_indices:
        return None
    # 2. Put down all up to the last of them, with the tokens of those and no weight for others.
    messages, tokens, without_ids = [], 0, 0
    is_known = True
    for index, item in enumerate(items[: trained_indices[-1] + 1]):
        message = _message(item, f"{place}, message {index}")
        if index not in trained_indices:
            if message["role"] == "assistant":
                message["weight"] = 0
        else:
            ids, logprobs = _read_tokens(item) if isinstance(item, Choice) else (None, None)
            if ids is not None:
                message["token_ids"] = ids
                # Without the ids the token of a log-probability is unknown.
                if logprobs is not None and not options.precalculate_logprobs:
                    message["logprobs"] = logprobs
            else:
                without_ids += 1
            size = len(ids or logprobs or ())
            is_known, tokens = is_known and size > 0, tokens + size
        messages.append(message)
    return _Line(messages, tokens if is_known else None, without_ids)


def _has_logprobs(choice: Choice) -> bool:
    return choice.logprobs is not None and bool(choice.logprobs.content or choice.logprobs.refusal)


def _read_tokens(choice: Choice) -> tuple[list[int] | None, list[float] | None]:
    """Token ids and log-probabilities, where the choice has them; equally many."""
    scored = []
    if choice.logprobs is not None:
        scored = choice.logprobs.content or choice.logprobs.refusal or []
    logprobs = [float(token.logprob) for token in scored] or None
    ids = getattr(choice, "token_ids", None)
    if not ids and scored and all(token.token.startswith(_TOKEN_ID) for token in scored):
        ids = [int(token.token.removeprefix(_TOKEN_ID)) for token in scored]
    if not ids:
        return None, logprobs
    return list(ids), logprobs if logprobs is not None and len(logprobs) == len(ids) else None


def _message(item: Any, place: str) -> LineMessage:
    """Read role, content and name. Raises SettingsError for tools, audio and images."""
    if isinstance(item, Choice):
        fields: Mapping[str, Any] = item.message.model_dump(exclude_none=True)
    else:
        fields = item
    for key in ("tool_calls", "function_call", "tool_call_id", "audio"):
        if fields.get(key):
            raise SettingsError(f"{place}: {key} can't be trained by lm_server")
    message = _GivenMessage.model_validate(fields)
    content = "" if message.content is None else message.content
    if not isinstance(content, str):
        parts = [part.get("text") for part in content if part.get("type") == "text"]
        if len(parts) != len(content):
            raise SettingsError(f"{place}: only text can be trained by lm_server")
        content = "".join(parts)
    line_message = LineMessage(role=message.role, content=content)
    if message.name:
        line_message["name"] = message.name
    return line_message


def _refuse_tools(tools: Any, place: str) -> None:
    if tools:
        raise SettingsError(f"{place}: tools can't be trained by lm_server")


def _data(method: str, rows: Sequence[JobLine], metrics: Mapping[str, float]) -> Data:
    """The rows, checked by the server's own rules. Raises SettingsError."""
    problems = validate(
        method,
        enumerate(rows, start=1),
        min_examples=0,
        advantage="given" if method == "trajectories" else None,
    )
    if problems:
        raise SettingsError(
            f"conversation {problems[0].line} of those to train: {problems[0].message}"
        )
    repeats = math.ceil(MIN_EXAMPLES / len(rows)) if rows else 1
    return Data(to_jsonl(rows) * repeats, len(rows) * repeats, repeats, metrics)
