"""`from nip_core import run`: a run as tables for pandas, Polars and DuckDB."""

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from small_game import FEW, train_here, write_config

from nip_core import run, runs
from nip_core.errors import CorruptionError, SettingsError

TABLES = ("episodes", "generations", "timings", "examples", "metrics", "iterations", "models")


@pytest.fixture(scope="module")
async def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reading")
    await train_here(write_config(folder, rl=FEW))
    return str(folder / "runs")


@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_taken_by_polars_pandas_and_duckdb_as_it_is(store, name):
    rows = getattr(run("small", store=store), name)
    assert isinstance(rows, pa.Table) and rows.num_rows > 0
    assert polars.from_arrow(rows).height == rows.num_rows
    assert polars.DataFrame(rows).columns == rows.column_names  # by __arrow_c_stream__
    assert len(rows.to_pandas()) == rows.num_rows
    assert len(duckdb.sql("from rows").fetchall()) == rows.num_rows


def test_tables_join_and_agree_with_what_the_run_says_of_itself(store):
    small = run("small", store=store)
    generations, episodes = small.generations, small.episodes
    joined = duckdb.sql(
        "select g.iteration = e.iteration and g.split = e.split as same "
        "from generations g join episodes e on g.episode = e.key"
    )
    assert set(joined.fetchall()) == {(True,)}
    assert duckdb.sql("select count(*) from joined").fetchall() == [(generations.num_rows,)]
    spent = small.summary["costs"]
    by_iteration = polars.from_arrow(small.iterations)
    assert by_iteration["prompt_tokens"].sum() == spent["prompt_tokens"]["spent"]
    assert by_iteration["training_tokens"].sum() == spent["training_tokens"]["spent"]
    assert by_iteration["finished"].to_list() == [True, True]
    shown = [entry["test"]["accuracy"] for entry in small.summary["iterations"]]
    assert by_iteration["accuracy"].to_list() == shown
    by_hand = duckdb.sql(
        "select avg((decision = y)::int) from episodes where split = 'test' group by iteration "
        "order by iteration"
    )
    assert [row[0] for row in by_hand.fetchall()] == pytest.approx(shown)
    models = small.models.to_pylist()
    assert models[0]["next_model"] == models[2]["model"] != models[0]["model"]
    assert models[0]["status"] == "succeeded" and models[2]["status"] is None
    examples = polars.from_arrow(small.examples)
    assert set(examples["group"]) == {"prover", "verifier"}
    assert set(examples["episode"]) <= set(polars.from_arrow(episodes)["key"])


def test_an_iteration_and_a_split_can_be_taken_alone(store):
    small = run("small", store=store)
    tests = small.where(split="test")
    assert set(tests.episodes["split"].to_pylist()) == {"test"}
    assert set(tests.where(iteration=1).generations["iteration"].to_pylist()) == {1}
    assert tests.metrics.num_rows == 2 and small.where(iteration=0).metrics.num_rows == 2
    assert small.where(iteration=1, split="train").episodes.num_rows == 0
    assert small.where(iteration=1).examples.num_rows == 0
    assert "split test" in repr(tests) and "small" in repr(small)


def test_what_is_not_there_is_refused_with_what_is(store, tmp_path):
    with pytest.raises(SettingsError, match=r"there are small; did you mean 'small'\?"):
        run("smal", store=store)
    with pytest.raises(SettingsError, match=r"store .*nowhere.*there is no such directory"):
        run("small", store=str(tmp_path / "nowhere"))
    with pytest.raises(SettingsError, match=r"iteration 7 is not on record; there are 0, 1"):
        run("small", store=store).where(iteration=7)
    with pytest.raises(SettingsError, match="use one of train, validation, test"):
        run("small", store=store).where(split="testing")
    assert run(store=store).name == "small" and runs(store)[0]["run"] == "small"


def test_nothing_is_read_before_it_is_asked_for_and_damage_is_named(store, tmp_path):
    import shutil

    shutil.copytree(store, tmp_path / "runs")
    [file] = (tmp_path / "runs/small/iterations/0000/rollouts/train").glob("episodes-0000.*")
    file.write_bytes(file.read_bytes()[:-10])
    small = run("small", store=str(tmp_path / "runs"))
    assert small.metrics.num_rows > 0
    with pytest.raises(CorruptionError, match=r"iterations/0000/rollouts/train/episodes-0000"):
        _ = small.episodes


def test_the_page_on_data_reads_a_run_as_it_says(store, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    section = page.partition("## In a notebook\n")[2].partition("\n## ")[0]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(Path(store) / "small")
    monkeypatch.chdir(tmp_path)
    first, second, third = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {}
    exec(first, names)
    assert names["episodes"].num_rows > 0
    exec(second, names)
    assert {"iteration", "mutation", "accuracy", "len"} == {*names["accuracy"].columns}
    exec(third, names)
    assert names["likely"].height == names["test"].episodes.num_rows
    assert names["likely"]["p_accept"].null_count() == names["likely"].height  # a deterministic run
    for table in TABLES:
        assert f"`{table}`" in section
    for columns in (names["quickstart"].iterations, names["quickstart"].models):
        assert all(f"`{name}`" in section for name in columns.column_names if name != "loss")


def test_reading_a_run_imports_neither_prefect_nor_torch(store):
    code = (
        f"import sys; from nip_core import run; run('small', store={store!r}).episodes; "
        "heavy = {'torch', 'prefect', 'openai', 'matplotlib'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
