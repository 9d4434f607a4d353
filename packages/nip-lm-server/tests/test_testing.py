"""The server as a test double: the page's repository, and what the page says beside it."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from nip_lm_server import testing
from nip_lm_server.state.directory import StateError

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "test-double.md"
_scripted_lm_server = testing._scripted_lm_server
lm_server = testing.lm_server
lm_server_environment = testing.lm_server_environment
tiny_lm_server = testing.tiny_lm_server


@pytest.fixture(scope="session")
def lm_server_models():
    return ("first", "second")


def ask(server, text="hello", **arguments):
    client = openai.OpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)
    chat = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model="second", messages=chat, **arguments)
    return answer.choices[0].message.content


def test_the_repository_of_the_page_passes_its_tests_with_this_server(tmp_path):
    blocks = re.findall(r"```\w+\n# ([\w.]+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert {name for name, _ in blocks} == {
        "finetune.py",
        "conftest.py",
        "test_finetune.py",
        "pyproject.toml",
    }
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr


def test_a_test_sets_answers_and_the_next_begins_anew(lm_server):
    assert lm_server.models == ("first", "second")
    drawn = ask(lm_server)
    lm_server.reply("yes", last_contains="even")
    lm_server.reply("{{nothing}}")
    assert (ask(lm_server, "Is 6 even?"), ask(lm_server)) == ("yes", "{nothing}")
    with pytest.raises(ValueError, match="last_contain"):
        lm_server.reply("yes", last_contain="even")
    lm_server.reset()
    assert ask(lm_server) == drawn != "{nothing}"
    assert [(seen.method, seen.path, seen.status) for seen in lm_server.requests] == [
        ("POST", "/v1/chat/completions", 200)
    ]


def test_it_fails_as_often_as_it_is_told_and_where(lm_server):
    lm_server.fail_next(500, times=2, path="/v1/chat")
    client = openai.OpenAI(base_url=lm_server.base_url, api_key=lm_server.api_key, max_retries=0)
    assert {model.id for model in client.models.list()} == {"first", "second"}
    for _ in range(2):
        with pytest.raises(openai.InternalServerError):
            ask(lm_server)
    ask(lm_server)
    lm_server.fail_next(429)
    with pytest.raises(openai.RateLimitError) as limited:
        ask(lm_server)
    assert float(limited.value.response.headers["retry-after"]) == testing.RETRY_AFTER_S
    lm_server.drop_next()
    with pytest.raises(openai.APIConnectionError):
        ask(lm_server)
    lm_server.slow_down(0.3)
    with pytest.raises(openai.APITimeoutError):
        ask(lm_server, timeout=0.05)
    with pytest.raises(ValueError, match="status is 200"):
        lm_server.fail_next(200)


def test_the_variables_lead_to_it_past_a_proxy(monkeypatch, lm_server):
    monkeypatch.setenv("NO_PROXY", "example.org")
    for name, value in {**lm_server.environment, "HTTP_PROXY": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    assert len(openai.OpenAI(max_retries=0).models.list().data) == 2
    assert lm_server.environment["NO_PROXY"] == "example.org,127.0.0.1"
    assert lm_server.environment["TINKER_API_KEY"].startswith("tml-")


def test_it_has_ended_after_its_block_and_a_state_directory_has_one_server(tmp_path):
    with testing.serve_double(tmp_path / "state") as double:
        with (
            pytest.raises(StateError, match="another server uses"),
            testing.serve_double(tmp_path / "state"),
        ):
            pass
        assert httpx.get(f"{double.url}/health", trust_env=False).status_code == 200
    assert not double.thread.is_alive()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{double.url}/health", trust_env=False)


def test_the_one_with_a_model_has_log_probabilities_tinkers_api_and_the_same_faults(tiny_lm_server):
    server = tiny_lm_server
    client = openai.OpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)
    answer = client.completions.create(
        model="second", prompt="Is 6 even?", max_tokens=1, logprobs=1, echo=True
    )
    assert all(value < 0 for value in answer.choices[0].logprobs.token_logprobs[1:])
    headers = {"X-API-Key": server.api_key}
    told = httpx.get(f"{server.url}/api/v1/get_server_capabilities", headers=headers)
    assert {model["model_name"] for model in told.json()["supported_models"]} == {
        "first",
        "second",
    }
    server.fail_next(503, path="/api/v1")
    refused = httpx.get(f"{server.url}/api/v1/get_server_capabilities", headers=headers)
    assert refused.status_code == 503
