"""The data of method `trajectories`, ready to train on: episodes as marked token ids.

read_episodes     a file -> `Episode`s, each with its sequences
check_known       whether the model knows all tokens
with_advantages   the setting `advantage`: the rows' own, or each reward against its group's

A message with `token_ids` is trained as those ids, after the prompt that the chat template gives: a
model does not always generate the tokens that its text would be split into. They must decode to
the message's text. Where a turn's prompt begins with all tokens of the turn before, both are one
sequence; else each is its own, as in the other methods (`encoding`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nip_lm_server import formats
from nip_lm_server.formats import chat_template
from nip_lm_server.formats.advantages import Deviation, group_advantages
from nip_lm_server.training import loading
from nip_lm_server.training.encoding import (
    EncodedSequence,
    ExampleError,
    Turn,
    check_length,
    encode_file,
    encode_turn,
    join,
)
from nip_lm_server.training.job import TrainingError


@dataclass(frozen=True)
class Episode:
    """One line of the data, as sequences."""

    line: int
    group_id: str
    reward: float
    advantage: float | None
    sequences: tuple[EncodedSequence, ...]


def read_episodes(
    path: Path | None, text: loading.Text, mode: formats.AdvantageMode | None, param: str
) -> list[Episode]:
    """Every episode of a JSONL file, none for None. Raises TrainingError, naming the line."""

    def encode(line: int, example: formats.Trajectory) -> Episode:
        return _encode(line, example, text)

    return encode_file("trajectories", path, param, encode, mode)


def with_advantages(
    episodes: Sequence[Episode], mode: formats.AdvantageMode | None
) -> tuple[list[Episode], int]:
    """The episodes to train on, each with its advantage, and how many groups were left out.

    A group whose rewards are all equal says nothing about what is better and is left out. `mode`
    None: the rows' own advantages if they have them, else "group_std".
    """
    if mode is None:
        have_their_own = all(episode.advantage is not None for episode in episodes)
        mode = "given" if have_their_own else "group_std"
    if mode == "given":
        return list(episodes), 0
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group_id, []).append(episode)
    by_line: dict[int, float] = {}
    skipped = 0
    deviation: Deviation | None = "sample" if mode == "group_std" else None
    for members in groups.values():
        advantages = group_advantages([e.reward for e in members], divide_by=deviation)
        if advantages is None:
            skipped += 1
        else:
            lines = (episode.line for episode in members)
            by_line.update(zip(lines, advantages, strict=True))
    trained = [replace(e, advantage=by_line[e.line]) for e in episodes if e.line in by_line]
    return trained, skipped


def check_known(episodes: Sequence[Episode], vocabulary: int, param: str) -> None:
    """Raise TrainingError, naming the line, if a token id is not below `vocabulary`."""
    for episode in episodes:
        highest = max(max(sequence.input_ids) for sequence in episode.sequences)
        if highest >= vocabulary:
            raise TrainingError(
                "unknown_token_id",
                f"line {episode.line}: the episode has the token id {highest}, but the model knows "
                f"the ids from 0 to {vocabulary - 1} only",
                param,
            )


def _encode(line: int, example: formats.Trajectory, text: loading.Text) -> Episode:
    if example.turns:
        turns = [
            Turn(turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs)
            for turn in example.turns
        ]
    else:
        turns = _message_turns(line, example.messages, text)
    sequences = tuple(join(turns))
    for sequence in sequences:
        size = len(sequence.input_ids)
        check_length(size, text.max_length, line, "the episode has a sequence of")
    return Episode(line, example.group_id, example.reward, example.advantage, sequences)


def _message_turns(
    line: int, messages: Sequence[formats.Message], text: loading.Text
) -> list[Turn]:
    plain = [message.to_dict() for message in messages]
    turns = []
    for index, message in enumerate(messages):
        if message.role != "assistant" or message.weight == 0:
            continue
        # What was generated is trained as it was; a text alone is encoded as it would be served.
        if message.token_ids is None:
            turn = encode_turn(text.tokenizer, plain[: index + 1], text.stop_tokens, line)
            prompt, answer = turn.prompt, turn.answer
        else:
            prompt = _prompt(line, plain[:index], text)
            answer = list(message.token_ids)
            _check_text(line, index, message, text)
        if message.logprobs is not None and len(message.logprobs) != len(answer):
            raise ExampleError(
                "lengths_differ",
                line,
                f"messages[{index}] has {len(message.logprobs)} logprobs, but its text is "
                f"{len(answer)} tokens with the stop token: give the generated 'token_ids' too",
            )
        turns.append(Turn(prompt, answer, message.logprobs))
    return turns


def _prompt(line: int, messages: Sequence[dict[str, Any]], text: loading.Text) -> list[int]:
    try:
        return chat_template.encode_prompt(text.tokenizer, messages)
    except chat_template.ChatTemplateError as error:
        raise ExampleError("chat_template_refused", line, str(error)) from error


def _check_text(line: int, index: int, message: formats.Message, text: loading.Text) -> None:
    """The ids are the message's. A stop string may have cut the text, or spaces been stripped."""
    ids = message.token_ids or ()
    decoded = str(text.tokenizer.decode(ids, skip_special_tokens=True))
    if not decoded.strip().startswith(message.content.strip()):
        raise ExampleError(
            "token_ids_differ",
            line,
            f"messages[{index}].token_ids are the text {decoded[:60]!r}, but its content is "
            f"{message.content[:60]!r}: they are not of the same message, or of another model",
        )
