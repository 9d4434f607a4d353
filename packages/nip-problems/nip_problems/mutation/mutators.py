"""The changes that may break a solution, node by node.

    KINDS         the kinds of changes, for tables
    find_changes  kind and result of all changes of the node at a place, in the order of this file
    Site          a node, where it stands, and how something else is put there

Children of a changed node are shared with the original, never modified.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import UnionType
from typing import Any

from nip_problems.mutation.syntax import MIRROR, OPPOSITE, both_ways, name_callee, negate

KINDS = (
    *("comparison", "boundary", "operator", "constant", "string", "branch", "index", "slice"),
    *("return", "loop_bound", "boolean", "call", "argument", "statement", "jump", "variable"),
)
Change = ast.AST | list[ast.stmt]
"""The code that replaces a node."""


@dataclass(frozen=True)
class Site:
    """A node with the facts about its place that a mutator may ask for."""

    node: ast.AST
    parent: ast.AST
    field: str
    """Of the parent, in which the node stands."""
    siblings: list[Any] | None
    """All that stands in the field, if it is a list."""
    index: int
    ancestors: tuple[ast.AST, ...]
    names: tuple[str, ...]
    """The local names of the function around it, sorted."""

    def put(self, new: Change) -> None:
        """Put `new` in the node's place; in a list it may be several statements, or none."""
        if self.siblings is None:
            setattr(self.parent, self.field, new)
            return
        pieces = new if isinstance(new, list) else [new]
        whole = [*self.siblings[: self.index], *pieces, *self.siblings[self.index + 1 :]]
        setattr(self.parent, self.field, whole or ([ast.Pass()] if self.field == "body" else []))

    def is_within(self, kinds: type[ast.AST] | UnionType) -> bool:
        """Tell whether something of these types is around it, at any distance."""
        return any(isinstance(ancestor, kinds) for ancestor in self.ancestors)


def find_changes(place: Site) -> Iterator[tuple[str, Change]]:
    """Kind and result of every change of the node at `place`."""
    for mutator in _MUTATORS:
        yield from mutator(place.node, place)


def _with(node: Any, **fields: object) -> Any:
    """A shallow copy of `node` with some fields changed."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _replaced(items: list[Any], index: int, *new: Any) -> list[Any]:
    """The items with others, or none, in the place of one of them."""
    return [*items[:index], *new, *items[index + 1 :]]


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _number(value: int) -> ast.expr:
    if value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)


def _as_int(node: ast.AST | None) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _as_int(node.operand)
        return None if value is None else -value
    return None


def _shifted(node: ast.expr, amount: int) -> ast.expr:
    """`node` plus `amount`, folded where `node` is a number or ends in one."""
    value = _as_int(node)
    if value is not None:
        return _number(value + amount)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        right = _as_int(node.right)
        if right is not None:
            amount += right if isinstance(node.op, ast.Add) else -right
            node = node.left
    if amount == 0:
        return node
    return ast.BinOp(node, ast.Add() if amount > 0 else ast.Sub(), ast.Constant(abs(amount)))


# The replacements of a node, by its type. All have this form.
_Mutator = Callable[[Any, Site], Iterator[tuple[str, Change]]]

_BOUNDARY = both_ways((ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
_OTHER_WAY = {**OPPOSITE, **MIRROR}
_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.FloorDiv, ast.Mult),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}


def _comparisons(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    if not isinstance(node, ast.Compare):
        return
    for kind, table in (("boundary", _BOUNDARY), ("comparison", _OTHER_WAY)):
        for index, op in enumerate(node.ops):
            if type(op) in table:
                yield kind, _with(node, ops=_replaced(node.ops, index, table[type(op)]()))
    if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq) and _as_int(node.comparators[0]):
        yield "comparison", _with(node, ops=[ast.GtE()])


def _operators(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for op in _OPERATORS.get(type(node.op), ()):
            yield "operator", _with(node, op=op())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod):
        yield "operator", _with(node, left=node.right, right=node.left)


def _constants(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    parent_types = ast.Subscript | ast.Slice | ast.JoinedStr | ast.FormattedValue | ast.UnaryOp
    if isinstance(place.parent, parent_types) or place.is_within(ast.FormattedValue):
        return  # they have kinds of their own, or are no values
    kind = "return" if isinstance(place.parent, ast.Return) else "constant"
    match node:
        case ast.Constant(value=bool(value)):
            yield kind, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield kind, _number(value + 1)
            yield kind, _number(value - 1)
            if value >= 10:
                yield kind, ast.Constant(value // 2)
        case ast.Constant(value=str(text)) if not isinstance(place.parent, ast.Expr):
            for other_text in _other_strings(text):
                yield "string", ast.Constant(other_text)


def _other_strings(text: str) -> list[str]:
    if not text:
        return [" "]
    swapped = text.swapcase()
    if len(text) > 1:
        return [text[:-1], text[1:], *([swapped] if swapped != text and len(text) < 20 else [])]
    letter = [swapped] if text.isalpha() else []
    return ["", *letter, *([str((int(text) + 1) % 10)] if text.isdigit() else [])]


def _branches(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.IfExp):
        yield "branch", _with(node, body=node.orelse, orelse=node.body)
        yield "branch", node.body
        yield "branch", node.orelse
    elif isinstance(node, ast.If):
        yield "branch", _with(node, test=negate(node.test))
        yield "branch", node.body  # as if the condition always held
        yield "branch", node.orelse  # as if it never did
        if node.orelse and not (len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)):
            yield "branch", _with(node, orelse=[])
            yield "branch", [_with(node, orelse=[]), *node.orelse]


def _subscripts(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Subscript(slice=ast.Slice() | ast.Tuple()):
            return
        case ast.Subscript(slice=ast.Constant(value=key)) if type(key) is not int:
            return
        case ast.Subscript(slice=index):
            for amount in (-1, 1):
                yield "index", _with(node, slice=_shifted(index, amount))
        case ast.Slice(lower=lower, upper=upper, step=step):
            for name, bound in (("lower", lower), ("upper", upper)):
                if bound is not None:
                    for new_bound in (_shifted(bound, 1), _shifted(bound, -1), None):
                        yield "slice", _with(node, **{name: new_bound})
            if step is not None:
                yield "slice", _with(node, step=None)
            elif lower is None and upper is not None:
                yield "slice", _with(node, lower=ast.Constant(1))
            elif upper is None and lower is not None:
                yield "slice", _with(node, upper=_number(-1))


def _returns(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Return(value=ast.BinOp(left=left)):
            yield "return", _with(node, value=left)
        case ast.Return(value=ast.Tuple(elts=elements) as value) if len(elements) > 1:
            yield "return", _with(node, value=_with(value, elts=elements[::-1]))
        case ast.Return(value=ast.Compare() | ast.BoolOp() as value):
            yield "return", _with(node, value=_not(value))
        case ast.Return(value=ast.UnaryOp(op=ast.USub(), operand=operand)):
            yield "return", _with(node, value=operand)
        case ast.FunctionDef() | ast.If():
            # A value returned behind a loop is returned at the end of its first turn.
            for field in ("body", "orelse"):
                body = getattr(node, field, [])
                for index, (loop, statement) in enumerate(pairwise(body)):
                    if isinstance(loop, ast.For | ast.While) and isinstance(statement, ast.Return):
                        early = _with(loop, body=[*loop.body, statement])
                        yield "return", _with(node, **{field: _replaced(body, index, early)})


def _loops(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Call(args=arguments) if name_callee(node) == "range":
            for index in (0,) if len(arguments) == 1 else (1, 0):
                for amount in (-1, 1):
                    bound = _shifted(arguments[index], amount)
                    yield "loop_bound", _with(node, args=_replaced(arguments, index, bound))
            if len(arguments) == 1:
                yield "loop_bound", _with(node, args=[ast.Constant(1), arguments[0]])
            elif len(arguments) == 3:
                yield "loop_bound", _with(node, args=arguments[:2])
        case ast.Call(args=arguments, keywords=keywords) if name_callee(node) == "enumerate":
            if len(arguments) + len(keywords) == 1:
                yield "loop_bound", _with(node, args=[*arguments, ast.Constant(1)])
            else:
                yield "loop_bound", _with(node, args=arguments[:1], keywords=[])
        case ast.For(iter=ast.Name() as sequence):
            for part in (ast.Slice(lower=ast.Constant(1)), ast.Slice(upper=_number(-1))):
                yield "loop_bound", _with(node, iter=ast.Subscript(sequence, part))
        case ast.While(test=test, body=body) if not isinstance(test, ast.Constant):
            yield "loop_bound", ast.If(test, body, [])  # it runs at most once


def _conditions(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.BoolOp(op=op, values=values):
            yield "boolean", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for index in range(len(values)):
                remaining_values = _replaced(values, index)
                yield (
                    "boolean",
                    remaining_values[0]
                    if len(remaining_values) == 1
                    else _with(node, values=remaining_values),
                )
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", operand
        case ast.comprehension(ifs=[first, *others]):
            yield "boolean", _with(node, ifs=[_not(first), *others])
            yield "boolean", _with(node, ifs=others)


_SWAPPED = both_ways(
    *(("min", "max"), ("any", "all"), ("int", "round"), (".append", ".extend")),
    *((".lower", ".upper"), (".startswith", ".endswith"), (".find", ".rfind")),
    *((".isupper", ".islower"), (".ljust", ".rjust"), (".keys", ".values")),
    (".partition", ".rpartition"),
)
_CALLED_INSTEAD: dict[str, tuple[str, ...]] = {
    **{name: (other_name,) for name, other_name in _SWAPPED.items()},
    "sorted": ("list",),
    "sum": ("max", "len"),
    "set": ("list",),
    ".strip": (".rstrip", ".lstrip"),
    ".rstrip": (".strip", ".lstrip"),
    ".lstrip": (".strip", ".rstrip"),
    ".index": (".count",),
    ".isdigit": (".isalnum",),
    ".isalpha": (".isalnum",),
    ".isalnum": (".isalpha",),
    ".title": (".capitalize",),
    ".capitalize": (".title", ".upper"),
    ".appendleft": (".append",),
    ".popleft": (".pop",),
}
_UNWRAPPED = ("abs", "sorted", "reversed", "set", "list", "round", "str", "int")
_LEFT_OUT = (".lower", ".upper", ".strip", ".rstrip", ".lstrip", ".copy")


def _calls(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    if not isinstance(node, ast.Call):
        return
    name, arguments = name_callee(node), node.args
    if name != "sorted" or not node.keywords:
        for other_name in _CALLED_INSTEAD.get(name, ()):
            is_method = isinstance(node.func, ast.Attribute)
            func = _with(node.func, attr=other_name[1:]) if is_method else ast.Name(other_name)
            yield "call", _with(node, func=func)
    if name in _UNWRAPPED and len(arguments) == 1 and not node.keywords:
        yield "call", arguments[0]
    if isinstance(node.func, ast.Attribute) and name in _LEFT_OUT:
        yield "call", node.func.value
    if name == ".append":
        insert = _with(node.func, attr="insert")
        yield "call", _with(node, func=insert, args=[ast.Constant(0), *arguments])
    elif name == ".pop" and not arguments:
        yield "call", _with(node, args=[ast.Constant(0)])
    elif name == ".pop" and _as_int(arguments[0]) == 0:
        yield "call", _with(node, args=[])
    elif name == ".split" and not arguments:
        yield "call", _with(node, args=[ast.Constant(" ")])


def _arguments(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    if not isinstance(node, ast.Call):
        return
    name, arguments = name_callee(node), node.args
    for index in range(len(node.keywords)):
        yield "argument", _with(node, keywords=_replaced(node.keywords, index))
    if name == ".get" and len(arguments) == 2:
        yield "argument", _with(node, args=arguments[:1])
    if len(arguments) >= 2 and name not in ("range", "isinstance", "min", "max", ".insert"):
        yield "argument", _with(node, args=[arguments[1], arguments[0], *arguments[2:]])
    if name in ("min", "max") and len(arguments) == 2 and not node.keywords:
        yield "argument", arguments[0]
        yield "argument", arguments[1]


def _statements(node: ast.AST, place: Site) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.AugAssign(target=target, value=value):
            yield "statement", []
            yield "statement", ast.Assign([copy.copy(target)], value, lineno=node.lineno)
        case ast.Delete() | ast.Nonlocal() | ast.Expr(value=ast.Call()):
            yield "statement", []
        case ast.Assign() if place.is_within(ast.For | ast.While):
            yield "statement", []
        case ast.Break() | ast.Continue():
            yield "jump", ast.Pass()
            yield "jump", ast.Continue() if isinstance(node, ast.Break) else ast.Break()
        case ast.Name(id=name, ctx=ast.Load()) if name in place.names and len(place.names) > 1:
            # One other local name: the next in the alphabet, around the end.
            next_name = place.names[(place.names.index(name) + 1) % len(place.names)]
            yield "variable", ast.Name(next_name)


_MUTATORS: tuple[_Mutator, ...] = (
    *(_comparisons, _operators, _constants, _branches, _subscripts, _returns),
    *(_loops, _conditions, _calls, _arguments, _statements),
)
