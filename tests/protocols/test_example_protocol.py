"""The protocol that docs/protocols.md adds: its files as shown, played round by round."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scripted_play import own, play, said

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.protocols import find_protocol

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
FOLDER = EXAMPLES / "two_questions"
V, P = "verifier", "prover"


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)


def parameters(*overrides):
    return load_parameters(FOLDER / "config.yaml", overrides)


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("protocol.py", "python"),
        ("verifier.txt", "text"),
        ("prover.txt", "text"),
        ("config.yaml", "yaml"),
    ],
)
def test_the_docs_show_the_files_as_they_are(name, language):
    page = (ROOT / "docs" / "protocols.md").read_text()
    assert f"`{name}`" in page
    assert f"\n````{language}\n{(FOLDER / name).read_text()}````\n" in page


def test_the_class_is_found_by_its_address_and_is_short():
    address = parameters().interaction_protocol
    found = find_protocol(address)
    assert found is find_protocol(address) and found.__name__ == "TwoQuestions"
    assert Path(inspect.getfile(found)) == FOLDER / "protocol.py"
    assert len(inspect.getsource(found).splitlines()) <= 30


def test_a_class_is_named_by_a_file_or_a_package_and_the_reason_said_where_there_is_none(
    tmp_path, monkeypatch
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "game.py").write_text((FOLDER / "protocol.py").read_text())
    (tmp_path / "broken.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    by_file, by_package = (
        find_protocol("mine/game.py:TwoQuestions"),
        find_protocol("mine.game:TwoQuestions"),
    )
    assert by_file.name == by_package.name == "two_questions"
    assert find_protocol(f"{tmp_path}/mine/game.py:TwoQuestions") is by_file
    for address, reason in {
        "mine/absent.py:TwoQuestions": "No such file",
        "mine/game.py:Absent": "it has no 'Absent'; it defines TwoQuestions",
        "mine/game.py:HEADERS": "is not a subclass of nip_core.protocols.Protocol",
        "broken.py:Game": "invalid syntax",
        "absent.module:Game": "No module named 'absent'",
    }.items():
        with pytest.raises(ValueError, match=re.escape(reason)) as refused:
            find_protocol(address)
        assert address in str(refused.value)


async def test_it_is_played_round_by_round_like_any_other():
    about = {"problem": "About the problem:", "code": "About the code:"}

    def both(problem, code):
        return f"{about['problem']} {problem}\n{about['code']} {code}"

    script = {
        0: {V: both("a?", "b?")},
        1: {P: f"{about['code']} d\n{about['problem']} c"},
        2: {V: both("e?", "f?")},
        3: {P: both("g", "h")},
        4: {V: "Decision: accept"},
    }
    played = await play(parameters(), script, y=0)
    assert played.chat(1, P) == [*said("Verifier", f"{about['problem']} a?", f"{about['code']} b?")]
    assert played.chat(4, V) == [
        own(script[0][V]),
        *said("Expert", f"{about['problem']} c", f"{about['code']} d"),
        own(script[2][V]),
        *said("Expert", f"{about['problem']} g", f"{about['code']} h"),
        played.last_round_message,
    ]
    assert played.verdict == ("finished", 5, 1, 1.0)
    assert played.rewards == {P: 1.0, V: -1.0}
    for agent, round_ in [(V, 0), (P, 1)]:
        prompt = played.system_prompt(round_, agent)
        assert prompt.startswith((FOLDER / f"{agent}.txt").read_text()[:20])
        assert all(header in prompt for header in about.values())
        assert "Return x plus 0." in prompt and "x + 0" in prompt and "$" not in prompt


def test_settings_of_every_protocol_hold_for_it_too():
    stance = parameters("protocol_common.randomize_prover_stance=true")
    assert stance.protocol_common.randomize_prover_stance
    with pytest.raises(SettingsError) as refused:
        parameters("protocol_common.zero_knowledge=true")
    assert "protocol 'two_questions' has no zero-knowledge variant" in str(refused.value)
    with pytest.raises(SettingsError) as refused:
        parameters("agents.prover0.temperature=1")
    assert "agents.prover0" in str(refused.value)


@pytest.mark.long
def test_the_documented_command_plays_it_on_the_deterministic_engine(tmp_path):
    command = "play docs/examples/two_questions/config.yaml --out"
    page = (ROOT / "docs" / "protocols.md").read_text()
    assert f"```sh\nnip {command} two-questions\n" in page
    store = ["--set", f"run_store={tmp_path}/runs"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "nip_cli.cli",
            *command.split(),
            str(tmp_path / "out"),
            *store,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    episodes = pq.read_table(sorted((tmp_path / "out").glob("episodes-*.parquet"))).to_pylist()
    assert len(episodes) == 20
    assert {(e["protocol"], e["outcome"], e["rounds"]) for e in episodes} == {
        ("two_questions", "finished", 5)
    }
