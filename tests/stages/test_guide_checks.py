"""A guided agent is refused where nobody holds its answers to their form, before it plays."""

import json
import re

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from small_game import write_config

from nip_core.errors import ServerError, SettingsError
from nip_core.parameters import load_parameters
from nip_core.session.opening import open_session

pytestmark = pytest.mark.usefixtures("server_in_thread")
AGENT = {
    "model_provider": "SelfHosted",
    "model_name": "deterministic",
    "max_tokens_per_message": 40,
    "guided_decoding": True,
}


async def opened(folder, *overrides):
    config = write_config(folder, agents={"_default": AGENT})
    async with open_session(load_parameters(config, overrides)) as session:
        return session


async def test_an_engine_that_guides_is_taken(tmp_path):
    assert await opened(tmp_path)


async def test_answers_without_room_for_their_last_line_are_refused(tmp_path):
    for version, most in (("v1", 20), ("v2", 30)):
        (tmp_path / version).mkdir()
        settings = (
            f"code_validation.system_prompt_version={version}",
            f"agents._default.max_tokens_per_message={most}",
        )
        with pytest.raises(SettingsError, match=rf"max_tokens_per_message is {most}, but a guided"):
            await opened(tmp_path / version, *settings)


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_server_that_refuses_or_ignores_the_form_is_named(tmp_path, monkeypatch, refuses):
    """What other servers do with a parameter that they do not know."""

    async def answer(request):
        body = json.loads(await request.read())
        if refuses and "structured_outputs" in body:
            error = {"message": "Unrecognized request argument supplied: structured_outputs"}
            return web.json_response({"error": error}, status=400)
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello! How can I"}}
        return web.json_response({"model": body["model"], "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    monkeypatch.setenv("NIP_API_KEY", "k")
    async with TestServer(app) as other:
        with pytest.raises(SettingsError) as caught:
            await opened(tmp_path, f"agents._default.base_url={other.make_url('/v1')}")
    said = str(caught.value)
    assert "agents.prover.guided_decoding" in said or "agents.verifier.guided_decoding" in said
    assert ("Unrecognized request argument" if refuses else "Hello! How can I") in said
    assert not list((tmp_path / "runs").glob("*/run.json"))


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_a_refusal_for_another_reason_is_not_blamed_on_the_form(
    tmp_path, monkeypatch, status
):
    async def answer(request):
        return web.Response(status=status, text="<html>\n not now\n</html>")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    monkeypatch.setenv("NIP_API_KEY", "k")
    async with TestServer(app) as other:
        with pytest.raises(ServerError, match=rf"HTTP {status}: <html> not now </html>; so it is"):
            await opened(tmp_path, f"agents._default.base_url={other.make_url('/v1')}")


NATIVE = ("dataset=chains", "scenario=arithmetic", "tool.per_turn=1", "tool.call=native")


async def open_native(folder, *overrides):
    agent = {**AGENT, "guided_decoding": False, "freeze_agent": True}
    config = write_config(folder, agents={"_default": agent})
    async with open_session(load_parameters(config, [*NATIVE, *overrides])) as session:
        return session


async def open_at(folder, monkeypatch, answer, times=1):
    """Open a run whose agents call tools at a server that answers by `answer`."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    async with TestServer(app) as other:
        url = f"agents._default.base_url={other.make_url('/v1')}"
        settings = (url, "agents._default.model_provider=OpenAI", "rollouts.transport_retries=2")
        return [await open_native(folder, *settings) for _ in range(times)]


def greet(body, prompt_tokens=0):
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello!"}}
    usage = {"prompt_tokens": prompt_tokens}
    return web.json_response({"model": body["model"], "choices": [choice], "usage": usage})


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_server_without_tools_is_named_before_anything_is_played(
    tmp_path, monkeypatch, status
):
    """What vLLM says without a parser of calls, and OpenRouter of a model without tools."""
    words = "tool choice requires --enable-auto-tool-choice"

    async def answer(request):
        return web.json_response({"error": {"message": words}}, status=status)

    with pytest.raises(SettingsError, match=rf"tool\.call: .*HTTP {status}: .*{words}") as caught:
        await open_at(tmp_path, monkeypatch, answer)
    assert "set tool.call: line" in str(caught.value)
    assert "--enable-auto-tool-choice and --tool-call-parser" in str(caught.value)
    assert not list((tmp_path / "runs").glob("*/run.json"))


@pytest.mark.parametrize("status", [401, 429, 529])
async def test_a_server_in_trouble_is_asked_again_and_no_tool_is_blamed(
    tmp_path, monkeypatch, status
):
    asked = []

    async def answer(request):
        asked.append(request)
        return web.json_response({"error": {"message": "Overloaded"}}, status=status)

    with pytest.raises(ServerError, match=rf"HTTP {status}: Overloaded.*agents\.\w+ call tools"):
        await open_at(tmp_path, monkeypatch, answer)
    assert len(asked) == (1 if status == 401 else 3)


async def test_a_refusal_that_passes_and_thoughts_without_an_answer_are_no_refusal_of_tools(
    tmp_path, monkeypatch
):
    """OpenAI's models that think say so of 16 tokens."""
    words = "Could not finish the message because max_tokens or model output limit was reached."
    left = [(529, "Overloaded"), (429, "Slow down")]

    async def answer(request):
        status, message = left.pop(0) if left else (400, words)
        return web.json_response({"error": {"message": message}}, status=status)

    assert await open_at(tmp_path, monkeypatch, answer)
    assert not left


@pytest.mark.parametrize("more", [0, 40])
async def test_a_server_that_passes_over_tools_is_warned_of(tmp_path, monkeypatch, caplog, more):
    async def answer(request):
        body = json.loads(await request.read())
        return greet(body, 9 + more * ("tools" in body))

    assert await open_at(tmp_path, monkeypatch, answer)
    assert ("as many tokens of a prompt" in caplog.text) == (more == 0)


async def test_the_room_for_a_prompt_has_a_reserve_for_tools(tmp_path):
    """The server is asked how long a chat is, and is not told of tools."""
    replies = tmp_path / "replies.yaml"
    replies.write_text("max_model_len: 300\n")
    taken = []
    for way in ("line", "native"):
        with pytest.raises(SettingsError, match=r"agents\.verifier: .* takes \d+ of 300") as caught:
            await open_native(
                tmp_path,
                f"lm_server.replies={replies}",
                f"tool.call={way}",
                "interaction_protocol=solo_verifier",
            )
        taken.append(int(re.search(r"takes (\d+) of", str(caught.value))[1]))
    assert 200 < taken[1] - taken[0] <= 300


async def test_an_engine_of_nips_own_server_with_tools_is_taken(tmp_path):
    assert await open_native(tmp_path)


async def test_a_server_with_tools_is_asked_with_them_and_without_before_the_run_is_there(
    tmp_path, monkeypatch
):
    bodies = []

    async def answer(request):
        bodies.append(json.loads(await request.read()))
        return greet(bodies[-1])

    assert await open_at(tmp_path, monkeypatch, answer, times=2)
    body, bare = bodies
    assert [tool["function"]["name"] for tool in body["tools"]] == ["check"]
    assert "tools" not in bare
