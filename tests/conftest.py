"""Set before anything imports Prefect: no telemetry, no pages of logs around a failure."""

import os

from hypothesis import settings

os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A slow machine is no failure; `pytest-timeout` bounds what hangs.
settings.register_profile("nip", deadline=None)
settings.load_profile("nip")
