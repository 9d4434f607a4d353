"""Statements about other projects name the versions that were built, measured or read."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "scripts" / "build_peers.sh"
NAMED = re.findall(r'^ +(?:1:(\w+)\) )?PACKAGES="([^"]+)"', BUILD.read_text(), re.MULTILINE)
FOLDERS = ("verifiers", "inspect", "dbos", "locust", "llama_cpp", "skyrl")


def pins(folder):
    """The versions that the environment of a peer has."""
    text = (ROOT / "scripts" / f"peers_{folder}_constraints.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("folder", "packages"), [*zip(FOLDERS, [p for _, p in NAMED], strict=True)]
)
def test_what_a_peer_is_built_from_and_its_constraints_name_the_same_versions(folder, packages):
    for name, version in re.findall(r"([\w-]+)(?:\[[\w,]+\])?==(\S+)", packages):
        assert pins(folder)[name] == version, f"{name} of {folder}"


def test_the_faults_of_skyrl_are_those_of_the_version_that_is_built():
    version, sdk = pins("skyrl")["skyrl"], pins("skyrl")["tinker"]
    measured = json.loads(page("results/tinker_peers.json"))["faults"]["versions"]
    assert (measured["skyrl"], measured["tinker"]) == (version, sdk)
    assert f"## Beside SkyRL {version}\n" in page("tinker.md")
    assert f"| SkyRL {version} |" in page("beside.md")


def test_a_heading_over_figures_of_skyrl_has_the_version_that_was_measured():
    result = json.loads(page("results/tinker_peers.json"))
    headings = [line for line in page("results/tinker_peers.md").split("\n") if line[:3] == "## "]
    versions = {name: part["versions"].get("skyrl") for name, part in result.items()}
    assert [line.rpartition(" SkyRL ")[2] for line in headings if "SkyRL" in line] == [
        *[versions["rates"]] * 3,
        versions["faults"],
    ]
    assert re.search(rf"^##+ (Rates b|B)eside SkyRL {versions['rates']}$", page("tinker.md"), re.M)


def test_the_page_on_other_tools_names_the_versions_that_are_built():
    text = page("beside.md")
    assert f"verifiers {pins('verifiers')['verifiers']} and" in text
    assert f"inspect_ai {pins('inspect')['inspect-ai']}," in text
    sdk, cookbook = (
        re.search(rf"^{name}_VERSION=(.+)$", (ROOT / "scripts/build_tinker.sh").read_text(), re.M)
        for name in ("SDK", "COOKBOOK")
    )
    assert f"tinker-cookbook {cookbook[1]} with SDK {sdk[1]}" in text.replace("\n", " ")


def test_who_logs_a_mismatch_and_refuses_nothing_is_not_said_to_look_at_no_weights():
    (row,) = re.findall(r"^\| new weights are checked.*$", page("beside.md"), re.MULTILINE)
    assert row.count("nothing is refused") == 2 and "| no |" in row


def test_without_an_interpreter_for_skyrl_the_script_says_which_one_it_needs(tmp_path):
    told = subprocess.run(
        [BUILD, "skyrl"],
        env={**os.environ, "SKYRL_PYTHON": str(tmp_path / "python3.12"), "PEERS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    assert "needs Python 3.12 or 3.13" in told.stderr and "set SKYRL_PYTHON=" in told.stderr
    assert not [*tmp_path.iterdir()]
