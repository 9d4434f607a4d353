"""What a benchmark has measured, and on what, for the file of its figures."""

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
ARCHIVED = "$Format:%h$"
"""`git archive` puts the commit here: what lies somewhere without git has its name all the same."""


def describe_commit() -> str:
    """Name the commit of this checkout, with "-dirty" where files differ from it.

    Results, which benchmarks write, are not among these files. Of an archive it is the commit that
    it was made of; "" if nothing tells.
    """
    if not (ROOT / ".git").exists():
        return "" if ARCHIVED.startswith("$") else ARCHIVED
    changed = _ask_git("status", "--porcelain", "-uno", "--", ":/", ":(top,exclude)docs/results")
    return _ask_git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")


def _ask_git(*words: str) -> str:
    asked = ["git", "-C", str(ROOT), *words]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def describe_machine() -> str:
    """Describe the machine in a line, and the number of threads that the environment sets."""
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"OMP_NUM_THREADS {threads}"
    )
