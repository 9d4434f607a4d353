"""What a repository has beside its code is there and says what is so."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from houses import DISTRIBUTIONS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nip_core import __version__

ROOT = Path(__file__).parents[2]


def test_llms_txt_is_what_the_pages_say():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "llms_txt.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 20 and all((ROOT / link).is_file() for link in links)


def test_every_test_that_the_page_on_compatibility_names_is_there():
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    held = page.partition("Tests that hold it:")[2]
    named, file = [], None
    for word in re.findall(r"`([^`]+)`", held):
        if word.startswith(("tests/", "packages/")):
            file = ROOT / word
        else:
            named.append((file, word))
    assert len(named) >= 15
    for file, name in named:
        functions = {
            node.name
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, (file, name)
    statements = {int(n) for n in re.findall(r"\((\d+)\)", page.partition("Tests that hold")[0])}
    numbers = {int(n) for n in re.findall(r"^(\d+)\. ", held, re.MULTILINE)}
    assert statements == numbers


def test_the_citation_names_the_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0" and citation["version"] == __version__
    assert any("2412.08897" in str(reference) for reference in citation["references"])


def test_issue_forms_have_what_a_form_needs():
    forms = [*(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    assert len(forms) == 3
    for form in forms:
        content = yaml.safe_load(form.read_text(encoding="utf-8"))
        if form.name != "config.yml":
            assert {"name", "description", "body"} <= content.keys()
            ids = [field["id"] for field in content["body"]]
            assert len(ids) == len({*ids})
            assert all(field["attributes"]["label"] for field in content["body"])


@pytest.fixture
def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_is_refused_for_what_does_not_name_its_version(release, tmp_path):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version == __version__
    copy = tmp_path / "nip"
    (copy / "nip_core").mkdir(parents=True)
    (copy / "scripts").mkdir()
    (copy / "scripts" / "llms_txt.py").write_text("")
    part = copy / "packages" / "nip-base"
    (part / "nip_base").mkdir(parents=True)
    for file in (
        *("nip_core/distribution.py", "CITATION.cff", "pyproject.toml", "LICENSE"),
        *("packages/nip-base/pyproject.toml", "packages/nip-base/LICENSE"),
        "packages/nip-base/nip_base/version.py",
    ):
        (copy / file).write_bytes((ROOT / file).read_bytes())
    (copy / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (a day)\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], cwd=copy, check=True)
    assert release.tree_problems(version, copy) == []
    # Each of what can be wrong is said.
    (copy / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    subprocess.run([*git, "tag", f"v{version}"], cwd=copy, check=True)
    uncommitted, tagged, changelog = release.tree_problems(version, copy)
    assert "CHANGELOG.md" in uncommitted and f"v{version}" in tagged
    assert changelog.startswith("CHANGELOG.md: does not name")
    later = release.tree_problems("9.9.9", copy)
    assert [line.partition(":")[0] for line in later[1:]] == [
        "nip_core/distribution.py",
        "packages/nip-base/nip_base/version.py",
        "CITATION.cff",
        "CHANGELOG.md",
        "nip-base",
        "nip-loop",
    ]
    (part / "LICENSE").write_text("another")
    assert "nip-base: its LICENSE is not the root's" in release.tree_problems(version, copy)


def test_the_recording_of_a_kill_is_small_and_moves_without_anything_from_outside():
    content = (ROOT / "docs" / "images" / "kill-and-resume.svg").read_bytes()
    assert len(content) < 300_000
    picture = ElementTree.fromstring(content)
    elements = [*picture.iter()]
    assert {element.tag.rpartition("}")[2] for element in elements} <= {
        *("svg", "title", "style", "defs", "g", "use", "rect", "text")
    }
    # 1. Nothing runs in it, and all it refers to is in it.
    names = {element.get("id") for element in elements}
    for element in elements:
        for attribute, value in element.attrib.items():
            name = attribute.rpartition("}")[2]
            assert not name.startswith("on")
            if name == "href":
                assert value[0] == "#" and value[1:] in names
    style = "".join(element.text for element in elements if element.tag.endswith("style"))
    assert "url(" not in style and "@import" not in style
    # 2. It loops for about 20 s, and rests on the last screen for whoever wants no motion.
    [seconds] = re.findall(r"animation:s ([\d.]+)s step-end infinite", style)
    assert 15 <= float(seconds) <= 30
    assert "prefers-reduced-motion" in style
    # 3. It shows what it is there for.
    text = " ".join(element.text or "" for element in elements if element.tag.endswith("text"))
    for words in ("kill -9", "Killed", "demo goes on:", "run demo: finished", "no problems"):
        assert words in text, words
    assert "/work" not in text and "/tmp" not in text


def test_what_an_extra_asks_for_first_is_pinned_within_its_range():
    projects = [
        tomllib.loads((place / "pyproject.toml").read_text())["project"]
        for place in DISTRIBUTIONS.values()
    ]
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pins = {canonicalize_name(name): pin for name, pin in (line.split("==") for line in lines)}
    asked = {
        f"{project['name']}[{extra}]": requirements
        for project in projects
        for extra, requirements in {
            "": project["dependencies"],
            **project.get("optional-dependencies", {}),
        }.items()
    }
    for extra, requirements in asked.items():
        for requirement in map(Requirement, requirements):
            name = canonicalize_name(requirement.name)
            if name in DISTRIBUTIONS:
                continue  # of this repository
            assert name in pins, f"{extra}: {name} has no pin in constraints.txt"
            assert pins[name] in requirement.specifier, (
                f"{extra}: {name} is pinned out of its range"
            )
