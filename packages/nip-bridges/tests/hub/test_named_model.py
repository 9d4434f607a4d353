"""A model's name is explained before anything starts, by this machine first and then by the Hub."""

import socket

import huggingface_hub.constants
import pytest

from nip_core.errors import ServerError, SettingsError
from nip_core.models import BUNDLED
from nip_core.session.named_model import SilentHubError, find_model


def test_a_bundled_model_and_a_directory_are_found_without_a_question(hub, tmp_path):
    assert find_model("tiny") == str(BUNDLED["tiny"])
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path)) == str(tmp_path)
    assert not hub.requests


def test_a_model_of_the_hub_costs_one_question_and_one_of_its_cache_none(hub, tmp_path):
    hub.make("ada/llm", private=False, **{"config.json": b"{}"})
    assert find_model("ada/llm") == "ada/llm"
    assert hub.requests == [("HEAD", "/ada/llm/resolve/main/config.json")]
    snapshot = tmp_path / "hf" / "hub" / "models--bob--cached" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    assert find_model("bob/cached") == "bob/cached"
    assert len(hub.requests) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "smolm2",
            r"there is no model 'smolm2' here, and none on the Hub .*did you mean 'smollm2'",
        ),
        ("ada/absent", "there is no model 'ada/absent' here, and none on the Hub"),
        ("ada/bare", "a repository of the Hub without config.json"),
        ("a/b/c", "is no name of a model: a name is one of tiny.*, a directory, or OWNER/NAME"),
        ("./models", r"there is no directory \./models; .*did you mean 'model'"),
    ],
)
def test_a_name_that_means_no_model_is_refused_with_the_nearest(
    hub, tmp_path, monkeypatch, name, words
):
    hub.make("ada/bare", private=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(SettingsError, match=words):
        find_model(name)


def test_a_directory_with_no_model_in_it_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"is a directory without config\.json, so no model"):
        find_model(str(tmp_path))


def test_a_hub_that_may_not_be_asked_says_nothing_of_a_name(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    words = (
        r"there is no model 'smolm2' on this machine; did you mean 'smollm2'\? The Hub, which may "
        r"have it, gives no answer \(HF_HUB_OFFLINE forbids the network; unset it\)"
    )
    with pytest.raises(SilentHubError, match=words) as caught:
        find_model("smolm2")
    assert not isinstance(caught.value, SettingsError) and isinstance(caught.value, ServerError)
    assert not hub.requests
    assert find_model("smolm2", asks_hub=False) == "smolm2"


def test_a_hub_that_does_not_answer_is_waited_for_until_the_deadline(hub, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and no more
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(SilentHubError, match=r"no answer within 0\.2 s|connection to"):
            find_model("ada/llm", deadline_s=0.2)
