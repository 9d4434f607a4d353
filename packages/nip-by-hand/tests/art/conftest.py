"""OpenPipe ART's own client, in the environment that scripts/build_art.sh builds (`make test-art`).

Nothing here skips: without ART these tests fail. The servers run in nip's own environment, whose
Python NIP_PYTHON names (default: that of .venv), as ART's has neither torch nor what servers need.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TQDM_DISABLE", "1")

sys.path.append(str(Path(__file__).parent))

from served import Server, running


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


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the tiny model, for real training."""
    with running("embedded", "tiny", str(tmp_path_factory.mktemp("server"))) as server:
        yield server


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Servers with the deterministic engine, one for each text of a replies file."""
    started: dict[str, Server] = {}
    with ExitStack() as stack:

        def start(replies: str) -> Server:
            if replies not in started:
                directory = tmp_path_factory.mktemp("server")
                path = directory / "replies.yaml"
                path.write_text(replies)
                arguments = ("deterministic", "sim", str(directory / "state"), str(path))
                started[replies] = stack.enter_context(running(*arguments))
            return started[replies]

        yield start


@pytest.fixture
def make_server(
    servers: Callable[[str], Server], request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Server]]:
    """A server by the text of its replies file, shared by the tests. Jobs of others don't show."""
    import made

    def make(replies: str) -> Server:
        server = servers(replies)
        server.forget()
        return server

    before, made.names["model"] = made.names["model"], request.node.name
    yield make
    made.names["model"] = before


@pytest.fixture
def server(make_server: Callable[[str], Server]) -> Server:
    """A server whose jobs take no time."""
    return make_server("training: {seconds: 0}\n")
