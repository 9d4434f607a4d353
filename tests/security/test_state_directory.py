"""What a server does to a directory that is not its own, or no longer whole: nothing."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nip_base.spec import ServerSpec
from nip_lm_server import launch as owner
from nip_lm_server.__main__ import main
from nip_lm_server.launch import OwnerError
from nip_lm_server.state.at_rest.import_models import import_models
from nip_lm_server.state.database import Database
from nip_lm_server.state.directory import StateError
from nip_lm_server.state.models import AdapterError, ModelStore

SPEC = ServerSpec("deterministic", "sim")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder"
        for path in folder.rglob("*")
    }


def refusal(state_dir: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What the command, an owner and one who takes over models say; nothing may change for it."""
    before, mode = contents(state_dir), state_dir.stat().st_mode
    arguments = ["--engine=deterministic", "--model=sim", "--port=0", f"--state={state_dir}"]
    assert main([*arguments, *(more or ["--no-auth"])]) == 2
    said = capsys.readouterr().err.strip()
    with pytest.raises(OwnerError) as refused:
        owner.start_or_attach(SPEC, state_dir)
    with pytest.raises(AdapterError) as adopting:
        import_models(state_dir, state_dir, {})
    assert not owner.stop_state_dir(state_dir)
    mask = os.umask(0o022)
    os.umask(mask)
    assert mask != 0o077  # a process that called the server keeps its own
    assert (contents(state_dir), state_dir.stat().st_mode) == (before, mode)
    assert said == f"lm_server: {refused.value.reason}" == f"lm_server: {adopting.value}"
    return said


@pytest.mark.parametrize(
    "name", ["files/precious.txt", "models/precious", "server.json", "jobs/a/log.txt", ".profile"]
)
def test_a_directory_of_something_else_is_refused_and_left_as_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "home" / name
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    said = refusal(tmp_path / "home", capsys)
    assert str(tmp_path / "home") in said and name.partition("/")[0] in said


@pytest.mark.parametrize("format", [-3, 0, 1, 2])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(
    format: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its mode too, and be it behind a link."""
    theirs, state_dir = tmp_path / "theirs.sqlite3", tmp_path / "state"
    with closing(sqlite3.connect(theirs)) as connection:
        connection.executescript(f"CREATE TABLE jobs (name); PRAGMA user_version = {format}")
    theirs.chmod(0o644)
    before = theirs.read_bytes()
    state_dir.mkdir()
    (state_dir / "jobs.sqlite3").symlink_to(theirs)
    arguments = ["--engine=deterministic", "--model=sim", "--port=0", f"--state={state_dir}"]
    assert main([*arguments, "--no-auth"]) == 2
    said = capsys.readouterr().err
    assert str(state_dir / "jobs.sqlite3") in said and "Traceback" not in said
    assert theirs.read_bytes() == before and theirs.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("loss", ["gone", "emptied", "made anew"])
def test_a_lost_database_is_an_error_that_says_how_to_go_on(
    loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The write-ahead log of a killed server stays too: SQLite deletes one without a database."""
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    database = Database(state_dir / "jobs.sqlite3")
    (state_dir / "files").mkdir()
    (state_dir / "files" / f"file-{'a' * 24}").write_text("{}")
    log = (state_dir / "jobs.sqlite3-wal").read_bytes()
    database.close()
    if loss == "gone":
        (state_dir / "jobs.sqlite3").unlink()
    else:
        (state_dir / "jobs.sqlite3").write_bytes(b"")
    if loss == "made anew":
        import sqlite3

        sqlite3.connect(state_dir / "jobs.sqlite3").execute("PRAGMA journal_mode=WAL").close()
        before = contents(state_dir)
        with pytest.raises(StateError, match="put the database back"):
            Database(state_dir / "jobs.sqlite3")
        assert contents(state_dir) == before
        return
    (state_dir / "jobs.sqlite3-wal").write_bytes(log)
    said = refusal(state_dir, capsys)
    assert "jobs.sqlite3" in said and "files/" in said and "put the database back" in said


def test_files_that_the_command_names_may_lie_in_a_new_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The keys, that is; the refusal that follows is of what is wrong with them."""
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    (tmp_path / "lost+found").mkdir()  # of a disk of its own
    (tmp_path / "notes.txt").touch()
    said = refusal(tmp_path, capsys)
    assert "keys" in said and "notes.txt" in said
    arguments = ["--engine=deterministic", "--model=sim", f"--state={tmp_path}"]
    assert main([*arguments, f"--api-keys-file={keys}"]) == 2
    said = capsys.readouterr().err
    assert "notes.txt" in said and "keys" not in said and "lost+found" not in said


def test_only_what_this_server_left_is_removed_from_its_models(tmp_path: Path) -> None:
    database = Database(tmp_path / "jobs.sqlite3")
    for name in (".0123456789ab.part", ".mine.part", "0123456789ab", "notes"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "weights").touch()
    models = ModelStore(tmp_path / "models", database)
    assert sorted(os.listdir(tmp_path / "models")) == [".mine.part", "0123456789ab", "notes"]
    for digest in ("", ".", "../files", "notes"):
        with pytest.raises(AdapterError, match="no model's directory"):
            models.remove(digest)
    models.remove("0123456789ab")
    assert sorted(os.listdir(tmp_path / "models")) == [".mine.part", "notes"]
