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
    for name, lines in {
        "nip-bridges": ('sqlalchemy<3; extra == "mlflow"', 'mlflow-skinny<4; extra == "mlflow"'),
        "nip-loop": (
            *("aiohttp<4", 'networkx>=3.4; extra == "graphs"', 'scipy>=1; extra == "dev"'),
            'nip-bridges[mlflow]<0.2,>=0.1; extra == "mlflow"',
        ),
    }.items():
        info = tmp_path / "site" / f"{name.replace('-', '_')}-0.1.0.dist-info"
        info.mkdir(parents=True)
        needed = "".join(f"Requires-Dist: {line}\n" for line in lines)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {name}\nVersion: 0.1.0\n{needed}"
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
    script = [sys.executable, f"{checkout}/scripts/install.py"]
    assert shlex.split(how_to_install("local")) == [*script, "local"]
    # It installs all parts.
    assert (
        shlex.split(how_to_install()) == shlex.split(how_to_install(name="nip-bridges")) == script
    )
    noted(url=checkout.as_uri(), dir_info={})
    assert words(how_to_install("local")) == [f"{checkout}[local]"]
    assert words(how_to_install(name="nip-bridges")) == [f"{checkout}/packages/nip-bridges"]
    noted(url=wheel.as_uri(), archive_info={})
    # Those that it needs lie beside it.
    beside = ["--find-links", str(tmp_path)]
    assert words(how_to_install("graphs")) == [*beside, "nip-loop[graphs]"]
    assert words(how_to_install()) == [*beside, "nip-loop"]
    assert words(how_to_install(name="nip-bridges")) == [*beside, "nip-bridges"]


def test_of_a_wheel_that_is_gone_the_packages_of_the_extra_are_named(noted, tmp_path):
    noted(url=(tmp_path / "gone.whl").as_uri(), archive_info={})
    assert words(how_to_install("graphs")) == ["networkx>=3.4"]
    # An extra of another part is what that part says of it.
    assert words(how_to_install("mlflow")) == ["sqlalchemy<3", "mlflow-skinny<4"]
    assert words(how_to_install(name="nip-bridges")) == ["nip-bridges"]


def test_an_address_is_named_but_no_password(noted):
    noted(url="https://example.org/nip.whl", archive_info={})
    assert words(how_to_install("hub")) == ["nip-loop[hub] @ https://example.org/nip.whl"]
    assert words(how_to_install(name="nip-bridges")) == ["nip-bridges"]
    noted(url="https://example.org/nip", vcs_info={"vcs": "git", "commit_id": "abc"})
    address = "git+https://example.org/nip@abc"
    assert words(how_to_install()) == [f"nip-loop @ {address}"]
    part = f"{address}#subdirectory=packages/nip-bridges"
    assert words(how_to_install(name="nip-bridges")) == [f"nip-bridges @ {part}"]
    noted(url="https://me:secret@example.org/nip.whl", archive_info={})
    assert words(how_to_install("hub")) == ["nip-loop[hub]"]


def test_what_is_noted_wrongly_is_as_if_nothing_was(noted):
    for text in ("[]", "{", '"text"'):
        Path(sys.path[0], "nip_loop-0.1.0.dist-info", "direct_url.json").write_text(text)
        script = [sys.executable, f"{ROOT}/scripts/install.py", "hub"]
        assert shlex.split(how_to_install("hub")) == script


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
