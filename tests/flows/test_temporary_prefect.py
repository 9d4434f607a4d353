"""What a temporary Prefect server keeps is for its owner alone."""

import os
from pathlib import Path

import pytest
from prefect_stack import until

from nip_cli.launching.temporary_prefect import TemporaryPrefect


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="of Linux alone")
def test_a_database_that_a_temporary_server_makes_is_nobody_elses(own_prefect, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", own_prefect["PREFECT_HOME"])
    own = os.umask(0o022)
    try:
        server = TemporaryPrefect()
        try:
            status = Path(f"/proc/{server._process.pid}/status")
            assert "Umask:\t0077\n" in until(status.read_text, "it runs")
        finally:
            server.stop()
    finally:
        os.umask(own)
