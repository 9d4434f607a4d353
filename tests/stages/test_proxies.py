"""What is on this machine is asked directly, whatever proxy is set; what is elsewhere through it."""

import os
import urllib.request

import httpx
import pytest
from recording_proxy import recording_proxy, variables
from scripted_server import scripted_server
from small_game import FEW, train_here, write_config

from nip_core.errors import ServerError, SettingsError, StoreError
from nip_core.jobs.job import NoAnswer
from nip_core.jobs.openai_backend import OpenAIBackend
from nip_core.proxies import (
    blocking_http_client,
    hide_unusable,
    is_on_this_machine,
    prepare_proxies,
    proxy_for,
    restore_proxies,
    spare_this_machine,
)
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint
from nip_core.run_store.store import open_store

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KEY = "a-key-of-the-run"
ELSEWHERE = "http://provider.example/v1"
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in [*NAMES, *map(str.upper, NAMES)]:
        monkeypatch.setenv(name, "")  # so that it is as before afterwards, whatever is tested
        monkeypatch.delenv(name)


@pytest.fixture
def proxy(monkeypatch):
    """Named in every variable of this process."""
    with recording_proxy() as proxy:
        for name, value in variables(proxy).items():
            monkeypatch.setenv(name, value)
        yield proxy


async def chat(url):
    async with ChatClient(concurrency=1, timeout_s=5, retries=0) as client:
        return await client.complete(Endpoint(url, KEY), BODY)


async def test_a_chat_with_this_machine_reaches_no_proxy(proxy):
    async with scripted_server(lambda body: "fine") as server:
        assert (await chat(server.url)).text == "fine"
    assert proxy.connections == 0


async def test_a_chat_with_a_foreign_provider_goes_through_the_proxy(proxy):
    assert (await chat(ELSEWHERE)).text == "hi"
    assert proxy.asked == [f"POST {ELSEWHERE}/chat/completions HTTP/1.1"]
    with pytest.raises(ServerError):  # encrypted: the proxy is asked for a tunnel alone
        await chat("https://provider.example/v1")
    assert proxy.asked[1] == "CONNECT provider.example:443 HTTP/1.1"
    assert KEY not in str(proxy.heads[1])


async def test_the_password_of_a_proxy_is_sent_to_it_and_printed_nowhere(proxy, monkeypatch):
    for name, value in variables(proxy, user="user:word-of-it@").items():
        monkeypatch.setenv(name, value)
    await chat(ELSEWHERE)
    assert proxy.heads[0]["Proxy-Authorization"].startswith("Basic ")
    with pytest.raises(ServerError) as caught:
        await chat("https://provider.example/v1")
    assert "word-of-it" not in str(caught.value)


async def test_jobs_are_asked_of_this_machine_directly_and_of_others_through_the_proxy(proxy):
    here = OpenAIBackend("http://127.0.0.1:1/v1", KEY)
    with pytest.raises(NoAnswer):
        await here.check_jobs()
    assert proxy.connections == 0
    await here.aclose()
    there = OpenAIBackend(ELSEWHERE, KEY)
    await there.check_jobs()
    await there.aclose()
    assert proxy.asked == [f"GET {ELSEWHERE}/fine_tuning/jobs?limit=1 HTTP/1.1"]


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "socks4", "socks", "nonsense"])
async def test_a_proxy_that_no_client_can_use_ends_only_what_would_go_through_it(
    proxy, scheme, monkeypatch
):
    for name, value in variables(proxy, scheme).items():
        monkeypatch.setenv(name, value)
    async with scripted_server(lambda body: "fine") as server:
        assert (await chat(server.url)).text == "fine"
        await OpenAIBackend(server.url, KEY).aclose()
    with pytest.raises(SettingsError, match=r"http_proxy: .*provider\.example.*NO_PROXY"):
        await chat(ELSEWHERE)
    with pytest.raises(SettingsError, match="http_proxy"):
        OpenAIBackend(ELSEWHERE, KEY)
    hide_unusable(os.environ)
    httpx.Client().close()  # as Prefect makes one, for this machine
    with pytest.raises(SettingsError, match="HTTP_PROXY"):  # it is not forgotten
        OpenAIBackend(ELSEWHERE, KEY)
    assert restore_proxies(os.environ)["all_proxy"].startswith(f"{scheme}://")
    assert proxy.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://localhost:8000/v1",
            "http://LOCALHOST",
            "https://a.localhost",
            "http://localhost.",
        ),
        *("http://127.0.0.1:1", "http://127.1.2.3:9/v1", "http://[::1]:8000", "http://0.0.0.0:1"),
        "http://[::ffff:127.0.0.1]:80",
    ],
)
def test_every_spelling_of_this_machine_is_spared(url, proxy):
    assert is_on_this_machine(url) and proxy_for(url) is None
    assert blocking_http_client(url)._mounts == {}


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1", "https://localhost.example", "http://127.0.0.1.example", "", "http://["],
)
def test_other_machines_are_not(url):
    assert not is_on_this_machine(url)


def test_own_words_of_no_proxy_count_networks_too():
    environment = {
        "http_proxy": "squid:3128",
        "NO_PROXY": "inside.example, 10.0.0.0/8,[::2],*.both.example,one.example:81",
    }
    assert proxy_for("http://outside.example", environment) == "http://squid:3128"
    for url in ("http://a.inside.example:1", "http://inside.example", "http://10.9.8.7:1/v1"):
        assert proxy_for(url, environment) is None
    for url in ("http://[::2]:1", "http://x.both.example", "http://one.example:81"):
        assert proxy_for(url, environment) is None
    for url in ("http://insideinside.example", "http://11.0.0.1", "http://one.example"):
        assert proxy_for(url, environment) is not None
    assert proxy_for("https://outside.example", environment) is None  # nobody named one for it
    assert proxy_for("http://x", {"http_proxy": "", "HTTP_PROXY": "http://a"}) is None
    assert proxy_for("http://x", {"http_proxy": "http://a", "NO_PROXY": "*"}) is None


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "localhost,127.0.0.1,127.0.0.0/8,::1"),
        ({"NO_PROXY": "a.example,::1"}, "a.example,::1,localhost,127.0.0.1,127.0.0.0/8"),
        ({"no_proxy": "a.example "}, "a.example,localhost,127.0.0.1,127.0.0.0/8,::1"),
        ({"no_proxy": "*"}, "*"),
        (
            {"PREFECT_API_URL": "http://127.0.0.2:4200/api", "A_URL": "https://b.example"},
            "localhost,127.0.0.1,127.0.0.0/8,::1,127.0.0.2",
        ),
    ],
)
def test_no_proxy_is_completed_for_clients_that_read_the_environment(own, expected):
    environment = {"HTTPS_PROXY": "http://squid:3128", **own}
    spare_this_machine(environment)
    assert environment.get("no_proxy") == expected
    assert environment.get("NO_PROXY", expected) == expected
    again = dict(environment)
    spare_this_machine(again)
    assert again == environment


def test_without_a_proxy_nothing_is_changed():
    environment = {"NO_PROXY": "a.example"}
    spare_this_machine(environment)
    hide_unusable(environment)
    assert environment == {"NO_PROXY": "a.example"}


def test_what_others_make_of_the_completed_environment(proxy, monkeypatch):
    spare_this_machine(os.environ)
    client = httpx.Client()
    for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        with pytest.raises(httpx.ConnectError):
            client.get(url)
        with pytest.raises(OSError):
            urllib.request.urlopen(url.replace("[::1]", "127.0.0.1"), timeout=5)
    assert proxy.connections == 0
    assert client.get("http://other.example/").status_code == 200
    client.close()


def test_a_store_on_this_machine_is_asked_directly(proxy, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-test-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with recording_proxy() as store:  # it refuses to take anything
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store.port}")
        with pytest.raises((StoreError, SettingsError)):
            open_store("s3://bucket/runs")
        assert store.connections > 0
    assert proxy.connections == 0


def test_a_hub_on_this_machine_is_asked_directly(proxy):
    prepare_proxies("http://127.0.0.1:1")
    assert "127.0.0.1" in os.environ["NO_PROXY"]


async def test_a_run_from_python_sends_nothing_to_a_proxy(proxy, tmp_path):
    config = write_config(tmp_path, rl=FEW)
    summary = await train_here(config, ["dataset_options.max_test_size=4"])
    assert summary["status"] == "finished"
    assert proxy.connections == 0
