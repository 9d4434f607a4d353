"""A process that has imported everything and forks the processes that are to be killed.

``python killed_zygote.py flow|server|worker`` takes commands on standard input, one JSON object per
line, and answers each with one:

    {"start": {...}}    fork; a flow: `nip train CONFIG`; a server: `python -m nip_lm_server`;
                        a worker: `prefect worker start --pool POOL`
    {"import": [...]}   {}, once these modules are imported
    {"poll": PID}       {"status": null while it runs, else as of subprocess.Popen}
    {"left": true}      {"left": [command lines of all that descend from this process]}
    {"kill": true}      {}, once all that descend from this process are killed and have ended

It forks before it has had a thread of Python or an event loop, so a fork is as good as a fresh
interpreter, and saves its start. What a killed process leaves behind becomes a child of this one,
so nothing can hide. At the end of input all children are killed.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from forked_nip import leave, status_of

_SUBREAPER, _DEATH_SIGNAL = 36, 1
_FIRST = {
    "flow": [
        "nip_cli.cli",
        "nip_cli.printing.live",
        "nip_prefect.flows.train",
        "nip_core.jobs.openai_backend",
    ],
    "server": ["nip_lm_server.__main__", "nip_lm_server.api.app"],
    "worker": ["prefect.cli", "prefect.cli.worker", "prefect.workers.process"],
}
_libc = ctypes.CDLL(None)


def main() -> None:
    kind = sys.argv[1]
    _libc.prctl(_SUBREAPER, 1)
    _import(_FIRST[kind])
    print(json.dumps({"ready": os.getpid()}), flush=True)
    statuses: dict[int, int] = {}
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            pid = os.fork()
            if pid == 0:
                _become(kind, command["start"])  # does not return
            print(json.dumps({"pid": pid}), flush=True)
            continue
        _reap(statuses)
        if "import" in command:
            _import(command["import"])
            print("{}", flush=True)
        elif "poll" in command:
            print(json.dumps({"status": statuses.get(command["poll"])}), flush=True)
        elif "kill" in command:
            _kill_all(statuses)
            print("{}", flush=True)
        else:
            print(json.dumps({"left": _left()}), flush=True)
    _kill_all(statuses)
    leave(0)


def _left() -> list[list[str]]:
    left = []
    for process in psutil.Process().children(recursive=True):
        # One that has ended since the last look is as good as gone.
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(process.cmdline())
    return left


def _kill_all(statuses: dict[int, int]) -> None:
    """Kill the descendants, and what they start meanwhile, until there is none."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        time.sleep(0.01)
        _reap(statuses)


def _reap(statuses: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        statuses[pid] = os.waitstatus_to_exitcode(status)


def _note_modules(task: dict[str, Any]) -> None:
    names = [n for n, m in [*sys.modules.items()] if getattr(m, "__spec__", None) is not None]
    Path(task["modules"]).write_text(json.dumps(names))


def _import(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):  # some modules only come with others
            importlib.import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def _become(kind: str, task: dict[str, Any]) -> None:
    _libc.prctl(_SUBREAPER, 0)
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    os.setsid()
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    # One that hangs tells in its log where, see `killed_runs.Zygote.wait`.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    os.environ.update(task.get("environment", {}))
    import killed_steps

    point = tuple(task["point"]) if task.get("point") else None
    steps = killed_steps.install(Path(task["root"]), Path(task["steps"]), point)
    sys.argv = ["prefect" if kind == "worker" else "nip", *task["arguments"]]
    if kind == "server":
        from nip_lm_server.__main__ import main as serve

        killed_steps.note_calls(Path(task["calls"]))
        status = serve(task["arguments"])
        _note_modules(task)
        leave(status)
    killed_steps.watch_requests(steps, task["names"])
    if kind == "worker":
        from prefect.cli import app as command
    else:
        from nip_cli.cli import main as command

    status = status_of(command)
    _note_modules(task)
    leave(status)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
