"""Adding a model may be killed at any moment: no half of one, and nothing is downloaded twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "helpers" / "killed_adding.py"
LIMIT_S = 1500


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
def test_a_kill_before_any_change_of_a_file_leaves_no_half_and_the_next_one_ends(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kills) > 20 and [kill["killed"] for kill in kills] == [True] * (len(kills) - 1) + [
        False
    ]
    for kill in kills:
        assert kill["half"] is None and kill["again"] == 0 and kill["whole"], kill
        assert kill["left"] == [] and not kill["twice"], kill
    # The later ones begin with the wheel, and none of them asks for it.
    downloaded = [kill["downloads"] > 0 for kill in kills]
    assert downloaded == sorted(downloaded, reverse=True) and downloaded.count(False) > 10
