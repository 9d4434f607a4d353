"""State of older servers is brought up to date; state of newer ones is left alone."""

import shutil
import sqlite3
from pathlib import Path

import openai
import pytest
from served_here import CHAT, serve

from nip_base.version import STATE_FORMAT
from nip_lm_server.state.at_rest.examine import examine
from nip_lm_server.state.database import Database
from nip_lm_server.state.directory import StateError

FORMAT_1 = Path(__file__).parent / "format_1"
"""The state of a server of format 1: one job succeeded, one was running when the server was
killed, one queued. Its database is there as SQL."""


def restore(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("files", "models"):
        shutil.copytree(FORMAT_1 / name, directory / name)
    path = directory / "jobs.sqlite3"
    connection = sqlite3.connect(path)
    connection.executescript((FORMAT_1 / "jobs.sql").read_text() + "PRAGMA user_version = 1;")
    connection.close()
    return path


def test_the_state_of_an_older_server_has_no_damage(tmp_path: Path) -> None:
    path = restore(tmp_path / "old")
    assert examine(tmp_path / "old").damages == []
    Database(path).close()
    assert examine(tmp_path / "old").damages == []


def columns(database: Database) -> dict[str, set[tuple[str, str, int]]]:
    tables = [row["name"] for row in database.fetch_all("SELECT name FROM sqlite_master")]
    return {
        table: {
            (column["name"], column["type"], column["notnull"])
            for column in database.fetch_all("SELECT * FROM pragma_table_info(?)", table)
        }
        for table in tables
    }


def test_a_migrated_database_is_as_a_new_one_and_keeps_every_row(tmp_path: Path) -> None:
    path = restore(tmp_path / "old")
    old = Database(path)
    new = Database(tmp_path / "new.sqlite3")
    assert columns(old) == columns(new)
    for database in (old, new):
        version = database.fetch_one("PRAGMA user_version")
        assert version is not None and version[0] == STATE_FORMAT
    rows = {table: old.fetch_one(f"SELECT COUNT(*) FROM {table}") for table in
            ("files", "jobs", "job_metadata", "models")}  # fmt: skip
    assert {table: row[0] for table, row in rows.items() if row} == {
        "files": 2, "jobs": 3, "job_metadata": 1, "models": 1
    }  # fmt: skip
    assert {row["paused"] for row in old.fetch_all("SELECT paused FROM jobs")} == {0}
    assert [row["kind"] for row in old.fetch_all("SELECT kind FROM models")] == ["adapter"]
    assert {row["expires_at"] for row in old.fetch_all("SELECT expires_at FROM files")} == {None}
    old.close()
    Database(path).close()  # and again, now that there is nothing to do
    new.close()


def test_a_server_goes_on_with_the_state_of_an_older_one(make_server, tmp_path: Path) -> None:
    restore(tmp_path / "state")
    server = make_server()
    client = server.client
    queued, interrupted, first = client.fine_tuning.jobs.list().data
    assert first.status == "succeeded" and first.metadata == {"k": "v"}
    assert first.nip["lora_rank"] == 4 and first.nip["paused"] is False
    assert client.models.retrieve(first.fine_tuned_model).nip["kind"] == "adapter"
    answer = client.chat.completions.create(
        model=first.fine_tuned_model, messages=[{"role": "user", "content": "hi"}]
    )
    assert answer.model == first.fine_tuned_model
    # The killed job was to continue the first one's adapter; both that were left are done.
    done = server.wait(interrupted.id)
    assert (done.status, done.nip["attempts"]) == ("succeeded", 2), done.error
    assert done.nip["parent"] == first.fine_tuned_model
    assert server.wait(queued.id).status == "succeeded"
    # What was given then is still the same request now.
    again = server.create(
        first.training_file, seed=1, metadata={"k": "v"},
        extra_headers={"Idempotency-Key": "first"}, extra_body={"nip": {"lora_rank": 4}},
    )  # fmt: skip
    assert again.id == first.id
    with pytest.raises(openai.ConflictError):
        server.create(first.training_file, seed=9, extra_headers={"Idempotency-Key": "first"})


async def test_answers_that_an_older_server_kept_are_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with serve(state):
        pass
    for name in ("responses.sqlite3", "responses.sqlite3-wal"):
        (state / name).write_text("kept")
    async with serve(state) as here:
        assert not list(state.glob("responses*"))
        assert (await here.post("/v1/chat/completions", CHAT))[0] == 200


def test_a_database_of_a_newer_server_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    Database(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {STATE_FORMAT + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StateError, match=f"has format {STATE_FORMAT + 1}, this server knows up to"):
        Database(path)
    assert path.read_bytes() == before


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    path.write_text("not a database, but long enough to be read as the header of one" * 20)
    with pytest.raises(StateError, match="is damaged"):
        Database(path)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = restore(tmp_path / "old")
    connection = sqlite3.connect(path)
    # The last column of the migration is there already, so its last step can't be done.
    connection.execute("ALTER TABLE models ADD COLUMN kind TEXT")
    connection.commit()
    connection.close()
    with pytest.raises(StateError, match="duplicate column"):
        Database(path)
    connection = sqlite3.connect(path)
    names = [row[1] for row in connection.execute("PRAGMA table_info(jobs)")]
    assert "paused" not in names
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
