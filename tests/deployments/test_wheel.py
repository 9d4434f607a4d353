"""What pip installs: the wheels, as a user has them who has no checkout."""

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nip_core import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PACKAGES = ("nip_core", "nip_cli", "nip_prefect")
SOURCES = (*PACKAGES, "flows", "tasks", "deployments", "scripts")
FILES = ("pyproject.toml", "README.md", "LICENSE", "prefect.yaml")
SERVER = "packages/nip-lm-server"
BUILD = "from setuptools.build_meta import build_wheel; build_wheel({!r})"
"""In the folder of a distribution: without isolation, as setuptools is here."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the contents of the wheels of nip-loop and of the server, built from a copy of
    the sources. The other distributions are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    no_caches = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=no_caches)
    no_build = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "tests")
    shutil.copytree(ROOT / SERVER, sources / SERVER, symlinks=True, ignore=no_build)
    for name in FILES:
        shutil.copy(ROOT / name, sources / name)
    for place in (sources, sources / SERVER):
        subprocess.run(
            [sys.executable, "-c", BUILD.format(str(folder))],
            cwd=place,
            check=True,
            capture_output=True,
            timeout=240,
        )
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
    [wheel] = folder.glob("nip_loop-*.whl")
    (folder / "size").write_text(str(wheel.stat().st_size))
    return folder / "site"


def nip(installed, folder, *arguments):
    """The command of the wheel's user, in a `folder` whose modules can be imported there as well."""
    return subprocess.run(
        [sys.executable, "-m", "nip_cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{installed}"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_has_at_most_10_megabytes(installed):
    assert int((installed.parent / "size").read_text()) < 10_000_000


def test_its_metadata_is_whole_and_names_no_address_that_is_not_there(installed):
    [info] = installed.glob("nip_loop-*.dist-info")
    metadata = (info / "METADATA").read_text()
    for field in ("Author", "License-Expression", "Keywords", "Requires-Python", "Summary"):
        assert f"\n{field}: " in metadata, field
    assert metadata.count("\nClassifier: ") > 10
    assert "\nProject-URL: " not in metadata and "\nHome-page: " not in metadata


def test_a_configuration_is_written_and_looked_at_without_the_repository(installed, tmp_path):
    """Where a user has modules that are called like folders of the repository."""
    for name in ("tasks", "flows"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the user')")
    assert nip(installed, tmp_path, "init").returncode == 0
    done = nip(installed, tmp_path, "train", "experiment.yaml", "--dry-run")
    assert done.returncode == 0 and "nothing was started" in done.stdout, done.stderr
    asked = nip(installed, tmp_path, "prompt", "experiment.yaml", "--round", "1")
    assert "You are the expert." in asked.stdout, asked.stderr


@pytest.mark.parametrize(
    ("model", "configuration"),
    [
        pytest.param("tiny-arithmetic-turns", "arithmetic-tiny", marks=pytest.mark.long),
        ("tiny-bags", "bags-tiny"),
    ],
)
def test_a_model_that_is_in_the_repository_alone_is_named(
    installed, tmp_path, model, configuration
):
    assert not (installed / "nip_core" / "models" / model.replace("-", "_")).exists()
    setting = f"agents._default.model_name={model}"
    done = nip(installed, tmp_path, "train", configuration, "--dry-run", "--set", setting)
    assert done.returncode == 2 and "comes with nip's repository" in done.stderr, done.stderr


def test_it_installs_packages_that_no_module_of_a_users_is_called_like(installed):
    names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert names == {*PACKAGES, "nip_lm_server"}


def test_the_distribution_is_named_in_the_messages_as_it_is_built(installed):
    [info] = installed.glob("nip_loop-*.dist-info")
    metadata = (info / "METADATA").read_text().splitlines()
    assert f"Name: {DISTRIBUTION}" in metadata


def test_it_has_the_configurations_and_the_deployments(installed):
    configs = {path.name for path in (ROOT / "deployments" / "configs").iterdir()}
    assert {path.name for path in (installed / "nip_core" / "configs").iterdir()} == configs
    assert (installed / "nip_prefect" / "prefect.yaml").read_text() == (
        ROOT / "prefect.yaml"
    ).read_text()


def test_what_builds_vllms_environment_is_in_it(installed, tmp_path):
    done = nip(installed, tmp_path, "doctor", "--vllm")
    [build] = [line for line in done.stdout.splitlines() if " bash " in line]
    script = Path(shlex.split(build)[2])
    # What comes last is found, whether the environment is on the PATH or not.
    check = shlex.split(done.stdout.splitlines()[-1])
    assert Path(check[0]).is_absolute() and check[1:] == ["-m", "nip_cli.cli", "doctor"]
    assert installed in script.parents and script.name == "build_vllm_cpu.sh"
    # It is whole: the script, what it sources, and the versions that it installs.
    for name in ("environment.sh", "build_vllm_cuda.sh", "vllm_cuda_constraints.txt"):
        assert (script.parent / name).read_bytes() == (ROOT / "scripts" / name).read_bytes()
    started = subprocess.run(
        ["bash", script, tmp_path / "place"],
        env={**os.environ, "PYTHON": "false"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    # Up to the interpreter, which is none here, everything that it reads was there.
    assert started.returncode and "No such file" not in started.stderr, started.stderr
