"""Calls by OpenAI's `tools` are shown as the lines that stand for them on record."""

import json

import pytest
from scripted_server import calling, refuse_request, scripted_server
from small_game import write_config
from viewing import client_of, everything, text_of

from nip_cli.commands.prompt import _print
from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import TEST
from nip_core.session.opening import open_session
from nip_core.showing.asked_chats import Place, render_chat_on_record


@pytest.fixture
async def run(tmp_path, monkeypatch):
    """Two games in which a verifier without words looks at a step, then answers and looks again."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    def script(body):
        if (refusal := refuse_request(body)) is not None or "tools" not in body:
            return refusal or "It is so."
        looks = sum(message["role"] == "tool" for message in body["messages"])
        if body["messages"][-1]["role"] != "tool":
            return calling(("check", json.dumps({"argument": str(1 + looks)})))
        return "Decision: reject" if looks > 1 else "Why?"

    async with scripted_server(script) as server:
        agent = {
            **{"model_provider": "OpenAI", "model_name": "m", "base_url": server.url},
            "freeze_agent": True,
        }
        settings = load_parameters(
            write_config(
                tmp_path,
                dataset="chains",
                scenario="arithmetic",
                agents={"_default": agent},
                tool={"per_turn": 1, "call": "native"},
                dataset_options={"max_test_size": 2, "max_train_size": 2},
            )
        )
        async with open_session(settings) as session:
            await loop.play_and_measure(session, 0, TEST)
            return session.run


async def test_a_call_without_words_is_no_empty_paragraph(run, tmp_path, capsys):
    client = client_of(tmp_path / "runs")
    [key, *_] = everything(client, "/runs/small/episodes")
    page = text_of(client.get(f"/runs/small/episodes/{key}?tab=asked").text)
    assert page.count("Check: 1") > page.count("Check: 2") > 1
    asked = client.get("/runs/small/episodes.csv?asked=yes").text
    assert "[assistant]\nCheck: 1\n\n[tool]\nResult: 1: " in asked
    chat = render_chat_on_record(run, Place(agent="verifier", round=2, split=TEST))
    _print(chat)
    assert "\nCheck: 1\n" in capsys.readouterr().out
