"""Which commit a benchmark has measured, for the file of its figures."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def describe_commit() -> str:
    """Name the commit of this checkout, with "-dirty" where files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
