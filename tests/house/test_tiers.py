"""`make test` runs what belongs to it, and names what it could not run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import is_in_part

HELPERS = Path(__file__).parents[1] / "helpers"
TESTS = """
import pytest
from tiers import leave_out_long

@pytest.mark.skip(reason="no such device")
def test_of_a_device(): pass

@pytest.mark.long
def test_for_hours(): pass

@pytest.mark.long(True)
def test_that_is_wanted(): pass

@pytest.mark.long(False)
def test_that_is_not(): pass
"""


def run(folder, workers, **environment):
    """What pytest says in `folder` with these variables."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", workers, "-c", os.devnull, "test_it.py"],
        cwd=folder,
        # Without what the run of this test itself was told.
        env={**os.environ, "PYTHONPATH": str(HELPERS), "NIP_LONG_ALONE": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.long
def test_a_skipped_test_is_named_with_its_reason_and_a_long_one_belongs_elsewhere(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from tiers import leave_out_long as pytest_collection_modifyitems, pytest_terminal_summary"
    )
    other = next(part for part in ("1/2", "2/2") if not is_in_part(Path("test_it.py"), part))
    outputs = [
        run(tmp_path, workers, NIP_THOROUGH=thorough, NIP_LONG_PART=part)
        for thorough, part, workers in (("0", "", "1"), ("1", "", "0"), ("1", other, "0"))
    ]
    for output in outputs:
        assert "test_it.py::test_of_a_device: Skipped: no such device\n" in output
    assert "1 passed, 1 skipped" in outputs[0] and "2 passed, 1 skipped" in outputs[1]
    assert "1 passed, 1 skipped" in outputs[2]
    alone = {"NIP_THOROUGH": "1", "NIP_LONG_PART": "", "NIP_LONG_ALONE": "1"}
    assert "2 passed, 2 deselected" in run(tmp_path, "0", **alone)
    more = f"from thorough import examples\n{TESTS}"
    (tmp_path / "test_it.py").write_text(more)
    assert "2 passed, 1 skipped, 1 deselected" in run(tmp_path, "0", **alone)


def test_the_parts_of_what_is_long_are_disjoint_and_together_everything():
    files = sorted(HELPERS.parent.rglob("test_*.py"))
    parts = [[f for f in files if is_in_part(f, f"{k}/5")] for k in range(1, 6)]
    assert sorted(f for part in parts for f in part) == files
    assert min(map(len, parts)) > len(files) / 10
    assert all(is_in_part(f, "") for f in files)
    for wrong in ("6/5", "0/5", "first", "1/"):
        with pytest.raises(pytest.UsageError, match=f"K from 1 to N is needed, got '{wrong}'"):
            is_in_part(files[0], wrong)
