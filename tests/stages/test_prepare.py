"""What a run's name stands for, besides its settings."""

import shutil
import sys
from pathlib import Path

import pytest

from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.session.contents import digest_contents
from nip_core.session.origin import Origin

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "two_questions"


@pytest.fixture
def own_protocol(tmp_path, monkeypatch):
    folder = tmp_path / "own_protocol"
    shutil.copytree(EXAMPLE, folder)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "own_protocol"]:
        del sys.modules[name]


def contents():
    parameters = load_parameters(
        {
            "run_name": "a",
            "dataset": "families",
            "interaction_protocol": "own_protocol.protocol:TwoQuestions",
        }
    )
    return digest_contents(Game(parameters), {}, {}, Origin())


@pytest.mark.parametrize("name", ["prover.txt", "verifier.txt", "protocol.py"])
def test_a_protocol_of_ones_own_is_part_of_it_with_its_templates(own_protocol, name):
    before = contents()
    assert contents() == before
    path = own_protocol / name
    path.write_text(path.read_text() + "\n# more\n")
    assert contents() != before
