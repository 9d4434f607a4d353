"""Every cell of a server's database that can't be what was written is named."""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from served_here import KEY, serve, until

from nip_base import formats
from nip_lm_server.state.at_rest.examine import examine
from nip_lm_server.state.at_rest.import_models import import_models

LINE = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}

WHERE = {"succeeded": "status = 'succeeded' AND parent IS NOT NULL", "failed": "status = 'failed'"}
DAMAGED = [
    # A word, a kind of value, JSON, an id, a time.
    ("jobs", "status", "'suceeded'"),
    ("jobs", "method", "'superwised'"),
    ("jobs", "settings", "substr(settings, 1, 40)"),
    ("jobs", "settings", "'{}'"),
    ("jobs", "settings", "json_set(settings, '$.n_epochs', 'many')"),
    ("jobs", "metadata", "'[1]'"),
    ("jobs", "metadata", "'{\"a\":'"),
    ("jobs", "progress", "x'00ff'"),
    ("jobs", "result", "'nul'"),
    ("jobs", "seed", "'seven'"),
    ("jobs", "attempts", "-1"),
    ("jobs", "paused", "7"),
    ("jobs", "created_at", "'soon'"),
    ("jobs", "created_at", "-1.0"),
    ("jobs", "finished_at", "1e300"),
    ("jobs", "payload_digest", "substr(payload_digest, 1, 20)"),
    ("jobs", "suffix", "x'31'"),
    ("jobs", "base_model", "CAST(x'ff' AS TEXT)"),
    ("files", "purpose", "'fine-tun'"),
    ("files", "created_at", "9e12"),
    ("files", "filename", "x'31'"),
    ("events", "level", "'inf'"),
    ("events", "data", "'{'"),
    ("events", "created_at", "'never'"),
    ("models", "kind", "'adaptor'"),
    ("models", "proof", "'true'"),
    ("models", "created_at", "0"),
    ("meta", "value", "'{'"),
    ("meta", "value", "'\"one\"'"),
    # What another cell, or a manifest, says otherwise.
    ("jobs", "status", "'cancelled'"),
    ("jobs", "status", "'queued'"),
    ("jobs", "finished_at", "NULL"),
    ("jobs", "result", "NULL"),
    ("jobs", "result", "json_set(result, '$.tokens', 1)"),
    ("jobs", "settings", "json_set(settings, '$.batch_size', 3)"),
    ("jobs", "seed", "seed + 1"),
    ("jobs", "method", "'dpo'"),
    ("jobs", "training_file", "'file-000000000000000000000000'"),
    ("jobs", "result_file", "substr(result_file, 1, 12)"),
    ("jobs", "parent", "'nobody'"),
    ("jobs", "parent", "NULL"),
    ("jobs", "base_model", "'other'"),
    ("jobs", "suffix", "'other'"),
    ("jobs", "adapter_name", "adapter_name || 'x'"),
    ("jobs", "metadata", "json_set(metadata, '$.a', 'z')"),
    ("jobs", "metadata", "NULL"),
    ("jobs", "idempotency_key", "'another'"),
    ("models", "kind", "'base'"),
    ("models", "base_model", "'other'"),
    ("models", "job_id", "'ftjob-000000000000000000000000'"),
]  # fmt: skip


async def _make(state: Path) -> None:
    """Two trainings, of which one goes on from the other, and one that failed."""
    async with serve(state) as here:
        client = openai.AsyncOpenAI(base_url=here.url + "/v1", api_key=KEY, max_retries=0)

        async def job(content: bytes, model: str, **more: Any) -> Any:
            upload = await client.files.create(file=("t.jsonl", content), purpose="fine-tune")
            made = await client.fine_tuning.jobs.create(
                training_file=upload.id, model=model, suffix="x y", metadata={"a": "b"}, **more
            )
            jobs = here.services.jobs
            await until(lambda: jobs.get_row(made.id).finished_at is not None)
            return await client.fine_tuning.jobs.retrieve(made.id)

        good = formats.to_jsonl([LINE] * 10)
        first = await job(good, "sim")
        await job(good, first.fine_tuned_model, extra_headers={"Idempotency-Key": "k"})
        failed = await job(b'{"messages": []}\n' * 10, "sim")
        assert failed.status == "failed"
        await client.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    state = tmp_path_factory.mktemp("cells") / "state"
    asyncio.run(_make(state))
    return state


def test_a_state_that_is_whole_has_no_damage(made: Path) -> None:
    assert examine(made).damages == []


def test_models_of_another_state_are_no_damage(made: Path, tmp_path: Path) -> None:
    names = list(examine(made).models)
    for number, some in enumerate(([names[0]], [names[1]], names)):
        import_models(made, tmp_path / str(number), dict.fromkeys(some))
        found = examine(tmp_path / str(number))
        assert (sorted(found.models), found.damages) == (sorted(some), [])


@pytest.mark.parametrize(("table", "column", "value"), DAMAGED)
def test_a_damaged_cell_is_named(
    made: Path, tmp_path: Path, table: str, column: str, value: str
) -> None:
    state = tmp_path / "state"
    shutil.copytree(made, state)
    with closing(sqlite3.connect(state / "jobs.sqlite3")) as connection:
        where = f" WHERE {WHERE['succeeded']}" if table == "jobs" else ""
        changed = connection.execute(
            f"UPDATE {table} SET {column} = {value} WHERE rowid = "
            f"(SELECT max(rowid) FROM {table}{where})"
        )
        assert changed.rowcount == 1
        connection.commit()
    damages = examine(state).damages
    assert damages
    told = " ".join(f"{damage.path.name} {damage.problem} {damage.actual}" for damage in damages)
    assert table in told or "manifest" in told


def test_a_failed_job_without_its_reason_is_named(made: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(made, state)
    with closing(sqlite3.connect(state / "jobs.sqlite3")) as connection:
        connection.execute(f"UPDATE jobs SET error = NULL WHERE {WHERE['failed']}")
        connection.commit()
    (damage,) = examine(state).damages
    assert damage.actual == "it is 'failed', but error is empty"
    assert damage.path == state / "jobs.sqlite3"
    assert ", status" in damage.problem
