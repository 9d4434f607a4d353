"""Whoever is refused by Tinker's API is told whose the error is, wherever it is noticed."""

from pathlib import Path

from served_here import serve

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


async def test_every_refusal_has_a_category(tmp_path: Path) -> None:
    async with serve(tmp_path / "state") as here:
        for what, (status, method, route, headers, body) in REFUSED.items():
            url = f"/api/v1/{route}"
            async with here.http.request(method, url, headers=headers, data=body) as answer:
                told = await answer.json()
                assert (answer.status, told["category"]) == (status, "user"), what
                assert told["error"]["message"], what
        # A wrong key is not a missing one, in either header.
        for path, header in (("/api/v1/create_session", "X-API-Key"), ("/v1/models", "")):
            keys = {"Authorization": "", **({header: "wrong"} if header else {})}
            keys |= {} if header else {"Authorization": "Bearer wrong"}
            async with here.http.request(
                "POST" if header else "GET", path, headers=keys, data=b"{}" if header else None
            ) as answer:
                refused = await answer.json()
                assert answer.status == 401
                assert refused["error"]["message"] == "Incorrect API key provided."
        # OpenAI's API has no such word.
        async with here.http.post("/v1/no/such/route") as other:
            assert other.status == 404 and "category" not in await other.json()
