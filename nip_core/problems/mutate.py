"""Small bugs by design: every way one change to a syntax tree may break a solution.

    normalise     the text of a solution as this module writes it
    mutants       single-change variants of a solution, each with the kind of its change
    KINDS         those kinds, for tables

Whether a mutant really is wrong is not known here: only its tests say so. Everything is written
by `ast.unparse`, solutions and mutants alike, so that no formatting tells them apart. The order is
that of the source text, then that of the mutators below: equal input, equal output.
"""

import ast
import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nip_core.hashing import derive_key

KINDS = (
    "comparison",
    "boundary",
    "operator",
    "constant",
    "string",
    "branch",
    "index",
    "slice",
    "return",
    "loop_bound",
    "boolean",
    "call",
    "argument",
    "statement",
    "jump",
    "variable",
)


@dataclass(frozen=True)
class Mutant:
    """A solution with one change."""

    source: str
    kind: str
    line: int
    """Line of the changed node in the normalised original, from 1."""
    description: str
    """The change, as "old -> new"."""


@dataclass(frozen=True)
class _Place:
    """A node with what a mutator may ask about where it stands."""

    node: ast.AST
    parent: ast.AST
    ancestors: tuple[ast.AST, ...]
    names: tuple[str, ...]
    """The local names of the function around it, sorted."""


_Change = tuple[str, ast.AST | list[ast.stmt]]
_Mutator = Callable[[_Place], Iterator[_Change]]


def normalise(source: str) -> str:
    """The text of `source` without comments and formatting of its own.

    Raises:
        SyntaxError: `source` is not Python.
    """
    return ast.unparse(ast.parse(source)) + "\n"


def mutants(source: str, *, at_most: int | None = None) -> list[Mutant]:
    """Single-change variants of `source`, without duplicates and without what doesn't compile.

    Args:
        source: the solution.
        at_most: take that many, spread over the source by a stable hash, in the order of the hash;
            None for all, in the order of the text.

    Raises:
        SyntaxError: `source` is not Python.
    """
    original = normalise(source)
    tree = ast.parse(original)
    changes = [
        (place, put, kind, new)
        for place, put in _places(tree)
        for mutator in _MUTATORS
        for kind, new in mutator(place)
    ]
    order = range(len(changes))
    if at_most is not None:
        chosen = sorted(order, key=lambda number: derive_key("mutants", original, number))
    else:
        chosen = list(order)
    seen = {original}
    found: list[Mutant] = []
    for number in chosen:
        if len(found) == at_most:
            break
        place, put, kind, new = changes[number]
        put(new)
        try:
            text = ast.unparse(tree) + "\n"
        finally:
            put(place.node)
        if text not in seen and _compiles(text):
            seen.add(text)
            line = getattr(place.node, "lineno", 1)
            found.append(Mutant(text, kind, line, _describe(place.node, new)))
    return found


def _compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as `0 is None`, which is a bug like another
        try:
            compile(text, "mutant.py", "exec")
        except (SyntaxError, ValueError):
            return False
    return True


def _describe(old: ast.AST, new: ast.AST | list[ast.stmt]) -> str:
    after = "; ".join(map(ast.unparse, new)) if isinstance(new, list) else ast.unparse(new)
    return f"{_first_line(ast.unparse(old))} -> {_first_line(after) or '(nothing)'}"


def _first_line(text: str) -> str:
    head, _, rest = text.partition("\n")
    return head + (" ..." if rest else "")


def _places(
    tree: ast.Module,
) -> Iterator[tuple[_Place, Callable[[ast.AST | list[ast.stmt]], None]]]:
    """Every node in the order of the text, with a function that puts something in its place."""

    def visit(
        parent: ast.AST, ancestors: tuple[ast.AST, ...], names: tuple[str, ...]
    ) -> Iterator[tuple[_Place, Callable[[ast.AST | list[ast.stmt]], None]]]:
        for field, value in ast.iter_fields(parent):
            children = value if isinstance(value, list) else [value]
            for index, child in enumerate(children):
                if not isinstance(child, ast.AST):
                    continue

                def put(
                    new: ast.AST | list[ast.stmt],
                    field: str = field,
                    value: object = value,
                    index: int = index,
                ) -> None:
                    if not isinstance(value, list):
                        setattr(parent, field, new)
                        return
                    pieces = new if isinstance(new, list) else [new]
                    setattr(parent, field, [*value[:index], *pieces, *value[index + 1 :]])
                    if field == "body" and not getattr(parent, field):
                        setattr(parent, field, [ast.Pass()])

                inner = names
                if isinstance(child, ast.FunctionDef):
                    inner = tuple(sorted({*names, *_local_names(child)}))
                yield _Place(child, parent, ancestors, inner), put
                yield from visit(child, (*ancestors, child), inner)

    yield from visit(tree, (tree,), ())


def _local_names(function: ast.FunctionDef) -> set[str]:
    names = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _with(node: ast.AST, **changes: object) -> ast.AST:
    """A shallow copy of `node` with some fields changed; children are shared, never modified."""
    new = copy.copy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


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


def _shifted(node: ast.expr, by: int) -> ast.expr:
    """`node` plus `by`, folded where `node` is a number or ends in one."""
    value = _as_int(node)
    if value is not None:
        return _number(value + by)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        right = _as_int(node.right)
        if right is not None:
            total = (right if isinstance(node.op, ast.Add) else -right) + by
            if total == 0:
                return node.left
            return ast.BinOp(
                node.left, ast.Add() if total > 0 else ast.Sub(), ast.Constant(abs(total))
            )
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


def _comparisons(place: _Place) -> Iterator[_Change]:
    node = place.node
    if not isinstance(node, ast.Compare):
        return
    for kind, table in (("boundary", _BOUNDARY), ("comparison", _COMPARISON)):
        for index, op in enumerate(node.ops):
            if type(op) in table:
                ops = [*node.ops[:index], table[type(op)](), *node.ops[index + 1 :]]
                yield kind, _with(node, ops=ops)
    if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq) and _as_int(node.comparators[0]):
        yield "comparison", _with(node, ops=[ast.GtE()])


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


def _operators(place: _Place) -> Iterator[_Change]:
    node = place.node
    if not isinstance(node, ast.BinOp | ast.AugAssign):
        return
    for op in _OPERATORS.get(type(node.op), ()):
        yield "operator", _with(node, op=op())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod):
        yield "operator", _with(node, left=node.right, right=node.left)


def _constants(place: _Place) -> Iterator[_Change]:
    node = place.node
    if not isinstance(node, ast.Constant):
        return
    if isinstance(place.parent, ast.Subscript | ast.Slice | ast.JoinedStr | ast.FormattedValue):
        return
    if isinstance(place.parent, ast.UnaryOp) or any(_is_format(a) for a in place.ancestors):
        return
    kind = "return" if isinstance(place.parent, ast.Return) else "constant"
    if isinstance(node.value, bool):
        yield kind, ast.Constant(not node.value)
    elif type(node.value) is int:
        for by in (1, -1):
            yield kind, _number(node.value + by)
        if node.value >= 10:
            yield kind, ast.Constant(node.value // 2)
    elif isinstance(node.value, str) and not isinstance(place.parent, ast.Expr):
        yield from _strings(node.value)


def _is_format(node: ast.AST) -> bool:
    return isinstance(node, ast.FormattedValue)


def _strings(value: str) -> Iterator[_Change]:
    if len(value) > 1:
        yield "string", ast.Constant(value[:-1])
        yield "string", ast.Constant(value[1:])
        if value.swapcase() != value and len(value) < 20:
            yield "string", ast.Constant(value.swapcase())
    elif value:
        yield "string", ast.Constant("")
        if value.isalpha():
            yield "string", ast.Constant(value.swapcase())
        if value.isdigit():
            yield "string", ast.Constant(str((int(value) + 1) % 10))
    else:
        yield "string", ast.Constant(" ")


_INVERSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **_COMPARISON,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}


def negated(test: ast.expr) -> ast.expr:
    """The opposite condition, as a person would write it: a >= b for a < b, no double `not`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return ast.Compare(test.left, [_INVERSE[type(test.ops[0])]()], test.comparators)
    return ast.UnaryOp(ast.Not(), test)


def _branches(place: _Place) -> Iterator[_Change]:
    node = place.node
    if isinstance(node, ast.IfExp):
        yield "branch", _with(node, body=node.orelse, orelse=node.body)
        yield "branch", node.body
        yield "branch", node.orelse
    elif isinstance(node, ast.If):
        yield "branch", _with(node, test=negated(node.test))
        yield "branch", node.body  # as if the condition always held
        yield "branch", node.orelse  # as if it never did
        if node.orelse and not (len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)):
            yield "branch", _with(node, orelse=[])
            yield "branch", [_with(node, orelse=[]), *node.orelse]  # type: ignore[list-item]


def _subscripts(place: _Place) -> Iterator[_Change]:
    node = place.node
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice | ast.Tuple):
        value = _as_int(node.slice)
        if isinstance(node.slice, ast.Constant) and value is None:
            return
        for by in (-1, 1):
            if value == -1 and by == 1:
                yield "index", _with(node, slice=_number(0))
            else:
                yield "index", _with(node, slice=_shifted(node.slice, by))
    elif isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            bound = getattr(node, name)
            if bound is not None:
                for by in (1, -1):
                    yield "slice", _with(node, **{name: _shifted(bound, by)})
                yield "slice", _with(node, **{name: None})
        if node.step is not None:
            yield "slice", _with(node, step=None)
        elif node.lower is None and node.upper is not None:
            yield "slice", _with(node, lower=ast.Constant(1))
        elif node.upper is None and node.lower is not None:
            yield "slice", _with(node, upper=_number(-1))


def _returns(place: _Place) -> Iterator[_Change]:
    node = place.node
    if isinstance(node, ast.Return):
        value = node.value
        if isinstance(value, ast.BinOp):
            yield "return", _with(node, value=value.left)
        elif isinstance(value, ast.Tuple) and len(value.elts) > 1:
            yield "return", _with(node, value=_with(value, elts=value.elts[::-1]))
        elif isinstance(value, ast.Compare | ast.BoolOp):
            yield "return", _with(node, value=ast.UnaryOp(ast.Not(), value))
        elif isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
            yield "return", _with(node, value=value.operand)
    for field in ("body", "orelse"):
        body = getattr(node, field, None)
        if not isinstance(body, list) or not isinstance(node, ast.FunctionDef | ast.If):
            continue
        for index, statement in enumerate(body[:-1]):
            after = body[index + 1]
            if isinstance(statement, ast.For | ast.While) and isinstance(after, ast.Return):
                early = _with(statement, body=[*statement.body, after])
                new = [*body[:index], early, *body[index + 1 :]]
                yield "return", _with(node, **{field: new})


def _called(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id
        if isinstance(node.func, ast.Attribute):
            return "." + node.func.attr
    return ""


def _loops(place: _Place) -> Iterator[_Change]:
    node = place.node
    if isinstance(node, ast.Call) and _called(node) == "range":
        count = len(node.args)
        if count == 1:
            stop = node.args[0]
            for by in (-1, 1):
                yield "loop_bound", _with(node, args=[_shifted(stop, by)])
            yield "loop_bound", _with(node, args=[ast.Constant(1), stop])
        else:
            for index in (1, 0):
                for by in (-1, 1):
                    args = [*node.args]
                    args[index] = _shifted(args[index], by)
                    yield "loop_bound", _with(node, args=args)
            if count == 3:
                yield "loop_bound", _with(node, args=node.args[:2])
    elif isinstance(node, ast.Call) and _called(node) == "enumerate":
        if len(node.args) + len(node.keywords) == 1:
            yield "loop_bound", _with(node, args=[*node.args, ast.Constant(1)])
        else:
            yield "loop_bound", _with(node, args=node.args[:1], keywords=[])
    elif isinstance(node, ast.For) and isinstance(node.iter, ast.Name):
        for part in (ast.Slice(lower=ast.Constant(1)), ast.Slice(upper=_number(-1))):
            yield "loop_bound", _with(node, iter=ast.Subscript(node.iter, part))
    elif isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
        # It runs at most once.
        yield "loop_bound", ast.If(node.test, node.body, [])


def _booleans(place: _Place) -> Iterator[_Change]:
    node = place.node
    if isinstance(node, ast.BoolOp):
        yield "boolean", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            yield "boolean", rest[0] if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "boolean", node.operand
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield "boolean", _with(node, ifs=[ast.UnaryOp(ast.Not(), node.ifs[0]), *node.ifs[1:]])
        yield "boolean", _with(node, ifs=node.ifs[1:])


_FUNCTIONS = {
    "min": ("max",),
    "max": ("min",),
    "any": ("all",),
    "all": ("any",),
    "sorted": ("list",),
    "sum": ("max", "len"),
    "len": (),
    "int": ("round",),
    "round": ("int",),
    "set": ("list",),
}
_METHODS = {
    ".append": ("extend",),
    ".extend": ("append",),
    ".lower": ("upper",),
    ".upper": ("lower",),
    ".strip": ("rstrip", "lstrip"),
    ".rstrip": ("strip", "lstrip"),
    ".lstrip": ("strip", "rstrip"),
    ".startswith": ("endswith",),
    ".endswith": ("startswith",),
    ".find": ("rfind",),
    ".rfind": ("find",),
    ".index": ("count",),
    ".isdigit": ("isalnum",),
    ".isalpha": ("isalnum",),
    ".isalnum": ("isalpha",),
    ".isupper": ("islower",),
    ".islower": ("isupper",),
    ".ljust": ("rjust",),
    ".rjust": ("ljust",),
    ".keys": ("values",),
    ".values": ("keys",),
    ".title": ("capitalize",),
    ".capitalize": ("title", "upper"),
    ".partition": ("rpartition",),
    ".rpartition": ("partition",),
    ".appendleft": ("append",),
    ".popleft": ("pop",),
}
_UNWRAPPED = ("abs", "sorted", "reversed", "set", "list", "round", "str", "int")


def _calls(place: _Place) -> Iterator[_Change]:
    node = place.node
    if not isinstance(node, ast.Call):
        return
    name = _called(node)
    if isinstance(node.func, ast.Name):
        for other in _FUNCTIONS.get(name, ()):
            if name != "sorted" or not node.keywords:
                yield "call", _with(node, func=ast.Name(other))
        if name in _UNWRAPPED and len(node.args) == 1 and not node.keywords:
            yield "call", node.args[0]
    elif isinstance(node.func, ast.Attribute):
        for other in _METHODS.get(name, ()):
            yield "call", _with(node, func=_with(node.func, attr=other))
        if name in (".lower", ".upper", ".strip", ".rstrip", ".lstrip", ".copy"):
            yield "call", node.func.value
        if name == ".append":
            insert = _with(node.func, attr="insert")
            yield "call", _with(node, func=insert, args=[ast.Constant(0), *node.args])
        if name == ".pop" and not node.args:
            yield "call", _with(node, args=[ast.Constant(0)])
        elif name == ".pop" and _as_int(node.args[0]) == 0:
            yield "call", _with(node, args=[])
        if name == ".split" and not node.args:
            yield "call", _with(node, args=[ast.Constant(" ")])


def _arguments(place: _Place) -> Iterator[_Change]:
    node = place.node
    if not isinstance(node, ast.Call):
        return
    for index in range(len(node.keywords)):
        kept = [*node.keywords[:index], *node.keywords[index + 1 :]]
        yield "argument", _with(node, keywords=kept)
    name = _called(node)
    if name == ".get" and len(node.args) == 2:
        yield "argument", _with(node, args=node.args[:1])
    if len(node.args) >= 2 and name not in ("range", "isinstance", "min", "max", ".insert"):
        yield "argument", _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
    if name in ("min", "max") and len(node.args) == 2 and not node.keywords:
        yield "argument", node.args[0]
        yield "argument", node.args[1]


def _statements(place: _Place) -> Iterator[_Change]:
    node = place.node
    if isinstance(node, ast.AugAssign | ast.Delete | ast.Nonlocal):
        yield "statement", []
        if isinstance(node, ast.AugAssign):
            target = copy.copy(node.target)
            yield "statement", ast.Assign([target], node.value, lineno=node.lineno)
        return
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_call or (isinstance(node, ast.Assign) and _inside_loop(place)):
        yield "statement", []


def _inside_loop(place: _Place) -> bool:
    return any(isinstance(ancestor, ast.For | ast.While) for ancestor in place.ancestors)


def _jumps(place: _Place) -> Iterator[_Change]:
    if isinstance(place.node, ast.Break):
        yield "jump", ast.Pass()
        yield "jump", ast.Continue()
    elif isinstance(place.node, ast.Continue):
        yield "jump", ast.Pass()
        yield "jump", ast.Break()


def _variables(place: _Place) -> Iterator[_Change]:
    """One other local name in its place: the next in the alphabet, around the end."""
    node = place.node
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return
    if node.id in place.names and len(place.names) > 1:
        after = place.names[(place.names.index(node.id) + 1) % len(place.names)]
        yield "variable", ast.Name(after)


_MUTATORS: tuple[_Mutator, ...] = (
    _comparisons,
    _operators,
    _constants,
    _branches,
    _subscripts,
    _returns,
    _loops,
    _booleans,
    _calls,
    _arguments,
    _statements,
    _jumps,
    _variables,
)
