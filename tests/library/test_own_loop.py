"""docs/examples/own_loop.py: a loop of somebody else's, as it stands there."""

import importlib
import json
from pathlib import Path

import pytest
from scripted_server import scripted_server

from nip_core.models import resolve_model

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
RIGHT_SIZE = 60  # lines


@pytest.fixture
def own_loop(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("own_loop")


def believe(body):
    """A prover that says nothing of use, and a verifier that believes whoever boasts."""
    said = " ".join(message["content"] for message in body["messages"][1:])
    words = f"I have looked at it ({body['seed']})."
    if "Decision: accept" in body["messages"][0]["content"]:
        words = f"Decision: {'accept' if 'Every step is right' in said else 'reject'}"
    return [words] * body.get("n", 1)


async def test_the_loop_plays_attacks_and_writes_what_a_trainer_takes(own_loop, tmp_path, capsys):
    async with scripted_server(believe) as server:
        await own_loop.main(server.url, "mine", size=8)
    shown = capsys.readouterr().out.splitlines()
    assert "test soundness 1.0" in shown[0] and "best of 4 soundness 1.0" in shown[4]
    assert "boast soundness 0.0 (0.0, " in shown[6] and "difference=1.0" in shown[8]
    rows = [json.loads(line) for line in (tmp_path / "chosen.jsonl").read_text().splitlines()]
    assert rows and all(row["prompt"][0]["role"] == "system" for row in rows)
    assert {row["completion"][0]["content"] for row in rows} == {"Decision: reject"}


@pytest.mark.long
async def test_trl_trains_on_what_the_loop_has_written(own_loop, tmp_path):
    async with scripted_server(believe) as server:
        model = str(resolve_model("tiny-arithmetic"))
        await own_loop.main(server.url, "mine", model, size=8)
    [trained] = tmp_path.rglob("model.safetensors")
    assert trained.stat().st_size > 0


def test_the_loop_stays_short():
    text = (EXAMPLES / "own_loop.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= RIGHT_SIZE
    page = (EXAMPLES.parent / "howto" / "own-loop.md").read_text(encoding="utf-8")
    assert "(../examples/own_loop.py)" in page
