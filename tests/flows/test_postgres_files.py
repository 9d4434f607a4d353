"""The database's directory: what is in it already is not lost."""

import os
from pathlib import Path

import pytest

from nip_core.errors import ServerError
from nip_prefect.flows.postgres import _create


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
