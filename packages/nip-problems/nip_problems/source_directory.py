"""Problems in a directory of Python files: NAME.py, and its tests in test_NAME.py.

    read_directory   the problems, and the files that are none

The tests stand beside the solution, in a directory `tests` beside it, or in the same file. They are
functions test_... without parameters, and methods test_... of a unittest.TestCase. The question is
the docstring of NAME.py, or else of its functions, each with its first line.
"""

import ast
from collections.abc import Sequence
from pathlib import Path

from nip_core.errors import DatasetError
from nip_problems.tested import LeftOut, Tested

_AS_MODULE = """\
import sys as _nip_sys, types as _nip_types
_nip_module = _nip_types.ModuleType({name!r})
_nip_module.__dict__.update({{k: v for k, v in globals().items() if not k.startswith("_nip_")}})
_nip_sys.modules[{name!r}] = _nip_module
"""
"""The namespace of a solution, to be imported by its name."""


def read_directory(root: Path, files: Sequence[Path]) -> tuple[list[Tested], list[LeftOut]]:
    """Read the problems among Python files below `root`.

    Raises:
        DatasetError: there are none.
    """
    problems: list[Tested] = []
    left_out: list[LeftOut] = []
    for file in files:
        if file.stem.startswith("test_") or file.stem in ("__init__", "conftest"):
            continue
        name = file.relative_to(root).with_suffix("").as_posix()
        try:
            problem = _problem(name, file)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as error:
            left_out.append(LeftOut(name, "file is not Python", str(error)))
            continue
        if isinstance(problem, LeftOut):
            left_out.append(problem)
        else:
            problems.append(problem)
    if not problems and not left_out:
        raise DatasetError(
            f"{root}: holds no Python file with a solution; expected NAME.py beside "
            "test_NAME.py, with functions test_..."
        )
    return problems, left_out


def _problem(name: str, file: Path) -> Tested | LeftOut:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    places = (file.with_name(f"test_{file.name}"), file.parent / "tests" / f"test_{file.name}")
    test_file = next((place for place in places if place.is_file()), None)
    if test_file is None:
        test_tree = ast.Module([n for n in tree.body if _is_test(n)], [])
        tree = ast.Module([n for n in tree.body if not _is_test(n)], [])
        text = ""  # it stands in the solution's own namespace
    else:
        text = test_file.read_text(encoding="utf-8")
        test_tree = ast.parse(text)
    calls = _calls(test_tree)
    if not calls:
        return LeftOut(name, "no tests", f"no {places[0].name} with functions test_... beside it")
    question = _question(tree)
    if not question:
        return LeftOut(name, "no question", "no docstring says what it is to do")
    solution = ast.unparse(tree)
    test_source = _AS_MODULE.format(name=file.stem) + text if test_file else ast.unparse(test_tree)
    kinds = ast.FunctionDef | ast.ClassDef
    names = [n.name for n in tree.body if isinstance(n, kinds) and n.name in test_source]
    tests = tuple(f"{test_source}\n{call}\n" for call in calls)
    return Tested(name, question, (solution,), tests, names=tuple(names))


def _is_test(node: ast.AST) -> bool:
    is_function = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    return is_function or (isinstance(node, ast.ClassDef) and _is_case(node))


def _is_case(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("TestCase") for base in node.bases)


def _calls(tree: ast.Module) -> list[str]:
    """Write one expression for each test, to run it."""
    calls: list[str] = []
    for node in filter(_is_test, tree.body):
        if isinstance(node, ast.FunctionDef):
            calls.append(f"{node.name}()")
        elif isinstance(node, ast.ClassDef):
            methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            names = [method.name for method in methods if method.name.startswith("test")]
            calls += [f"{node.name}({name!r}).debug()" for name in names]
    return calls


def _question(tree: ast.Module) -> str:
    if (text := ast.get_docstring(tree)) is not None:
        return text
    questions = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            heading = ast.unparse(node).partition("\n")[0]
            if isinstance(node, ast.FunctionDef):
                heading = f"def {node.name}({ast.unparse(node.args)})"
                heading += f" -> {ast.unparse(node.returns)}:" if node.returns else ":"
            questions.append(f"{heading}\n{text}")
    return "\n\n".join(questions)
