"""inspect_ai itself, in the environment that scripts/build_inspect.sh builds (`make test-inspect`).

Nothing here skips: without Inspect these tests fail.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from played_elsewhere import serving

sys.path.append(str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.inspect)


@pytest.fixture(scope="session", autouse=True)
def inspect_is_here() -> None:
    try:
        import inspect_ai  # noqa: F401
    except ImportError as error:
        pytest.fail(
            f"{sys.executable} has no inspect_ai ({error}): run scripts/build_inspect.sh, "
            "make test-inspect"
        )


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the deterministic engine, whose key is in the environment."""
    with serving(tmp_path_factory.mktemp("server")) as handle:
        os.environ["NIP_API_KEY"] = handle.api_key
        os.environ["NIP_BASE_URL"] = f"{handle.url}/v1"
        yield handle.url
        del os.environ["NIP_API_KEY"], os.environ["NIP_BASE_URL"]
