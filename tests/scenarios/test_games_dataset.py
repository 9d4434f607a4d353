"""benchmarks/games_dataset.py: the folder that it makes is loaded as docs/data.md and its card say."""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from nip_core.parameters import load_parameters
from nip_core.scenarios import make_scenario
from nip_core.scenarios.datasets import load_problems

ROOT = Path(__file__).parents[2]
CELLS = {p.parent.name: p for p in (ROOT / "docs/results").glob("*/cells.parquet")}
SECTION = (ROOT / "docs" / "data.md").read_text("utf-8").partition("## Reading with 🤗 datasets")[2]


def make(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from games_dataset import main

    monkeypatch.setattr(sys, "argv", ["games_dataset.py", *map(str, arguments)])
    main()


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the page's command makes."""
    place = tmp_path_factory.mktemp("page")
    [command] = re.findall(r"```sh\npython benchmarks/games_dataset.py (.*?)\n```", SECTION)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(place)
        make(monkeypatch, *shlex.split(command))
    return place / "games"


def read_card(folder: Path) -> tuple[dict, str]:
    _, head, text = (folder / "README.md").read_text("utf-8").split("---\n", 2)
    return yaml.safe_load(head), text


def test_the_header_of_the_card_names_every_file_and_its_tables_every_row_and_column(games):
    head, text = read_card(games)
    assert head["license"] == "mit"
    files = {
        (config["config_name"], data["split"]): data["path"]
        for config in head["configs"]
        for data in config["data_files"]
    }
    present = {p.relative_to(games).as_posix() for p in games.rglob("*") if p.is_file()}
    assert {*files.values(), "README.md"} == present
    for (name, split), path in files.items():
        table = pq.read_table(games / path)
        assert f"| `{name}` | {split} | {table.num_rows} | {pc.sum(table['y'])} |" in text
        [section] = re.findall(rf"^\*\*`{name}`\*\*\n\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE)
        documented = [line.strip("| ").split(" | ")[:3] for line in section.splitlines()[2:]]
        assert documented == [
            [f"`{field.name}`", str(field.type), "yes" if field.nullable else ""]
            for field in table.schema
        ]
        assert not re.search(r"[{}]\w", text.partition("```bibtex")[0])


def test_datasets_loads_every_configuration_with_the_rows_and_types_of_its_files(
    games, tmp_path, monkeypatch
):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    datasets.disable_progress_bars()
    monkeypatch.chdir(games.parent)
    *_, code = re.findall(r"```python\n(.*?)```", SECTION.partition("\n## ")[0], re.DOTALL)
    names: dict = {}
    exec(compile(code, "docs/data.md", "exec"), names)
    assert {split: len(rows) for split, rows in names["bags"].items()} == {
        "train": 2000,
        "validation": 240,
        "test": 600,
    }
    assert datasets.load_dataset("games")["test"][0] == names["bags"]["test"][0]
    for name in ("bags", "bags-55", "bags-56", "chain", "verdicts"):
        for split, rows in datasets.load_dataset("games", name).items():
            table = pq.read_table(games / name / f"{split}.parquet")
            kinds = {name: feature.dtype for name, feature in rows.features.items()}
            assert kinds == {field.name: str(field.type) for field in table.schema}
            assert rows.data.table.to_pydict() == table.to_pydict()


def test_the_problems_are_those_that_nip_plays_with_the_texts_of_their_episodes(games):
    from games_dataset import BAGS, CHAIN, OTHER_BAGS

    bags = {"bags": BAGS, **OTHER_BAGS}
    of_bags = ((name, "bags-tiny", settings) for name, settings in bags.items())
    for name, config, settings in (*of_bags, ("chain", "deterministic", CHAIN)):
        parameters = load_parameters(config, settings)
        scenario = make_scenario(parameters)
        for split in ("train", "validation", "test"):
            problems = load_problems(scenario, str(games / name), split)
            played = load_problems(scenario, parameters.dataset, split)
            assert problems == [replace(problem, difficulty=None) for problem in played]
            for row in pq.read_table(games / name / f"{split}.parquet").slice(0, 50).to_pylist():
                drawn = scenario.draw({"question": row["question"]}, row.get("seed", 0))
                assert drawn and drawn.items() <= row.items()
    first = load_problems(make_scenario(load_parameters("bags-tiny")), "lists", "test")
    ids = pq.read_table(games / "bags" / "test.parquet")["id"].to_pylist()
    assert ids[: len(first)] == [problem.id for problem in first]


def test_the_verdicts_are_all_rows_of_the_studies_and_name_problems_of_bags(games):
    verdicts = pq.read_table(games / "verdicts" / "test.parquet")
    assert pc.unique(verdicts["study"]).to_pylist() == sorted(CELLS)
    for study, path in CELLS.items():
        cells = pq.read_table(path)
        rows = verdicts.filter(pc.equal(verdicts["study"], study))
        assert rows.select(cells.column_names).cast(cells.schema).equals(cells)
        for name in {*rows.column_names} - {"study", *cells.column_names}:
            assert rows[name].null_count == rows.num_rows
    for study, name in (
        ("soundness", "bags"),
        ("unanswered", "bags-55"),
        ("unanswered_smollm2", "bags-56"),
    ):
        ids = pq.read_table(games / name / "test.parquet")["id"].to_pylist()
        of_bags = verdicts.filter(pc.equal(verdicts["study"], study))
        assert {*of_bags["problem"].to_pylist()} == {*ids}


def test_the_same_arguments_in_any_order_give_the_same_bytes(tmp_path, monkeypatch):
    cells = [f"{name}={CELLS[name]}" for name in ("strength", "study")]
    make(monkeypatch, tmp_path / "a", "--cells", *cells)
    make(monkeypatch, tmp_path / "b", "--cells", *reversed(cells))
    a, b = (
        {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    assert a == b and len(a) == 14


def test_what_is_no_study_or_no_empty_folder_is_refused_and_nothing_is_written(
    tmp_path, monkeypatch, capsys
):
    odd = tmp_path / "odd.parquet"
    pq.write_table(pa.table({"run": ["a"], "verdict": [1]}), odd)
    study = f"study={CELLS['study']}"
    for arguments, expected in (
        ([ROOT], "no empty folder"),
        ([tmp_path / "new", "--cells", "study"], "NAME=FILE"),
        ([tmp_path / "new", "--cells", study, study], "once"),
        ([tmp_path / "new", "--cells", f"odd={tmp_path / 'none'}"], "--cells odd="),
        ([tmp_path / "new", "--cells", f"odd={ROOT / 'README.md'}"], "--cells odd="),
        ([tmp_path / "new", "--cells", f"odd={odd}"], "has ['verdict']"),
    ):
        with pytest.raises(SystemExit) as ended:
            make(monkeypatch, *arguments)
        assert ended.value.code == 2 and expected in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
