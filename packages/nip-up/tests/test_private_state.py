"""What `nip up` keeps is for its owner alone, also where it was open before."""

import os
import sys

from nip_up.parts import Parts
from nip_up.up import _only_one


def modes(state):
    return {
        path.relative_to(state).as_posix(): path.stat().st_mode & 0o777
        for path in state.rglob("*")
        if path.is_file()
    }


def test_logs_process_numbers_and_the_lock_are_for_their_owner_alone(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/part.log").write_text("of before\n")
    (tmp_path / "logs/part.log").chmod(0o644)
    before = os.umask(0o022)
    try:
        with _only_one(tmp_path), Parts(tmp_path) as parts:
            code = f"print('hello'); open({str(tmp_path / 'made')!r}, 'w').close()"
            process = parts.start("part", [sys.executable, "-c", code], os.environ, umask=0o077)
            assert process.wait() == 0
    finally:
        os.umask(before)
    assert (tmp_path / "logs/part.log").read_text() == "of before\nhello\n"
    assert modes(tmp_path) == dict.fromkeys(
        ["lock", "logs/part.log", "made", "processes.json"], 0o600
    )
