"""docs/examples/roman: the scenario that docs/scenarios.md adds, as its files stand there."""

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from small_game import train_here

from nip_core.errors import SettingsError
from nip_core.game.render import Game, make_situation
from nip_core.parameters import load_parameters
from nip_core.scenarios import scenario_names
from nip_core.scenarios.datasets import check_splits, load_problems

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scenarios.md"
EXAMPLE = ROOT / "docs" / "examples" / "roman"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A copy of the example, in a folder from which a run is started."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return "roman.yaml"


def test_the_page_shows_the_files_of_the_example_as_they_are():
    page = PAGE.read_text(encoding="utf-8")
    shown = dict(re.findall(r"`(roman\.\w+)`[^`]*\n````\w+\n(.*?)````\n", page, re.DOTALL))
    files = [path for path in EXAMPLE.iterdir() if path.is_file()]
    assert shown == {path.name: path.read_text(encoding="utf-8") for path in files}
    assert [*shown] == ["roman.py", "roman.yaml"]


def test_it_takes_80_lines_and_its_problems_are_as_documented(config):
    assert len(Path("roman.py").read_text().splitlines()) <= 80
    game = Game(load_parameters(config))
    splits = {
        s: load_problems(game.scenario, "numbers", s) for s in ("train", "validation", "test")
    }
    check_splits(splits)
    for problems in splits.values():
        assert sum(p.y for p in problems) * 2 == len(problems) > 60
    problem = next(p for p in splits["train"] if p.question == "494" and p.y == 0)
    prompts = {
        agent: game.told(agent, make_situation(problem, None, 0))[0]
        for agent in game.protocol.agent_names
    }
    for prompt in prompts.values():
        assert f"## Number\n\n494\n\n## Numeral\n\n{problem.solution}" in prompt
        assert "$" not in prompt and "Python" not in prompt
    assert "## Its parts\n\nCD XC IV" in prompts["prover"]
    assert "CD XC IV" not in prompts["verifier"]


def test_its_settings_are_checked_by_name(config):
    with pytest.raises(SettingsError, match=r"scenario_settings\.smallest"):
        load_parameters(config, ["scenario_settings.smallest=3"])
    short = load_parameters(config, ["scenario_settings.system_prompt_version=short"])
    assert short.system_prompt_version == "short"


@pytest.mark.long
async def test_it_is_trained_as_any_other(config):
    summary = await train_here(config, ["dataset_options.max_test_size=4"])
    assert summary["run"] == "roman"
    paths = [*Path("runs").rglob("rollouts/train/episodes-*.parquet")]
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert len(rows) == 40
    for row in rows:
        assert set(json.loads(row["columns"])) == {"parts"}
        assert row["outcome"] in ("finished", "terminated")


def test_the_page_and_the_contract_name_each_scenario():
    page = PAGE.read_text(encoding="utf-8")
    games = {path.stem for path in (ROOT / "docs" / "games").glob("*.md")}
    assert games == {*scenario_names()} - {"code_validation"}
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in scenario_names():
        assert f"\n| `{name}` |" in page, name
        assert re.search(rf'"nip_(core.scenarios|games).{name}"', contracts), name
