"""Method `trajectories`: reinforce rewarded actions, from recorded episodes.

prepare          data, model and trainer of a job; `main` calls it
read_episodes    a file -> `Episode`s, each with its sequences
check_known      whether the model knows all tokens
add_advantages   the setting `advantage`: the rows' own, or each reward against its group's

The loss is `policy_gradient.clipped_loss`, in a `policy_trainer.PolicyTrainer`.

A message with `token_ids` is trained with those ids, after the chat template's prompt: a model does
not always generate the tokens that its text would be split into. They must decode to the message's
text. Where a turn's prompt begins with all tokens of the turn before, both are one sequence; else
each is a sequence of its own, as in the other methods (`encoding`).

The old log-probabilities, by the policy that acted, come from the data if it has them (the
sampler's own), else from the weights at the start of the training. They stay the same for all
epochs and when a killed training continues. The reference of `kl_penalty` is the model at the start
of the training; as the episodes are fixed, its log-probabilities are computed once, and no second
model is kept. If every episode has an advantage of 0, nothing is trained, and the result says
``unchanged``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nip_base import formats
from nip_base.formats.advantages import Deviation, group_advantages
from nip_lm_server.chats import chat_template
from nip_lm_server.training.job import Events, TrainingError, TrainingJob
from nip_lm_server.training.methods.encoding import (
    EncodedSequence,
    EncodedTurn,
    ExampleError,
    check_length,
    encode_file,
    encode_turn,
    join,
)
from nip_lm_server.training.model import loading


@dataclass(frozen=True)
class Episode:
    """One line of the data, as sequences."""

    line: int
    group_id: str
    reward: float
    advantage: float | None
    sequences: tuple[EncodedSequence, ...]


def prepare(job: TrainingJob, text: loading.Text, events: Events) -> loading.Prepared:
    """Read the data, load the model and build the trainer. Raises TrainingError.

    There is no trainer if every episode has an advantage of 0.
    """
    settings = job.settings
    mode = settings.advantage
    training = read_episodes(job.training_file, text, mode, "training_file")
    validation = read_episodes(job.validation_file, text, mode, "validation_file")
    model = loading.load_start(job)
    vocabulary = model.get_input_embeddings().weight.shape[0]  # it may be more than the tokenizer's
    check_known(training, vocabulary, "training_file")
    check_known(validation, vocabulary, "validation_file")
    training, skipped = add_advantages(training, mode)
    validation, _ = add_advantages(validation, mode)
    _tell(events, training, skipped)
    if not any(episode.advantage for episode in training):
        events.message("no episode has an advantage other than 0: nothing is trained", level="warn")
        return loading.Prepared(unchanged=model)
    from transformers import TrainingArguments

    from nip_lm_server.training.methods.arguments import common_arguments
    from nip_lm_server.training.methods.policy_trainer import PolicyTrainer
    from nip_lm_server.training.model.memory import plan_passes

    passes = plan_passes(job, model, _lengths(training), _lengths(validation))
    trainer = PolicyTrainer(
        settings.model_dump(include={"clip_low", "clip_high", "kl_penalty"}),
        text.tokenizer.pad_token_id,
        model=model,
        args=TrainingArguments(**common_arguments(job, passes), remove_unused_columns=False),
        train_dataset=_rows(training),
        eval_dataset=_rows(validation) if validation else None,
        processing_class=text.tokenizer,
    )
    trainer.tokens_per_pass = passes.tokens_per_pass
    if not trainer.has_scoring:
        events.message(
            "this model's output layer can't be computed in pieces: a pass has the logits of all "
            "its tokens in memory, so tokens_per_pass may have to be set lower",
            level="warn",
        )
    trainer.fill_in(events)
    tokens = sum(_lengths(training))
    return loading.Prepared(trainer, tokens)


def _lengths(episodes: Iterable[Episode]) -> list[int]:
    return [len(sequence.input_ids) for episode in episodes for sequence in episode.sequences]


def _rows(episodes: Iterable[Episode]) -> list[dict[str, Any]]:
    return [
        {
            "input_ids": list(sequence.input_ids),
            "actions": list(sequence.actions),
            "logprobs": list(sequence.logprobs),
            "advantage": episode.advantage,
        }
        for episode in episodes
        for sequence in episode.sequences
    ]


def _tell(events: Events, training: Sequence[Episode], skipped: int) -> None:
    sequences = [sequence for episode in training for sequence in episode.sequences]
    tokens = sum(len(sequence.input_ids) for sequence in sequences)
    actions = sum(sum(sequence.actions) for sequence in sequences)
    events.message(
        f"{len(training)} episodes, {len(sequences)} sequences, {tokens} tokens, "
        f"{actions} of them actions"
    )
    if skipped:
        events.message(f"{skipped} groups left out, because all rewards in each of them are equal")


# The data


def read_episodes(
    path: Path | None, text: loading.Text, mode: formats.AdvantageMode | None, param: str
) -> list[Episode]:
    """Encode every line of a JSONL file; none for None. Raises TrainingError, naming the line."""
    encode = partial(encode_episode, text=text)
    return encode_file("trajectories", path, param, encode, mode)


def add_advantages(
    episodes: Sequence[Episode], mode: formats.AdvantageMode | None
) -> tuple[list[Episode], int]:
    """Return the episodes to train on, each with its advantage, and the number of skipped groups.

    A group with equal rewards can't say which episode is better, and is skipped. `mode` None: the
    rows' own advantages if they have them, else "group_std".
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
    result = [replace(e, advantage=by_line[e.line]) for e in episodes if e.line in by_line]
    return result, skipped


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


def encode_episode(line: int, example: formats.Trajectory, text: loading.Text) -> Episode:
    """Encode one line. Raises ExampleError."""
    if example.turns:
        turns = [
            EncodedTurn(turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs)
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
) -> list[EncodedTurn]:
    plain = [message.to_dict() for message in messages]
    turns = []
    for index, message in enumerate(messages):
        if message.role != "assistant" or message.weight == 0:
            continue
        # Generated ids are trained as they are; a text alone is encoded as it would be served.
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
        turns.append(EncodedTurn(prompt, answer, message.logprobs))
    return turns


def _prompt(line: int, messages: Sequence[dict[str, Any]], text: loading.Text) -> list[int]:
    try:
        return chat_template.encode_prompt(text.tokenizer, messages)
    except chat_template.ChatTemplateError as error:
        raise ExampleError("chat_template_refused", line, str(error)) from error


def _check_text(line: int, index: int, message: formats.Message, text: loading.Text) -> None:
    """Raise ExampleError unless the ids decode to the message's text.

    A stop string may have cut the text, and spaces may have been stripped.
    """
    ids = message.token_ids or ()
    decoded = str(text.tokenizer.decode(ids, skip_special_tokens=True))
    content = message.content.strip()
    # In the tokens, thoughts come before the text.
    agree = content in decoded if message.reasoning_content else decoded.strip().startswith(content)
    if not agree:
        raise ExampleError(
            "token_ids_differ",
            line,
            f"messages[{index}].token_ids are the text {decoded[:60]!r}, but its content is "
            f"{message.content[:60]!r}: they are not of the same message, or of another model",
        )
