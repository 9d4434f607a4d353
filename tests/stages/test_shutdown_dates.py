"""Models that their provider shuts down are warned of at the start of a run, by its own word."""

import contextlib
import logging
from datetime import date

import pytest
from aiohttp import web

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.servers.endpoints import find_remote_endpoints
from nip_core.servers.shutdown_dates import ask_shutdown_dates, warn_of_shutdowns

TODAY = date(2026, 11, 24)
MODELS = {
    "gpt-6-astra": "2027-03-01",
    "gpt-4o": "2027-02-01",  # later than the table has it
    "gpt-4o-mini": None,  # nothing is announced here; the table knows better
    "odd": 1795000000,
}


@contextlib.asynccontextmanager
async def openai():
    """The part of OpenAI's API that tells of models; gives its address and who asked."""
    asked = []

    async def retrieve(request):
        name = request.match_info["name"]
        asked.append((name, request.headers["Authorization"]))
        if name not in MODELS:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        model = {"id": name, "object": "model", "created": 1, "owned_by": "openai"}
        return web.json_response({**model, "shutdown_date": MODELS[name]})

    app = web.Application()
    app.router.add_get("/v1/models/{name}", retrieve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", asked
    finally:
        await runner.cleanup()


def settings(**agents):
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "agents": {
                name: {"freeze_agent": True, "chat_format": "alternating", **agent}
                for name, agent in agents.items()
            },
        }
    )


def at(url):
    return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "key", "NIP_API_KEY": "k"}


@pytest.mark.parametrize(
    "url", ["https://ada:a-word@gateway.example/v1", "https://a/v1?key=a-word"]
)
def test_an_address_of_the_environment_with_a_secret_in_it_is_refused_and_not_printed(url):
    parameters = settings(prover={"model_name": "gpt-4o"}, verifier={"model_name": "gpt-4o"})
    with pytest.raises(
        SettingsError, match="environment variable OPENAI_BASE_URL: an address"
    ) as no:
        find_remote_endpoints(parameters, at(url))
    assert "a-word" not in str(no.value)


@pytest.mark.parametrize(
    ("model", "day"),
    [("gpt-6-astra", "2027-03-01"), ("gpt-4o", "2027-02-01"), ("gpt-4o-mini", "2027-01-14")],
)
async def test_the_day_that_the_provider_says_counts(model, day, caplog):
    parameters = settings(prover={"model_name": model}, verifier={"model_name": "unknown"})
    async with openai() as (url, asked):
        endpoints = find_remote_endpoints(parameters, at(url))
        with caplog.at_level(logging.WARNING):
            await warn_of_shutdowns(parameters, endpoints, TODAY)
    assert sorted(asked) == [(model, "Bearer key"), ("unknown", "Bearer key")]
    [record] = caplog.records
    assert f"run 'a': agents.prover: OpenAI shuts {model}" in record.getMessage()
    assert record.getMessage().endswith(f"on {day}")


async def test_nobody_else_is_asked_and_silence_stops_nobody():
    elsewhere = {"model_name": "gpt-6-astra", "base_url": "http://127.0.0.1:9/v1"}
    hosted = {"model_name": "tiny", "model_provider": "SelfHosted"}
    async with openai() as (url, asked):
        parameters = settings(prover=elsewhere, verifier=hosted)
        assert (
            await ask_shutdown_dates(parameters, find_remote_endpoints(parameters, at(url))) == {}
        )
        assert asked == []
        odd = settings(prover={"model_name": "odd"}, verifier={"model_name": "odd"})
        assert await ask_shutdown_dates(odd, find_remote_endpoints(odd, at(url))) == {}
    # Nobody listens there any more.
    assert await ask_shutdown_dates(odd, find_remote_endpoints(odd, at(url))) == {}
