"""What the packages read beside their modules is in the wheel."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = ("nip_core", "nip_inspect", "nip_lm_server", "nip_cli", "nip_prefect")


def files(package: str, kind: str) -> set[Path]:
    patterns = SETUPTOOLS[kind].get(package.replace("/", "."), ())
    return {path for pattern in patterns for path in (ROOT / package).resolve().glob(pattern)}


def test_the_wheel_has_every_file_that_is_no_module():
    for package in PACKAGES:
        folder = (ROOT / package).resolve()
        data = {
            path
            for path in folder.rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc")
        }
        assert data == files(package, "package-data")
        left_out = files(package, "exclude-package-data")
        folders = {"tiny_arithmetic_turns", "tiny_bags"}
        assert all(folders & {*path.parts} for path in left_out)
