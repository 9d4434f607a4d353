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

from nip_problems.mutation.syntax import (
    MIRROR,
    both_ways,
    call_by_name,
    load_name,
    name_callee,
    negate,
    normalise,
    store_name,
)


@dataclass(frozen=True)
class Rewrite:
    """A solution, written differently."""

    source: str
    kinds: tuple[str, ...]
    """The kinds of its rewrites, in order."""


def rewrites(source: str) -> list[Rewrite]:
    """Write `source` in other ways: by each kind alone, then by several kinds, piled up.

    Raises:
        SyntaxError: `source` is not Python.
    """
    original = normalise(source)
    seen_texts = {original}
    variants: list[Rewrite] = []

    def keep(text: str, kinds: tuple[str, ...]) -> None:
        if text not in seen_texts:
            seen_texts.add(text)
            variants.append(Rewrite(text, kinds))

    # 1. Each kind alone.
    applicable = []
    for kind in REWRITES:
        text = apply_rewrite(original, kind)
        if text != original:
            applicable.append(kind)
            keep(text, (kind,))
    # 2. Those that apply, one on top of the other, from each of them on.
    for first in range(len(applicable)):
        text = original
        rewrites: tuple[str, ...] = ()
        for kind in applicable[first:]:
            new_text = apply_rewrite(text, kind)
            if new_text != text:
                text, rewrites = new_text, (*rewrites, kind)
                if len(rewrites) > 1:
                    keep(text, rewrites)
    return variants


def apply_rewrite(source: str, kind: str) -> str:
    """`source` rewritten by one kind wherever it applies; equal to it where it doesn't.

    Raises:
        KeyError: no such kind.
    """
    tree = REWRITES[kind](ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


_MIRROR = {**MIRROR, **both_ways((ast.Eq, ast.Eq), (ast.NotEq, ast.NotEq))}
_Statements = list[ast.stmt]


class _Rewriter(ast.NodeTransformer):
    """A kind of rewriting. Statements may become several; the innermost are rewritten first."""

    free_names: tuple[str, ...] = ()
    """For a variable of its own: the first that the code does not use."""
    name = ""
    """The one it is."""

    @classmethod
    def rewrite(cls, tree: ast.Module) -> ast.Module:
        """The tree, rewritten wherever it applies; as it was where all its names are taken."""
        rewriter, names = cls(), _names(tree)
        rewriter.name = next((name for name in cls.free_names if name not in names), "")
        if cls.free_names and not rewriter.name:
            return tree
        new = rewriter.visit(tree)
        assert isinstance(new, ast.Module)
        return new


def _is_plain(node: ast.AST) -> bool:
    """Tell whether evaluating it twice, or in another order, changes nothing."""
    return not any(isinstance(n, ast.Call | ast.Await | ast.NamedExpr) for n in ast.walk(node))


class _Mirrored(_Rewriter):
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


class _SplitChain(_Rewriter):
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


class _Expanded(_Rewriter):
    """x += e becomes x = x + e."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name) or isinstance(node.value, ast.List):
            return node
        value = ast.BinOp(load_name(node.target.id), node.op, node.value)
        return ast.Assign([node.target], value)


class _Contracted(_Rewriter):
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


class _InvertedIf(_Rewriter):
    """if c: A else: B becomes if not c: B else: A."""

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if (
            not node.orelse
            or isinstance(node.orelse[0], ast.If)
            or isinstance(node.body[0], ast.If)
        ):
            return node
        return ast.If(negate(node.test), node.orelse, node.body)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.orelse, ast.IfExp):
            return node
        return ast.IfExp(negate(node.test), node.orelse, node.body)


class _NoElse(_Rewriter):
    """An else after a branch that leaves is dropped, its statements stay."""

    def visit_If(self, node: ast.If) -> ast.stmt | _Statements:
        self.generic_visit(node)
        leaves = isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
        if not node.orelse or not leaves:
            return node
        return [ast.If(node.test, node.body, []), *node.orelse]


class _WhileLoops(_Rewriter):
    """for i in range(a, b) becomes a while loop."""

    def visit_For(self, node: ast.For) -> ast.stmt | _Statements:
        self.generic_visit(node)
        bounds, target = node.iter, node.target
        if node.orelse or not isinstance(target, ast.Name) or target.id == "_":
            return node
        if (
            name_callee(bounds) != "range"
            or not isinstance(bounds, ast.Call)
            or len(bounds.args) > 2
        ):
            return node
        for inner in (n for statement in node.body for n in ast.walk(statement)):
            is_stored = isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            if isinstance(inner, ast.Continue) or (is_stored and inner.id == target.id):  # type: ignore[attr-defined]
                return node
        start = ast.Constant(0) if len(bounds.args) == 1 else bounds.args[0]
        step = ast.AugAssign(store_name(target.id), ast.Add(), ast.Constant(1))
        test = ast.Compare(load_name(target.id), [ast.Lt()], [bounds.args[-1]])
        return [ast.Assign([store_name(target.id)], start), ast.While(test, [*node.body, step], [])]


class _IndexLoops(_Rewriter):
    """for i, x in enumerate(xs) becomes for i in range(len(xs)), x = xs[i]."""

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.For(
                target=ast.Tuple(elts=[ast.Name() as index, element]),
                iter=ast.Call(
                    func=ast.Name(id="enumerate"), args=[ast.Name() as items], keywords=[]
                ),
            ):
                item = ast.Subscript(items, load_name(index.id), ast.Load())
                body = [ast.Assign([element], item), *node.body]
                return ast.For(index, call_by_name("range", call_by_name("len", items)), body, [])
        return node


class _Unrolled(_Rewriter):
    """A list comprehension that is returned or assigned becomes a loop that appends."""

    free_names = ("collected", "gathered", "picked_items")

    def visit_Return(self, node: ast.Return) -> ast.stmt | _Statements:
        loop = self._loop(node.value, self.name)
        return [*loop, ast.Return(load_name(self.name))] if loop else node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | _Statements:
        target = node.targets[0]
        is_variable = len(node.targets) == 1 and isinstance(target, ast.Name)
        return self._loop(node.value, target.id) or node if is_variable else node  # type: ignore[attr-defined]

    def _loop(self, value: ast.expr | None, name: str) -> _Statements:
        if not isinstance(value, ast.ListComp) or name in _names(value):
            return []
        append = ast.Attribute(load_name(name), "append", ast.Load())
        inner: _Statements = [ast.Expr(ast.Call(append, [value.elt], []))]
        for part in reversed(value.generators):
            for test in reversed(part.ifs):
                inner = [ast.If(test, inner, [])]
            inner = [ast.For(part.target, part.iter, inner, [])]
        return [ast.Assign([store_name(name)], ast.List([], ast.Load())), *inner]


class _Conditional(_Rewriter):
    """A conditional expression that is returned or assigned becomes an if statement."""

    def visit_Return(self, node: ast.Return) -> ast.stmt | _Statements:
        value = node.value
        if not isinstance(value, ast.IfExp):
            return node
        return [ast.If(value.test, [ast.Return(value.body)], []), ast.Return(value.orelse)]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        value = node.value
        if not isinstance(value, ast.IfExp):
            return node
        then, otherwise = (ast.Assign(node.targets, v) for v in (value.body, value.orelse))
        return ast.If(value.test, [then], [otherwise])


class _Endings(_Rewriter):
    """Rewrites how lists of statements end."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[-1], ast.Return):
                setattr(node, field, self.rewritten(body, body[-1]))
        return node

    def rewritten(self, body: _Statements, last: ast.Return) -> _Statements:
        """Return the statements to put in the place of `body`, whose end is `last`."""
        raise NotImplementedError


class _AddElse(_Endings):
    """Put the end of a function into an else, where it follows a branch that leaves."""

    def rewritten(self, body: _Statements, last: ast.Return) -> _Statements:
        match body[-2:-1]:
            case [ast.If(test=test, body=[*_, ast.Return()] as branch, orelse=[])]:
                return [*body[:-2], ast.If(test, branch, [last])]
        return body


class _NamedResult(_Endings):
    """The expression that a function ends with gets a name first."""

    free_names = ("outcome", "final_value", "the_answer")

    def rewritten(self, body: _Statements, last: ast.Return) -> _Statements:
        if last.value is None or isinstance(last.value, ast.Name | ast.Constant):
            return body
        assignment = ast.Assign([store_name(self.name)], last.value)
        return [*body[:-1], assignment, ast.Return(load_name(self.name))]


_NEW_NAMES = tuple("abcdepqrstuvwxyzfghmn")  # plain, so that none misleads


def _renamed(tree: ast.Module) -> ast.Module:
    """Give local names other ones; parameters and functions stay, as the question names them."""
    nodes = list(ast.walk(tree))
    used = _names(tree) | {n.arg for n in nodes if isinstance(n, ast.keyword) and n.arg}
    public = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    public |= {n.arg for n in nodes if isinstance(n, ast.keyword) and n.arg}
    public |= {a.asname or a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            public |= {n.arg for n in ast.walk(statement.args) if isinstance(n, ast.arg)}
        elif isinstance(statement, ast.Assign):
            public |= _names(statement)
    if any(isinstance(n, ast.ClassDef) for n in nodes):
        return tree
    free = iter([name for name in _NEW_NAMES if name not in used])
    new: dict[str, str] = {}
    for n in nodes:
        if not isinstance(n, ast.Name) or not isinstance(n.ctx, ast.Store):
            continue
        if n.id not in {*public, *new, "_"}:
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
    names: set[str] = set()
    for n in ast.walk(tree):
        if isinstance(n, ast.Name):
            names.add(n.id)
        elif isinstance(n, ast.arg):
            names.add(n.arg)
        elif isinstance(n, ast.FunctionDef):
            names.add(n.name)
    return names


REWRITES: dict[str, Callable[[ast.Module], ast.Module]] = {
    "unroll_comprehension": _Unrolled.rewrite,
    "conditional_statement": _Conditional.rewrite,
    "index_loop": _IndexLoops.rewrite,
    "invert_if": _InvertedIf.rewrite,
    "drop_else": _NoElse.rewrite,
    "add_else": _AddElse.rewrite,
    "expand_assignment": _Expanded.rewrite,
    "contract_assignment": _Contracted.rewrite,
    "split_chain": _SplitChain.rewrite,
    "while_loop": _WhileLoops.rewrite,
    "mirror_comparison": _Mirrored.rewrite,
    "name_result": _NamedResult.rewrite,
    "rename_locals": _renamed,
}
