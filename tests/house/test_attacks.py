"""An attack is an object: its ways are named in its room alone, and few rooms know of attacks."""

import ast
import re
from pathlib import Path

from houses import HOUSES, list_nodes

from nip_core.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
KNOWING = ("nip_core", "nip_cli", "nip_inspect", "nip_study", "nip_view", "flows", "tasks")
ROOM = ROOT / "nip_core" / "attacks"
CONSTANTS = {"BEST_OF_N", "SNEAKY", "SCRIPT"}
FILES, ROOMS = 40, 10
"""Of nip_core, with a name that has "attack" in it; `library` hands attacks out."""


NAMING = (ast.ImportFrom, ast.Compare, ast.MatchValue, ast.Name)
NAMED = (ast.Name, ast.Attribute, ast.arg, ast.keyword, ast.FunctionDef, ast.AsyncFunctionDef)
NAMED += (ast.ClassDef,)


def _sources(folder):
    for path in sorted(folder.rglob("*.py")):
        if not path.is_symlink() and ROOM not in path.parents:
            yield path


def _imports_a_way(node):
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
        "nip_core.attacks"
    ):
        return False
    return any(alias.name in {kind.__name__ for kind in ATTACKS} for alias in node.names)


def _compares_a_name(node):
    names = {kind.name for kind in ATTACKS}
    compared = ()
    if isinstance(node, ast.Compare):
        compared = [n for part in (node.left, *node.comparators) for n in ast.walk(part)]
    elif isinstance(node, ast.MatchValue):
        compared = [node.value]
    return any(isinstance(part, ast.Constant) and part.value in names for part in compared)


def test_ways_of_attacking_are_named_in_their_room_alone():
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for house in KNOWING
        for path in _sources(HOUSES[house])
        for node in list_nodes(path, *NAMING)
        if _imports_a_way(node)
        or _compares_a_name(node)
        or (isinstance(node, ast.Name) and node.id in CONSTANTS)
    ]
    assert not named


def _names(path):
    for node in list_nodes(path, *NAMED):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""
        else:
            yield node.name


def test_few_rooms_know_of_attacks():
    core = ROOT / "nip_core"
    found = {
        path.relative_to(core)
        for path in _sources(core)
        if any(re.search("attack", name, re.IGNORECASE) for name in _names(path))
    }
    found |= {path.relative_to(core) for path in ROOM.glob("*.py")}
    assert len(found) <= FILES, sorted(map(str, found))
    assert len({path.parts[0] for path in found}) <= ROOMS
