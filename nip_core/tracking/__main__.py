"""``python -m nip_core.tracking``: the process of `nip_core.tracking.feeder`, its task as JSON in
the first line of stdin."""

import json
import sys

from nip_core.tracking.feeder import run_feeder

if __name__ == "__main__":
    sys.exit(run_feeder(json.loads(sys.stdin.readline())))
