"""Syntax trees, as mutation and rewriting share them.

normalise          the text of a solution as this package writes it
negate             the opposite of a condition
load, store, call  expressions in short
both_ways          a table that is read in both directions
"""

import ast
from typing import TypeVar

T = TypeVar("T")


def both_ways(*pairs: tuple[T, T]) -> dict[T, T]:
    """From each to the other."""
    return {**dict(pairs), **{second: first for first, second in pairs}}


OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **both_ways((ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    **both_ways((ast.Lt, ast.GtE), (ast.Gt, ast.LtE)),
}
"""The comparison that holds exactly where another does not."""
MIRROR: dict[type[ast.cmpop], type[ast.cmpop]] = both_ways((ast.Lt, ast.Gt), (ast.LtE, ast.GtE))
"""The same order, told from the other side."""


def normalise(source: str) -> str:
    """The text of `source` without comments and formatting of its own.

    Raises:
        SyntaxError: `source` is not Python.
    """
    return ast.unparse(ast.parse(source)) + "\n"


def negate(test: ast.expr) -> ast.expr:
    """The opposite condition, as a person would write it: a >= b for a < b, no double `not`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return ast.Compare(test.left, [OPPOSITE[type(test.ops[0])]()], test.comparators)
    return ast.UnaryOp(ast.Not(), test)


def load_name(name: str) -> ast.Name:
    """Make a name to read a variable by."""
    return ast.Name(name, ast.Load())


def store_name(name: str) -> ast.Name:
    """Make a name to write a variable by."""
    return ast.Name(name, ast.Store())


def call_by_name(function: str, *arguments: ast.expr) -> ast.Call:
    """A function by its name, called."""
    return ast.Call(load_name(function), list(arguments), [])


def name_callee(node: ast.AST) -> str:
    """Name the callee of a call: a function, or a method with a dot before it; else ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return "." + node.func.attr
    return ""
