"""Feeds a tracker in forks of this process, killed at a chosen call of a function.

The tracker's package is imported once. Each line of stdin is a task: {"store", "run", "tracker",
"kill_at"}; each line of stdout says how it ended: {"status", "calls"}. `kill_at` counts the calls
of functions, Python's and C's, in the main thread; null: it is not killed.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

from nip_bridges.tracking.feeder import Feeder
from nip_bridges.tracking.places import tracker_directory
from nip_bridges.tracking.trackers import make_tracker
from nip_core.parameters.blocks.tracking import TrackerParameters
from nip_core.run_store.lease import acquire
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store


def feed(task: dict) -> None:
    run = RunStore(open_store(task["store"]), task["run"])
    tracker = TrackerParameters.model_validate(task["tracker"])
    directory = tracker_directory(run, tracker)
    with acquire(run.store, directory) as lease:
        made = make_tracker(tracker)
        feeder = Feeder(run, made, directory, "there", lease, lambda *_, **__: None)
        feeder.look(is_last=True)
        feeder.close()


def in_fork(task: dict) -> dict:
    counted = Path(task["store"]) / "calls"
    counted.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        os.setsid()  # whatever the tracker starts is killed with it
        calls = 0

        def count(frame, event, argument) -> None:
            nonlocal calls
            if event in ("call", "c_call"):
                calls += 1
                if calls == task["kill_at"]:
                    os.killpg(0, signal.SIGKILL)

        status = 1
        try:
            sys.setprofile(count)
            feed(task)
            sys.setprofile(None)
            counted.write_text(str(calls))
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    calls = int(counted.read_text()) if counted.exists() else None
    return {"status": os.waitstatus_to_exitcode(status), "calls": calls}


def main() -> None:
    tracker = TrackerParameters.model_validate(json.loads(sys.argv[1]))
    made = make_tracker(tracker)
    made.load()
    if tracker.kind == "mlflow":
        from mlflow import MlflowClient

        MlflowClient(tracker.uri).search_experiments()  # makes the database, once
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(in_fork(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
