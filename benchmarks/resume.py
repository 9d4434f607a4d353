"""How long a run with 10,000 finished rollouts takes from its start to its first new call.

    python benchmarks/resume.py [--rollouts 10000] [--out docs/results/resume.json]

`nip train` plays one iteration of `nip` with three rounds on the deterministic engine of a server
of its own, with a Prefect server beside it, and is killed with SIGKILL when the rollouts are
committed and the next ones are being played. It is started again: measured is the time from the
start of the process to the first new answer in a journal, and from the server's counters how many
calls were sent in all. The bar: under 10 s, and no more calls than there are generations, plus
those that were in flight when the run was killed.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml
from measured_commit import describe_commit

ROOT = Path(__file__).parent.parent
ROUNDS, CONCURRENCY, SHARD, EXTRA = 3, 64, 200, 2000
MOST_S = 10.0
DEADLINE_S = 3600.0
_HEADER = 100  # more bytes than an empty journal has


def configuration(place: Path, rollouts: int, server: str) -> Path:
    """A run that plays `rollouts` and EXTRA more in its only iteration."""
    settings = {
        "run_name": "resume",
        "run_store": str(place / "runs"),
        "dataset": "families",
        "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "sim"}},
        "lm_server": {"url": server},
        "nip_protocol": {"max_message_rounds": ROUNDS, "min_message_rounds": ROUNDS},
        "rl": {"num_iterations": 1, "rollouts_per_iteration": rollouts + EXTRA, "num_epochs": 1},
        "text_rl": {"test_scheme": "none"},
        "rollouts": {"concurrency": CONCURRENCY, "episodes_per_shard": SHARD},
    }
    path = place / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def start(config: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """`nip train` on the configuration."""
    with (config.parent / "log").open("ab") as log:
        command = [sys.executable, "-m", "nip_cli.cli", "train", str(config)]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def wait_until(done: Any, process: subprocess.Popen[bytes], what: str, log: Path) -> float:
    """The time at which `done` first says so."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{what}: it did not come to that:\n{log.read_text()[-3000:]}")
        time.sleep(0.005)
    return time.monotonic()


def calls_of(server: str, key: str) -> int:
    """Count how many chat completions the server has begun."""
    request = urllib.request.Request(
        f"{server}/metrics", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    found = re.findall(r"^nip_requests_total\{[^}]*chat[^}]*\} (\S+)$", text, re.M)
    return int(sum(map(float, found)))


def measure(place: Path, rollouts: int) -> dict[str, Any]:
    """Play, kill, go on."""
    from prefect.settings import get_current_settings
    from prefect.testing.utilities import prefect_test_harness

    from nip_base.spec import ServerSpec
    from nip_lm_server.launch import start_or_attach, stop

    with prefect_test_harness(server_startup_timeout=180):
        handle = start_or_attach(ServerSpec("deterministic", "sim"), place / "server")
        try:
            environment = {
                **os.environ,
                "DO_NOT_TRACK": "1",
                "PREFECT_API_URL": str(get_current_settings().api.url),
                "PREFECT_HOME": str(place / "prefect"),
                "NIP_API_KEY": handle.api_key,
            }
            config = configuration(place, rollouts, handle.url)
            return _interrupted(place, rollouts, config, environment, handle)
        finally:
            stop(handle)


def _interrupted(
    place: Path, rollouts: int, config: Path, environment: dict[str, str], handle: Any
) -> dict[str, Any]:
    split = place / "runs/resume/iterations/0000/rollouts/train"

    first = start(config, environment)

    def answered() -> int:
        time.sleep(0.1)
        return calls_of(handle.url, handle.api_key)

    enough = ROUNDS * rollouts
    wait_until(lambda: answered() >= enough, first, "the first part", place / "log")
    first.send_signal(signal.SIGKILL)
    first.wait()
    finished = calls_of(handle.url, handle.api_key) // ROUNDS
    journals = place / "runs/resume/journals"
    sizes = {path: path.stat().st_size for path in journals.rglob("*.journal")}
    began = time.monotonic()
    second = start(config, environment)

    def has_new_answer() -> bool:
        found = journals.rglob("*.journal")
        return any(path.stat().st_size > sizes.get(path, _HEADER) for path in found)

    seconds = wait_until(has_new_answer, second, "the second part", place / "log") - began
    if second.wait() != 0:
        raise SystemExit("the second part failed; see the log")
    generations = sum(pq.read_metadata(f).num_rows for f in split.glob("generations-*.parquet"))
    calls = calls_of(handle.url, handle.api_key)
    return {
        "finished_rollouts": finished,
        "seconds_to_first_new_answer": round(seconds, 2),
        "generations": generations,
        "calls": calls,
        "repeated": calls - generations,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        result = measure(Path(place), options.rollouts)
    met = result["seconds_to_first_new_answer"] < MOST_S and result["repeated"] <= CONCURRENCY
    result |= {
        "bar": {"seconds": MOST_S, "repeated": CONCURRENCY, "met": met},
        "commit": describe_commit(),
        "machine": {
            "system": platform.machine(),
            "python": platform.python_version(),
            "cores": psutil.cpu_count(),
            "load_before": round(load, 1),
        },
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
