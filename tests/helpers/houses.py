"""The packages of this repository's distributions, and where each lies."""

import ast
from functools import cache
from pathlib import Path

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
def parse_source(path: Path) -> ast.Module:
    """The tree of a source file; it is parsed once for all tests of the house."""
    return ast.parse(path.read_text(encoding="utf-8"))
