"""The effort of an attack: rates can be drawn over its calls, tokens and dollars."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from nip_core.attack_figures.metrics_document import Effort
from nip_core.rollouts.trees import parse_path

Price = Callable[[Mapping[str, tuple[int, int]]], float | None]
"""From prompt and generated tokens by agent, US dollars; None where a price is missing."""


OF_EFFORT = ("parent_key", "branch_path", "round", "agent", "prompt_tokens", "completion_tokens")
"""The columns of generations that effort is counted from."""


def effort_of_choice(
    generations: pa.Table, numbers: Sequence[int], price: Price
) -> dict[int, Effort]:
    """Count by number of messages the most that an attack with this number alone takes.

    `numbers` ascend. Of each node it counts the first n messages, the plays that judged them, and
    the play that counts. Where the provers have several turns, the ways that only larger numbers
    went are counted as far as they pass through such messages. A prompt counts once for all answers
    that it was given at the same place.
    """
    columns = [generations[name].to_pylist() for name in OF_EFFORT]
    paths = [parse_path(path) for path in columns[1]]
    efforts = {}
    for n in numbers:
        calls, by_agent = 0, dict[str, tuple[int, int]]()
        prompts = set[tuple[object, ...]]()
        for path, (parent, _, round_, agent, prompt, generated) in zip(
            paths, zip(*columns, strict=True), strict=True
        ):
            # From the largest number on, children are the ways by which a message was judged.
            if any(n <= child < numbers[-1] for child in path):
                continue
            place = (parent, path[:-1], round_, agent, prompt)
            prompt_tokens, generated_tokens = by_agent.get(agent, (0, 0))
            prompt_tokens += 0 if place in prompts else prompt or 0
            by_agent[agent] = (prompt_tokens, generated_tokens + (generated or 0))
            prompts.add(place)
            calls += 1
        efforts[n] = make_effort(calls, by_agent, price(by_agent))
    return efforts


def make_effort(
    calls: int,
    by_agent: Mapping[str, tuple[int, int]],
    usd: float | None,
    trained_tokens: int = 0,
) -> Effort:
    """Add up the prompt and generated tokens of all agents."""
    return Effort(
        calls=calls,
        prompt_tokens=sum(prompt for prompt, _ in by_agent.values()),
        generated_tokens=sum(generated for _, generated in by_agent.values()),
        trained_tokens=trained_tokens,
        usd=usd,
    )
