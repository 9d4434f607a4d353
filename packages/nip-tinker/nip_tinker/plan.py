"""The course of a group's trainings at a service of Tinker's API, before a run begins."""

import math
from collections.abc import Sequence

from nip_core.jobs.job import PlannedTraining
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.prices import price_training
from nip_tinker.options import read_options


def plan_training(
    parameters: HyperParameters, group: str, examples: Sequence[int | None], tokens: float
) -> PlannedTraining:
    """Plan steps, blocks and price, as `Backend.plan_training` has them."""
    agent = parameters.group_parameters(group)
    options, size = read_options(agent.provider), agent.per_device_train_batch_size
    # Each epoch may end with a batch that is not full.
    epochs = agent.num_epochs or parameters.rl.num_epochs
    counts = [None if count is None else math.ceil(count / size) + epochs - 1 for count in examples]
    steps = None if None in counts else sum(count or 0 for count in counts)
    usd = price_training(parameters, group, tokens)
    step_usd = usd / steps if usd and steps else None
    facts = {
        "jobs": len(counts),
        "most_steps": steps,
        "batch_size": size,
        "first_steps": options.first_steps,
        "block_minutes": options.block_minutes,
        "block_usd": options.block_usd,
        "expected_usd": usd,
        "expected_step_usd": step_usd,
    }
    taken = f"steps of {size} pairs" if steps is None else f"at most {steps:,} steps of {size} rows"
    price = "" if not usd else f", expected to cost ${usd:,.2f}"
    first = options.first_steps
    first_usd = "" if step_usd is None else f" (${first * step_usd:,.4f})"
    cap = "" if options.block_usd is None else f", or ${options.block_usd:g}"
    words = (
        f"{group} is trained by steps: {len(counts)} jobs, {taken}{price}; a "
        f"block, the most that a kill costs, has {first} steps at first{first_usd}, later "
        f"{options.block_minutes:g} min{cap}"
    )
    return PlannedTraining(words, facts)
