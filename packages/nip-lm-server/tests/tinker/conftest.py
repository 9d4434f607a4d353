"""Tinker's SDK and cookbook, in the environment that scripts/build_tinker.sh builds.

Nothing here skips: without them these tests fail. The server runs in nip's own environment, with the
bundled tiny model under a name whose renderer needs no tokens of its own. `make test-tinker`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
sys.path.append(str(Path(__file__).parent))

from recipes import ADDER, Place, run_place  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.tinker)
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server, and a directory in which recipes find model and data by relative names."""
    with run_place(tmp_path_factory.mktemp("tinker"), ROOT) as place:
        yield place


@pytest.fixture(scope="session")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A second server, whose model has seen sums."""
    with run_place(tmp_path_factory.mktemp("adder"), ROOT, ADDER) as place:
        yield place


@pytest.fixture(autouse=True)
def as_a_client(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user of the SDK sets; relative names are found in the place."""
    monkeypatch.chdir(place.directory)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
