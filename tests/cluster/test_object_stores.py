"""A run on an object store: killed, moved to an empty machine, and equal to one on a disk."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server
from prefect_stack import Stack, until
from small_game import write_config

from nip_core.run_store.manifest import read_manifest, verify
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
DEADLINE_S = 300
STAGES = [(0, "test"), (0, "train"), (1, "test"), (1, "train"), (2, "test")]


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server.serve() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


@pytest.fixture(scope="module")
def prefect(s3: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("prefect"))
    try:
        stack.start_server()
        yield stack
    finally:
        stack.close()


def start(prefect: Stack, machine: Path, config: Path) -> subprocess.Popen[str]:
    """`nip train` on a machine with nothing on it but what was put in its folder."""
    (machine / "home").mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "nip_cli.cli", "train", str(config)],
        env={
            **os.environ,
            **prefect.environment,
            "HOME": str(machine / "home"),
            "XDG_CACHE_HOME": str(machine / "cache"),
            "PREFECT_HOME": str(machine / "prefect"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    return said


def results(store: str | Path) -> dict[str, object]:
    """What has to be equal, and that it is whole."""
    run = RunStore(open_store(store), "small")
    for stage in STAGES:
        verify(run.store, run.rollouts(*stage))
    digests = {
        str(stage): read_manifest(run.store, run.rollouts(*stage)).extra["canonical_digest"]
        for stage in STAGES
    }
    models = [run.read_json(run.models(i))["groups"] for i in (0, 1)]
    names = [{group: model["model"] for group, model in one.items()} for one in models]
    return {**digests, "models": names}


@pytest.fixture(scope="module")
def on_disk(prefect: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("disk")
    finish(start(prefect, folder / "machine", write_config(folder)))
    return results(folder / "runs")


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("0000/rollouts/train/plan.json", id="playing"),
        pytest.param("0000/jobs/prover.json", id="training", marks=pytest.mark.short),
        pytest.param("0001/rollouts/train/plan.json", id="playing-what-was-trained"),
    ],
)
def test_a_run_goes_on_from_the_bucket_alone(
    moment: str, prefect: Stack, s3: dict[str, str], on_disk: dict[str, object], tmp_path: Path
) -> None:
    url = s3_server.make_bucket(s3, f"bucket-{tmp_path.name[-20:].strip('-_').replace('_', '-')}")
    config = write_config(tmp_path, run_store=f"{url}/runs")
    first = start(prefect, tmp_path / "first", config)
    store = open_store(f"{url}/runs")
    until(
        lambda: store.exists(f"small/iterations/{moment}") or first.poll() is not None,
        moment,
        DEADLINE_S,
    )
    first.send_signal(signal.SIGKILL)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL, said
    finish(start(prefect, tmp_path / "second", config))
    assert results(f"{url}/runs") == on_disk
    run = RunStore(store, "small")
    assert store.exists(f"{run.root}/report.html")
    assert store.list("small/journals/0000/train") == []
    names = [name for one in on_disk["models"] for name in one.values()]
    assert {f"{name.rpartition(':')[2]}/" for name in names} == set(store.list("small/adapters"))
