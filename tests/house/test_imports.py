"""Tests, benchmarks and scripts import what is there, also those that `make test` does not run."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSES = ("nip_core", "nip_lm_server", "nip_prefect", "factory")
FILES = [p for folder in ("tests", "benchmarks", "scripts") for p in (ROOT / folder).rglob("*.py")]


@cache
def names_of(module: str) -> frozenset[str] | None:
    """What can be imported from a module of ours; None where there is no such module."""
    place = ROOT.joinpath(*module.split("."))
    file = place.with_suffix(".py")
    if not file.exists():
        file = place / "__init__.py"
    below = {p.stem for p in place.glob("*.py")} | {p.parent.name for p in place.glob("*/*.py")}
    if not file.exists():
        return frozenset(below) if place.is_dir() else None
    names = set(below)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # of a module that imports by __getattr__ what it lists
    return frozenset(names)


def missing(source: str) -> list[str]:
    """The imports from our houses, in a source, of what is not there."""
    absent = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in HOUSES:
            known = names_of(str(node.module))
            absent += [f"{node.module}.{a.name}" for a in node.names if a.name not in (known or ())]
        elif isinstance(node, ast.Import):
            ours = [a.name for a in node.names if a.name.split(".")[0] in HOUSES]
            absent += [name for name in ours if names_of(name) is None]
    return absent


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "scripts"])
def test_what_is_imported_is_there(folder):
    absent = {
        str(file.relative_to(ROOT)): names
        for file in FILES
        if file.is_relative_to(ROOT / folder) and (names := missing(file.read_text("utf-8")))
    }
    assert not absent


def test_an_import_of_what_was_moved_is_noticed():
    assert missing("from nip_core.stages.choosing import nowhere") == [
        "nip_core.stages.choosing.nowhere"
    ]
    assert missing("import nip_core.nowhere") == ["nip_core.nowhere"]
    assert missing("from nip_core.loop import train\nimport os") == []
