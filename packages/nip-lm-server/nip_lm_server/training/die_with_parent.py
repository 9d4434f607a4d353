"""Runs a training module and ends it with the server, in any case.

``python -m nip_lm_server.training.die_with_parent SERVER_PID MODULE ARGUMENT...``, as the leader of
a process group, with a pipe from the server as standard input. When that pipe ends, this process
kills its whole process group (itself and its children). If this process is stuck, the kernel kills
it when the server dies. Then its children may go on; the server ends them by their recorded group
at its next start.
"""

import os
import runpy
import signal
import sys

from nip_base.machine.processes import die_with_parent_process, watch_parent


def main() -> None:
    """Guard this process and run the module named by the second argument as ``__main__``."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    watch_parent(parent, 0, kill_own_group)
    die_with_parent_process(parent)
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def kill_own_group() -> None:
    """End this process, and its process group where it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
