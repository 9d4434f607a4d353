"""`nip prove` at servers that send back keys, refuse, lie, make noise, or keep old caches.

No models here: log-probabilities are functions of what comes before a token, which is all that a
proof sees of weights.
"""

import asyncio
import hashlib
import json
import random
from collections import Counter
from dataclasses import asdict

import pytest
from aiohttp import web

from nip_core.redaction import redact_all
from nip_lm_server.proving.request import ProofRequest, prove_served
from nip_lm_server.proving.stranger import InputError, NoAnswerError
from nip_lm_server.proving.verdict import exit_status

KEY = "sk-verysecretkey123456"
SEEN: Counter[str] = Counter()
"""How often each server was asked for each name, and how many cookies came back."""


def logprob(weights: str, before: list[int], token: int) -> float:
    raw = hashlib.sha256(f"{weights} {len(before)} {before[-1]} {token}".encode()).digest()
    return -0.5 - 5.5 * int.from_bytes(raw[:4], "big") / 2**32


def write_probe(directory, weights="v1", length=48, dtype="float32"):
    """A directory with a probe alone, of made-up weights."""
    directory.mkdir()
    draw = random.Random(7)
    tokens = [draw.randrange(10, 199) for _ in range(length)]
    values = {
        key: [logprob(name, tokens[:end], tokens[end]) for end in range(1, length)]
        for key, name in (("logprobs", weights), ("base_logprobs", "base"))
    }
    (directory / "probe.json").write_text(json.dumps({"tokens": tokens, "dtype": dtype, **values}))
    return directory


def refuse(status, message):
    return web.json_response({"error": {"message": message}}, status=status)


def list_models(odd):
    cards = [{"id": "base", "owned_by": "vllm"}, {"id": "right", "parent": "base"}]
    if odd == "short_context":
        cards = [{**card, "max_model_len": 2} for card in cards]
    if odd in ("long_root", "relative_root"):
        cards[1]["root"] = "a" * 6000 if odd == "relative_root" else "/" + "a" * 6000
    if odd == "no_parents":
        cards = [{"id": "right"}, {"id": "other"}]
    return {"data": cards}


def value_of(odd, body, turn, before, token):
    """What an odd server says of a token."""
    if odd in ("nan", "infinite", "above_zero", "huge"):
        return {"nan": float("nan"), "infinite": float("inf"), "above_zero": 0.5}.get(odd, 10**400)
    if odd == "floored":
        return float("-inf") if body["model"] == "right" else -1.0
    name = "base" if body["model"] == "base" else "v1"
    if odd == "old_cache" and "cache_salt" not in body:
        name = "v0"
    value = logprob("base" if odd in ("noise", "two_models") else name, before, token)
    if body["model"] == "right" and odd == "noisy_cache":
        value -= 0.06 * ((turn + len(before)) % 5) / 4
    if body["model"] == "right" and turn % 2:
        value -= 0.02 if odd == "noise" else 0
        value = logprob("v1", before, token) if odd == "two_models" else value
    return value


async def complete(request):
    odd, body = request.match_info["odd"], await request.json()
    turn = SEEN[f"{odd} {body['model']}"]
    SEEN[f"{odd} {body['model']}"] += 1
    key = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if odd == "cut_key":
        return refuse(400, "x" * 220 + " " + key)
    if odd in ("unauthorized", "busy") or (odd == "closed_base" and body["model"] == "base"):
        return refuse({"unauthorized": 401, "busy": 429}.get(odd, 403), "no")
    if odd == "slow":
        await asyncio.sleep(0.2)
    choices = []
    for number, before in enumerate(body["prompt"]):
        if "logprob_token_ids" not in body:
            break
        top = {
            f"token_id:{token}": value_of(odd, body, turn, before, token)
            for token in body["logprob_token_ids"]
        }
        choices.append({"index": number, "logprobs": {"top_logprobs": [top]}})
    if odd == "turned_around":
        choices.reverse()
    answer = web.Response(
        text=json.dumps({"model": key if odd == "own_name" else None, "choices": choices}),
        content_type="application/json",
    )
    if odd == "cookies":
        answer.set_cookie("replica", "a", path="/")
        SEEN["cookies"] += len(request.cookies)
    return answer


async def complete_by_echo(request):
    """Puts a token of its own before each prompt, and gives its log-probability."""
    tokens = (await request.json())["prompt"]
    if not isinstance(tokens[0], int):
        return refuse(400, "one prompt")
    return web.json_response(
        {"choices": [{"logprobs": {"token_logprobs": [None, *[-1.0] * (len(tokens) + 1)]}}]}
    )


@pytest.fixture
async def served():
    """An address, and below it a server of each oddity by its name."""

    async def models(request):
        return web.json_response(list_models(request.match_info["odd"]))

    async def echo_models(request):
        return web.json_response({"data": [{"id": "right"}]})

    app = web.Application()
    SEEN.clear()
    app.router.add_get("/echo/v1/models", echo_models)
    app.router.add_post("/echo/v1/completions", complete_by_echo)
    app.router.add_get("/{odd}/v1/models", models)
    app.router.add_post("/{odd}/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def prove(address, directory=None, **settings):
    given = {"model": "right", "key": KEY, "repeats": 2, "directory": directory, **settings}
    (verdict,) = [each async for each in prove_served(ProofRequest(address, **given))]
    return verdict


async def test_no_part_of_the_key_is_in_what_is_printed(served, tmp_path):
    address = served
    one = write_probe(tmp_path / "v1")
    for odd, kind in (("own_name", "adapter"), ("cut_key", "cannot_tell")):
        verdict = await prove(f"{address}/{odd}", one)
        printed = json.dumps(redact_all(asdict(verdict), KEY))
        assert verdict.kind == kind and "***" in printed and KEY[:8] not in printed, printed
    await prove(f"{address}/cookies", one)
    assert SEEN["cookies"] == 0  # a cookie would keep all answers at one replica


async def test_few_tokens_are_no_proof(served, tmp_path):
    address = served
    for length, dtype in ((2, "float32"), (2, "bfloat16"), (12, "bfloat16")):
        probe = write_probe(tmp_path / f"{length}-{dtype}", length=length, dtype=dtype)
        verdict = await prove(f"{address}/plain", probe)
        assert verdict.kind == "cannot_tell" and "12 are needed" in verdict.says, verdict
    verdict = await prove(f"{address}/plain", write_probe(tmp_path / "13", length=13))
    assert verdict.kind == "adapter", verdict
    verdict = await prove(f"{address}/short_context", tmp_path / "13")
    assert verdict.kind == "cannot_tell" and exit_status([verdict]) == 9, verdict
    verdict = await prove(f"{address}/short_context")
    assert verdict.kind == "cannot_tell", verdict


async def test_an_old_cache_is_told_from_noise(served, tmp_path):
    address = served
    one = write_probe(tmp_path / "v1")
    low = write_probe(tmp_path / "low", length=64, dtype="bfloat16")
    for directory in (one, low):
        assert (await prove(f"{address}/old_cache", directory)).kind == "stale_cache"
    verdict = await prove(f"{address}/noisy_cache", low, dtype="bfloat16")
    assert verdict.kind == "adapter", verdict


async def test_what_is_no_log_probability_is_no_proof(served, tmp_path):
    address = served
    one = write_probe(tmp_path / "v1")
    for odd in ("nan", "infinite", "above_zero", "huge"):
        verdict = await prove(f"{address}/{odd}", one)
        assert verdict.kind == "cannot_tell" and "no log-probabilities" in verdict.says, verdict
        json.dumps(asdict(verdict), allow_nan=False)
    verdict = await prove(f"{address}/floored", one, base_name="base")
    assert verdict.kind != "adapter"
    json.dumps(asdict(verdict), allow_nan=False)
    verdict = await prove(f"{address}/echo", one)
    assert verdict.kind == "cannot_tell" and "echo: 50 log-prob" in verdict.says, verdict


async def test_who_refuses_or_waits_is_told_by_the_exit_code(served, tmp_path):
    address = served
    one = write_probe(tmp_path / "v1")
    with pytest.raises(InputError, match="refuses the key for 'right': 401"):
        await prove(f"{address}/unauthorized", one)
    with pytest.raises(NoAnswerError, match="429"):
        await prove(f"{address}/busy", one)
    verdict = await prove(f"{address}/closed_base", one)
    assert verdict.kind == "adapter" and any("no base" in note for note in verdict.notes), verdict
    assert (await prove(f"{address}/turned_around", one)).kind == "adapter"
    # Who waits for its turn is not slow: 24 answers, 8 at once, each within the time.
    assert (await prove(f"{address}/slow", one, repeats=24, timeout_s=5)).kind == "adapter"


async def test_without_files_a_server_is_not_believed(served):
    address = served
    with pytest.raises(InputError, match="give --base-name"):
        await prove(f"{address}/no_parents")
    for odd in ("long_root", "relative_root", "noise"):
        assert (await prove(f"{address}/{odd}")).kind == "cannot_tell"
    verdict = await prove(f"{address}/two_models", repeats=4)
    assert verdict.kind == "mixed", verdict


async def test_a_saved_probe_is_refused_beside_other_weights(served, tmp_path):
    address = served
    one = write_probe(tmp_path / "v1")
    (one / "adapter_config.json").write_text('{"r": 2}')
    (one / "adapter_model.safetensors").write_bytes(b"weights")
    verdict = await prove(f"{address}/plain", one)
    assert verdict.kind == "adapter" and any("--compute" in note for note in verdict.notes)
    probe = json.loads((one / "probe.json").read_text())
    (one / "probe.json").write_text(json.dumps({**probe, "adapter_digest": "of others"}))
    with pytest.raises(InputError, match="of other weights or settings"):
        await prove(f"{address}/plain", one)
    with pytest.raises(InputError, match="can't be read: File name too long"):
        await prove(f"{address}/plain", tmp_path / ("a" * 6000))
