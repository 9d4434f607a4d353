"""A server of nip with the bundled model, in a thread: one for all tests of a file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nip_lm_server.testing import ServerDouble, serve_double

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerDouble]:
    with serve_double(tmp_path_factory.mktemp("service"), ("tiny",), has_weights=True) as double:
        yield double


@pytest.fixture(scope="module")
def state(service: ServerDouble) -> Path:
    """The server's state directory, in which its own record of all requests is."""
    return service._state
