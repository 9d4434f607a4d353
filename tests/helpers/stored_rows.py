"""Rows as dictionaries by column, as tables and journals have them, for tests that compare many.

stored_shard   a played shard of which every row is one
rows_by_episode   the generations of each episode, those that it shares included
typed_tables   the tables of rows that are written by hand as such
typed_generations   such rows of generations, typed
"""

from dataclasses import replace

from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.rollouts.storage.table_rows import (
    Episode,
    Generation,
    RoundReward,
    Timing,
    read_rows,
    stored_row,
)
from nip_core.rollouts.trees import generations_by_episode


def stored_shard(shard):
    return replace(
        shard,
        episodes=[stored_row(row) for row in shard.episodes],
        generations=[stored_row(row) for row in shard.generations],
        timings=[stored_row(row) for row in shard.timings],
    )


def rows_by_episode(tables):
    episodes = read_rows(tables.episodes, Episode)
    found = generations_by_episode(episodes, read_rows(tables.generations, Generation))
    return {key: [stored_row(row) for row in rows] for key, rows in found.items()}


def typed_generations(rows):
    return [Generation(**row) for row in rows]


def typed_tables(episodes, generations=(), timings=()):
    return build_tables(
        [typed_episode(row) for row in episodes],
        typed_generations(generations),
        [Timing(**row) for row in timings],
    )


def typed_episode(row):
    rewards = {entry["agent"]: entry["reward"] for entry in row["rewards"]}
    by_round = row.get("round_rewards")
    if by_round is not None:
        by_round = tuple(RoundReward(**entry) for entry in by_round)
    return Episode(**{**row, "rewards": rewards, "round_rewards": by_round})
