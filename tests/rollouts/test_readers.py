"""The tables are read by others as they were written, and docs/data.md says what is in them."""

import re
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
import yaml
from random_play import game, play

from nip_core.rollouts.storage import schema
from nip_core.rollouts.storage.parquet import parquet_table
from nip_core.rollouts.storage.row_tables import Tables
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS, TIMINGS
from nip_core.rollouts.storage.tables import commit_shard, join_shards
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.manifest import commit
from nip_core.trainers import dataset
from nip_core.trainers.base import Example
from nip_core.trainers.dataset import EXAMPLES, PAIRS, TRAJECTORIES, write_examples

DOCS = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
PLACE = "quickstart/iterations/0000/rollouts/train"
SETTINGS = {"nip_protocol": {"max_message_rounds": 5}, "protocol_common": {"shared_reward": True}}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """A run of two shards and a dataset in the working directory; its rollouts."""
    monkeypatch.chdir(tmp_path)
    played = game(**SETTINGS)
    config = played.parameters.model_dump(mode="json", exclude_unset=True)
    file = Path("deployments/configs/quickstart.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(config))
    store = LocalStore(tmp_path / "runs")
    tables = play(played, 7, 12).tables
    for shard, rows in (("0000", slice(0, 5)), ("0001", slice(5, 12))):
        commit_shard(store, PLACE, shard, _part(tables, rows))
    join_shards(store, PLACE, ["0000", "0001"])
    file = store.root.parent / "examples.parquet"
    write_examples(file, "supervised", _examples(tables))
    commit(store, "quickstart/iterations/0000/datasets/all", {"examples.parquet": file})
    return tables


def _part(tables: Tables, rows: slice) -> Tables:
    def among(table: pa.Table, name: str, keys: pa.ChunkedArray) -> pa.Table:
        return table.filter(pa.compute.is_in(table[name], keys.combine_chunks()))

    episodes = tables.episodes[rows]
    generations = among(tables.generations, "episode", episodes["key"])
    return Tables(episodes, generations, among(tables.timings, "key", generations["key"]))


def _examples(tables: Tables) -> list[Example]:
    return [
        Example(
            key=f"example-{i}",
            agent=row["agent"],
            episode=row["episode"],
            generations=(row["key"],),
            iteration=0,
            problem="p",
            question_id="q",
            y=i % 2,
            reward=1.0,
            reason="threshold",
            tokens=12,
            messages=(
                {"role": "system", "content": "Ask."},
                {"role": "user", "content": row["text"], "name": "Expert"},
                {"role": "assistant", "content": "Süß"},
            ),
        )
        for i, row in enumerate(tables.generations.to_pylist())
    ]


def _read_by_duckdb(files: str) -> list[dict]:
    connection = duckdb.connect()
    connection.sql("set timezone = 'UTC'")
    return connection.sql(f"select * from '{files}'").to_arrow_table().to_pylist()


def _read_by_polars(files: str) -> list[dict]:
    return pl.read_parquet(files).to_dicts()


def _read_by_datasets(files: str) -> list[dict]:
    from datasets import load_dataset

    return load_dataset("parquet", data_files=files, split="train").to_list()


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize("read", [_read_by_duckdb, _read_by_polars, _read_by_datasets])
def test_every_column_of_every_table_arrives_as_it_was_written(written, read):
    tables = (
        ("episodes", written.episodes),
        ("generations", written.generations),
        ("timings", written.timings),
    )
    for name, table in tables:
        rows = read(f"runs/{PLACE}/{name}-*.parquet")
        assert sorted(rows, key=_key) == sorted(table.to_pylist(), key=_key), name
    assert {row["outcome"] for row in written.episodes.to_pylist()} >= {"failed", "finished"}
    assert written.generations["completion_logprobs"].null_count < written.generations.num_rows
    (file,) = Path("runs").glob("quickstart/iterations/0000/datasets/all/examples.*.parquet")
    assert read(str(file)) == parquet_table(file.read_bytes(), EXAMPLES, "examples").to_pylist()


def _key(row: dict) -> str:
    return row["key"]


def _run(heading: str) -> dict:
    """The names that the code below a heading of the docs leaves behind."""
    (code,) = re.findall(rf"^## {heading}\n.*?```python\n(.*?)```", DOCS, re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(code, f"docs/data.md, {heading}", "exec"), names)
    return names


def _expected(tables: Tables) -> tuple[float, list[tuple], list[tuple]]:
    """Accuracy; calls, tokens and seconds by right and wrong; mean reward by agent."""
    episodes = {row["key"]: row for row in tables.episodes.to_pylist()}
    right = {key: row["decision"] == row["y"] for key, row in episodes.items()}
    assert len(set(right.values())) == 2
    waited = {row["key"]: row["latency_s"] for row in tables.timings.to_pylist()}
    cost = {}
    for row in tables.generations.to_pylist():
        total = cost.setdefault(right[row["episode"]], [0, 0, 0.0])
        for i, more in enumerate((1, row["completion_tokens"], waited[row["key"]])):
            total[i] += more
    rewards: dict[str, list[float]] = {}
    for row in episodes.values():
        for entry in row["rewards"]:
            rewards.setdefault(entry["agent"], []).append(entry["reward"])
    return (
        sum(right.values()) / len(right),
        sorted((is_right, *total) for is_right, total in cost.items()),
        sorted((agent, sum(r) / len(r)) for agent, r in rewards.items()),
    )


def test_the_documented_queries_of_duckdb_give_what_is_in_the_tables(written):
    names = _run("Reading with DuckDB")
    accuracy, cost, earned = _expected(written)
    assert names["accuracy"].fetchall() == [(pytest.approx(accuracy),)]
    assert names["cost"].fetchall() == cost
    assert names["earned"].fetchall() == [(agent, pytest.approx(mean)) for agent, mean in earned]
    paid = [e for row in written.episodes.to_pylist() for e in row["round_rewards"]]
    places = sorted({(entry["round"], entry["agent"]) for entry in paid})
    totals = [
        sum(e["reward"] for e in paid if (e["round"], e["agent"]) == place) for place in places
    ]
    assert len(places) > 2
    assert names["by_round"].fetchall() == [
        (*place, pytest.approx(total)) for place, total in zip(places, totals, strict=True)
    ]
    calls = written.generations["agent"].to_pylist()
    assert names["examples"].fetchall() == [
        (agent, "threshold", calls.count(agent), 3.0) for agent in ("prover", "verifier")
    ]


def test_the_documented_queries_of_polars_give_what_is_in_the_tables(written):
    names = _run("Reading with Polars")
    accuracy, cost, earned = _expected(written)
    assert names["accuracy"] == pytest.approx(accuracy)
    assert names["cost"].rows() == [total[:3] for total in cost]
    assert names["earned"].rows() == [(agent, pytest.approx(mean)) for agent, mean in earned]


@pytest.mark.usefixtures("_own_cache")
def test_the_documented_reading_with_datasets_gives_what_is_in_the_tables(written):
    names = _run("Reading with 🤗 datasets")
    assert names["accuracy"] == pytest.approx(_expected(written)[0])
    rows = written.generations.to_pylist()
    chosen = [r for r in rows if r["episode"] in names["right"] and r["invalid_reason"] is None]
    assert sorted(names["answers"].to_list(), key=_key) == sorted(chosen, key=_key)
    assert len(names["timings"]) == len(rows)


def test_the_documented_batch_is_made_of_the_rollouts_of_a_run_and_gives_them_back(written):
    names = _run("As a batch in memory")
    assert names["episodes"].equals(written.episodes)
    assert names["generations"].equals(written.generations)
    totals = [[e["reward"] for e in row] for row in written.episodes["rewards"].to_pylist()]
    assert names["earned"].tolist() == [pytest.approx(total) for total in totals]
    finished = written.episodes["outcome"].to_pylist().count("finished")
    assert names["last"].batch_size == (finished,) and finished > 0


# What the docs say about columns.

SCHEMAS = {
    "episodes": (EPISODES, schema.SCHEMA_VERSION),
    "generations": (GENERATIONS, schema.LATER_VERSION),
    "timings": (TIMINGS, schema.LATER_VERSION),
    "examples": (EXAMPLES, dataset.SCHEMA_VERSION),
    "pairs": (PAIRS, dataset.SCHEMA_VERSION),
    "trajectories": (TRAJECTORIES, dataset.SCHEMA_VERSION),
}


def _documented(table: str) -> tuple[int, list[list[str]]]:
    """The version, and the cells of the table's rows."""
    (section,) = re.findall(rf"^## {table}\n(.*?)^## ", DOCS, re.DOTALL | re.MULTILINE)
    (version,) = re.findall(r"^Version (\d+)\.", section, re.MULTILINE)
    rows = [line for line in section.splitlines() if line.startswith("|")]
    head, rule, *body = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert head == ["column", "type", "null", "since", "meaning"] and set(rule) == {"---"}
    return int(version), body


@pytest.mark.parametrize("table", SCHEMAS)
def test_the_docs_list_exactly_the_columns_of_the_schema(table):
    columns, current = SCHEMAS[table]
    version, rows = _documented(table)
    assert version == current
    said = [(name.strip("`"), kind, null) for name, kind, null, _, _ in rows]
    plain = [re.sub(r"(?:element|item): | not null", "", str(field.type)) for field in columns]
    assert said == [
        (field.name, kind, "yes" if field.nullable else "")
        for field, kind in zip(columns, plain, strict=True)
    ]
    assert all(meaning for *_, meaning in rows)
