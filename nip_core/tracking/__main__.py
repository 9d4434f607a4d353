"""``python -m nip_core.tracking``: the process of `nip_core.tracking.feeder`, its task as JSON in
the first line of stdin."""

import sys

from nip_core.tracking.feeder import run_feeder
from nip_core.tracking.messages import FeederTask

if __name__ == "__main__":
    sys.exit(run_feeder(FeederTask.model_validate_json(sys.stdin.readline())))
