"""Whoever is refused by Tinker's API is told whose the error is, wherever it is noticed."""

from typing import Any

import httpx
import pytest

JSON = {"Content-Type": "application/json"}
REFUSED = {
    "no key": (401, "POST", "create_session", {"Authorization": ""}, b"{}"),
    "an unknown route": (404, "POST", "no/such/route", {}, b"{}"),
    "a wrong method": (405, "GET", "create_session", {}, b""),
    "a body too large": (413, "POST", "client/config", JSON, b" " * (1 << 20) + b"{}"),
    "an unknown encoding": (415, "POST", "asample", {"Content-Encoding": "br"}, b"{}"),
    "a header without effect": (400, "POST", "optim_step", {"Idempotency-Key": "k"}, b"{}"),
    "no JSON": (400, "POST", "create_model", JSON, b"{"),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_every_refusal_has_a_category(server: Any, what: str) -> None:
    status, method, route, headers, body = REFUSED[what]
    url = f"{server.handle.url}/api/v1/{route}"
    key = {"Authorization": f"Bearer {server.handle.api_key}"}
    with httpx.Client(trust_env=False) as client:
        answer = client.request(method, url, headers={**key, **headers}, content=body)
        assert (answer.status_code, answer.json()["category"]) == (status, "user"), answer.text
        # OpenAI's API has no such word.
        other = client.post(f"{server.handle.url}/v1/no/such/route", headers=key)
    assert other.status_code == 404 and "category" not in other.json()
