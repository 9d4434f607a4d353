#!/usr/bin/env python3
"""Record `nip train smollm2` in a terminal: docs/images/smollm2.svg and what it ended with.

    .venv/bin/python scripts/record_smollm2.py [--work DIR] [--out FILE] [--set A.B=C ...]

It runs in a directory of its own, in a terminal of 100 columns. What it prints is shown as it was,
with the time that had gone by; only how fast it is shown changes, and the picture says how fast.
The last screen is printed, too. `--set` is for a try with a smaller run.

Ends with 1, and leaves the picture as it was, if the run did not end well. Takes as long as the run
does. `nip models add smollm2` comes first.
"""

import argparse
import os
import selectors
import shlex
import tempfile
import time
from pathlib import Path

from record_kill import ROOT, Shell, make_sure_of_pyte
from screens_to_svg import Frame, Recording, Span, rows_of, write_svg

PICTURE = ROOT / "docs" / "images" / "smollm2.svg"
COLUMNS, ROWS = 100, 34
SHOWN_S, END_S = 16.0, 6.0  # the run, and its last screen
LONGEST_S = 4 * 3600.0


def record(work: Path, command: str) -> tuple[list[Frame], str, float]:
    """Type the command and take in every screen until the next prompt.

    Returns the screens, the last text, and how long it took in seconds.
    """
    shell = Shell(ROWS, work, COLUMNS, threads=None)
    frames: list[Frame] = []
    began_s = time.monotonic()
    selector = selectors.DefaultSelector()
    selector.register(shell.terminal, selectors.EVENT_READ)
    while not shell.text().startswith("$"):
        shell.read()
    os.write(shell.terminal, f"{command}\r".encode())
    while True:
        now_s = time.monotonic() - began_s
        if now_s > LONGEST_S:
            raise SystemExit(f"not within {LONGEST_S:.0f} s; the screen:\n{shell.text()}")
        if not selector.select(1.0):
            lines = shell.text().rstrip().splitlines()
            if frames and lines and lines[-1].rstrip() == "$" and len(lines) > 1:
                return frames, shell.text(), now_s
            continue
        shell.read()
        frames.append(Frame(time.monotonic() - began_s, (rows_of(shell.screen),)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="an empty directory; a new one otherwise")
    parser.add_argument("--out", type=Path, default=PICTURE)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    arguments = parser.parse_args()
    make_sure_of_pyte()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="smollm2-"))
    work.mkdir(parents=True, exist_ok=True)
    settings = "".join(f" --set {shlex.quote(value)}" for value in arguments.set)
    frames, text, seconds = record(work, f"nip train smollm2{settings}")
    print(text)
    if "run smollm2: finished" not in text:
        raise SystemExit("the run did not end well; the picture stays as it was")
    spans = [Span(0.0, SHOWN_S), Span(seconds, END_S)]
    recording = Recording(frames, spans, seconds + END_S, COLUMNS)
    size = write_svg(arguments.out, recording, "nip train smollm2, from its start to its end")
    print(f"{arguments.out}: {size} bytes, {seconds / 60:.1f} minutes; {work} has the run")


if __name__ == "__main__":
    main()
