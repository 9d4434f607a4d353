"""A wrong template stops a run before anything is spent."""

import pytest

from nip_core.agents.render import Game
from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters


def with_template(path):
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "agents": {"prover": {"system_prompt_template_path": str(path)}},
        }
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("$question $solution $typo", "unknown placeholders ['typo']"),
        ("$question", "lacks the placeholders ['solution']"),
        ("costs 5$ $question $solution", "'$' that starts no placeholder"),
    ],
)
def test_a_wrong_template_is_named(tmp_path, text, said):
    path = tmp_path / "prover.txt"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Game(with_template(path))
    assert said in str(caught.value) and "agents.prover" in str(caught.value)


def test_a_missing_template_is_named(tmp_path):
    with pytest.raises(SettingsError, match="can't be read"):
        Game(with_template(tmp_path / "none.txt"))
