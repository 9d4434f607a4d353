"""Folders for temporary files of killed processes are removed, those of living ones stay."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nip_base import temporary_folders
from nip_base.temporary_folders import held_folder

HOLDS = """
import sys
from nip_base.temporary_folders import held_folder
with held_folder("nip-push-") as folder:
    (folder / "weights").write_text("heavy")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    temporary_folders._remove_left.cache_clear()
    return tmp_path


def holding(place):
    environment = {**os.environ, "TMPDIR": str(place)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(place):
    (killed, left), (living, held) = holding(place), holding(place)
    killed.kill()
    killed.wait()
    other_kind, older = place / "nip-model-x.held", place / "nip-push-of-an-older-version"
    other_kind.mkdir()
    older.mkdir()
    (place / "nip-push-file.held").write_text("no folder")
    (place / "target").mkdir()
    (place / "nip-push-link.held").symlink_to(place / "target")
    assert (left / "weights").exists()
    with held_folder("nip-push-") as folder:
        assert folder.is_dir() and folder.parent == place
        assert not left.exists()
        assert (held / "weights").read_text() == "heavy"
    assert not folder.exists()
    living.stdin.close()
    living.wait()
    assert sorted(path.name for path in place.iterdir()) == sorted(
        [other_kind.name, older.name, "nip-push-file.held", "nip-push-link.held", "target"]
    )


def test_folders_of_other_users_stay(place, monkeypatch):
    (place / "nip-push-theirs.held").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with held_folder("nip-push-"):
        assert (place / "nip-push-theirs.held").exists()


def test_one_process_holds_several_at_once_and_an_error_leaves_none(place):
    with (
        pytest.raises(ValueError),
        held_folder("nip-view-") as one,
        held_folder("nip-view-") as two,
    ):
        assert one != two and one.stat().st_mode & 0o777 == 0o700
        raise ValueError
    assert not list(place.iterdir())


def test_a_folder_that_another_process_takes_before_it_is_locked_is_made_once_more(
    place, monkeypatch
):
    make, taken = tempfile.mkdtemp, []

    def make_and_lose(**names):
        path = make(**names)
        if not taken:  # as a process that looks for folders without a lock at that moment
            taken.append(path)
            os.rmdir(path)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    with held_folder("nip-push-") as folder:
        assert folder.is_dir() and [str(folder)] != taken
