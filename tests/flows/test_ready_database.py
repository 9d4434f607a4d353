"""A first command need not wait for all migrations that Prefect ever had."""

import os
import sqlite3
from contextlib import closing

import pytest
from prefect.settings import (
    PREFECT_API_DATABASE_MIGRATE_ON_START,
    PREFECT_HOME,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    temporary_settings,
)
from shared_prefect import MIGRATED

from nip_cli.launching import ready_database
from nip_cli.launching.ready_database import dump, lay_out


def usual(home):
    """The settings of a server in this Prefect home, as they are without others."""
    place = home / "prefect.db"
    return temporary_settings(
        {
            PREFECT_HOME: home,
            PREFECT_SERVER_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{place}",
        }
    )


def statements(database):
    """The lines of its schema. The constraints of a table come in another order each time."""
    return sorted(line.rstrip(", ") for line in dump(database).splitlines())


def test_a_database_that_is_laid_out_is_the_one_that_prefects_migrations_make(
    prefect_server, tmp_path
):
    own = os.umask(0o077)  # as the server of a command has it
    try:
        with usual(tmp_path / "home"):
            assert lay_out()
    finally:
        os.umask(own)
    made = tmp_path / "home" / "prefect.db"
    assert statements(made) == statements(MIGRATED)
    assert made.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(made)) as laid_out, closing(sqlite3.connect(MIGRATED)) as migrated:
        for pragma in ("journal_mode", "page_size", "encoding", "auto_vacuum", "user_version"):
            question = f"PRAGMA {pragma}"
            assert laid_out.execute(question).fetchone() == migrated.execute(question).fetchone()
    assert [path.name for path in made.parent.iterdir()] == ["prefect.db"]


@pytest.mark.parametrize("end", ["", "-wal"])
def test_what_is_there_of_a_database_stays_as_it_is(tmp_path, end):
    (tmp_path / f"prefect.db{end}").write_bytes(b"there")
    with usual(tmp_path):
        assert not lay_out()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"there"]


def test_a_database_made_meanwhile_by_another_command_stays(tmp_path, monkeypatch):
    link = os.link

    def late(source, target):
        target.write_bytes(b"of another")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with usual(tmp_path):
        assert not lay_out()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of another"]


@pytest.mark.parametrize(
    "settings",
    [
        {PREFECT_SERVER_DATABASE_CONNECTION_URL: "sqlite+aiosqlite:////elsewhere/prefect.db"},
        {PREFECT_SERVER_DATABASE_CONNECTION_URL: "postgresql+asyncpg://me@host/prefect"},
        {PREFECT_API_DATABASE_MIGRATE_ON_START: False},
    ],
)
def test_a_database_of_other_settings_is_left_to_prefect(tmp_path, settings):
    with usual(tmp_path), temporary_settings(settings):
        assert not lay_out()
    assert not list(tmp_path.iterdir())


def test_an_older_prefect_makes_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(ready_database, "VERSION", (99, 0, 0))
    with usual(tmp_path):
        assert not lay_out()


def test_a_directory_that_cannot_be_written_is_left_to_prefect(tmp_path):
    (tmp_path / "file").write_text("")
    with usual(tmp_path / "file" / "home"):
        assert not lay_out()
