"""Rows become Parquet and come back; the digest sees content and nothing else; size stays small."""

import io
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_rows import typed_tables

from nip_core.errors import CorruptionError, StageError, StoreError
from nip_core.hashing import derive_key
from nip_core.rollouts.storage.parquet import parquet_bytes, parquet_table
from nip_core.rollouts.storage.row_tables import Tables, canonical_digest
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS, TIMINGS
from nip_core.rollouts.storage.shard_manifests import shard_is_committed
from nip_core.rollouts.storage.tables import (
    StoredRollouts,
    commit_shard,
    join_shards,
    read_rollouts,
)
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.manifest import read_committed_file, read_manifest
from nip_core.run_store.store import MissingFileError

Row = dict[str, Any]


def stored_timings(store, directory, shard):
    """The timings of a committed shard, from its file."""
    manifest = read_manifest(store, directory, f"manifest-{shard}.json")
    data = read_committed_file(store, manifest, f"timings-{shard}.parquet")
    return parquet_table(data, TIMINGS, "timings")


def words(rng: random.Random, size: int) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz     ") for _ in range(size))


def choice(rng: random.Random) -> Row:
    return {"token": words(rng, 3), "logprob": -rng.random()}


def play(
    episodes: int, rounds: int = 3, size: int = 40, first: int = 0
) -> tuple[list[Row], list[Row], list[Row]]:
    """Rows of episodes `first` to `first + episodes`, each the same however they are cut up."""
    rows: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
    for number in range(first, first + episodes):
        rng = random.Random(number)
        key, parent = derive_key("episode", number), None
        rows[0].append(
            {
                "key": key,
                "run": "quick",
                "split": "train",
                "iteration": 0,
                "problem": f"families/{number}",
                "question_id": f"q{number // 2}",
                "sample": 0,
                "branch_path": "",
                "protocol": "nip",
                "question": words(rng, size),
                "solution": words(rng, size),
                "y": number % 2,
                "seed": rng.randrange(2**31),
                "rounds": rounds,
                "decision": number % 3,
                "decision_value": None if number % 3 == 2 else rng.uniform(-1, 1),
                "outcome": "finished",
                "rewards": [
                    {"agent": "prover", "reward": 0.1},
                    {"agent": "verifier", "reward": float(number % 2)},
                ],
            }
        )
        for turn in range(rounds):
            generation = derive_key("generation", number, turn)
            rows[1].append(
                {
                    "key": generation,
                    "parent_key": parent,
                    "episode": key,
                    "branch_path": "",
                    "round": turn,
                    "agent": "prover" if turn % 2 else "verifier",
                    "attempt": 0,
                    "model_asked": "ft:tiny:quick-0001-shared",
                    "model_served": "ft:tiny:quick-0001-shared",
                    "text": words(rng, size),
                    "decision": 2,
                    "finish_reason": "stop",
                    "prompt_tokens": rng.randrange(900),
                    "completion_tokens": size // 4,
                    "completion_token_ids": [rng.randrange(900) for _ in range(3)],
                    "completion_logprobs": [-rng.random() for _ in range(3)],
                    "token_logprobs": [choice(rng) | {"top": [choice(rng), choice(rng)]}],
                }
            )
            rows[2].append(
                {
                    "key": generation,
                    "started_at": datetime.now(UTC),
                    "latency_s": rng.random(),
                    "transport_retries": 0,
                }
            )
            parent = generation
    return rows


def digest(tables: Tables) -> str:
    return canonical_digest(tables.episodes, tables.generations)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_rows_come_back_from_parquet_as_they_were() -> None:
    tables = typed_tables(*play(5))
    for table, schema in (
        (tables.episodes, EPISODES),
        (tables.generations, GENERATIONS),
        (tables.timings, TIMINGS),
    ):
        back = parquet_table(parquet_bytes(table), schema, "x")
        assert back.equals(table)
    assert tables.episodes.column("difficulty").null_count == 5


def test_empty_tables_are_tables_too() -> None:
    tables = typed_tables([], [])
    assert parquet_table(parquet_bytes(tables.generations), GENERATIONS, "x").num_rows == 0


def test_the_order_of_generations_does_not_depend_on_who_finished_first() -> None:
    episodes, generations, timings = play(6)
    tables = typed_tables(episodes, generations, timings)
    rng = random.Random(1)
    for _ in range(5):
        rng.shuffle(generations)
        rng.shuffle(timings)
        again = typed_tables(episodes, generations, timings)
        assert again.generations.equals(tables.generations)
        assert again.timings.equals(tables.timings)
    assert tables.generations.column("round").to_pylist() == [0, 1, 2] * 6
    order = tables.generations.column("episode").to_pylist()[::3]
    assert order == tables.episodes.column("key").to_pylist()


def test_within_a_round_the_order_is_that_of_play() -> None:
    episodes, _, _ = play(1)
    base = play(1)[1][0]
    asked = base | {"key": "v" * 16, "parent_key": None, "agent": "verifier"}
    wrong = base | {"key": "w" * 16, "parent_key": "v" * 16, "agent": "prover", "attempt": 0}
    right = base | {"key": "a" * 16, "parent_key": "v" * 16, "agent": "prover", "attempt": 1}
    table = typed_tables(episodes, [right, wrong, asked]).generations
    assert table.column("key").to_pylist() == ["v" * 16, "w" * 16, "a" * 16]


def test_who_moves_at_once_stands_in_the_protocol_s_order_and_not_by_name() -> None:
    agents = ["prover", "verifier", "adversarial_verifier", "simulator"]
    episode = play(1)[0][0] | {"rewards": [{"agent": agent, "reward": 0.0} for agent in agents]}
    base = play(1)[1][0]
    said = [
        base | {"key": f"{agent}{attempt}", "agent": agent, "attempt": attempt}
        for agent in agents[1:]
        for attempt in (0, 1)
    ]
    table = typed_tables([episode], random.Random(2).sample(said, len(said))).generations
    assert table.column("key").to_pylist() == [row["key"] for row in said]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda e, g, t: g[0].update(text=None), "column text has no value"),
        (lambda e, g, t: g[0].update(text=7), "column text"),
        (lambda e, g, t: g[0].update(episode="x"), "its episode x is not here"),
        (lambda e, g, t: t[0].update(key="x"), "its generation is not here"),
        (lambda e, g, t: g.append(g[0]), "stands twice"),
        (lambda e, g, t: e.append(e[0]), "stands twice"),
        (lambda e, g, t: e[0].update(iteration=2**40), "column iteration"),
    ],
)
def test_rows_that_break_the_schema_are_refused(
    spoil: Callable[[list[Row], list[Row], list[Row]], None], message: str
) -> None:
    rows = play(2)
    spoil(*rows)
    with pytest.raises(StageError, match=message):
        typed_tables(*rows)


def test_the_digest_is_the_same_for_every_cut_into_shards(store: LocalStore) -> None:
    whole = typed_tables(*play(10))
    for sizes in ([10], [3, 7], [1] * 10):
        directory, first, names = f"run/{len(sizes)}", 0, []
        for number, size in enumerate(sizes):
            names.append(f"{number:04d}")
            commit_shard(store, directory, names[-1], typed_tables(*play(size, first=first)))
            first += size
        manifest = join_shards(store, directory, names)
        assert manifest.extra["canonical_digest"] == digest(whole)
        assert manifest.rows == {"episodes": 10, "generations": 30, "timings": 30}
        rollouts = read_rollouts(store, directory)
        assert canonical_digest(rollouts.episodes, rollouts.generations) == digest(whole)
        shards = StoredRollouts(store, [directory]).shards()
        assert sum(shard.episodes.num_rows for shard in shards) == 10
        assert sum(len(stored_timings(store, directory, name)) for name in names) == 30


FOLLOWS = {"drawn", "round_rewards"}
"""What follows from all others; runs from before it have the same digests without it."""
ESTIMATED = "p_accept"  # of an answer that is there, with last bits that depend on the batch


def test_the_digest_sees_every_column_but_what_is_drawn_or_estimated_and_not_the_row_order() -> (
    None
):
    episodes, generations, timings = play(4)
    tables = typed_tables(episodes, generations, timings)
    seen = {digest(tables)}
    for name in EPISODES.names:
        changed = [dict(row) for row in episodes]
        changed[2][name] = _another(EPISODES.field(name), changed[2].get(name))
        played = [] if name == "key" else generations
        seen.add(digest(typed_tables(changed, played)))
    for name in GENERATIONS.names:
        changed = [dict(row) for row in generations]
        changed[5][name] = _another(GENERATIONS.field(name), changed[5].get(name))
        if name == "episode":
            changed[5][name] = episodes[0]["key"]
        seen.add(digest(typed_tables(episodes, changed)))
    assert {*EPISODES.names} > FOLLOWS and ESTIMATED in GENERATIONS.names
    assert len(seen) == len(EPISODES.names) + len(GENERATIONS.names) - 2
    backwards = pa.compute.sort_indices(tables.generations, [("key", "descending")])
    assert canonical_digest(tables.episodes, tables.generations.take(backwards)) in seen


def test_the_digest_is_the_same_in_every_process_and_version() -> None:
    episodes, generations, _ = play(1, rounds=1, size=0)
    episodes[0]["seed"] = 1
    episodes[0]["decision_value"] = -0.5
    generations[0] |= {"prompt_tokens": 1, "completion_token_ids": [1], "completion_logprobs": None}
    top = [{"token": "b", "logprob": -2.25}]
    generations[0]["token_logprobs"] = [{"token": "a", "logprob": -0.125, "top": top}]
    assert digest(typed_tables(episodes, generations)) == (
        "85457fd00b22473232a28e1d86c7ca2a9b929fd464a5552bd1e428adc18f0c87"
    )


def _another(field: pa.Field, value: Any) -> Any:
    if pa.types.is_string(field.type):
        return "another"
    if pa.types.is_list(field.type):
        if field.name == "rewards":
            return [{"agent": "prover", "reward": 0.2}]
        if field.name == "round_rewards":
            return [{"round": 0, "agent": "prover", "reward": 0.2}]
        if field.name == "token_logprobs":
            return [{"token": "a", "logprob": -1.0, "top": []}]
        return [1]
    return 9 if value != 9 else 8


@pytest.mark.parametrize(("size", "limit"), [(300, 1.2), (600, 1.12)])
def test_both_tables_take_little_more_than_the_texts(size: int, limit: float) -> None:
    """Before compression; docs/results/README.md has the figures of real play."""
    episodes, generations, _ = play(200, rounds=9, size=size)
    for row in generations:
        del row["completion_token_ids"], row["completion_logprobs"], row["token_logprobs"]
    tables = typed_tables(episodes, generations)
    texts = sum(len(row["text"].encode()) for row in generations)
    texts += sum(len((row["question"] + row["solution"]).encode()) for row in episodes)
    both = (tables.episodes, tables.generations)
    assert sum(len(parquet_bytes(table, "none")) for table in both) / texts <= limit


def test_a_table_of_an_earlier_version_is_refused_by_name() -> None:
    table = typed_tables(*play(1)).episodes.drop_columns(["round_rewards"])
    earlier = table.replace_schema_metadata({"nip.schema_version": "8"})
    told = r"a\.parquet: schema version 8, this version of nip reads 9; use .* run\.json names"
    with pytest.raises(StoreError, match=told):
        parquet_table(parquet_bytes(earlier), EPISODES, "a.parquet")


def test_a_stage_without_all_its_shards_is_not_readable(store: LocalStore) -> None:
    commit_shard(store, "d", "0000", typed_tables(*play(2)))
    assert shard_is_committed(store, "d", "0000")
    assert not shard_is_committed(store, "d", "0001")
    with pytest.raises(StageError, match=r"\['0001'\] are not committed"):
        join_shards(store, "d", ["0000", "0001"])
    with pytest.raises(MissingFileError):
        read_rollouts(store, "d")


def test_committing_again_changes_nothing(store: LocalStore) -> None:
    first = commit_shard(store, "d", "0000", typed_tables(*play(2)))
    assert commit_shard(store, "d", "0000", typed_tables(*play(2))) == first
    stage = join_shards(store, "d", ["0000"])
    assert join_shards(store, "d", ["0000"]) == stage


def test_a_damaged_shard_is_named(store: LocalStore) -> None:
    manifest = commit_shard(store, "d", "0000", typed_tables(*play(2)))
    join_shards(store, "d", ["0000"])
    path = store.root / manifest.path("generations-0000.parquet")
    data = path.read_bytes()
    path.write_bytes(data[:-7] + b"X" + data[-6:])
    with pytest.raises(CorruptionError, match=r"d/generations-0000\.\w{8}\.parquet"):
        read_rollouts(store, "d")


def test_a_shard_put_in_the_place_of_another_is_noticed(store: LocalStore) -> None:
    commit_shard(store, "d", "0000", typed_tables(*play(2)))
    join_shards(store, "d", ["0000"])
    store.delete("d/manifest-0000.json")
    commit_shard(store, "d", "0000", typed_tables(*play(3)))
    with pytest.raises(CorruptionError, match=r"d/manifest-0000\.json: not the shard"):
        read_rollouts(store, "d")


def test_files_that_are_not_ours_are_refused_by_name() -> None:
    with pytest.raises(CorruptionError, match=r"a\.parquet: damaged, not a Parquet file"):
        parquet_table(b"PAR1 no", EPISODES, "a.parquet")
    foreign = io.BytesIO()
    pq.write_table(pa.table({"key": ["x"]}), foreign)
    with pytest.raises(CorruptionError, match=r"a\.parquet: no schema version"):
        parquet_table(foreign.getvalue(), EPISODES, "a.parquet")
    tables = typed_tables(*play(1))
    newer = tables.episodes.replace_schema_metadata({"nip.schema_version": "10"})
    with pytest.raises(StoreError, match=r"a\.parquet: schema version 10"):
        parquet_table(parquet_bytes(newer), EPISODES, "a.parquet")
    other = tables.episodes.drop_columns("seed")
    with pytest.raises(CorruptionError, match=r"a\.parquet: its columns are not"):
        parquet_table(parquet_bytes(other), EPISODES, "a.parquet")
