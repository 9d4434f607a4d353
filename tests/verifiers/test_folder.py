"""The folder nip_verifiers/ as it is published: a package of its own, light beside verifiers."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from played_elsewhere import write_config

from nip_core.loop import train
from nip_core.parameters import load_parameters
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

pytestmark = pytest.mark.timeout(1200)
FOLDER = Path(__file__).parents[2] / "nip_verifiers"
SECTIONS = ("Overview", "Datasets", "Task", "Quickstart", "Environment arguments", "Metrics")
LOADED = """
import json, re, sys
from importlib.abc import MetaPathFinder
from importlib.metadata import distribution, packages_distributions
from packaging.requirements import Requirement

# 1. What an environment has that verifiers, pyarrow and pyyaml were installed into, and no more.
present = {"pip"}
def bring(name, extras=("",)):
    name = re.sub("[-_.]+", "-", name).lower()
    present.add(name)
    for text in distribution(name).requires or ():
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            if needed.name.lower() not in present or needed.extras:
                bring(needed.name, ("", *needed.extras))
for name in ("verifiers", "pyarrow", "pyyaml"):
    bring(name)
absent = {
    module
    for module, names in packages_distributions().items()
    if not module.startswith("nip_")
    and not present & {re.sub("[-_.]+", "-", name).lower() for name in names}
}
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
# 2. There the game is read, with its problems.
import verifiers.v1 as vf
import nip_verifiers
env = nip_verifiers.load_environment(protocol="adp", seed=7)
assert isinstance(env, vf.Env) and len(list(env.taskset)) > 100
print(json.dumps([sorted(absent), nip_verifiers.__file__]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """What the hub's client builds and sends."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-q", "-w", str(out), str(FOLDER)], check=True, timeout=600)
    [file] = out.glob("*.whl")
    return file


def test_the_wheel_is_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        [metadata] = [n for n in archive.namelist() if n.endswith("/METADATA")]
        text = archive.read(metadata).decode()
    assert files == {f"nip_verifiers/{file.name}" for file in FOLDER.glob("*.py")}
    assert "Name: nip-verifiers" in text and "Requires-Dist: verifiers" in text
    assert "Requires-Dist: nip-loop" in text


def test_the_hub_is_told_what_it_asks_for():
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    assert project["name"] == "nip-verifiers" and project["tags"] and project["description"]
    readme = (FOLDER / "README.md").read_text()
    for section in SECTIONS:
        assert f"\n### {section}\n" in readme, section


def test_playing_needs_little_beside_verifiers(wheel, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    absent, file = json.loads(done.stdout)
    assert ".whl" in file
    assert {"prefect", "pytest", "sqlalchemy"} <= {*absent}


async def test_a_run_trains_with_the_openai_client_that_verifiers_asks_for(server, tmp_path):
    from openai import __version__

    assert __version__.startswith("2.")
    short = {"max_test_size": 4, "max_train_size": 40}
    rl = {"num_iterations": 1, "rollouts_per_iteration": 40}
    config = write_config(tmp_path, server, 4, rl=rl, dataset_options=short)
    await train(load_parameters(config))
    run = RunStore(open_store(str(tmp_path / "runs")), "both")
    jobs = list((tmp_path / "runs" / "both" / "iterations" / "0000" / "jobs").glob("*.json"))
    assert {json.loads(job.read_text())["status"] for job in jobs} == {"succeeded"}
    assert run.finished_iterations() == 1
