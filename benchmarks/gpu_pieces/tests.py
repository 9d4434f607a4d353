"""The tests that need a GPU: each file is a row, with what failed, what was skipped, and seconds.

Those of `packages/nip-lm-server/tests/engines` that run whole servers count too: here vLLM is the
build for CUDA. A rehearsal only collects them.
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

from beside.runs import Failed

from gpu_pieces.machine import facts
from gpu_pieces.models import ROOT
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import find_vllm
from gpu_pieces.sizes import Session

FILES = {
    "training": ("gpu/test_training_cuda.py", "gpu/test_training_memory_cuda.py"),
    "embedded": ("gpu/test_embedded_cuda.py",),
    "serving": ("gpu/test_vllm_cuda.py", "gpu/test_server_cuda.py"),
    "engines": ("engines/test_vllm_server.py", "engines/test_loop_on_vllm.py"),
}
NEED_VLLM = ("serving", "engines")
MESSAGE = 600


def outcomes(report: Path) -> Row:
    """Read a report of pytest's in JUnit's form."""
    row: Row = {"passed": 0, "failed": {}, "skipped": {}, "seconds": {}}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = str(case.get("name"))
        row["seconds"][name] = round(float(case.get("time") or 0), 2)
        broken = next((part for part in case if part.tag in ("failure", "error")), None)
        skipped = case.find("skipped")
        if broken is not None:
            text = f"{broken.get('message') or ''} {(broken.text or '')[-MESSAGE:]}"
            row["failed"][name] = " ".join(text.split())[-2 * MESSAGE :]
        elif skipped is not None:
            row["skipped"][name] = str(skipped.get("message"))
        else:
            row["passed"] += 1
    return row


def run(session: Session, file: str) -> Row:
    """Run the tests of a file. Raises Failed if none were."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"tests/{file}", f"--junitxml={report}"]
        command += ["--collect-only"] * session.rehearsal
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=session.seconds,
            cwd=ROOT,
            check=False,
        )
        if session.rehearsal and done.returncode == 0:
            return {"collected": done.stdout.strip().splitlines()[-1]}
        if not report.exists() or done.returncode > 1 or session.rehearsal:
            raise Failed(
                f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-MESSAGE:]}"
            )
        return outcomes(report)


def measure(session: Session, piece: Piece, kind: str) -> None:
    """The files of one kind. The piece has failed if a test has, or a file could not be run."""
    piece.row("facts", facts)
    vllm, reason = find_vllm(rehearsal=session.rehearsal)
    for file in FILES[kind]:
        if kind in NEED_VLLM and vllm is None and not session.rehearsal:
            piece.without(reason, file)
        piece.row(file, partial(run, session, file))
    rows = [piece.rows[file] for file in FILES[kind]]
    piece.finish(failed=any("reason" in row or row.get("failed") for row in rows))
