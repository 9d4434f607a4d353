"""The pictures on the pages are taken by a script, and show what they show there."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT

SCRIPT = ROOT / "scripts" / "docs" / "screenshots.py"
FOLDER = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a report."""
    folder = tmp_path_factory.mktemp("pictures")
    code = (
        "import asyncio\nfrom nip_core.loop import train\nfrom nip_core.parameters import "
        "load_parameters\nasyncio.run(train(load_parameters('deterministic', ['rl.num_iterations=1'])))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=600)
    return folder / "runs" / "deterministic"


def test_the_script_takes_the_pictures_of_the_report_in_their_size(
    run: Path, tmp_path: Path
) -> None:
    assert shutil.which("chromium"), "apt-get install chromium"
    subprocess.run([sys.executable, SCRIPT, run, "--out", tmp_path], check=True, timeout=300)
    for name in ("report.png", "transcripts.png"):
        taken, shown = ((folder / name).read_bytes() for folder in (tmp_path, FOLDER))
        assert taken[:8] == shown[:8] == b"\x89PNG\r\n\x1a\n"
        assert taken[16:24] == shown[16:24], "width and height"


def test_each_picture_is_on_a_page_and_each_page_has_its_pictures() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "".join(path.read_text("utf-8") for path in pages)
    for picture in FOLDER.iterdir():
        assert f"images/{picture.name}" in text, f"{picture.name} is on no page"
