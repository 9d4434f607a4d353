"""Names and docstrings that say something.

Words that say nothing name no value that lives longer than a glance, and the docstring of a
function says what it does or gives.
"""

import ast
import re

from houses import HOUSES, ROOT, list_nodes, read_source

FOLDERS = (*(str(path.relative_to(ROOT)) for path in HOUSES.values()), "benchmarks")
WORDS = {"found", "one", "own", "given", "kept", "wanted", "said", "theirs", "there", "others"}
WORDS |= {"rest", "mine"}
LINES = 5
# What a function gives is no question, and no half of a sentence.
QUESTION = re.compile(r"(What|Who|Whose|Whether|That|Where|When|Which|Why|How)\b")


def _bound(function):
    """Names that the function gives to values, by the first line and the last on which they are."""
    inner = {
        id(node)
        for child in ast.walk(function)
        if child is not function and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(child)
        if node is not child
    }
    lives = {}
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    for argument in arguments:
        lives[argument.arg] = [argument.lineno, argument.lineno]
    names = [n for n in ast.walk(function) if isinstance(n, ast.Name) and id(n) not in inner]
    for node in names:
        if isinstance(node.ctx, ast.Store):
            life = lives.setdefault(node.id, [node.lineno, node.lineno])
            life[0] = min(life[0], node.lineno)
    for node in names:
        if node.id in lives:
            lives[node.id][1] = max(lives[node.id][1], node.lineno)
    return lives


def _lines_with_words(file):
    """The lines on which such a word names something."""
    arguments, names = list_nodes(file, ast.arg), list_nodes(file, ast.Name)
    lines = {node.lineno for node in arguments if node.arg in WORDS}
    return lines | {node.lineno for node in names if node.id in WORDS}


def _files(root):
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))


def long_lived(root):
    """Where such a word names something for more than a few lines."""
    for file in _files(root):
        lines = _lines_with_words(file)
        for node in list_nodes(file, ast.FunctionDef, ast.AsyncFunctionDef) if lines else ():
            if lines.isdisjoint(range(node.lineno, node.end_lineno + 1)):
                continue
            for name, (first, last) in _bound(node).items():
                if name in WORDS and last - first > LINES:
                    yield f"{file.relative_to(root)}:{first}: {name}, for {last - first} lines"


def questions(root):
    """Docstrings of functions that begin like a question."""
    for file in _files(root):
        # Only the few files are parsed in which any docstring begins so.
        if not re.search(rf'"""{QUESTION.pattern}', read_source(file)):
            continue
        for node in list_nodes(file, ast.FunctionDef, ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if QUESTION.match(docstring):
                yield f"{file.relative_to(root)}:{node.lineno}: {docstring.splitlines()[0]}"


def test_no_empty_word_names_a_value_for_long():
    assert list(long_lived(ROOT)) == []


def test_a_word_that_names_a_value_for_long_is_noticed(tmp_path):
    (tmp_path / "tasks").mkdir()
    lines = ["def long(found):", *["    step()"] * 6, "    return found"]
    short = ["def short():", "    found = step()", "    return found"]
    (tmp_path / "tasks" / "example.py").write_text("\n".join([*lines, "", *short, ""]))
    assert list(long_lived(tmp_path)) == ["tasks/example.py:1: found, for 7 lines"]


def test_docstrings_of_functions_say_what_these_do():
    assert list(questions(ROOT)) == []


def test_a_docstring_that_begins_like_a_question_is_noticed(tmp_path):
    (tmp_path / "tasks").mkdir()
    lines = ["def asks():", '    """Whether it asks."""', "def says():", '    """Whatever."""']
    (tmp_path / "tasks" / "example.py").write_text("\n".join(lines))
    assert list(questions(tmp_path)) == ["tasks/example.py:1: Whether it asks."]
