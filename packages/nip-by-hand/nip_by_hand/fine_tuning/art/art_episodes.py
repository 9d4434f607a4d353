"""NeMo's trajectories as ART's.

check_order       the rules of an episode's order, strict or as NeMo's code has them
to_groups         all trajectories of a submission
trains_anything   whether there is a message to train in any of ART's groups
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypedDict

import art
from openai.types.chat.chat_completion import Choice

from nip_by_hand.fine_tuning.conversion import sampled_tokens
from nip_by_hand.fine_tuning.interface import (
    DPOItem,
    EpisodeItem,
    EpisodeItemRole,
    Trajectory,
    as_ours,
)

_log = logging.getLogger(__name__)
_SPEAKERS = (EpisodeItemRole.USER, EpisodeItemRole.SYSTEM, EpisodeItemRole.ASSISTANT)
_FIRST = (EpisodeItemRole.USER, EpisodeItemRole.SYSTEM)
_NAMES = "'user', 'system' or 'assistant'"


class _ScoredToken(TypedDict):
    token: str
    logprob: float  # nats
    top_logprobs: list[float]  # always empty, but ART's client asks for the key


def check_order(trajectory: Trajectory, *, strict: bool) -> None:
    """Raise ValueError for the first broken rule of the episode's order.

    Strict: the four documented rules. Else those that NeMo's code checks: it begins with user or
    system, and no two assistant messages follow each other. An empty episode breaks both.
    """
    episode: Sequence[EpisodeItem | DPOItem] = trajectory.episode
    if not episode:
        raise ValueError("Trajectory episode is empty.")
    roles = []
    for index, item in enumerate(episode):
        if isinstance(item, DPOItem):
            raise ValueError("ART trains on messages, but the episode has preference pairs.")
        if strict and item.role not in _SPEAKERS:
            raise ValueError(
                f"Every message in the trajectory must be from {_NAMES} "
                f"(got '{item.role}' in episode[{index}])."
            )
        roles.append(item.role)
    if roles[0] not in _FIRST:
        raise ValueError("The first message in the trajectory must be from 'user' or 'system'.")
    if strict and roles[-1] != EpisodeItemRole.ASSISTANT:
        raise ValueError("The last message in the trajectory must be from 'assistant'.")
    for index, (earlier_role, role) in enumerate(pairwise(roles)):
        is_repeated = earlier_role == role and role != EpisodeItemRole.SYSTEM
        if is_repeated and (strict or role == EpisodeItemRole.ASSISTANT):
            raise ValueError(
                f"Consecutive {role} messages from the same role found in trajectory. "
                f"(episode[{index}] and [{index + 1}])"
            )


async def to_groups(
    trajectory_lists: Sequence[Sequence[Any]],
    check: Callable[[Trajectory], Awaitable[None]],
    *,
    strict: bool,
) -> "list[art.TrajectoryGroup]":
    """ART's groups, one for each example; empty ones are left out.

    The trajectories may be another library's. `check` raises ValueError for an order that is not
    right. Raises ValueError, naming the place, if any trajectory is invalid. Not strict, one whose
    order is right but that can't be converted is left out, with a warning.
    """
    groups = []
    for number, trajectories in enumerate(trajectory_lists):
        members = []
        for index, foreign in enumerate(trajectories):
            place = f"trajectories[{number}][{index}]"
            # 1. Its fields and the order of its messages must be right.
            trajectory = as_ours(Trajectory, foreign, place)
            try:
                await check(trajectory)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            # 2. Items that can't be converted are left out only where the rules are not strict.
            try:
                members.append(_to_art(trajectory, place))
            except ValueError as error:
                if strict:
                    raise
                _log.warning("left out: %s", error)
        if members:
            groups.append(art.TrajectoryGroup(members))
    return groups


def _to_art(trajectory: Trajectory, place: str) -> "art.Trajectory":
    """Make ART's trajectory; assistant messages become choices, the only trained items.

    Metadata that ART has a type for is kept, and `shaped_rewards` as metrics. Raises ValueError.
    """
    episode: Sequence[EpisodeItem | DPOItem] = trajectory.episode
    items = [_item(item, f"{place}.episode[{index}]") for index, item in enumerate(episode)]
    metadata = {
        name: value
        for name, value in (trajectory.metadata or {}).items()
        if value is None or isinstance(value, str | int | float | bool)
    }
    shaped = enumerate(trajectory.shaped_rewards or [])
    return art.Trajectory(
        messages_and_choices=items,
        reward=trajectory.reward,
        metadata=metadata,
        metrics={f"shaped_reward_{index}": reward for index, reward in shaped},
    )


def trains_anything(groups: "Sequence[art.TrajectoryGroup]", *, without_logprobs: bool) -> bool:
    """True if a message of any group is trained: a choice; `without_logprobs`, any answer."""
    return any(
        isinstance(item, Choice)
        or (without_logprobs and isinstance(item, Mapping) and item.get("role") == "assistant")
        for group in groups
        for trajectory in group.trajectories
        for item in trajectory.messages_and_choices
    )


def _item(item: EpisodeItem | DPOItem, place: str) -> Any:
    if not isinstance(item, EpisodeItem):
        raise ValueError(f"{place}: ART trains on messages, got {type(item).__name__}")
    if item.role in _FIRST:
        return {"role": str(item.role), "content": item.content}
    if item.role != EpisodeItemRole.ASSISTANT:  # lenient; an item without a choice is not trained
        return {"role": "assistant", "content": item.content}
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": item.content},
            "logprobs": {"content": _scored_tokens(item, place)},
        }
    )


def _scored_tokens(item: EpisodeItem, place: str) -> list[_ScoredToken]:
    """The tokens as under ``logprobs.content`` of a chat answer, by their ids where known."""
    token_ids, logprobs, texts = sampled_tokens(item, place)
    if token_ids is not None:
        if len(token_ids) != len(logprobs):
            raise ValueError(
                f"{place}: {len(token_ids)} token ids but {len(logprobs)} log-probabilities"
            )
        texts = [f"token_id:{token}" for token in token_ids]
    names = texts or [""] * len(logprobs)
    return [
        _ScoredToken(token=name, logprob=logprob, top_logprobs=[])
        for name, logprob in zip(names, logprobs, strict=True)
    ]
