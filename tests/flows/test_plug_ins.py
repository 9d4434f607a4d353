"""A distribution of a user's adds commands and a scenario; one that is broken takes nothing away."""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from nip_cli.command_table import GROUP, PARTS

GOOD = """
PANELS = {
    "Look": (
        ("greet", "good_plug_in.greeting", "Say hello."),
        ("train", "good_plug_in.greeting:greet", "Take the place of a command of nip's."),
    ),
}
"""
SCENARIO = '''
from nip_games.graphs import Graphs

class Roads(Graphs):
    """Colours of roads."""
    name = "roads"
'''
POINTS = """
[nip.commands]
good = good_plug_in.command_lines
bad = bad_plug_in.command_lines
gone = no_such_plug_in

[nip.scenarios]
roads = good_plug_in.roads
torn = bad_plug_in.command_lines
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Run Python with these arguments, beside a user's distribution."""
    site = tmp_path_factory.mktemp("site")
    for package in ("good_plug_in", "bad_plug_in"):
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
    (site / "good_plug_in" / "command_lines.py").write_text(GOOD)
    greeting = 'def greet() -> None:\n    """Say hello."""\n    print("hello from outside")\n'
    (site / "good_plug_in" / "greeting.py").write_text(greeting)
    (site / "good_plug_in" / "roads.py").write_text(SCENARIO)
    (site / "bad_plug_in" / "command_lines.py").write_text('raise RuntimeError("torn in two")\n')
    facts = site / "plug_ins-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-ins\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(POINTS)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "80"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_a_command_from_outside_is_listed_and_run_and_a_broken_one_is_named(python):
    shown = python("-m", "nip_cli", "--help")
    assert shown.returncode == 0
    assert "greet" in shown.stdout and "Say hello." in shown.stdout
    assert "Train as CONFIG says" in shown.stdout and "Take the place" not in shown.stdout
    bad, gone = shown.stderr.splitlines()
    assert bad.startswith("nip: no commands of bad (bad_plug_in.command_lines): RuntimeError: torn")
    assert gone.startswith("nip: no commands of gone (no_such_plug_in): ModuleNotFoundError")
    assert "hello from outside\n" in python("-m", "nip_cli", "greet").stdout
    trained = python("-m", "nip_cli", "train", "--help")
    assert "CONFIG" in trained.stdout and "hello" not in trained.stdout


def test_a_scenario_from_outside_is_found_and_a_broken_one_hides_no_other(python):
    code = (
        "from nip_core.scenarios import find_scenario, scenario_names\n"
        "print(scenario_names(), find_scenario('roads').__name__)\n"
        "try:\n    find_scenario('torn')\nexcept ValueError as error:\n    print(error)\n"
    )
    names, torn = python("-c", code).stdout.splitlines()
    assert "'roads'" in names and "'arithmetic'" in names and names.endswith("Roads")
    assert "'torn'" not in names
    assert torn.startswith("'torn' of bad_plug_in.command_lines, which can't be imported (Runtime")


def test_a_command_of_a_part_that_is_not_installed_is_told_with_the_part(python):
    code = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.entry_points = lambda **group: []\n"
        "from nip_cli.cli import main\n"
        "sys.argv[1:] = ['verify', 'some-run']\n"
        "main()\n"
    )
    refused = python("-c", code)
    assert refused.returncode == 2
    words = " ".join(refused.stderr.replace("│", " ").split())
    assert "No such command 'verify'. It is a part of nip-verify: " in words and "install" in words


def test_the_parts_of_commands_are_those_of_their_entry_points():
    found = {
        point.name: {name for lines in point.load().PANELS.values() for name, _, _ in lines}
        for point in entry_points(group=GROUP)
    }
    assert {part: {*names} for part, names in PARTS.items()} == found
