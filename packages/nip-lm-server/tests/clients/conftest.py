"""Clients of other projects, in the environment that scripts/build_clients.sh builds.

Nothing here skips: without the clients these tests fail. The servers run in nip's own environment,
whose Python NIP_PYTHON names (default: that of .venv). With NIP_CLIENTS_RESULTS, a directory, what
came of every call is written there as a table.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("DSPY_CACHEDIR", tempfile.mkdtemp())

ROOT = Path(__file__).parents[4]
PYTHON = os.environ.get("NIP_PYTHON") or str(ROOT / ".venv" / "bin" / "python")
sys.path.append(str(Path(__file__).parent))

from called import ENGINES, Server, outcomes  # noqa: E402

PACKAGES = ("openai", "litellm", "langchain-openai", "instructor", "dspy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """A server of each engine."""
    with ExitStack() as stack:
        processes = {}
        for engine in ENGINES:
            state = tmp_path_factory.mktemp("clients") / engine
            command = [PYTHON, str(Path(__file__).with_name("serve.py")), engine, str(state)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate)  # closes its input, and it ends
            processes[engine] = process
        started = {}
        for engine, process in processes.items():
            line = process.stdout.readline() if process.stdout else ""
            assert line, f"no {engine} server was started (status {process.poll()})"
            started[engine] = Server(engine, *line.split())
        yield started


@pytest.fixture(scope="session", autouse=True)
def results(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write the table, if everything went as expected."""
    failed = request.session.testsfailed
    yield
    directory = os.environ.get("NIP_CLIENTS_RESULTS")
    if directory and request.session.testsfailed == failed:
        write_results(Path(directory))


def write_results(directory: Path) -> None:
    """The outcomes as clients.json, and as a table for readers."""
    node = json.loads((Path(sys.prefix) / "node/node_modules/openai/package.json").read_text())
    versions = {**{name: version(name) for name in PACKAGES}, "openai of npm": node["version"]}
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    rows = [{"client": c, "call": call, **each} for (c, call), each in outcomes.items()]
    facts = {"command": "make test-clients", "commit": commit, "versions": versions, "calls": rows}
    (directory / "clients.json").write_text(json.dumps(facts, indent=1) + "\n")
    lines = [
        "# Clients of other projects",
        "",
        f"`make test-clients` at {commit}: " + ", ".join(f"{n} {v}" for n, v in versions.items()),
        "",
        "Each call was made by the client itself on a running server, and its result checked:",
        '"yes" is the right result, else it says how the call is refused. `embedded` is the tiny',
        "model with a chat template that has tools; the bundled one has none and refuses `tools`.",
        "",
        f"| client | call | {' | '.join(ENGINES)} |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row["client"], row["call"], *(row.get(engine, "not tried") for engine in ENGINES)]
        lines.append(f"| {' | '.join(cells)} |")
    (directory / "clients.md").write_text("\n".join(lines) + "\n")
