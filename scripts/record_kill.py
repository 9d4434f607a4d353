#!/usr/bin/env python3
"""Record a real run that is killed with kill -9 and goes on: docs/images/kill-and-resume.svg.

    .venv/bin/python scripts/record_kill.py [--work DIR] [--out FILE]

Two shells in terminals of 80 columns are typed into: one runs `nip train`, the other kills its
process group in the middle of a training. What they print is shown as it was, with the time that
had gone by; only how fast it is shown changes, and the picture says how fast.

Ends with 1, and draws nothing, if the run did not go on as it should: another job than before the
kill, a file that `nip verify` complains of. Takes some minutes, a CPU with two cores and the
extra `local`. pyte, which turns what was printed into screens, is installed into build/recording.
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
SETTINGS = (
    "rl.num_iterations=1",
    "rl.rollouts_per_iteration=100",
    "dataset_options.max_test_size=100",
)
TRAIN = " ".join([f"nip train quickstart --set run_name={RUN}", *(f"--set {s}" for s in SETTINGS)])
KEY_S = 0.045  # between two keys
START_S, RUN_S = 180.0, 900.0  # longest waits
_STEP = re.compile(r"verifier +\S* *step (\d+)/(\d+)")
_JOB = re.compile(r"(prover|verifier) trains as job (ftjob-\w+)")


def make_sure_of_pyte() -> None:
    """Install what draws screens, if it is not there."""
    if not (PACKAGES / "pyte").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(PACKAGES)]
        subprocess.run([*command, *NEEDED], check=True)
        importlib.invalidate_caches()


class Shell:
    """A bash in a terminal, and the screen that it draws."""

    def __init__(self, rows: int, work: Path) -> None:
        import pyte

        self.printed = ""
        self.screen = pyte.Screen(COLUMNS, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(work)
            os.environ.update(
                PATH=f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
                TERM="xterm-256color",
                PS1="$ ",
                HISTFILE="",
                OMP_NUM_THREADS="1",  # so small a model is no slower, also on a busy machine
            )
            for name in ("COLORTERM", "COLUMNS", "LINES", "NO_COLOR"):
                os.environ.pop(name, None)
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])  # noqa: S606
        size = struct.pack("HHHH", rows, COLUMNS, 0, 0)
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


def play(session: Session) -> None:
    """Type what the recording shows. Raises SystemExit if the run does not go on as it should."""
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
    session.until(lambda: _STEP.search(run.text()), RUN_S)
    session.span(2.0)
    step = session.until(lambda: _past_half(run.text()), RUN_S)
    jobs = set(_JOB.findall(_plain(run.printed)))
    # 2. Kill it; its server notices, and ends.
    session.span(2.2)
    before = len(run.printed)
    session.type(other, f"kill -9 -{run.job_in_front()}   # the run, at step {step}")
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
    if set(_JOB.findall(after)) - jobs or len(jobs) != 2:
        raise SystemExit(f"other jobs than {jobs}:\n{after}")
    submitted = re.findall(r"^(ftjob-\w+)", after.partition("nip verify")[2], re.MULTILINE)
    if set(submitted) != {job for _, job in jobs} or "no problems" not in after:
        raise SystemExit(f"the run's files or jobs are not as they should be:\n{after}")


def _past_half(text: str) -> str | None:
    step = _STEP.search(text)
    is_past = step is not None and 0.5 <= int(step[1]) / int(step[2]) < 1
    return f"{step[1]}/{step[2]}" if step and is_past else None


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
        play(session)
    finally:
        session.close()
        shutil.rmtree(arguments.work)
    recording = Recording(session.frames, session.spans, session.now(), COLUMNS)
    size = write_svg(arguments.out, recording, TITLE)
    print(f"{arguments.out}: {size} bytes, {session.now():.0f} s of which are shown")


TITLE = "nip train, killed with kill -9 while it trains, and started again"

if __name__ == "__main__":
    main()
