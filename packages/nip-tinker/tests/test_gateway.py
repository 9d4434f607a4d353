"""The gateway answers chats as the service's own endpoint does, and with token ids."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from nip_core.rollouts.client.answer_parts import read_answers
from nip_core.rollouts.client.completions import ChatAnswer
from nip_lm_server.testing import ServerDouble
from nip_tinker.gateway import Gateway, make_app
from nip_tinker.wire import TinkerClient

CHAT = [{"role": "user", "content": "Is this right? def add(a, b): return a + b"}]


@pytest.fixture
async def gateway(service: ServerDouble) -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(Gateway(service.url, service.api_key)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def ask(url: str, key: str, **body: object) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{url}/oai/api/v1/chat/completions", json={"messages": CHAT, **body}) as answer,
    ):
        return answer.status, await answer.read()


def read(raw: bytes, model: str) -> list[ChatAnswer]:
    return read_answers(raw, [model], 0, 0.0)


async def test_it_answers_as_the_service_and_has_the_tokens(
    service: ServerDouble, gateway: str
) -> None:
    body = {"model": "tiny", "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    body |= {"logprobs": True}
    answers = []
    for url in (service.url, gateway):
        status, raw = await ask(url, service.api_key, **body)
        assert status == 200, raw
        answers.append(read(raw, "tiny")[0])
    own, here = answers
    assert (here.text, here.token_ids, here.prompt_token_ids) == (
        own.text, own.token_ids, own.prompt_token_ids,
    )  # fmt: skip
    assert here.finish_reason == own.finish_reason and here.prompt_tokens == own.prompt_tokens
    assert here.tokens is not None and own.tokens is not None
    assert [token["logprob"] for token in here.tokens] == pytest.approx(
        [token["logprob"] for token in own.tokens], abs=1e-3
    )


async def test_several_answers_have_tokens_each_and_other_calls_are_passed_on(
    service: ServerDouble, gateway: str
) -> None:
    status, raw = await ask(gateway, service.api_key, model="tiny", max_tokens=8, n=3, seed=1)
    answers = read(raw, "tiny")
    assert status == 200 and len(answers) == 3
    assert all(len(one.tokens or ()) == len(one.token_ids or ()) > 0 for one in answers)
    client = TinkerClient(gateway, service.api_key)
    assert await client.list_bases() == ["tiny"]
    await client.aclose()


async def test_a_wrong_key_an_unknown_model_and_settings_of_no_effect_are_refused(
    service: ServerDouble, gateway: str
) -> None:
    assert (await ask(gateway, "tml-other", model="tiny"))[0] == 401
    status, raw = await ask(gateway, service.api_key, model="tiny", stop=["x"], tools=[])
    assert status == 400 and b"can't carry stop" in raw
    status, raw = await ask(gateway, service.api_key, model="tinker://none/sampler_weights/x")
    assert status == 404 and b"is not there" in raw
