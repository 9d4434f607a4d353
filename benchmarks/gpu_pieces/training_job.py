"""One training job in this process, as nip's training process runs it, and what it took.

    python benchmarks/gpu_pieces/training_job.py JOB_DIR

Writes JOB_DIR/took.json: the most memory that torch had for the job (without CUDA: that was
resident), the time of each step, and how it ended. The training itself is the server's own.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from nip_lm_server.training import job as job_module
from nip_lm_server.training import main as main_module


class TimedEvents(job_module.Events):
    """Events that remember when they were told."""

    steps_s: list[float] = []  # noqa: RUF012 (one training in this process)

    def progress(self, step: int, total_steps: int, figures: dict[str, Any]) -> None:
        """Tell of every step."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.steps_s.append(time.monotonic())
        super().progress(step, total_steps, figures)


def memory() -> dict[str, float | None]:
    """The most that was in use, in GB."""
    import torch

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures: dict[str, float | None] = {"host_peak_gb": round(resident / 1e9, 3)}
    if torch.cuda.is_available():
        figures["peak_allocated_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        figures["peak_reserved_gb"] = round(torch.cuda.max_memory_reserved() / 1e9, 3)
    return figures


def main(job_dir: Path) -> int:
    """Train; the exit status of the training process."""
    main_module.Events = TimedEvents
    began = time.monotonic()
    status = main_module.main(["--job-dir", str(job_dir)])
    took = {
        "status": status,
        "whole_s": round(time.monotonic() - began, 3),
        "steps_s": [round(at - began, 4) for at in TimedEvents.steps_s],
        **memory(),
    }
    (job_dir / "took.json").write_text(json.dumps(took) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
