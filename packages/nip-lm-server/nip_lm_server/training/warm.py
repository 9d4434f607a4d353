"""A process that has imported the modules of trainings, and forks a process for each training.

``python -m nip_lm_server.training.warm SERVER_PID FD``, where FD is an inherited Unix socket. The
server sends ``{"job_dir": ...}`` with two descriptors: a pipe that ends with the server, which
becomes the training's standard input, and the training's log. Answers are lines: ``{"pid": ...}``
of the forked training, the leader of a process group of its own, then ``{"status": ...}``, as
subprocess.Popen has it.

Importing torch, transformers, TRL and PEFT takes several seconds of a processor, most of a small
job. A fork has them already, and is a fresh process otherwise: no training shares data with
another, and all of its memory goes with it. This process computes nothing, so it has no threads
when it forks, which torch would wait for. It forks for the processors only, because a CUDA driver
does not survive a fork.

The kernel kills this process when the server dies, and each training when this process dies. A
training also ends when its standard input ends.
"""

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from nip_base.machine.processes import die_with_parent_process, watch_parent
from nip_lm_server.training.die_with_parent import kill_own_group
from nip_lm_server.training.job import TrainingJob, read_job

_MODULES = (
    *("torch", "transformers.trainer", "peft", "datasets"),
    *(
        f"nip_lm_server.training.{name}"
        for name in (
            *("main", "runner", "methods.arguments", "methods.checkpoints"),
            *("model.loading", "model.memory", "model.output"),
        )
    ),
    "nip_lm_server.lora.prove_weights",
)
_OF_METHODS = {
    "supervised": ("nip_lm_server.training.methods.sft", "trl.trainer.sft_trainer"),
    "dpo": ("nip_lm_server.training.methods.dpo", "trl.trainer.dpo_trainer"),
    "trajectories": (
        "nip_lm_server.training.methods.rl",
        "nip_lm_server.training.methods.policy_trainer",
    ),
}


def main() -> NoReturn:
    """Fork trainings until the server has gone."""
    parent, descriptor = map(int, sys.argv[1:3])
    die_with_parent_process(parent)
    server = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(server, 2**16, 2)
        if not message:
            os._exit(0)
        job_dir = Path(json.loads(message)["job_dir"])
        # The training itself reports an error of an import or of ``job.json``.
        with contextlib.suppress(Exception):
            _prepare(read_job(job_dir))
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(own, server, job_dir, *descriptors)
        for held in descriptors:
            os.close(held)
        # Both processes do this, so that the group exists whichever comes first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        _tell(server, {"pid": pid})
        _, status = os.waitpid(pid, 0)
        _tell(server, {"status": os.waitstatus_to_exitcode(status)})


def _prepare(job: TrainingJob) -> None:
    """Import the modules that the job needs; those of earlier jobs are there already."""
    for name in (*_MODULES, *_OF_METHODS[job.method]):
        importlib.import_module(name)
    from transformers import AutoModelForCausalLM

    from nip_lm_server.training.model.loading import read_config

    # This look-up imports the module of the model's architecture.
    AutoModelForCausalLM._model_mapping[type(read_config(job))]
    # A search for garbage would write to pages that all forks share.
    gc.collect()
    gc.freeze()


def _become(parent: int, server: socket.socket, job_dir: Path, pipe: int, log: int) -> NoReturn:
    """Become the training process of one job."""
    status = 1
    try:
        os.setpgid(0, 0)
        die_with_parent_process(parent)
        server.close()
        for held, standard in ((pipe, 0), (log, 1), (log, 2)):
            os.dup2(held, standard)
        os.close(pipe)
        os.close(log)
        watch_parent(parent, 0, kill_own_group)
        from nip_lm_server.training.main import main as train

        status = train(["--job-dir", str(job_dir)])
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _tell(server: socket.socket, answer: dict[str, Any]) -> None:
    server.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
