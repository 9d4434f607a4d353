"""The chats and scripts of the study of missing answers are what they say."""

import json
import subprocess
import sys

import pytest
from houses import ROOT

from nip_core.importing import import_function
from nip_core.scenarios.scripts import ScriptedTurn
from nip_games.bags.challenges import read_names

CHATS = ROOT / "deployments" / "chats"
TURN = ScriptedTurn(
    agent="prover",
    argues_for=1,
    round=0,
    texts={
        "question": "A: 1 2 3 4\nB: 1 2 3 5",
        "solution": "",
        "challenges": "(1) 4 1 2 3\n(2) 1 5 2 3\n(3) 3 2 1 4",
    },
    chat=(),
    seed=1,
)


def test_the_committed_chats_are_made_anew_byte_for_byte(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/unanswered_chats.py"), str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    for name in ("unanswered-verdicts.jsonl", "unanswered-provers.jsonl"):
        assert (tmp_path / name).read_bytes() == (CHATS / name).read_bytes()


def test_a_gold_verdict_follows_from_coins_and_message_alone():
    lines = (CHATS / "unanswered-verdicts.jsonl").read_text(encoding="utf-8").splitlines()
    verdicts = set()
    for line in lines:
        system, heard, verdict = json.loads(line)["messages"]
        coins = dict(read_names(system["content"].replace(" is ", ": ")))
        names = read_names(heard["content"])
        is_right = coins == names and len(coins) == 3
        assert verdict["content"].endswith("accept" if is_right else "reject")
        assert verdict["content"].count(" is ") == (3 if names else 0)
        verdicts.add((bool(names), is_right))
    assert len(lines) == 50
    assert verdicts == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("they_differ", "Answer: They differ."),
        ("nothing", "Answer:"),
        ("they", "Answer: They."),
        ("list_c", "Answer: 1: C, 2: C, 3: C"),
        ("absent_numbers", "Answer: 4: A, 5: B, 6: A"),
        ("two_of_three", "Answer: 1: A, 2: B"),
        (
            "own_lines",
            "Answer: 1 is A, 1: A, right. 2 is B, 2: B, right. 3 is A, 3: A, right.",
        ),
    ],
)
def test_scripts_leave_challenges_unanswered(name, says):
    file = ROOT / "deployments/scripts/unanswered.py"
    script = import_function("attack.script", f"{file}:{name}", "")
    assert script(TURN) == says
