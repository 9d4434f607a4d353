"""verifiers itself, in the environment of scripts/build_verifiers.sh (`make test-verifiers`).

Nothing here skips: without verifiers these tests fail.
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
            item.add_marker(pytest.mark.verifiers)


@pytest.fixture(scope="session", autouse=True)
def verifiers_is_here() -> None:
    try:
        import verifiers.v1  # noqa: F401
    except ImportError as error:
        pytest.fail(
            f"{sys.executable} has no verifiers ({error}): run scripts/build_verifiers.sh, "
            "make test-verifiers"
        )


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the deterministic engine, whose key is in the environment."""
    with serving(tmp_path_factory.mktemp("server")) as handle:
        os.environ["NIP_API_KEY"] = handle.api_key
        yield handle.url
        del os.environ["NIP_API_KEY"]
