"""The database's directory: what is in it already is not lost."""

import os
from pathlib import Path

import pytest

from nip_core.errors import ServerError
from nip_up import postgres
from nip_up.postgres import _create


def test_the_password_of_a_database_whose_files_are_away_is_kept(tmp_path: Path) -> None:
    """As when their disk is not mounted; and what is no database is not written over."""
    initdb = tmp_path / "initdb"
    initdb.write_text("#!/bin/sh\nexit 1\n")
    initdb.chmod(0o700)
    directory = tmp_path / "postgresql"
    with pytest.raises(ServerError, match="initdb"):
        _create(directory, tmp_path, {})
    drawn = (directory / "password").read_text()
    assert len(drawn) >= 24 and os.stat(directory / "password").st_mode & 0o077 == 0
    with pytest.raises(ServerError, match="initdb"):
        _create(directory, tmp_path, {})
    assert (directory / "password").read_text() == drawn
    (directory / "data").mkdir()
    (directory / "data" / "notes").write_text("mine")
    with pytest.raises(ServerError, match=r"data: not empty"):
        _create(directory, tmp_path, {})
    assert (directory / "data" / "notes").read_text() == "mine"


def test_the_programs_of_postgresql_are_given_no_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run by root they are another user's, who reads what is in his own processes."""
    programs = tmp_path / "bin"
    programs.mkdir()
    made = f'env > {tmp_path}/initdb.env; mkdir -p "$2"; echo 17 > "$2/PG_VERSION"'
    for name, does in {"initdb": made, "pg_isready": "exit 0", "postgres": "exit 0"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr(postgres, "_as_user", dict)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("OPENAI_API_KEY", "a-word-that-is-secret")
    monkeypatch.setenv("SOMETHING", "a-word-that-is-secret")
    started: list[dict[str, str]] = []
    postgres.start_postgres(tmp_path / "postgresql", lambda name, command, env: started.append(env))
    [environment] = started
    assert environment["PATH"] == os.environ["PATH"] and environment["LC_ALL"] == "C.UTF-8"
    assert "a-word-that-is-secret" not in environment.values()
    assert "a-word-that-is-secret" not in (tmp_path / "initdb.env").read_text()
