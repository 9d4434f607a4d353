"""Other ways to write the same solution, so that a correct one has no style of its own.

    REWRITES      the kinds, in the order in which they are tried
    rewrites      variants of a solution by each kind alone and by several together

Every kind means to keep what the code does, but none is proved to: a loop whose bound changes
while it runs, or a list that two names share, can tell. Whoever uses a variant as a correct one
runs its tests first.
"""

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass

from nip_core.problems.mutate import negated, normalise


@dataclass(frozen=True)
class Rewrite:
    """A solution, written differently."""

    source: str
    kinds: tuple[str, ...]
    """What was done to it, in order."""


def rewrites(source: str) -> list[Rewrite]:
    """Distinct variants of `source`: each kind alone, then the kinds that apply, piled up.

    Raises:
        SyntaxError: `source` is not Python.
    """
    original = normalise(source)
    seen = {original}
    found: list[Rewrite] = []

    def keep(text: str, kinds: tuple[str, ...]) -> None:
        if text not in seen:
            seen.add(text)
            found.append(Rewrite(text, kinds))

    applicable = []
    for kind in REWRITES:
        text = apply(original, kind)
        if text != original:
            applicable.append(kind)
            keep(text, (kind,))
    for first in range(len(applicable)):
        text = original
        done: tuple[str, ...] = ()
        for kind in applicable[first:]:
            after = apply(text, kind)
            if after != text:
                text, done = after, (*done, kind)
                if len(done) > 1:
                    keep(text, done)
    return found


def apply(source: str, kind: str) -> str:
    """`source` rewritten by one kind wherever it applies; equal to it where it doesn't.

    Raises:
        KeyError: no such kind.
    """
    tree = REWRITES[kind](ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


_MIRROR: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}


def _is_plain(node: ast.AST) -> bool:
    """Whether evaluating it twice, or in another order, changes nothing."""
    return not any(isinstance(n, ast.Call | ast.Await | ast.NamedExpr) for n in ast.walk(node))


class _Mirrored(ast.NodeTransformer):
    """a < b becomes b > a."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        op = type(node.ops[0])
        right = node.comparators[0]
        if len(node.ops) > 1 or op not in _MIRROR or not (_is_plain(node.left) or _is_plain(right)):
            return node
        if isinstance(right, ast.Constant) and op in (ast.Eq, ast.NotEq):
            return node
        return ast.Compare(right, [_MIRROR[op]()], [node.left])


class _SplitChain(ast.NodeTransformer):
    """a < b < c becomes a < b and b < c."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) != 2 or not _is_plain(node.comparators[0]):
            return node
        middle, last = node.comparators
        return ast.BoolOp(
            ast.And(),
            [
                ast.Compare(node.left, [node.ops[0]], [middle]),
                ast.Compare(copy.deepcopy(middle), [node.ops[1]], [last]),
            ],
        )


class _Expanded(ast.NodeTransformer):
    """x += e becomes x = x + e."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name) or isinstance(node.value, ast.List):
            return node
        old = ast.Name(node.target.id, ast.Load())
        return ast.Assign([node.target], ast.BinOp(old, node.op, node.value))


class _Contracted(ast.NodeTransformer):
    """x = x + e becomes x += e."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target, value = node.targets[0], node.value
        if (
            len(node.targets) == 1
            and isinstance(target, ast.Name)
            and isinstance(value, ast.BinOp)
            and isinstance(value.left, ast.Name)
            and value.left.id == target.id
            and not isinstance(value.right, ast.List)
        ):
            return ast.AugAssign(target, value.op, value.right)
        return node


class _InvertedIf(ast.NodeTransformer):
    """if c: A else: B becomes if not c: B else: A."""

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if (
            not node.orelse
            or isinstance(node.orelse[0], ast.If)
            or isinstance(node.body[0], ast.If)
        ):
            return node
        return ast.If(negated(node.test), node.orelse, node.body)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.orelse, ast.IfExp):
            return node
        return ast.IfExp(negated(node.test), node.orelse, node.body)


def _ends(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


class _Bodies(ast.NodeTransformer):
    """Rewrites lists of statements, the innermost first."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body:
                setattr(node, field, self.rewritten(body))
        return node

    def rewritten(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements that take the place of `body`."""
        raise NotImplementedError


class _NoElse(_Bodies):
    """An else after a branch that leaves is dropped, its statements stay."""

    def rewritten(self, body: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, ast.If) and statement.orelse and _ends(statement.body):
                new.append(ast.If(statement.test, statement.body, []))
                new.extend(statement.orelse)
            else:
                new.append(statement)
        return new


class _AddElse(_Bodies):
    """What follows a branch that leaves goes into an else, where it is the end of a function."""

    def rewritten(self, body: list[ast.stmt]) -> list[ast.stmt]:
        if len(body) < 2 or not isinstance(body[-1], ast.Return):
            return body
        branch = body[-2]
        if (
            isinstance(branch, ast.If)
            and not branch.orelse
            and isinstance(branch.body[-1], ast.Return)
        ):
            return [*body[:-2], ast.If(branch.test, branch.body, [body[-1]])]
        return body


class _WhileLoops(_Bodies):
    """for i in range(a, b) becomes a while loop."""

    def rewritten(self, body: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for statement in body:
            new.extend(self._loop(statement) or [statement])
        return new

    def _loop(self, node: ast.stmt) -> list[ast.stmt] | None:
        if not isinstance(node, ast.For) or node.orelse or not isinstance(node.target, ast.Name):
            return None
        call, name = node.iter, node.target.id
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return None
        if call.func.id != "range" or len(call.args) > 2 or name == "_":
            return None
        inside = [n for statement in node.body for n in ast.walk(statement)]
        for n in inside:
            if isinstance(n, ast.Continue):
                return None
            if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store):
                return None
        start: ast.expr = ast.Constant(0) if len(call.args) == 1 else call.args[0]
        one = ast.AugAssign(ast.Name(name, ast.Store()), ast.Add(), ast.Constant(1))
        test = ast.Compare(ast.Name(name, ast.Load()), [ast.Lt()], [call.args[-1]])
        first = ast.Assign([ast.Name(name, ast.Store())], start)
        return [first, ast.While(test, [*node.body, one], [])]


class _IndexLoops(ast.NodeTransformer):
    """for i, x in enumerate(xs) becomes for i in range(len(xs)), x = xs[i]."""

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        call, target = node.iter, node.target
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "enumerate"
            and len(call.args) == 1
            and not call.keywords
            and isinstance(call.args[0], ast.Name)
            and isinstance(target, ast.Tuple)
            and isinstance(target.elts[0], ast.Name)
        ):
            return node
        sequence, index = call.args[0], target.elts[0]
        length = ast.Call(ast.Name("len", ast.Load()), [sequence], [])
        item = ast.Subscript(sequence, ast.Name(index.id, ast.Load()), ast.Load())
        body = [ast.Assign([target.elts[1]], item), *node.body]
        return ast.For(index, ast.Call(ast.Name("range", ast.Load()), [length], []), body, [])


class _Unrolled(_Bodies):
    """A list comprehension that is returned or assigned becomes a loop that appends."""

    def __init__(self, taken: set[str]) -> None:
        self._name = next(n for n in ("collected", "gathered", "picked_items") if n not in taken)

    def rewritten(self, body: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for statement in body:
            new.extend(self._loop(statement) or [statement])
        return new

    def _loop(self, node: ast.stmt) -> list[ast.stmt] | None:
        if isinstance(node, ast.Return):
            name = self._name
        elif (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            name = node.targets[0].id
        else:
            return None
        value = node.value
        if not isinstance(value, ast.ListComp):
            return None
        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)):
            return None
        append = ast.Attribute(ast.Name(name, ast.Load()), "append", ast.Load())
        inner: list[ast.stmt] = [ast.Expr(ast.Call(append, [value.elt], []))]
        for part in reversed(value.generators):
            for test in reversed(part.ifs):
                inner = [ast.If(test, inner, [])]
            inner = [ast.For(part.target, part.iter, inner, [])]
        first = ast.Assign([ast.Name(name, ast.Store())], ast.List([], ast.Load()))
        last = [ast.Return(ast.Name(name, ast.Load()))] if isinstance(node, ast.Return) else []
        return [first, *inner, *last]


class _Statements(_Bodies):
    """A conditional expression that is returned or assigned becomes an if statement."""

    def rewritten(self, body: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for node in body:
            if isinstance(node, ast.Return) and isinstance(node.value, ast.IfExp):
                value = node.value
                new.append(ast.If(value.test, [ast.Return(value.body)], []))
                new.append(ast.Return(value.orelse))
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
                value = node.value
                then = ast.Assign(node.targets, value.body)
                other = ast.Assign(node.targets, value.orelse)
                new.append(ast.If(value.test, [then], [other]))
            else:
                new.append(node)
        return new


class _NamedResult(_Bodies):
    """The expression that a function ends with gets a name first."""

    def __init__(self, taken: set[str]) -> None:
        self._name = next(n for n in ("outcome", "final_value", "the_answer") if n not in taken)

    def rewritten(self, body: list[ast.stmt]) -> list[ast.stmt]:
        last = body[-1]
        if not isinstance(last, ast.Return) or isinstance(
            last.value, ast.Name | ast.Constant | None
        ):
            return body
        name = ast.Assign([ast.Name(self._name, ast.Store())], last.value)
        return [*body[:-1], name, ast.Return(ast.Name(self._name, ast.Load()))]


_NEW_NAMES = tuple("abcdepqrstuvwxyzfghmn")  # plain, so that none misleads


def _renamed(tree: ast.Module) -> ast.Module:
    """Local names become others; parameters and functions, which the question names, stay."""
    nodes = list(ast.walk(tree))
    used = _names(tree) | {n.arg for n in nodes if isinstance(n, ast.keyword) and n.arg}
    kept = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    kept |= {n.arg for n in nodes if isinstance(n, ast.keyword) and n.arg}
    kept |= {a.asname or a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            kept |= {n.arg for n in ast.walk(statement.args) if isinstance(n, ast.arg)}
        elif isinstance(statement, ast.Assign):
            kept |= _names(statement)
    if any(isinstance(n, ast.ClassDef) for n in nodes):
        return tree
    free = iter([name for name in _NEW_NAMES if name not in used])
    new: dict[str, str] = {}
    for n in nodes:
        if not isinstance(n, ast.Name) or not isinstance(n.ctx, ast.Store):
            continue
        if n.id not in {*kept, *new, "_"}:
            new[n.id] = next(free, n.id)
    for n in nodes:
        if isinstance(n, ast.Name):
            n.id = new.get(n.id, n.id)
        elif isinstance(n, ast.arg):
            n.arg = new.get(n.arg, n.arg)
        elif isinstance(n, ast.Nonlocal | ast.Global):
            n.names = [new.get(name, name) for name in n.names]
    return tree


def _names(tree: ast.AST) -> set[str]:
    """Every identifier in `tree`."""
    found: set[str] = set()
    for n in ast.walk(tree):
        if isinstance(n, ast.Name):
            found.add(n.id)
        elif isinstance(n, ast.arg):
            found.add(n.arg)
        elif isinstance(n, ast.FunctionDef):
            found.add(n.name)
    return found


def _by(transformer: type[ast.NodeTransformer]) -> Callable[[ast.Module], ast.Module]:
    def rewrite(tree: ast.Module) -> ast.Module:
        new = transformer().visit(tree)
        assert isinstance(new, ast.Module)
        return new

    return rewrite


def _by_naming(
    transformer: type[_Unrolled] | type[_NamedResult],
) -> Callable[[ast.Module], ast.Module]:
    def rewrite(tree: ast.Module) -> ast.Module:
        new = transformer(_names(tree)).visit(tree)
        assert isinstance(new, ast.Module)
        return new

    return rewrite


REWRITES: dict[str, Callable[[ast.Module], ast.Module]] = {
    "unroll_comprehension": _by_naming(_Unrolled),
    "conditional_statement": _by(_Statements),
    "index_loop": _by(_IndexLoops),
    "invert_if": _by(_InvertedIf),
    "drop_else": _by(_NoElse),
    "add_else": _by(_AddElse),
    "expand_assignment": _by(_Expanded),
    "contract_assignment": _by(_Contracted),
    "split_chain": _by(_SplitChain),
    "while_loop": _by(_WhileLoops),
    "mirror_comparison": _by(_Mirrored),
    "name_result": _by_naming(_NamedResult),
    "rename_locals": _renamed,
}
