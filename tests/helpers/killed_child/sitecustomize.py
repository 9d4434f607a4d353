"""Watches the steps of a server's training process, and kills it at one of them.

Python imports this at its start where the folder is on its path. NIP_TEST_KILL has a directory and
a point or null. Only the first training process is killed; the one after it goes on.
"""

import json
import os
import sys
from pathlib import Path

_TRAININGS = {"nip_lm_server.training.die_with_parent", "nip_lm_server.training.warm"}
if _TRAININGS & {*sys.orig_argv} and "NIP_TEST_KILL" in os.environ:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import killed_steps

    folder, point = json.loads(os.environ["NIP_TEST_KILL"])
    log = Path(folder) / "steps-of-training"
    first = not log.exists()
    killed_steps.install(Path(folder), log, tuple(point) if point and first else None)
