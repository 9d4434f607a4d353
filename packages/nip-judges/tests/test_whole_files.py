"""A file is as it was or as it is to be, wherever its writer was killed."""

import os
import signal
import subprocess
import sys

from nip_judges.whole_files import write_whole

KILLED = """
import os, signal, sys
from pathlib import Path
from nip_judges.whole_files import replace_whole
with replace_whole(Path(sys.argv[1])) as part:
    part.write_text("half of the ne")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_the_file_as_it_was_and_the_next_one_writes_it(tmp_path):
    path = tmp_path / "judge.json"
    write_whole(path, "the old text")
    ended = subprocess.run([sys.executable, "-c", KILLED, os.fspath(path)], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_text(encoding="utf-8") == "the old text"
    write_whole(path, "the new text")
    assert path.read_text(encoding="utf-8") == "the new text"
    assert [file.name for file in tmp_path.iterdir()] == ["judge.json"]
