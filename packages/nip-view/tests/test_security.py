"""Nobody reads a run without the token, by another name, or from another site's page."""

import pytest
from viewing import client_of

TOKEN = "the-token-of-this-test"


@pytest.fixture
def client(trained):
    return client_of(trained, token=TOKEN)


PAGES = ("/", "/runs/small", "/runs/small/state", "/runs/small/episodes", "/static/1/view.js")


@pytest.mark.parametrize("address", PAGES)
def test_without_the_token_nothing_is_told(client, address):
    for end in ("", "?token=", "?token=another", "?token=the-token-of-this-tes"):
        answer = client.get(address + end)
        assert answer.status_code == 401
        assert "small" not in answer.text
    assert client.get(address, headers={"Cookie": f"nip_view={TOKEN}x"}).status_code == 401


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_has(client):
    answer = client.get(f"/runs/small?split=test&token={TOKEN}")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert "max-age" not in cookie and "expires" not in cookie  # it ends with the browser
    assert 'content="0;url=/runs/small?split=test"' in answer.text
    assert TOKEN not in answer.text
    assert client.get("/runs/small").status_code == 200
    assert TOKEN not in client.get("/runs/small").text


def test_a_program_sends_the_token_in_a_header(client):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/runs/small/state", headers=headers).json()["status"] == "finished"


def test_the_token_is_for_no_other_site(client):
    answer = client.get(f"//example.org/?token={TOKEN}")
    assert "url=//" not in answer.text


@pytest.mark.parametrize(
    "host", ["example.org", "127.0.0.1.example.org", "localhost.example.org", ""]
)
def test_a_name_that_was_pointed_at_this_machine_is_refused(client, host):
    headers = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
    assert client.get("/", headers=headers).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:1", "[::1]:8000", "LOCALHOST"])
def test_this_machines_names_are_let_in_by_any_port_as_ssh_gives_another(client, host):
    headers = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
    assert client.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client, method):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.request(method, "/runs/small", headers=headers).status_code == 405


def test_every_answer_forbids_scripts_of_others_frames_and_guesses(client):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for answer in (
        client.get("/"),
        client.get("/", headers=headers),
        client.get("/x", headers=headers),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "no-store" in answer.headers["cache-control"]
        assert "access-control-allow-origin" not in answer.headers


def test_with_named_runs_no_other_run_of_the_store_is_shown(trained, tmp_path):
    import shutil

    from nip_study.compare.played import find_played_run

    shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("lm_server"))
    shutil.copytree(tmp_path / "runs/small", tmp_path / "runs/other")
    client = client_of(
        tmp_path / "runs", named=[find_played_run("small", str(tmp_path / "runs")).tree]
    )
    assert client.get("/runs/small").status_code == 200
    assert client.get("/runs/other").status_code == 404
