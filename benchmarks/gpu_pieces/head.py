"""Peak memory of a policy gradient step at a large vocabulary, by `benchmarks/head_memory.py`."""

import json
import sys
import tempfile
from pathlib import Path

from gpu_pieces import models
from gpu_pieces.results import Piece, Row
from gpu_pieces.sizes import Session

SCRIPT = models.ROOT / "benchmarks" / "head_memory.py"


def head(session: Session) -> Row:
    """Both ways of scoring."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "head.json"
        command = [sys.executable, str(SCRIPT), *session.sizes.head, "--out", str(out)]
        models.run(command, session.seconds)
        figures: Row = json.loads(out.read_text())
    return figures


def measure(session: Session, piece: Piece) -> None:
    """One row."""
    piece.row("head", lambda: head(session))
    piece.finish()
