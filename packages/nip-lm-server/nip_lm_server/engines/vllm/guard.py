"""Runs a server of another environment, and ends it with all its children when ours ends.

``python -m nip_lm_server.engines.vllm.guard SERVER_PID RECORD COMMAND...``, with a pipe from
the server as standard input. The command leads a process group of its own. That group is killed
when the command's first process ends in any way, when the pipe ends, and ten seconds after
SIGTERM, which is passed to the first process alone so that it can close down its children.

RECORD is a file that names the group while it may live, for `end_recorded`: should the guard and
the server be killed at the same instant, the next start ends their processes.

vLLM's processes talk through sockets, which stay behind when the processes are killed. So the
sockets have a folder of their own, which the record names, too: it is deleted once no process of
the group runs any more.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

from nip_base.machine.processes import signal_group, watch_parent

GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL. A rule of thumb: with far less, vLLM is killed before it has
closed down its workers; with far more, a vLLM that hangs holds up the server's stop."""
SOCKETS_VARIABLE = "VLLM_RPC_BASE_PATH"
"""The folder of vLLM's sockets; vLLM takes the one for temporary files if it is not set."""
_SOCKETS_PREFIX = "nip-vllm-"
_POLL_S = 0.02
"""The pause between two looks, since each goes through all processes of the machine."""


def main() -> None:
    """Run the command. Exits with its status, or with 128 + the number of its last signal."""
    parent, record, command = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    # 1. Start the command. Until the record is there, no other process could end it: signals have
    #    to wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    environment, sockets = dict(os.environ), None
    if not environment.get(SOCKETS_VARIABLE):
        # Not in the record's folder: a socket's path has at most 107 characters.
        environment[SOCKETS_VARIABLE] = sockets = tempfile.mkdtemp(prefix=_SOCKETS_PREFIX)
    child = subprocess.Popen(
        command,
        env=environment,
        # Not the guard's own: that pipe shows the server's end, and the guard alone reads it.
        stdin=subprocess.DEVNULL,
        process_group=0,
        # The command would inherit the blocked signals, and never see a SIGTERM.
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()) and None,  # noqa: PLW1509
    )
    # Put in place whole: a reader would take half a record for none.
    part = record.with_name(record.name + ".part")
    part.write_text(json.dumps({"group": child.pid, "session": os.getsid(0), "sockets": sockets}))
    part.replace(record)

    # 2. Pass signals on to the first process; after a while, kill the whole group.
    def pass_on(number: int, frame: FrameType | None) -> None:
        # To the first process alone, so that it can close down its children.
        with contextlib.suppress(ProcessLookupError):  # it has ended, and step 4 is under way
            child.send_signal(signal.SIGTERM)
        timer = threading.Timer(GRACE_S, signal_group, [child.pid, signal.SIGKILL])
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})

    # 3. End with the server.
    def parent_died() -> None:
        # Without a grace: no server waits for it, and the next one may want the device at once. The
        # record stays, since no process has been seen to end.
        signal_group(child.pid, signal.SIGKILL)
        os._exit(1)

    watch_parent(parent, 0, parent_died)
    # 4. Once the first process has ended, end the rest of its group; the record goes last.
    status = child.wait()
    signal_group(child.pid, signal.SIGKILL)
    # A process that outlasts this keeps its record, by which the next start tries again.
    end_recorded(record, wait_s=GRACE_S)
    os._exit(status if status >= 0 else 128 - status)


def end_recorded(record: Path, *, wait_s: float = 5.0) -> bool:
    """Kill the processes left by a guard, by its record. True once none of them runs.

    False: some may run. The record stays, and the caller must not start another command, since the
    two would share a device that has room for one.

    Only processes in the recorded group and in the guard's session are touched: other processes
    can't get both numbers as long as one of these lives.
    """
    try:
        value = json.loads(record.read_text())
        group, session = int(value["group"]), int(value["session"])
    except FileNotFoundError:
        # The guard has ended its group. If it was killed before it could write the record, its
        # processes are unknown, and can't be ended here.
        return True
    except OSError:
        return False  # there is a record, and its processes are unknown
    except (ValueError, KeyError, TypeError):
        # A guard puts its record in place whole. Only the machine's crash can tear it, and that
        # leaves no process.
        return True
    # A killed process lives on until the kernel has freed its resources, such as a device's memory.
    # That this takes less than `wait_s` is a rule of thumb, the same as in `processes.end_process`.
    deadline = time.monotonic() + wait_s
    while members := _list_members(group, session):
        for pid in members:
            # It has ended meanwhile, or is another user's: then the deadline decides.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    _delete_sockets(value.get("sockets"))
    record.unlink(missing_ok=True)
    return True


def _delete_sockets(folder: object) -> None:
    """Delete a folder made by a guard; a user's own folder stays."""
    if isinstance(folder, str) and Path(folder).name.startswith(_SOCKETS_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)  # a few empty files are not worth a failure


def _list_members(group: int, session: int) -> list[int]:
    """List the running processes of a group, without ended ones waiting for their parent."""
    import psutil

    members = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) != group or os.getsid(pid) != session:
                continue
            if psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                members.append(pid)
        except (OSError, psutil.Error):
            continue  # it has ended since its number was listed
    return members


if __name__ == "__main__":
    main()
