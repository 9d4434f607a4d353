"""``python -m nip_bridges.tracking``: the process of `nip_bridges.tracking.feeder`.

The first line of stdin is its task, as JSON.
"""

import sys

from nip_bridges.tracking.feeder import run_feeder
from nip_bridges.tracking.messages import FeederTask

if __name__ == "__main__":
    sys.exit(run_feeder(FeederTask.model_validate_json(sys.stdin.readline())))
