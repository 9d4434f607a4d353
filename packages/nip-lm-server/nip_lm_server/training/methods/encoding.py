"""From conversations to token ids and labels: the trained text is the served text.

encode_file        every example of a job's file
EncodedSequence    token ids of one training sequence, and which of them are learned
encode_example     one conversation -> its sequences
encode_turn        a prompt as it is served, and the learned tokens after it
join               turns -> sequences
ExampleError       an example that can't be trained on, with its code and line

For each assistant message to learn, the prompt is the one that a client would get an answer to: the
chat template over the earlier messages, with the generation prompt. The learned tokens are those
that the template adds for the message, with its thoughts (`reasoning_content`), up to and including
its stop token. Thoughts of earlier messages are in no prompt, because clients send an answer back
without them. Where the tokens of one turn begin the prompt of the next, they become one sequence.
Where they don't (a template that rewrites earlier turns, or writes no stop token), each turn is a
sequence of its own. So every token is trained in the context that it is served in.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nip_base import formats
from nip_lm_server.chats import chat_template
from nip_lm_server.training.job import TrainingError

_T = TypeVar("_T")

IGNORED = -100
"""The label of a token that is not learned."""


class ExampleError(ValueError):
    """An example can't be trained on. `line` counts from 1."""

    def __init__(self, code: str, line: int, message: str):
        super().__init__(code, line, message)
        self.code, self.line, self.message = code, line, message

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@dataclass(frozen=True)
class EncodedTurn:
    """Token ids of a prompt, and of the learned answer up to its stop token."""

    prompt: Sequence[int]
    answer: Sequence[int]
    logprobs: Sequence[float] | None = None  # the answer's, by the policy that wrote it


@dataclass(frozen=True)
class EncodedSequence:
    """One training sequence; all tuples have one entry per token."""

    input_ids: tuple[int, ...]
    actions: tuple[bool, ...]
    """Whether the model writes and learns this token. Never true for the first one."""
    logprobs: tuple[float, ...]
    """By the policy that acted; NaN where the data has none, 0 where there is no action."""

    @property
    def labels(self) -> list[int]:
        """The ids, with IGNORED in the place of context."""
        return [
            token if action else IGNORED
            for token, action in zip(self.input_ids, self.actions, strict=True)
        ]

    @property
    def learned(self) -> int:
        """Count the tokens with a share in the loss."""
        return sum(self.actions)


def encode_file(
    method: str,
    path: Path | None,
    param: str,
    encode: Callable[[int, Any], _T],
    advantage: formats.AdvantageMode | None = None,
) -> list[_T]:
    """Call `encode` with line and example of a whole file; return its results. None has none.

    Raises TrainingError, naming the line. `param` is the setting that names the file.
    """
    if path is None:
        return []
    try:
        examples = formats.read_examples(method, path, advantage=advantage)
        return [encode(line, example) for line, example in examples]
    except formats.FormatError as error:
        raise TrainingError(error.problems[0].code, str(error), param) from error
    except ExampleError as error:
        raise TrainingError(error.code, str(error), param) from error
    except (OSError, formats.JsonlError) as error:
        raise TrainingError("invalid_file", f"{path.name}: {error}", param) from error


def encode_example(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    stop_tokens: frozenset[int],
    max_length: int,
    line: int,
) -> list[EncodedSequence]:
    """Encode one conversation: as one sequence, if the template allows it.

    Assistant messages are learned unless their `weight` is 0. Raises ExampleError with the code
    ``example_too_long``, ``chat_template_not_prefix``, ``chat_template_refused`` or
    ``nothing_to_learn``; no example is ever cut.
    """
    learned_indices = [
        index
        for index, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("weight", 1) != 0
    ]
    if not learned_indices:
        raise ExampleError("nothing_to_learn", line, "no assistant message is to be learned")
    turns = [encode_turn(tokenizer, messages[: i + 1], stop_tokens, line) for i in learned_indices]
    sequences = join(turns)
    for sequence in sequences:
        check_length(len(sequence.input_ids), max_length, line, "the example has")
    return sequences


def join(turns: Sequence[EncodedTurn]) -> list[EncodedSequence]:
    """Join turns into one sequence, as long as each continues the one before."""
    sequences: list[EncodedSequence] = []
    for turn in turns:
        ids, context = (*turn.prompt, *turn.answer), len(turn.prompt)
        actions = (*[False] * context, *[True] * len(turn.answer))
        logprobs = (*[0.0] * context, *(turn.logprobs or [math.nan] * len(turn.answer)))
        if sequences:
            previous = sequences[-1]
            size = len(previous.input_ids)
            # Only a whole turn that begins the next prompt can be learned in its context.
            if size <= context and ids[:size] == previous.input_ids:
                sequences.pop()
                actions = (*previous.actions, *actions[size:])
                logprobs = (*previous.logprobs, *logprobs[size:])
        sequences.append(EncodedSequence(ids, actions, logprobs))
    return sequences


def check_length(size: int, max_length: int, line: int, subject: str) -> None:
    """Raise ExampleError for more than `max_length` tokens; its message begins with `subject`."""
    if size > max_length:
        message = f"{subject} {size} tokens, but at most {max_length} are allowed"
        raise ExampleError("example_too_long", line, message)


def encode_turn(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], stop_tokens: frozenset[int], line: int
) -> EncodedTurn:
    """Encode the last of `messages`, an assistant's, after the prompt of the earlier ones.

    Raises ExampleError with the code ``chat_template_not_prefix`` or ``chat_template_refused``.
    """
    try:
        prompt = chat_template.render(tokenizer, messages[:-1], generation=True)
        thoughts = messages[-1].get("reasoning_content")
        whole = chat_template.render(tokenizer, messages, generation=False, thoughts=thoughts)
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
    return EncodedTurn(chat_template.encode(tokenizer, prompt), answer)
