"""A folder is as large as a reader can hold: at most twenty files, at most six floors.

Floors: the longest chain of imports among the files of one folder, each file on a floor above
those that it imports. Imports within functions count, those for type checkers alone do not.
"""

import ast
import re
from functools import cache

import pytest
from houses import HOUSES, ROOT, parse_source

MOST_FILES = 20
MOST_FLOORS = 6
LINKED = {"nip_prefect/flows": "flows", "nip_prefect/tasks": "tasks"}
"""Folders that have another name in imports than on disk."""
FILES_ABOVE: dict[str, int] = {}
"""Folders that have more files as yet, and how many at most: this shrinks."""
FLOORS_ABOVE: dict[str, int] = {"factory/tiny": 8}
"""Folders that have more floors as yet, and how many at most: this shrinks."""


@cache
def list_folders():
    """Each folder with Python files, by its path below the root; a link is not entered."""
    folders = {}
    for house in HOUSES.values():
        for path in sorted(house.rglob("*.py")):
            name = path.parent.relative_to(ROOT).as_posix()
            if path.name != "__init__.py" and not any(p.is_symlink() for p in path.parents):
                folders.setdefault(name, []).append(path)
    return folders


def find_module_name(folder):
    """The dotted name by which a folder's files are imported."""
    named = next(
        (link for link, place in LINKED.items() if f"{folder}/".startswith(f"{place}/")), None
    )
    if named is not None:
        folder = named + folder.removeprefix(LINKED[named])
    return re.sub(r"^packages/[\w-]+/", "", folder).replace("/", ".")


class Imports(ast.NodeVisitor):
    """The names of modules that a source imports when it runs."""

    def __init__(self):
        self.names = set()

    def visit_If(self, node):
        parts = (
            node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else [*node.body, *node.orelse]
        )
        for part in parts:
            self.visit(part)

    def visit_Import(self, node):
        self.names |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node):
        self.names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}


def list_arrows(folder):
    """By file of a folder, the files of the same folder that it imports."""
    files, dotted = list_folders()[folder], find_module_name(folder)
    arrows = {}
    for path in files:
        imports = Imports()
        imports.visit(parse_source(path))
        others = [p.stem for p in files if p != path]
        arrows[path.stem] = [name for name in others if f"{dotted}.{name}" in imports.names]
    return arrows


def find_longest_chain(arrows):
    """The files of the longest chain, the highest first. A circle is as long as it has files."""

    def walk(name, passed):
        chains = [walk(other, [*passed, name]) for other in arrows[name] if other not in passed]
        return [name, *max(chains, key=len, default=[])]

    longest = {}

    def climb(name):
        if name not in longest:
            below = [climb(other) for other in arrows[name]]
            longest[name] = [name, *max(below, key=len, default=[])]
        return longest[name]

    try:
        return max((climb(name) for name in arrows), key=len, default=[])
    except RecursionError:  # a circle: every way is walked
        return max((walk(name, []) for name in arrows), key=len, default=[])


def find_too_large(sizes, most, exceptions):
    """Folders above a bar or their exception, and exceptions that are needed no more."""
    large = {name: size for name, size in sizes.items() if size > exceptions.get(name, most)}
    settled = [name for name in exceptions if sizes.get(name, 0) <= most]
    return large | dict.fromkeys(settled, "is no exception any more: take it out of the list")


def test_an_exception_ends_with_its_need():
    sizes = {"a": 21, "b": 22, "c": 20}
    assert find_too_large(sizes, 20, {"a": 21, "b": 22}) == {}
    assert find_too_large(sizes, 20, {"b": 21, "c": 25}).keys() == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("arrows", "longest"),
    [
        ({"a": [], "b": []}, 1),
        ({"a": ["b", "c"], "b": ["c"], "c": []}, 3),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, 3),
    ],
)
def test_a_chain_is_as_long_as_its_files(arrows, longest):
    assert len(find_longest_chain(arrows)) == longest


def test_an_import_within_a_function_counts_and_one_for_type_checkers_does_not():
    imports = Imports()
    imports.visit(
        ast.parse(
            "if TYPE_CHECKING:\n    from a import b\nelse:\n    import c\n"
            "def f():\n    from d import e\n    if x:\n        import g"
        )
    )
    assert imports.names == {"c", "d", "d.e", "g"}


def test_the_floors_of_linked_folders_are_seen():
    assert list_arrows("flows")["train"]


def test_a_folder_has_at_most_twenty_files():
    files = {name: len(files) for name, files in list_folders().items()}
    assert find_too_large(files, MOST_FILES, FILES_ABOVE) == {}


def test_a_folder_has_at_most_six_floors():
    chains = {name: find_longest_chain(list_arrows(name)) for name in list_folders()}
    floors = {name: len(chain) for name, chain in chains.items()}
    wrong = find_too_large(floors, MOST_FLOORS, FLOORS_ABOVE)
    assert wrong == {}, "\n".join(f"{name}: {' -> '.join(chains.get(name, ()))}" for name in wrong)
