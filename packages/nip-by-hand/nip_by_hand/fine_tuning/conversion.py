"""From a TrajectoryCollection to the JSONL rows of a training method.

to_jsonl_rows   the rows of a collection, checked with the receiver's own rules
sampled_tokens  the tokens of an assistant message, in the shapes that occur

    supervised     each trajectory is one conversation; all its assistant messages are learned
    dpo            each DPOItem is one pair
    trajectories   each trajectory is one episode; those of an inner list are compared

Data that a method can't use is an error that names its place, ``trajectories[2][0]``; nothing is
left out silently. Not used by any method: `shaped_rewards` (with a warning), metadata other than
``token_ids``, and the reward of a trajectory of pairs.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from nip_base.formats import Problem, describe_problems, to_jsonl, validate
from nip_by_hand.fine_tuning.interface import (
    DPOItem,
    EpisodeItem,
    EpisodeItemRole,
    Trajectory,
    TrajectoryCollection,
)
from nip_by_hand.fine_tuning.job_data import (
    JobLine,
    LineMessage,
    PairLine,
    SupervisedLine,
    TrajectoryLine,
)
from nip_core.tolerance import at_least

_log = logging.getLogger(__name__)

Method = Literal["supervised", "dpo", "trajectories"]
_SPEAKERS = (EpisodeItemRole.SYSTEM, EpisodeItemRole.USER, EpisodeItemRole.ASSISTANT)
_TOKEN_ID = "token_id:"  # how vLLM and our server write a token's id in place of its text


def to_jsonl_rows(
    collection: TrajectoryCollection,
    method: Method,
    *,
    reward_threshold: float | None = None,
    advantage: Literal["group", "group_std"] = "group_std",
) -> tuple[bytes, int]:
    """The file to train on, and its number of rows.

    With `reward_threshold` trajectories with a smaller reward are left out (supervised only).
    `advantage` is that setting of the trajectories method. Raises ValueError with the places of
    data that breaks a rule; nothing was sent then.
    """
    # 1. Make the rows, each with its place in the collection.
    rows: list[JobLine] = []
    places: list[str] = []
    ignored = False
    for group, trajectories in enumerate(collection.trajectories):
        for index, trajectory in enumerate(trajectories):
            place = f"trajectories[{group}][{index}]"
            ignored = ignored or trajectory.shaped_rewards is not None
            if reward_threshold is not None and not at_least(trajectory.reward, reward_threshold):
                continue
            new_rows = _rows(trajectory, method, f"group-{group:06d}", place)
            rows += new_rows
            places += [place] * len(new_rows)
    if ignored:
        _log.warning("run_id %r: shaped_rewards are not used", collection.run_id)
    # 2. Check them with the receiver's own rules, told by these places.
    numbered = [(number, _plain(row, places[number - 1])) for number, row in enumerate(rows, 1)]
    problems = validate(method, numbered, advantage=advantage)
    if problems:
        raise ValueError(
            f"run_id {collection.run_id!r} can't be trained on with method {method!r}: "
            + describe_problems([_tell_place(problem, places) for problem in problems])
        )
    return to_jsonl(rows), len(rows)


def sampled_tokens(
    item: EpisodeItem, place: str
) -> tuple[list[int] | None, list[float], list[str]]:
    """Ids of the tokens, where there are any, their log-probabilities (nats), and texts, or none.

    `logprobs` may be a list of numbers, or a chat answer's value of that name, as an object of
    the `openai` client or as plain JSON: ``{"content": [{"token", "logprob"}, ...]}``. Token ids
    stand there as ``"token_id:17"``, or in the item's metadata as ``token_ids``. Raises ValueError
    for anything else.
    """
    logprobs = item.logprobs
    if isinstance(logprobs, BaseModel):
        logprobs = logprobs.model_dump()
    token_ids = (item.metadata or {}).get("token_ids")
    # 1. As a chat answer has them, perhaps with ids in place of the tokens' texts.
    if isinstance(logprobs, Mapping):
        entries = logprobs.get("content")
        if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
            raise ValueError(
                f"{place}.logprobs has no list of tokens under 'content' (got {entries!r}); ask "
                "for log-probabilities when sampling"
            )
        pairs = [
            _read_entry(entry, f"{place}.logprobs.content[{i}]") for i, entry in enumerate(entries)
        ]
        token_texts = [token for token, _ in pairs if token.startswith(_TOKEN_ID)]
        if token_ids is None and len(token_texts) == len(pairs):
            token_ids = [_read_token_id(token, place) for token in token_texts]
        return token_ids, [logprob for _, logprob in pairs], [token for token, _ in pairs]
    # 2. As bare numbers.
    if isinstance(logprobs, Sequence) and not isinstance(logprobs, str):
        return token_ids, list(logprobs), []
    raise ValueError(
        f"{place}.logprobs is {type(logprobs).__name__}; expected a list of numbers, or an object "
        "whose 'content' lists tokens with their 'logprob'"
    )


def _read_entry(entry: Any, place: str) -> tuple[str, float]:
    if isinstance(entry, BaseModel):
        entry = entry.model_dump()
    token = entry.get("token") if isinstance(entry, Mapping) else None
    logprob = entry.get("logprob") if isinstance(entry, Mapping) else None
    if isinstance(token, str) and isinstance(logprob, int | float):
        return token, logprob
    raise ValueError(f"{place} needs a 'token' (text) and a 'logprob' (number), got {entry!r}")


def _read_token_id(token: str, place: str) -> int:
    digits = token.removeprefix(_TOKEN_ID)
    if digits.isascii() and digits.isdigit():
        return int(digits)
    raise ValueError(f"{place}.logprobs: {token!r} is no token id; expected {_TOKEN_ID}17 or so")


def _rows(trajectory: Trajectory, method: Method, group_id: str, place: str) -> Sequence[JobLine]:
    """The rows of one trajectory."""
    if not trajectory.episode:
        raise ValueError(f"{place}: Trajectory episode is empty.")
    item_type = DPOItem if method == "dpo" else EpisodeItem
    if not isinstance(trajectory.episode[0], item_type):
        raise ValueError(
            f"{place}: method {method!r} trains on episodes of {item_type.__name__}, got "
            f"{type(trajectory.episode[0]).__name__}"
        )
    if method == "dpo":
        return [_pair(item) for item in trajectory.episode if isinstance(item, DPOItem)]
    messages = [
        _message(item, f"{place}.episode[{index}]", with_tokens=method == "trajectories")
        for index, item in enumerate(trajectory.episode)
        if isinstance(item, EpisodeItem)
    ]
    if method == "supervised":
        return [SupervisedLine(messages=messages)]
    return [TrajectoryLine(messages=messages, group_id=group_id, reward=trajectory.reward)]


def _message(item: EpisodeItem, place: str, *, with_tokens: bool) -> LineMessage:
    if item.role not in _SPEAKERS:
        raise ValueError(
            f"{place}.role is {item.role.value!r}; only system, user and assistant can be trained "
            "with: say what others said as the user, or leave it out"
        )
    message = LineMessage(role=item.role.value, content=item.content)
    if with_tokens and item.role == EpisodeItemRole.ASSISTANT:
        token_ids, message["logprobs"], _ = sampled_tokens(item, place)
        if token_ids is not None:
            message["token_ids"] = token_ids
    return message


def _pair(item: DPOItem) -> PairLine:
    if isinstance(item.prompt, str):
        prompt = [LineMessage(role="user", content=item.prompt)]
    else:
        prompt = [
            LineMessage(role=message.role, content=message.content) for message in item.prompt
        ]
    return PairLine(
        input=SupervisedLine(messages=prompt),
        preferred_output=[LineMessage(role="assistant", content=item.chosen_response)],
        non_preferred_output=[LineMessage(role="assistant", content=item.rejected_response)],
    )


def _plain(row: JobLine, place: str) -> Any:
    """The row as its reader will see it. Raises ValueError for values that JSON lacks."""
    try:
        return json.loads(json.dumps(row, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: not JSON: {error}") from None


def _tell_place(problem: Problem, places: Sequence[str]) -> Problem:
    """The problem, told by its place in the collection instead of its line."""
    if not problem.line:
        return problem
    return Problem(0, problem.code, f"{places[problem.line - 1]}: {problem.message}")
