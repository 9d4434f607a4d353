"""Batches of random tokens, the same for every loop that trains on them."""

import random

LOWEST, HIGHEST = 5, 400
"""Tokens are drawn from these; those below have a meaning of their own."""
RATE = 1e-4
Tokens = list[int]


def draw(seed: int | str, length: int) -> Tokens:
    """Draw a sequence."""
    drawn = random.Random(f"{seed} {length}")
    return [drawn.randrange(LOWEST, HIGHEST) for _ in range(length)]


def draw_batch(count: int, length: int) -> list[Tokens]:
    """Sequences of three quarters of the length up to all of it; each predicts its next token."""
    drawn = random.Random(f"batch {count} {length}")
    return [draw(i, drawn.randint(3 * length // 4, length) + 1) for i in range(count)]
