"""How long a temporary Prefect server takes to its first answer in a new Prefect home.

    .venv/bin/python benchmarks/prefect_start.py --pairs 7

With the database laid out from the schema, and by Prefect's migrations, in turn. Prints JSON: for
each way the medians of seconds and of seconds of a processor, and the machine's loads meanwhile.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from nip_cli.launching.temporary_prefect import TemporaryPrefect

URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
WAYS = ("migrations", "schema")


def start(way: str) -> tuple[float, float]:
    """Return seconds to the first answer, and the server's seconds of a processor until then."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        os.environ["PREFECT_HOME"] = home
        os.environ.pop(URL, None)
        if way == "migrations":  # the same file by another name, which is left to Prefect
            os.environ[URL] = f"sqlite+aiosqlite:///{Path(home)}/./prefect.db"
        begun_s = time.monotonic()
        server = TemporaryPrefect()
        try:
            server.wait(600)
            took_s = time.monotonic() - begun_s
            times = psutil.Process(server._process.pid).cpu_times()
        finally:
            server.stop()
    return took_s, times.user + times.system


def main() -> None:
    """Measure both ways in turn and print what they took."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=7)
    pairs = arguments.parse_args().pairs
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    loads: list[float] = []
    for _ in range(pairs):
        for way in WAYS:
            took[way].append(start(way))
            loads.append(round(os.getloadavg()[0], 1))
    medians = {
        way: {
            "seconds": round(statistics.median(s for s, _ in rows), 1),
            "processor_seconds": round(statistics.median(c for _, c in rows), 1),
        }
        for way, rows in took.items()
    }
    print(json.dumps({"pairs": pairs, "medians": medians, "loads": loads}, indent=2))


if __name__ == "__main__":
    main()
