"""What is small to send and dear to read is refused, and others are answered meanwhile.

The first tests have a server in this process; the last one attacks servers of their own with
everything in `hostile_bodies` (marker `security`: make test-security).
"""

import asyncio
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from served_here import serve

from nip_base import formats
from nip_base.formats import bounds
from nip_base.spec import ServerSpec
from nip_lm_server.api import bodies

sys.path.append(str(Path(__file__).parent))
import hostile_bodies
from hostile_bodies import (
    MIB,
    Hostile,
    chat,
    formed,
    listed,
    many_prompts,
    packed,
    properties,
    repeated,
    said,
)

HEALTH_S = float(os.environ.get("NIP_SLOWEST_HEALTH_S", "0.1"))
"""A busy machine needs more."""

REFUSED = {
    "messages": (packed(chat(listed(said(b""), 7 * MIB + MIB // 2))), 400, "at most 250000"),
    "lists": (packed(chat(listed(b"[]", MIB))), 400, "at most 250000"),
    "values": (packed(b'{"model":[%s]}' % listed(b"7", 5 * MIB)), 400, "at most 2000000"),
    "depth": (packed(chat(b"[" * 65 + b"]" * 65)), 400, "more than 64 deep"),
    "bytes": (packed(chat(said(b" " * bodies.MAX_BODY_BYTES))), 413, "at most 8388608 bytes"),
    "members": (packed(b"{}"), 400, "not encoded as its headers say"),
    "a job": (packed(b" " * MIB + b"{}", "/v1/fine_tuning/jobs"), 413, "at most 262144 bytes"),
    "an upload": (packed(b"--b--", "/v1/files", **{"Content-Type": "multipart/form-data; boundary=b"}), 415, "not packed"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_too_much_once_it_is_unpacked_is_refused(tmp_path: Path, name: str) -> None:
    hostile, status, told = REFUSED[name]
    body = hostile.body * 2 if name == "members" else hostile.body
    headers = {key.replace("-", "_"): value for key, value in hostile.headers.items()}
    async with serve(tmp_path / "state") as here:
        got, answer, _ = await here.post(hostile.path, body, **headers)
    error = json.loads(answer)["error"]
    assert (got, told in error["message"]) == (status, True), error
    assert len(answer) < 10_000


async def test_nothing_is_unpacked_for_who_has_no_key_or_no_route(tmp_path: Path) -> None:
    bomb = zlib.compress(b" " * (64 * MIB))
    async with serve(tmp_path / "state") as here:
        protocols = []
        for path, headers in (("/v1/chat/completions", {"Authorization": "no"}), ("/x", {})):
            encoded = {**headers, "Content_Encoding": "deflate"}
            status, _, _ = await here.post(path, bomb, **encoded)
            protocols.append(status)
    assert protocols == [401, 404]


async def test_many_values_are_read_while_others_are_answered(tmp_path: Path) -> None:
    prompts = b'{"model":"sim","prompt":[%s]}' % listed(b"[7]", 800_000)
    answered = 0
    async with serve(tmp_path / "state") as here:
        large = asyncio.create_task(here.post("/v1/completions", prompts))
        while not large.done():
            async with here.http.get("/health") as answer:
                answered += answer.status == 200
        status, answer, _ = await large
    assert (status, answered > 3) == (400, True), answer[:200]


MANY: dict[str, tuple[Callable[[], Hostile], int]] = {
    "prompts": (lambda: many_prompts(b'"%s"' % repeated(b"is it ", 8000), 500), 200),
    "streams": (
        lambda: many_prompts(b'"%s"' % repeated(b"is it ", 8000), 500, b'"stream":true'),
        200,
    ),
    "token ids": (lambda: many_prompts(listed(b"16777313", 4 * MIB), 1), 400),
}


@pytest.mark.parametrize(
    "name",
    [
        "prompts",
        *(pytest.param(name, marks=pytest.mark.long) for name in MANY if name != "prompts"),
    ],
)
async def test_a_body_of_many_parts_leaves_others_their_turn(tmp_path: Path, name: str) -> None:
    make, expected = MANY[name]
    hostile, slowest = make(), 0.0
    async with serve(tmp_path / "state", spec=ServerSpec("deterministic", "tiny")) as here:
        begun = time.perf_counter()
        large = asyncio.create_task(here.post(hostile.path, hostile.body, Content_Encoding="gzip"))
        while not large.done():
            turn = time.perf_counter()
            await asyncio.sleep(0)
            slowest = max(slowest, time.perf_counter() - turn)
        took = time.perf_counter() - begun
        status, answer, _ = await large
    assert status == expected, answer[:300]
    # The server has the same loop: no turn of it does most of the work.
    assert slowest < took / 3


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (b"%s", "at most 10000 values and 200000 characters"),
        (b'{"enum":["%s"]}', "at most 10000 values and 200000 characters"),
    ],
)
async def test_a_schema_of_which_no_grammar_can_be_made_in_time_is_refused(
    tmp_path: Path, form: bytes, told: str
) -> None:
    part = properties(5_001) if form == b"%s" else b"a" * 200_001
    hostile = formed(form, part)
    spec = ServerSpec("deterministic", "tiny")
    async with serve(tmp_path / "state", spec=spec) as here:
        status, answer, _ = await here.post(hostile.path, hostile.body, Content_Encoding="gzip")
    assert status == 400
    assert told in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"a":[%s]}' % listed(b"[]", MIB), "at most 250000"),
        (b'{"a":"%s"}' % (b"a" * formats.jsonl.MAX_LINE_BYTES), "longer than 8388608 bytes"),
        (repeated(b'{"a":', 500) + b"1" + b"}" * 100, "more than 64 deep"),
        (b"\n" * 4_000_001, "only 4000000 lines"),
    ],
)
def test_a_line_of_an_upload_is_bounded(line: bytes, told: str) -> None:
    with pytest.raises(formats.JsonlError, match=told):
        formats.check_jsonl(line)


@pytest.mark.parametrize(
    "text",
    ['[0, "\\u00e9", {"a": null}]', '{"a": NaN}', '["\\ud800"]', "[1,]", '"\ud83d"', "[1e999]"],
)
def test_the_patient_parser_is_as_strict_as_the_fast_one(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome() -> object:
        try:
            return bounds.loads(raw, orjson.loads, surrogates=False)
        except ValueError:
            return ValueError

    raw = text.encode("utf-8", "surrogatepass")
    expected = outcome()
    monkeypatch.setattr(bounds, "_FAST_VALUES", -1)
    assert outcome() == expected


@pytest.mark.security
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["deterministic", "embedded"])
def test_no_body_stops_a_server_or_fills_its_memory(engine: str, tmp_path: Path) -> None:
    with hostile_bodies.server(engine, tmp_path) as handle:
        outcomes = [
            hostile_bodies.attack(handle.url, handle.api_key, handle.pid, name)
            for name in hostile_bodies.BODIES
        ]
    broken = [
        outcome
        for outcome in outcomes
        if outcome.status not in (200, 400, 401, 404, 413, 415)
        or outcome.slowest_health_s > HEALTH_S
        or outcome.above_idle > hostile_bodies.LIMIT_MEMORY
    ]
    assert broken == []
