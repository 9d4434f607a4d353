"""The bundled model served, and trained, in the test's own process.

TrainerHere   trains without a process of its own
tiny          a server's configuration with that model
"""

import contextlib
import json
import threading
from typing import Any
from unittest import mock

from nip_base.spec import ServerSpec
from nip_core.models import resolve_model
from nip_lm_server.jobs.training_process import SubprocessTrainer


class TrainerHere(SubprocessTrainer):
    """Trains in this process, which spares the start of another; what it is given is the same."""

    async def _run_child(self, task: Any, report: Any, started: Any, stop: Any) -> Any:
        from nip_lm_server.training.main import main

        task.output_dir.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            if threading.current_thread() is not threading.main_thread():
                stack.enter_context(mock.patch("signal.signal"))  # which only that one may call
            returncode = main(["--job-dir", str(task.job_dir)])
        lines = (task.job_dir / "events.jsonl").read_text().splitlines()
        report([json.loads(line) for line in lines])
        return returncode, None


def tiny() -> ServerSpec:
    return ServerSpec(
        "embedded", resolve_model("tiny"), served_model_name="tiny", options={"threads": 1}
    )
