"""The page on judges of other libraries has the examples as they are, and each is short."""

import ast
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks

EXAMPLES = ROOT / "docs/examples/judges"
PAGE = ROOT / "docs/judges-from-libraries.md"
ON_THE_PAGE = {"inspect_scorer", "verifiers_reference", "trl_reward", "dspy_metric", "art_ruler"}


def code(path: Path) -> str:
    """An example without its docstring."""
    text = path.read_text()
    first = ast.parse(text).body[0]
    assert isinstance(first, ast.Expr)
    return "".join(text.splitlines(keepends=True)[first.end_lineno :]).strip()


def test_the_page_has_the_examples_as_they_are() -> None:
    shown = {block.text.strip() for block in blocks(PAGE) if block.language == "python"}
    assert shown == {code(EXAMPLES / f"{name}.py") for name in ON_THE_PAGE}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_each_example_has_at_most_eight_lines_of_code(path: Path) -> None:
    assert sum(bool(line.strip()) for line in code(path).splitlines()) <= 8
