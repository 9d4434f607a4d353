"""The pages for people who change nip name files that are there."""

import importlib.util
import re
from pathlib import Path

import pytest
from houses import DISTRIBUTIONS, HOUSES, find_place

ROOT = Path(__file__).parents[2]
PLACES = (*DISTRIBUTIONS.values(), *HOUSES.values())
"""Below which a page may name a file."""
NAMED = re.compile(r"`((?:[\w-]+/)+(?:[\w.-]+\.(?:py|jinja|yaml|toml))?)`")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_file_that_a_page_names_is_there(page):
    names = NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(names) > 15
    missing = [name for name in names if not any((house / name).exists() for house in PLACES)]
    assert not missing


def test_changes_have_a_place():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Where do I")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| (?:a|an) ", table, re.MULTILINE)) >= 13


DOTTED = re.compile(
    rf"`{{1,2}}((?:{'|'.join(name for name in HOUSES if name[0] == 'n')}|nip_prefect)(?:\.\w+)+)`"
)


def _is_there(name):
    """Whether a dotted name is a module of ours, or something that a module of ours says."""
    parts = name.removeprefix("nip_prefect.").split(".")
    for depth in range(len(parts), 0, -1):
        place = find_place(".".join(parts[:depth]))
        file = (
            place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
        )
        if file.exists():
            text = file.read_text(encoding="utf-8")
            return all(re.search(rf"\b{part}\b", text) for part in parts[depth:])
    return False


def test_every_module_that_a_docstring_or_a_page_names_is_there():
    files = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    for folder in (*HOUSES.values(), ROOT / "benchmarks", ROOT / "scripts"):
        files += folder.rglob("*.py")
    stale = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        if file.name != "CHANGELOG.md"
        for name in DOTTED.findall(file.read_text(encoding="utf-8"))
        if not _is_there(name)
    }
    assert not stale


def test_the_table_of_cards_is_what_its_formula_says():
    spec = importlib.util.spec_from_file_location("gpu_table", ROOT / "scripts" / "gpu_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "howto" / "gpu.md").read_text(encoding="utf-8")
    estimated = [line for line in page.splitlines() if line.endswith("| *estimated* |")]
    measured = [line for line in page.splitlines() if line.endswith("| measured |")]
    assert {*estimated} <= {*module.rows()}
    assert len(estimated) + len(measured) == len(module.rows()) - 2 > 10
