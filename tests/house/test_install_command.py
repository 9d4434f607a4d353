"""A message that names a command to install something names one that can be carried out."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from houses import list_sources

import nip_core.distribution as distribution
from nip_core.distribution import how_to_install, how_to_install_packages

ROOT = Path(__file__).parents[2]


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """What pip has written down of where nip is from, in place of what it wrote here."""
    info = tmp_path / "site" / "nip_loop-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: nip-loop\nVersion: 0.1.0\nRequires-Dist: aiohttp<4\n"
        'Requires-Dist: networkx>=3.4; extra == "graphs"\n'
        'Requires-Dist: scipy>=1; extra == "dev"\n'
    )
    monkeypatch.syspath_prepend(info.parent)

    def note(**of):
        (info / "direct_url.json").write_text(json.dumps(of))

    return note


def words(command):
    """The words behind `install`, as a shell would split them."""
    split = shlex.split(command)
    return split[split.index("install") + 1 :]


def test_a_checkout_and_a_wheel_are_named_by_their_paths(noted, tmp_path):
    checkout, wheel = tmp_path / "my check'out", tmp_path / "nip_loop-0.1.0-py3-none-any.whl"
    checkout.mkdir()
    wheel.write_bytes(b"")
    noted(url=checkout.as_uri(), dir_info={"editable": True})
    assert words(how_to_install("local")) == ["-e", f"{checkout}[local]"]
    noted(url=checkout.as_uri(), dir_info={})
    assert words(how_to_install("local")) == [f"{checkout}[local]"]
    noted(url=wheel.as_uri(), archive_info={})
    assert words(how_to_install("graphs")) == [f"{wheel}[graphs]"]
    assert words(how_to_install()) == [str(wheel)]


def test_of_a_wheel_that_is_gone_the_packages_of_the_extra_are_named(noted, tmp_path):
    noted(url=(tmp_path / "gone.whl").as_uri(), archive_info={})
    assert words(how_to_install("graphs")) == ["networkx>=3.4"]


def test_an_address_is_named_but_no_password(noted):
    noted(url="https://example.org/nip.whl", archive_info={})
    assert words(how_to_install("hub")) == ["nip-loop[hub] @ https://example.org/nip.whl"]
    noted(url="https://example.org/nip", vcs_info={"vcs": "git", "commit_id": "abc"})
    assert words(how_to_install()) == ["nip-loop @ git+https://example.org/nip@abc"]
    noted(url="https://me:secret@example.org/nip.whl", archive_info={})
    assert words(how_to_install("hub")) == ["nip-loop[hub]"]


def test_what_is_noted_wrongly_is_as_if_nothing_was(noted):
    for text in ("[]", "{", '"text"'):
        next(Path(sys.path[0]).glob("*.dist-info")).joinpath("direct_url.json").write_text(text)
        assert words(how_to_install("hub")) == ["-e", f"{ROOT}[hub]"]


def test_it_installs_for_the_interpreter_that_runs(monkeypatch, tmp_path):
    for name in ("pip", "uv"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    # A pip of another environment is first on the PATH.
    command = shlex.split(how_to_install_packages("x"))
    assert command == [sys.executable, "-m", "pip", "install", "x"]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert how_to_install_packages("x") == "pip install x"
    # As uv makes environments: without pip.
    monkeypatch.setattr(distribution.importlib.util, "find_spec", lambda name: None)
    python = str(tmp_path / "python")
    assert how_to_install_packages("x>1") == f"uv pip install --python {python} 'x>1'"
    (tmp_path / "uv").unlink()
    command = f"{python} -m ensurepip && {python} -m pip install x"
    assert how_to_install_packages("x") == command


def test_every_extra_that_a_message_names_is_one():
    extras = re.findall(r"^([a-z-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    named = set()
    for path in list_sources():
        text = path.read_text()
        named |= {*re.findall(r'how_to_install\(["\']([a-z-]+)', text)}
        # The name alone is on no index yet, so a message is made by the function.
        assert path.name == "distribution.py" or "nip-loop[" not in text, path
    assert named and named <= {*extras}
