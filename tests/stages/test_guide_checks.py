"""A guided agent is refused where nobody holds its answers to their form, before it plays."""

import json

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


@pytest.mark.parametrize("status", [400, 404])
async def test_a_server_without_tools_is_named_before_anything_is_played(
    tmp_path, monkeypatch, status
):
    """What vLLM says without a parser of calls, and OpenRouter of a model without tools."""
    words = "tool choice requires --enable-auto-tool-choice"

    async def answer(request):
        return web.json_response({"error": {"message": words}}, status=status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    async with TestServer(app) as other:
        url = f"agents._default.base_url={other.make_url('/v1')}"
        with pytest.raises(
            SettingsError, match=rf"tool\.call: .*HTTP {status}: .*{words}"
        ) as caught:
            await open_native(tmp_path, url, "agents._default.model_provider=OpenAI")
    assert "set tool.call: line" in str(caught.value)
    assert not list((tmp_path / "runs").glob("*/run.json"))


async def test_an_engine_of_nips_own_server_with_tools_is_taken(tmp_path):
    assert await open_native(tmp_path)


async def test_a_server_with_tools_is_asked_once_and_taken(tmp_path, monkeypatch):
    bodies = []

    async def answer(request):
        bodies.append(json.loads(await request.read()))
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello!"}}
        return web.json_response({"model": bodies[-1]["model"], "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    async with TestServer(app) as other:
        url = f"agents._default.base_url={other.make_url('/v1')}"
        assert await open_native(tmp_path, url, "agents._default.model_provider=OpenAI")
    [body] = bodies
    assert [tool["function"]["name"] for tool in body["tools"]] == ["check"]
