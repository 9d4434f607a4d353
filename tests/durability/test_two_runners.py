"""Two runners are started together on one run, again and again: exactly one of them plays it."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from killed_results import Results
from killed_runs import DEADLINE_S, Zygote
from small_game import write_config

from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE

ROUNDS = 50 if os.environ.get("NIP_KILL_POINTS") == "all" else 1
IN_USE = 4
"""What `nip` exits with where another runner has the run."""
ANSWER_S = 0.5
"""Long enough for the second runner to see the first one's heart beat while it plays."""


def configured(folder: Path) -> Path:
    folder.mkdir()
    replies = {**yaml.safe_load(DEFAULT_FILE.read_text()), "latency_s": {"min": ANSWER_S}}
    (folder / "replies.yaml").write_text(yaml.safe_dump(replies))
    return write_config(
        folder,
        lm_server={"engine": "deterministic", "replies": str(folder / "replies.yaml")},
        rl={"num_iterations": 1, "rollouts_per_iteration": 20, "num_epochs": 1},
        dataset_options={"max_test_size": 10, "max_train_size": 50},
    )


def started(flows: Zygote, config: Path, name: str) -> int:
    folder = config.parent
    return flows.start(
        arguments=["train", str(config)],
        root=str(folder),
        steps=str(folder / f"steps-{name}"),
        log=str(folder / f"{name}.log"),
        modules=str(folder / f"modules-{name}"),
        names={},
    )


def digests(folder: Path) -> list[str]:
    run = RunStore(open_store(folder / "runs"), "small")
    stages = [(0, "test"), (0, "train"), (1, "test")]
    return [
        read_manifest(run.store, run.rollouts(*stage)).extra["canonical_digest"] for stage in stages
    ]


@pytest.mark.timeout(3600)
def test_of_two_runners_that_start_together_exactly_one_proceeds(
    flows: Zygote, results: Results, tmp_path: Path
) -> None:
    made: set[tuple[str, ...]] = set()
    for number in range(ROUNDS):
        config, began = configured(tmp_path / str(number)), time.monotonic()
        both = {name: started(flows, config, name) for name in ("one", "other")}
        statuses = {name: flows.wait(pid) for name, pid in both.items()}
        said = {
            name: " ".join((config.parent / f"{name}.log").read_text().split()) for name in both
        }
        assert sorted(statuses.values()) == [0, IN_USE], said
        [refused] = [name for name, status in statuses.items() if status == IN_USE]
        [played] = [name for name, status in statuses.items() if status == 0]
        assert f"process {both[played]} on" in said[refused], said
        assert "holds this run; wait for it or stop it" in said[refused]
        made.add(tuple(digests(config.parent)))
        seconds = round(time.monotonic() - began, 2)
        results.add(
            "two_runners",
            {
                "round": number + 1,
                "played by": "the first" if played == "one" else "the second",
                "seconds": seconds,
            },
        )
    assert len(made) == 1, "every round ends the same"
    wait_for(lambda: not flows.left())


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
