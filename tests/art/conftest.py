"""OpenPipe ART's own client, in the environment that scripts/build_art.sh builds (`make test-art`).

Nothing here skips: without ART these tests fail. The servers run in nip's own environment, whose
Python NIP_PYTHON names (default: that of .venv), as ART's has neither torch nor what servers need.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TQDM_DISABLE", "1")

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("NIP_PYTHON") or str(ROOT / ".venv" / "bin" / "python")
sys.path.append(str(Path(__file__).parent))

from served import Server  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.art)


@pytest.fixture(scope="session", autouse=True)
def art_is_here() -> None:
    try:
        import art  # noqa: F401
    except ImportError as error:
        pytest.fail(
            f"{sys.executable} has no ART ({error}): run scripts/build_art.sh, make test-art"
        )


@pytest.fixture(scope="session", autouse=True)
def no_key_of_the_environment() -> None:
    os.environ.pop("NIP_API_KEY", None)


@contextmanager
def running(*arguments: str) -> Iterator[Server]:
    """A server in nip's own environment; see serve_here.py."""
    command = [PYTHON, str(Path(__file__).with_name("serve_here.py")), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        assert line, f"{' '.join(command)} started no server (status {process.poll()})"
        yield Server(*line.split())
    finally:
        process.communicate()  # closes its input, and it ends
    assert process.returncode == 0


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the tiny model, for real training."""
    with running("embedded", "tiny", str(tmp_path_factory.mktemp("server"))) as server:
        yield server


@pytest.fixture(scope="session")
def quick_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("deterministic", "sim", str(tmp_path_factory.mktemp("server"))) as server:
        yield server


@pytest.fixture
def server(quick_server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with the deterministic engine, whose jobs take no time; shared by the tests."""
    import made

    quick_server.forget()
    before, made.names["model"] = made.names["model"], request.node.name
    yield quick_server
    made.names["model"] = before


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Servers of a test with the deterministic engine; the text is a replies file's."""
    with ExitStack() as stack:

        def make(replies: str) -> Server:
            path = tmp_path / "replies.yaml"
            path.write_text(replies)
            arguments = ("deterministic", "sim", str(tmp_path / "server"), str(path))
            return stack.enter_context(running(*arguments))

        yield make
