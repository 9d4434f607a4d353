"""Runs `nip` in forks of a process that has imported everything, which spares seconds for each.

What it does not show: what a fresh interpreter prints or does while it imports.

ForkedNip                starts that process; `run` is as subprocess.run of `nip` with these arguments
python forked_nip.py     is that process: one JSON object per line in, one exit status per line out
status_of, leave         end such a fork as its interpreter would end, and sooner
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LIMIT_S = 120
ROOT = Path(__file__).parents[2]


class ForkedNip:
    """Use as a context manager."""

    def __init__(self, environment: Mapping[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # What it imported would be measured as if each fork had run it.
            env={k: v for k, v in environment.items() if not k.startswith("COV")},
            cwd=ROOT,
        )

    def run(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Exit status and output of `nip` with these arguments and changes of the environment."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="forked-nip-") as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            task = {"arguments": arguments, "environment": environment or {}}
            line = json.dumps({**task, "out": str(out), "err": str(err)})
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
            assert said, f"the forking process ended with status {self._process.wait()}"
            return subprocess.CompletedProcess(
                arguments, int(said), out.read_bytes().decode(), err.read_bytes().decode()
            )

    def __enter__(self) -> "ForkedNip":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)


def main() -> None:
    """Fork for every line of standard input."""
    import pandas  # noqa: F401 (pyarrow imports it as soon as it makes an array)

    import nip_cli.cli
    import nip_cli.command_table
    import nip_cli.printing.live
    import nip_cli.printing.plans_and_runs
    import nip_core.jobs.openai_backend
    import nip_core.showing.asked_chats  # noqa: F401
    from nip_core.parameters import load_parameters
    from nip_core.session.problems_of_run import load_all_problems

    nip_cli.command_table.load_all()
    # Most commands look at a run of these problems, and would each read them.
    load_all_problems(load_parameters("deterministic"))
    # A thread would not be in the fork, but what it had locked would.
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
            leave(status_of(nip_cli.cli.main))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    leave(0)


def _become(task: dict[str, Any]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    out, err = (os.open(task[name], os.O_WRONLY | os.O_CREAT, 0o600) for name in ("out", "err"))
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.environ.update(task["environment"])
    sys.argv = ["nip", *task["arguments"]]
    signal.alarm(LIMIT_S)


def status_of(command: Callable[[], None]) -> int:
    """Run what a process does last; returns the status with which that then ends."""
    try:
        command()
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(status: int) -> None:
    """End as the interpreter does, except that what was imported stays where it is.

    Taking that apart would copy the memory that a fork shares, which takes longer than a command.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = 120
    os._exit(status)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
