#!/usr/bin/env python3
"""Record a real run that is killed with kill -9 and goes on: docs/images/kill-and-resume.svg.

    .venv/bin/python scripts/record_kill.py [--work DIR] [--out FILE]

Two shells in terminals of 80 columns are typed into: one runs `nip train`, the other kills its
process group in the middle of its games. What they print is shown as it was, with the time that
had gone by; only how fast it is shown changes, and the picture says how fast.

Ends with 1, and leaves the picture as it was, if the run did not go on as it should: a job that was
asked for twice, nothing that was there already, a file that `nip verify` complains of. Takes some
minutes. pyte, which turns what was printed into screens, is installed into build/recording.
"""

import argparse
import fcntl
import importlib
import os
import pty
import re
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "kill-and-resume.svg"
PACKAGES = ROOT / "build" / "recording"
NEEDED = ("pyte==0.8.2", "wcwidth==0.9.4")
sys.path[:0] = [str(ROOT / "scripts"), str(PACKAGES)]

from screens_to_svg import Frame, Recording, Span, rows_of, write_svg  # noqa: E402

COLUMNS, ROWS, ROWS_BELOW = 80, 24, 3
RUN = "demo"
SETTINGS = "--set rl.num_iterations=1 --set rl.rollouts_per_iteration=2000"
TRAIN = f"nip train deterministic --set run_name={RUN} {SETTINGS}"
KEY_S = 0.045  # between two keys
START_S, RUN_S = 180.0, 900.0  # longest waits
_PLAYED = re.compile(r"playing for training.*\n *episodes +\S+ +(\d+)/(\d+)")
_JOB = re.compile(r"(prover|verifier) trains as job (ftjob-\w+)")


def make_sure_of_pyte() -> None:
    """Install what draws screens, if it is not there."""
    if not (PACKAGES / "pyte").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(PACKAGES)]
        subprocess.run([*command, *NEEDED], check=True)
        importlib.invalidate_caches()


class Shell:
    """A bash in a terminal, and the screen that it draws."""

    def __init__(
        self, rows: int, work: Path, columns: int = COLUMNS, threads: int | None = 1
    ) -> None:
        import pyte

        self.printed = ""
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(work)
            os.environ.update(
                PATH=f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
                TERM="xterm-256color",
                PS1="$ ",
                HISTFILE="",
            )
            if threads is not None:
                # With one, so small a model is no slower, also on a busy machine.
                os.environ["OMP_NUM_THREADS"] = str(threads)
            for name in ("COLORTERM", "COLUMNS", "LINES", "NO_COLOR"):
                os.environ.pop(name, None)
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])  # noqa: S606
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)

    def read(self) -> None:
        """Take in what was printed."""
        content = os.read(self.terminal, 65536)
        self.printed += content.decode("utf-8", "replace")
        # pyte has no dim text; grey is how terminals show it.
        self._stream.feed(content.replace(b"\x1b[2m", b"\x1b[90m"))

    def text(self) -> str:
        """The screen in lines."""
        return "\n".join(self.screen.display)

    def job_in_front(self) -> int:
        """The process group that has the terminal."""
        return os.tcgetpgrp(self.terminal)


class Session:
    """Both shells, and every screen that they showed."""

    def __init__(self, work: Path) -> None:
        self.run, self.other = Shell(ROWS, work), Shell(ROWS_BELOW, work)
        self.frames: list[Frame] = []
        self.spans: list[Span] = []
        self._selector = selectors.DefaultSelector()
        for shell in (self.run, self.other):
            self._selector.register(shell.terminal, selectors.EVENT_READ, shell)
        self._began_s = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._began_s

    def span(self, shown_s: float) -> None:
        """From here to the next call, the recording takes `shown_s` seconds."""
        self.spans.append(Span(self.now(), shown_s))

    def go_on(self, seconds: float) -> None:
        """Take in what is printed for a while."""
        end_s = self.now() + seconds
        while (left_s := end_s - self.now()) > 0:
            for key, _ in self._selector.select(left_s):
                key.data.read()
                panes = (rows_of(self.run.screen), rows_of(self.other.screen))
                self.frames.append(Frame(self.now(), panes))

    def until(self, is_so: Callable[[], Any], limit_s: float) -> Any:
        """Go on until something is so, and return it."""
        end_s = self.now() + limit_s
        while not (found := is_so()):
            if self.now() > end_s:
                screens = f"{self.run.text()}\n{self.other.text()}"
                raise SystemExit(f"not within {limit_s} s; the screens:\n{screens}")
            self.go_on(0.1)
        return found

    def type(self, shell: Shell, command: str) -> None:
        """Type a command and press Enter."""
        for letter in command:
            os.write(shell.terminal, letter.encode())
            self.go_on(KEY_S)
        self.go_on(0.4)
        os.write(shell.terminal, b"\r")
        self.go_on(0.1)

    def is_at_prompt(self) -> bool:
        """Whether the first shell waits for a command."""
        lines = self.run.text().rstrip().splitlines()
        return bool(lines) and lines[-1].rstrip() == "$"

    def close(self) -> None:
        for shell in (self.run, self.other):
            group = shell.job_in_front()
            for pid in {group, os.getpgid(shell.pid)}:
                os.killpg(pid, signal.SIGKILL)
            os.close(shell.terminal)
            os.waitpid(shell.pid, 0)


def play(session: Session) -> str | None:
    """Type what the recording shows. Returns what was not as it should be."""
    run, other = session.run, session.other
    # 1. A run, up to the middle of a training.
    session.span(0.6)
    session.until(session.is_at_prompt, START_S)
    session.go_on(0.3)
    session.span(2.5)
    session.type(run, TRAIN)
    session.span(1.2)
    session.until(lambda: "playing test problems" in run.text(), START_S)
    session.span(2.5)
    session.until(lambda: _PLAYED.search(run.text()), RUN_S)
    session.span(2.0)
    count = session.until(lambda: _in_the_middle(run.text()), RUN_S)
    # 2. Kill it; its server notices, and ends.
    session.span(2.2)
    before = len(run.printed)
    session.type(other, f"kill -9 -{run.job_in_front()}   # {count} episodes are over")
    session.until(lambda: "Killed" in run.printed[before:], 10.0)
    session.go_on(1.2)
    # 3. The same command again.
    session.span(1.5)
    before = len(run.printed)
    session.type(run, TRAIN)
    session.span(1.2)
    session.until(lambda: f"run {RUN} goes on:" in _plain(run.printed[before:]), START_S)
    session.span(3.0)
    session.until(session.is_at_prompt, RUN_S)
    # 4. What the run's files, and its server's records, say of it.
    session.span(2.0)
    session.go_on(0.5)
    session.type(run, f"nip verify {RUN}; ls runs/{RUN}/lm_server/jobs")
    session.until(session.is_at_prompt, START_S)
    session.span(3.0)
    session.go_on(0.5)
    # 5. Whether that is what should have been.
    after = _plain(run.printed[before:])
    jobs = {job for _, job in _JOB.findall(after)}
    submitted = re.findall(r"ftjob-\w+", after.partition("nip verify")[2])
    there = re.search(r"train problems, \d+ episodes,\s+(\d+)\s+of\s+them", after)
    there = there or re.search(r"[\d,]+\s+answers\s+are\s+in\s+journals", after)
    if len(jobs) != 2 or sorted(submitted) != sorted(jobs) or "no problems" not in after:
        return f"jobs {jobs}, on the server {submitted}:\n{after[-3000:]}"
    return None if there else f"nothing was there already:\n{after[:3000]}"


def _in_the_middle(text: str) -> str | None:
    played = _PLAYED.search(text)
    is_so = played is not None and 0.3 <= int(played[1]) / int(played[2]) < 1
    return f"{played[1]} of {played[2]}" if played and is_so else None


def _plain(printed: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).replace("\r", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path.home() / "nip-demo")
    parser.add_argument("--out", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    make_sure_of_pyte()
    # A path that the picture shows, and that nobody needs afterwards.
    arguments.work.mkdir()
    session = Session(arguments.work)
    try:
        wrong = play(session)
    finally:
        session.close()
        shutil.rmtree(arguments.work)
    recording = Recording(session.frames, session.spans, session.now(), COLUMNS)
    out = PACKAGES / "refused.svg" if wrong else arguments.out
    size = write_svg(out, recording, TITLE)
    print(f"{out}: {size} bytes, {session.now():.0f} s of which are shown")
    if wrong:
        raise SystemExit(wrong)


TITLE = "nip train, killed with kill -9 while it plays, and started again"

if __name__ == "__main__":
    main()
