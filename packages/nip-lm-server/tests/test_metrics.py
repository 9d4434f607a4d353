"""What /metrics says, after what was done."""

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from served_here import CHAT, ChosenEngine, serve, until

COMPLETION = {"model": "sim", "prompt": "hello"}


async def scrape(here: Any) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    async with here.http.get("/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await answer.text()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_requests_and_tokens_are_counted(tmp_path: Path) -> None:
    async with serve(tmp_path / "state") as here:
        await here.post("/v1/chat/completions", CHAT)
        await here.post("/v1/chat/completions", {**CHAT, "stream": True})
        await here.post("/v1/completions", COMPLETION)
        await here.post("/v1/completions", COMPLETION)
        await here.post("/v1/chat/completions", {**CHAT, "model": "none"})
        await here.post("/v1/any/thing", {})
        seen = await scrape(here)
    chat = "/v1/chat/completions"
    assert seen["nip_requests_total", chat, "200", "base"] == 2
    assert seen["nip_requests_total", chat, "404", "none"] == 1
    assert seen["nip_requests_total", "/v1/completions", "200", "base"] == 2
    assert seen["nip_requests_total", "/{rest}", "404", "none"] == 1
    assert seen["nip_request_seconds_count", chat] == 3
    assert seen["nip_tokens_total", "base", "prompt"] > 0
    assert seen["nip_tokens_total", "base", "generated"] > 16


async def test_the_engine_the_jobs_and_the_disk_are_told(tmp_path: Path) -> None:
    async with serve(tmp_path / "state") as here:
        seen = await scrape(here)
        assert seen["nip_engine_state", "running", "sim"] == 1
        assert seen["nip_engine_state", "failed", "sim"] == 0
        assert seen["nip_engine_epoch", "sim"] == 1
        assert seen["nip_engine_restarts", "sim"] == 0
        assert seen["nip_jobs", "succeeded"] == 0 and seen["nip_jobs", "queued"] == 0
        assert seen["nip_disk_free_bytes",] > 0
        assert seen["nip_training_steps",] == 0


async def test_what_is_in_flight_is_told_and_who_left_is_counted(tmp_path: Path) -> None:
    engine = ChosenEngine(deltas=(asyncio.Event(),))
    async with serve(tmp_path / "state", engine) as here:
        asked = asyncio.create_task(here.post("/v1/chat/completions", CHAT))
        await engine.started.wait()
        assert (await scrape(here))["nip_requests_in_flight",] == 2
        asked.cancel()
        await until(lambda: engine.abandoned == 1)
        seen = await scrape(here)
        assert seen["nip_requests_in_flight",] == 1
        assert seen["nip_requests_total", "/v1/chat/completions", "499", "base"] == 1
