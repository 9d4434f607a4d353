"""From conversations to token ids and labels, so that the text trained is the text served.

read_file          the checked examples of a job's file, each with its line
EncodedExample     token ids and labels of one training sequence
encode_example     one conversation -> its sequences
encode_turn        a prompt as it is served, and what is learned after it
ExampleError       an example that can't be trained on, with its code and line

For each assistant message that is to be learned, the prompt is what the server would be asked
with (the chat template over the messages before it, with the generation prompt), and what is
learned is what the template adds for the message, up to and including its stop token. Where the
tokens of one turn begin the prompt of the next, they become one sequence. Where they don't (a
template that rewrites earlier turns, or writes no stop token), each turn is a sequence of its
own. So nothing is ever trained in another context than it is served in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_lm_server import formats
from nip_lm_server.formats import chat_template
from nip_lm_server.training.job import TrainingError

IGNORED = -100
"""The label of a token that is not learned."""


class ExampleError(ValueError):
    """An example can't be trained on as it is. `line` counts from 1."""

    def __init__(self, code: str, line: int, message: str):
        super().__init__(code, line, message)
        self.code, self.line, self.message = code, line, message

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@dataclass(frozen=True)
class EncodedExample:
    """One training sequence. `labels` has IGNORED where a token is only context."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    line: int

    @property
    def learned(self) -> int:
        """Number of tokens that the loss counts."""
        return sum(label != IGNORED for label in self.labels)


@dataclass(frozen=True)
class Turn:
    """Token ids of a prompt, and of what is learned after it up to its stop token."""

    prompt: list[int]
    answer: list[int]


def read_file(method: str, path: Path, param: str) -> list[tuple[int, Any]]:
    """Line and example of everything in a job's file. Raises TrainingError, naming the line.

    `param` is the setting that the file was given by.
    """
    try:
        return formats.read_examples(method, path, 1)
    except formats.FormatError as error:
        raise TrainingError(error.problems[0].code, str(error), param) from error
    except (OSError, formats.JsonlError) as error:
        raise TrainingError("invalid_file", f"{path.name}: {error}", param) from error


def encode_example(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    stop_tokens: frozenset[int],
    max_length: int,
    line: int,
) -> list[EncodedExample]:
    """The sequences of one conversation: one, if the template allows it.

    Assistant messages are learned unless their `weight` is 0. Raises ExampleError with the code
    ``example_too_long``, ``chat_template_not_prefix``, ``chat_template_refused`` or
    ``nothing_to_learn``; nothing is ever cut off.
    """
    learned = [
        index
        for index, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("weight", 1) != 0
    ]
    if not learned:
        raise ExampleError("nothing_to_learn", line, "no assistant message is to be learned")
    sequences: list[tuple[list[int], list[int]]] = []
    for index in learned:
        turn = encode_turn(tokenizer, messages[: index + 1], stop_tokens, line)
        ids = turn.prompt + turn.answer
        labels = [IGNORED] * len(turn.prompt) + turn.answer
        if sequences:
            before, before_labels = sequences[-1]
            if turn.prompt[: len(before)] == before:
                sequences.pop()
                labels[: len(before)] = before_labels
        sequences.append((ids, labels))
    for ids, _ in sequences:
        if len(ids) > max_length:
            raise ExampleError(
                "example_too_long",
                line,
                f"the example has {len(ids)} tokens, but at most {max_length} are allowed",
            )
    return [EncodedExample(tuple(ids), tuple(labels), line) for ids, labels in sequences]


def encode_turn(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], stop_tokens: frozenset[int], line: int
) -> Turn:
    """Encode the last of `messages`, an assistant's, after the prompt of those before it.

    Raises ExampleError with the code ``chat_template_not_prefix`` or ``chat_template_refused``.
    """
    try:
        prompt = chat_template.render(tokenizer, messages[:-1], generation=True)
        whole = chat_template.render(tokenizer, messages, generation=False)
    except chat_template.ChatTemplateError as error:
        raise ExampleError("chat_template_refused", line, str(error)) from error
    if not whole.startswith(prompt):
        raise ExampleError(
            "chat_template_not_prefix",
            line,
            f"the chat template renders the conversation up to message {len(messages)} so that it "
            "does not begin with the prompt the model is served; it can't be trained on faithfully",
        )
    answer = chat_template.encode(tokenizer, whole[len(prompt) :])
    stop = next((i for i, token in enumerate(answer) if token in stop_tokens), None)
    answer = [*answer, tokenizer.eos_token_id] if stop is None else answer[: stop + 1]
    return Turn(chat_template.encode(tokenizer, prompt), answer)
