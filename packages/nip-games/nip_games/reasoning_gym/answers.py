"""Responses that state an answer: right ones and wrong ones in the same words.

STYLES            the words about an answer
Answered          a question, a response to it, and whether the response is right
answer_questions  responses to drawn questions, half of them right
"""

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import NamedTuple

from nip_core.hashing import derive_seed
from nip_games.reasoning_gym.tasks import Drawn, TaskName, draw_pairs, make_generators

STYLES = (
    "{answer}",
    "Answer: {answer}",
    "The answer: {answer}.",
    "I went through it step by step. Answer: {answer}",
    "Working it out with care leads to this result.\nThe answer: {answer}.",
)


class Answered(NamedTuple):
    """A question, and a response to it."""

    item: Drawn
    response: str
    is_right: bool
    answer: str
    """The answer that the response states."""


def answer_questions(
    tasks: Sequence[TaskName], seed: int, split: str, size: int
) -> Iterator[Answered]:
    """Answer `size` questions of a split, the same ones at each call; of four, two rightly.

    A wrong answer is the right one of another question of its task. Of each task the answers of
    one pair are right and those of the next wrong, or the other way round, by the seed; the words
    about an answer follow from the seed, too. Raises DatasetError: see `make_generators`.
    """
    generators = make_generators(tasks, seed)
    pairs = {name: draw_pairs(name, generators[name], split) for name in tasks}
    rows = _answer_rounds(tasks, pairs, Random(derive_seed("answers", seed, split)))
    for _ in range(size):
        yield next(rows)


def _answer_rounds(
    tasks: Sequence[TaskName],
    pairs: dict[TaskName, Iterator[tuple[Drawn, Drawn]]],
    draw: Random,
) -> Iterator[Answered]:
    coin = 0
    for round_ in count():
        if round_ % 2 == 0:
            coin = draw.randrange(2)
        for place, task in enumerate(tasks):
            is_right = (round_ + place + coin) % 2 == 0
            first, second = next(pairs[task])
            for item, other in ((first, second), (second, first)):
                answer = item.answer if is_right else other.answer
                response = draw.choice(STYLES).format(answer=answer)
                yield Answered(item, response, is_right, answer)
