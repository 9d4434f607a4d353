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

    Of an archive it is the commit that it was made of; "" if nothing tells.
    """
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    if (ROOT / ".git").exists():
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return "" if ARCHIVED.startswith("$") else ARCHIVED


def describe_machine() -> str:
    """Describe the machine in a line, and the number of threads that the environment sets."""
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"OMP_NUM_THREADS {threads}"
    )
