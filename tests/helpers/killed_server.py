"""Runs an lm_server that kills itself with SIGKILL before its N-th durable step (0: never).

``python killed_server.py STEPS_FILE N ARGUMENT...``: a step is a file opened for writing, renamed
or removed, a directory made or removed, a process started, or a statement that writes to a
database, in the state directory. Each step is appended to STEPS_FILE before it is done. Nothing
in the server knows of this: Python's audit events and SQLite's trace tell.
"""

import os
import signal
import sqlite3
import sys
import threading
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_STATEMENTS = ("INSERT", "UPDATE", "DELETE", "COMMIT")


def main() -> None:
    steps_file, kill_at, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    state = arguments[arguments.index("--state") + 1]
    log = os.open(steps_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    lock = threading.Lock()
    count = 0

    def step(label: str) -> None:
        nonlocal count
        with lock:
            count += 1
            os.write(log, f"{label.replace(state, 'STATE')}\n".encode())
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def inside(path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(state)

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and inside(values[0]) and values[2] & _WRITES:
            step(f"open {os.fspath(values[0])}")
        elif event in ("os.rename", "os.link") and inside(values[1]):
            step(f"{event} {os.fspath(values[0])} {os.fspath(values[1])}")
        elif event in ("os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree") and inside(values[0]):
            step(f"{event} {os.fspath(values[0])}")
        elif event == "subprocess.Popen":
            step("start a process")

    def statement(sql: str) -> None:
        if sql.lstrip().startswith(_STATEMENTS):
            step("sql " + " ".join(sql.split()[:4]))

    connect = sqlite3.connect

    def traced(*values: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*values, **options)
        connection.set_trace_callback(statement)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]
    sys.addaudithook(hook)
    from nip_core.lm_server.__main__ import main as serve

    raise SystemExit(serve(arguments))


if __name__ == "__main__":
    main()
