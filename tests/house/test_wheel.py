"""What the packages of a distribution read beside their modules is in its wheel."""

import re
import tomllib
from pathlib import Path

import pytest
from houses import DISTRIBUTIONS, ROOT

PACKAGES = {name: sorted(path.name for path in folder.glob("nip_*") if (path / "__init__.py").exists())
            for name, folder in DISTRIBUTIONS.items()} | {
    "nip-loop": ["nip_cli", "nip_core", "nip_prefect"]
}  # fmt: skip
LEFT_OUT = {"tiny_arithmetic_looks", "tiny_arithmetic_turns", "tiny_bags"}
"""Models that are in the repository alone, see docs/decisions/0031."""


def setuptools_of(name: str) -> dict:
    project = tomllib.loads((DISTRIBUTIONS[name] / "pyproject.toml").read_text())
    return project["tool"]["setuptools"]


def files(name: str, package: str, kind: str) -> set[Path]:
    patterns = setuptools_of(name).get(kind, {}).get(package, ())
    folder = (DISTRIBUTIONS[name] / package).resolve()
    return {path for pattern in patterns for path in folder.glob(pattern)}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_wheel_has_every_file_that_is_no_module(name):
    for package in PACKAGES[name]:
        folder = (DISTRIBUTIONS[name] / package).resolve()
        data = {
            path
            for path in folder.rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc")
        }
        assert data == files(name, package, "package-data")
        left_out = files(name, package, "exclude-package-data")
        assert all(LEFT_OUT & {*path.parts} for path in left_out)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_wheel_has_every_package_its_licence_and_a_readme_that_says_how_to_begin(name):
    folder = DISTRIBUTIONS[name]
    patterns = setuptools_of(name)["packages"]["find"]["include"]
    assert sorted(pattern.removesuffix("*") for pattern in patterns) == PACKAGES[name]
    # The licence of a part is a link to the root's, so it is one text.
    assert (folder / "LICENSE").resolve() == ROOT / "LICENSE"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    # Nothing in a source distribution runs its tests, which setuptools would put there.
    has_tests = name != "nip-loop" and (folder / "tests").exists()
    assert not has_tests or (folder / "MANIFEST.in").read_text() == "prune tests\n"
    if name != "nip-loop":
        assert readme.startswith(f"# {name}\n")
    # The server's is a page of its own.
    if name not in ("nip-loop", "nip-lm-server"):
        prose = re.sub(r"^```.*?^```", "", readme, flags=re.DOTALL | re.MULTILINE)
        assert "<!-- run" in readme and len(prose.split()) <= 200
