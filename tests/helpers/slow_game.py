"""A run of some seconds per stage, so that a test can meet it in the middle."""

import json
from pathlib import Path

import yaml
from small_game import write_config

from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE

ONE = {"num_iterations": 1, "rollouts_per_iteration": 40, "num_epochs": 1}


def slow_config(folder: Path, name: str, training_s: float = 0.0, **changes) -> Path:
    """A configuration whose answers take 0.2 s each, and its jobs `training_s`."""
    folder.mkdir()
    replies = yaml.safe_load(DEFAULT_FILE.read_text())
    replies |= {"latency_s": {"mean": 0.2}, "training": {"seconds": training_s}}
    path = folder / "replies.yaml"
    path.write_text(yaml.safe_dump(replies))
    settings = {
        "rl": ONE,
        "lm_server": {"engine": "deterministic", "replies": str(path)},
        "rollouts": {"concurrency": 4, "episodes_per_shard": 20},
        "run_name": name,
        **changes,
    }
    return write_config(folder, **settings)


def digests(folder: Path, name: str) -> dict:
    """Of what such a run has played."""
    run = RunStore(open_store(folder / "runs"), name)
    return {
        stage: read_manifest(run.store, run.rollouts(*stage)).extra["canonical_digest"]
        for stage in ((0, "test"), (0, "train"), (1, "test"))
    }


def is_playing(folder: Path, name: str) -> bool:
    """Whether it is in the middle of playing its training problems."""
    journals = (folder / "runs" / name / "journals" / "0000" / "train").glob("*.journal")
    return any(journal.stat().st_size > 2000 for journal in journals)


def runner_of(folder: Path, name: str) -> int:
    """The pid of the process that holds it."""
    lease = json.loads((folder / "runs" / name / "lease.json").read_text())
    return int(lease["owner"]["pid"])
