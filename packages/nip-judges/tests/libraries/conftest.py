"""Judges of other libraries, in the environments that their scripts build (`make test-judges`).

with_inspect  Inspect's scorers, in that of scripts/build_inspect.sh
with_others   verifiers, TRL, DSPy and ART, in that of scripts/build_judges.sh

Nothing here skips: without the libraries these tests fail. No test asks a server but one of its own.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

sys.path.append(str(Path(__file__).parent))

from both_ways import EXAMPLES
from grader_stub import Answer, Stub, grading


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.judges)


@pytest.fixture
def grade(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], Stub]]:
    """A server whose answers a function writes; all libraries here ask it."""
    with ExitStack() as stack:

        def start(answer: Answer) -> Stub:
            stub = stack.enter_context(grading(answer))
            for name in ("GRADER", "OPENAI", "PRIME"):
                monkeypatch.setenv(f"{name}_BASE_URL", stub.url)
                monkeypatch.setenv(f"{name}_API_KEY", "choose-a-key")
            monkeypatch.setenv("PRIME_INFERENCE_URL", stub.url)
            return stub

        yield start


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The examples of the page, with a graded.jsonl beside them."""
    for path in EXAMPLES.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    rows = (
        '{"question": "Capital of France?", "response": "Paris", "reference": "Paris", "right": true}',
        '{"question": "Capital of France?", "response": "Rome", "reference": "Paris", "right": false}',
    )
    (tmp_path / "graded.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path
