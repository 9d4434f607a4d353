"""Tests, benchmarks and scripts import what is there, also those that `make test` does not run."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from houses import DISTRIBUTIONS, HOUSES, find_place, list_nodes, sort_nodes, sort_source

ROOT = Path(__file__).parents[2]
OURS = {*HOUSES, "nip_prefect"} - {"flows", "tasks"}
FOLDERS = ("tests", "benchmarks", "scripts", *(f"packages/{name}/tests" for name in DISTRIBUTIONS))
FILES = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")]


@cache
def names_of(module: str) -> frozenset[str] | None:
    """What can be imported from a module of ours; None where there is no such module."""
    place = find_place(module)
    file = place.with_suffix(".py")
    if not file.exists():
        file = place / "__init__.py"
    below = {p.stem for p in place.glob("*.py")} | {p.parent.name for p in place.glob("*/*.py")}
    if not file.exists():
        return frozenset(below) if place.is_dir() else None
    names = set(below)
    definitions = list_nodes(file, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names |= {node.name for node in definitions}
    names |= {n.id for n in list_nodes(file, ast.Name) if isinstance(n.ctx, ast.Store)}
    names |= {
        alias.asname or alias.name.partition(".")[0]
        for node in list_nodes(file, ast.Import, ast.ImportFrom)
        for alias in node.names
    }
    # Of a module that imports by __getattr__ what it lists.
    values = [node.value for node in list_nodes(file, ast.Constant)]
    return frozenset(names | {value for value in values if isinstance(value, str)})


def missing(source: str) -> list[str]:
    """What a source names of ours and is not there."""
    return missing_of(sort_nodes(ast.parse(source)))


def missing_of(nodes: dict[type[ast.AST], list[Any]]) -> list[str]:
    """What a source imports from our houses, reads of their modules or replaces in them, and is not
    there."""
    absent = []
    modules: dict[str, str] = {}
    for node in nodes.get(ast.ImportFrom, ()):
        if (node.module or "").split(".")[0] in OURS:
            known = names_of(str(node.module))
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if alias.name not in (known or ()):
                    absent.append(whole)
                elif names_of(whole) is not None:
                    modules[alias.asname or alias.name] = whole
    for node in nodes.get(ast.Import, ()):
        ours = [a.name for a in node.names if a.name.split(".")[0] in OURS]
        absent += [name for name in ours if names_of(name) is None]
    for node in nodes.get(ast.Attribute, ()) if modules else ():
        module = modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if module and node.attr not in (names_of(module) or ()) and "__" not in node.attr:
            absent.append(f"{module}.{node.attr}")
    for node in nodes.get(ast.Call, ()):
        if _called(node.func).endswith(("setattr", "patch")):
            absent += _not_there(node.args[0])
    return absent


def _called(function: ast.expr) -> str:
    """The last name of what is called, "" where it has none."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _not_there(replaced: ast.expr) -> list[str]:
    """A dotted address of ours whose first name below its module is not there."""
    address = replaced.value if isinstance(replaced, ast.Constant) else ""
    if not isinstance(address, str) or address.split(".")[0] not in OURS:
        return []
    module, below = address, ""
    while names_of(module) is None:
        module, _, below = module.rpartition(".")
    return [address] if below and below not in (names_of(module) or ()) else []


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_imported_is_there(folder):
    absent = {
        str(file.relative_to(ROOT)): names
        for file in FILES
        if file.is_relative_to(ROOT / folder) and (names := missing_of(sort_source(file)))
    }
    assert not absent


def test_an_import_of_what_was_moved_is_noticed():
    assert missing("from nip_core.stages.choosing import nowhere") == [
        "nip_core.stages.choosing.nowhere"
    ]
    assert missing("import nip_core.nowhere") == ["nip_core.nowhere"]
    assert missing("from nip_core.loop import train\nimport os") == []
    assert missing("from nip_core import loop as here\nhere.nowhere(here.train)") == [
        "nip_core.loop.nowhere"
    ]
    assert missing("monkeypatch.setattr('nip_core.loop.nowhere', 1)") == ["nip_core.loop.nowhere"]
    assert missing("mock.patch('nip_core.loop.train.name')") == []
