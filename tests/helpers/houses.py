"""The packages of this repository's distributions, where each lies, and their sources.

A source is read, parsed and walked once for all tests of the house that run in a process.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {
    path.parent.name: path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
} | {"nip-loop": ROOT}
"""By name, the folder with its pyproject.toml."""
HOUSES = {
    "nip_core": ROOT / "nip_core",
    "nip_cli": ROOT / "nip_cli",
    "flows": ROOT / "flows",
    "tasks": ROOT / "tasks",
    "nip_verifiers": ROOT / "nip_verifiers",
    "factory": ROOT / "factory",
} | {
    path.name: path
    for path in sorted(ROOT.glob("packages/*/nip_*"))
    if (path / "__init__.py").exists()  # and not what an installation leaves beside it
}
"""By the name of a package, its folder."""
SERVER = HOUSES["nip_lm_server"]


def find_place(module: str) -> Path:
    """The path of a dotted name, without the ending of a file."""
    first, *rest = module.removeprefix("nip_prefect.").split(".")
    return HOUSES.get(first, ROOT / first).joinpath(*rest)


def list_sources(*houses: str) -> list[Path]:
    """The Python files of these packages; of all, without a name."""
    folders = [HOUSES[name] for name in houses or HOUSES]
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


@cache
def read_source(path: Path) -> str:
    """The text of a source file."""
    return path.read_text(encoding="utf-8")


@cache
def parse_source(path: Path) -> ast.Module:
    """The tree of a source file, which nobody changes."""
    return ast.parse(read_source(path))


def list_nodes(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    """The nodes of a source file of these kinds, kind by kind."""
    nodes = sort_source(path)
    return [node for kind in kinds for node in nodes.get(kind, ())]


@cache
def sort_source(path: Path) -> dict[type[ast.AST], list[Any]]:
    """The nodes of a source file by their kinds."""
    return sort_nodes(parse_source(path))


def sort_nodes(tree: ast.AST) -> dict[type[ast.AST], list[Any]]:
    """The nodes of a tree by their kinds."""
    nodes: dict[type[ast.AST], list[Any]] = {}
    for node in ast.walk(tree):
        nodes.setdefault(type(node), []).append(node)
    return nodes
