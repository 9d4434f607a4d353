"""The picture in docs/architecture.md is that of the code: its rooms, its arrows, its floors."""

import ast
import re
from pathlib import Path

import pytest
from houses import HOUSES, list_nodes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
INSTALLED = {
    "nip_core": "nip_core",
    "nip_cli": "nip_cli",
    "nip_prefect.flows": "flows",
    "nip_prefect.tasks": "tasks",
}
APART = set(HOUSES) - {"nip_core", "nip_cli", "flows", "tasks", "nip_verifiers"}
"""Packages that are one room of the picture each."""
INSTALLED |= {name: name for name in APART}
BENEATH = {"errors", "hashing", "hook", "importing", "nearest", "tolerance", "moved"}
BENEATH |= {"redaction", "processes", "concurrency", "proxies", "configurations"}
BENEATH |= {"models", "lm_server", "distribution", "configs", "agents", "fine_tuning"}
BENEATH |= {"__version__", "DISTRIBUTION", "how_to_install", "run", "runs"}
"""What every room of nip_core may use, and what is a name and no room."""


def _picture():
    """Rooms by floor, counted from the top, and the arrows."""
    [drawing] = re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)
    floors, arrows, floor = {}, set(), -1
    for line in map(str.strip, drawing.splitlines()):
        if line.startswith("subgraph"):
            floor += 1
        elif room := re.fullmatch(r"(?!end$)(\w+)(?:\[.*\])?", line):
            floors[room[1]] = floor
        elif arrow := re.fullmatch(r"(\w+) --> (\w+)", line):
            arrows.add((arrow[1], arrow[2]))
    return floors, arrows


def _room(module):
    for package, folder in INSTALLED.items():
        if module == package or module.startswith(f"{package}."):
            rest = module[len(package) + 1 :].partition(".")[0]
            if folder == "nip_core":
                return "stages" if rest == "loop" else rest
            return folder
    return None


@pytest.fixture(scope="module")
def imports():
    """Pairs of rooms, from who imports to who is imported."""
    pairs = set()
    for package, folder in INSTALLED.items():
        for file in HOUSES[folder].rglob("*.py"):
            parts = file.relative_to(HOUSES[folder]).with_suffix("").parts
            room = _room(".".join((package, *parts)))
            for node in list_nodes(file, ast.ImportFrom, ast.Import):
                names = [alias.name for alias in node.names]
                if isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}.{name}" for name in names] if node.module else []
                pairs |= {(room, _room(name)) for name in names if _room(name)}
    pairs = {(a, b) for a, b in pairs if a and a != b and a != "__init__"}
    return {(a, b) for a, b in pairs if a not in BENEATH and b not in BENEATH}


def test_it_has_every_room_once(imports):
    floors, _ = _picture()
    packages = {
        path.parent.name
        for path in (ROOT / "nip_core").glob("*/__init__.py")
        if path.parent.name not in BENEATH
    }
    assert set(floors) == packages | APART | {"bridges", "nip_cli", "flows", "tasks"}


def test_every_arrow_is_an_import(imports):
    _, arrows = _picture()
    assert arrows <= imports, arrows - imports


def test_no_import_points_up(imports):
    floors, _ = _picture()
    rising = {(a, b) for a, b in imports if a != "factory" and floors[a] > floors[b]}
    assert not rising


def test_every_room_is_in_the_tables():
    floors, _ = _picture()
    for room in set(floors) - {"bridges"}:
        assert re.search(rf"\| `(packages/[\w-]+/)?{room}/`", PAGE) or f", `{room}/`" in PAGE, room
