"""Small bugs by design: every way one change to a syntax tree may break a solution.

    mutants       single-change variants of a solution, each with the kind of its change

Whether a mutant really is wrong is not known here: only its tests say so. Everything is written
by `ast.unparse`, solutions and mutants alike, so that no formatting tells them apart. The order is
that of the source text, then that of the `mutators`: equal input, equal output.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from nip_core.hashing import numbered_keys
from nip_problems.mutation.mutators import Change, Site, find_changes
from nip_problems.mutation.syntax import normalise


@dataclass(frozen=True)
class Mutant:
    """A solution with one change."""

    source: str
    kind: str
    line: int
    """Line of the changed node in the normalised original, from 1."""
    description: str
    """The change, as "old -> new"."""


def mutants(source: str, *, at_most: int | None = None) -> list[Mutant]:
    """Single-change variants of `source`, without duplicates and without texts that don't compile.

    Args:
        source: the solution.
        at_most: take that many, spread over the source by a stable hash, in the order of the hash;
            None for all, in the order of the text.

    Raises:
        SyntaxError: `source` is not Python.
    """
    original = normalise(source)
    tree = ast.parse(original)
    # 1. Collect every change while the tree is whole; each shares the nodes that it does not
    # change.
    candidates = [
        (place, kind, new)
        for place in _places(tree, (tree,), ())
        for kind, new in find_changes(place)
    ]
    # 2. Put them in order.
    order = list(range(len(candidates)))
    if at_most is not None:
        order.sort(key=numbered_keys(len(candidates), "mutants", original).__getitem__)
    # 3. Carry out one at a time, write the tree down, and take the change back.
    seen_texts = {original}
    mutants: list[Mutant] = []
    for number in order:
        if len(mutants) == at_most:
            break
        place, kind, new = candidates[number]
        place.put(new)
        try:
            text = ast.unparse(tree) + "\n"
        finally:
            place.put(place.node)
        if text not in seen_texts and _compiles(text):
            seen_texts.add(text)
            line = getattr(place.node, "lineno", 1)
            mutants.append(Mutant(text, kind, line, _describe(place.node, new)))
    return mutants


def _places(
    parent: ast.AST, ancestors: tuple[ast.AST, ...], names: tuple[str, ...]
) -> Iterator[Site]:
    """Every node below `parent` in the order of the text."""
    for field, value in ast.iter_fields(parent):
        siblings = value if isinstance(value, list) else None
        for index, child in enumerate([value] if siblings is None else siblings):
            if not isinstance(child, ast.AST):
                continue
            inner = names
            if isinstance(child, ast.FunctionDef):
                inner = tuple(sorted({*names, *_local_names(child)}))
            yield Site(child, parent, field, siblings, index, ancestors, inner)
            yield from _places(child, (*ancestors, child), inner)


def _local_names(function: ast.FunctionDef) -> set[str]:
    names = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as `0 is None`, which is a bug like another
        try:
            compile(text, "mutant.py", "exec")
        except (SyntaxError, ValueError):
            return False
    return True


def _describe(old: ast.AST, new: Change) -> str:
    new_text = "; ".join(map(ast.unparse, new)) if isinstance(new, list) else ast.unparse(new)
    return f"{_first_line(ast.unparse(old))} -> {_first_line(new_text) or '(nothing)'}"


def _first_line(text: str) -> str:
    head, _, more = text.partition("\n")
    return head + (" ..." if more else "")
