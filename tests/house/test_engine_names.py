"""Who asks whether an engine can do something asks its capabilities, and not for its name."""

import ast
import re

from houses import SERVER, sort_nodes, sort_source

MAY_NAME = {"placement.py", "testing.py"}
"""The file with the way in which each engine is made, and one that orders a server for tests;
`nip_base.spec` has their table."""
NAME = re.compile(r"\bembedded\b")


def list_texts(nodes):
    """The texts of a source that are no docstrings and no comments."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for kind in documented for node in nodes.get(kind, ())]
    statements = [statement for body in bodies for statement in body]
    said = {id(s.value) for s in statements if isinstance(s, ast.Expr)}
    constants = nodes.get(ast.Constant, ())
    return [
        node.value for node in constants if isinstance(node.value, str) and id(node) not in said
    ]


def find_names(nodes):
    return [text for text in list_texts(nodes) if NAME.search(text)]


def test_a_name_is_found_in_code_and_not_in_a_docstring():
    for source, text in (
        ('"""An embedded one."""\nx = engine == "embedded"', "embedded"),
        ('def f():\n    return f"--engine embedded {x}"', "--engine embedded "),
    ):
        assert find_names(sort_nodes(ast.parse(source))) == [text]


def test_the_server_names_the_embedded_engine_where_it_is_made_and_nowhere_else():
    named = {
        path.relative_to(SERVER).as_posix()
        for path in SERVER.rglob("*.py")
        if SERVER / "engines" / "embedded" not in path.parents and find_names(sort_source(path))
    }
    assert named <= MAY_NAME
