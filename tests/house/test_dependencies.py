"""A distribution declares the packages that its modules import, and no others."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from houses import DISTRIBUTIONS, HOUSES, ROOT, list_nodes
from packaging.requirements import Requirement

# A module that is called otherwise than the distribution which brings it.
BROUGHT = {
    "art": "openpipe-art",
    "google": "protobuf",
    "markupsafe": "jinja2",  # whose texts it makes
    "mlflow": "mlflow-skinny",
    "nat": "nvidia-nat-core",
    "pydantic_core": "pydantic",
    "tensorboardX": "tensorboardx",
    "yaml": "pyyaml",
}
# The first two import us, in the environments of scripts/build_art.sh and build_nat.sh.
FOREIGN = {
    "nip-by-hand": {"openpipe-art", "nvidia-nat-core"},
    "nip-up": {"torch"},  # `nip doctor` tells whether there is one, and for which device
    "nip-lm-server": {"pytest"},  # its fixture, for the tests of other people
}
# Bounds for a package that another one of the list needs; and parts that bring commands.
NOT_IMPORTED = {
    "nip-loop": {"fastapi", "sqlalchemy"} | {*DISTRIBUTIONS},
    "nip-bridges": {"sqlalchemy", "alembic"},
}
FOR_DEVELOPERS = {"dev", "cluster"}
# What `pip install nip-loop` brings, beside Prefect.
BASE = {
    # Declared here.
    *("aiohttp", "httptools", "httpx", "jinja2", "numpy", "openai", "orjson", "prometheus-client"),
    *("protobuf", "psutil", "pyarrow", "pydantic", "pyyaml", "rich", "starlette", "typer"),
    *("typing-extensions", "uvicorn"),
    # Needed by these. FastAPI and SQLAlchemy are Prefect's, with a bound here.
    *("aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "multidict", "propcache", "yarl"),
    *("annotated-doc", "annotated-types", "pydantic-core", "typing-inspection"),
    *("distro", "jiter", "tqdm", "httpx2", "httpcore2", "truststore"),
    *("anyio", "certifi", "click", "h11", "httpcore", "idna", "sniffio"),
    *("fastapi", "opentelemetry-api", "greenlet", "sqlalchemy"),
    *("markdown-it-py", "markupsafe", "mdurl", "pygments", "shellingham"),
}
MOST_OF_PREFECT = 75
"""Distributions that Prefect alone needs: 73 of 3.9.1, and a newer one may bring others."""


def normal(name: str) -> str:
    """A distribution's name as an index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def project(name: str) -> dict:
    return tomllib.loads((DISTRIBUTIONS[name] / "pyproject.toml").read_text())["project"]


def requirements(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The distributions of lines, and the extra of each, "" for none."""
    for line in lines:
        name, extra = re.match(r"([\w.-]+)(?:\[([\w-]+)\])?", line).groups()
        yield normal(name), extra or ""


def packages_of_extras(name: str) -> set[str]:
    """What the extras of a distribution bring; an extra of another distribution is followed."""
    found = set()
    for extra, lines in project(name).get("optional-dependencies", {}).items():
        if extra not in FOR_DEVELOPERS:
            found |= packages_of_extra(name, extra)
    return found


def packages_of_extra(name: str, extra: str) -> set[str]:
    found = set()
    for package, its_extra in requirements(project(name)["optional-dependencies"][extra]):
        if package in DISTRIBUTIONS and its_extra:
            found |= packages_of_extra(package, its_extra)
        else:
            found.add(package)
    return found


def list_modules(name: str) -> list[Path]:
    folders = [path for path in HOUSES.values() if DISTRIBUTIONS[name] in path.parents]
    if name == "nip-loop":
        parts = ("nip_core", "nip_cli", "nip_prefect", "flows", "tasks")
        folders = [ROOT / part for part in parts]
    return [path for folder in folders for path in folder.rglob("*.py")]


def imports(name: str) -> Iterator[tuple[str, str, bool]]:
    """Each distribution that modules import, where, and whether its absence is answered there."""
    owners = {house: name for house, folder in HOUSES.items()
              for name, place in DISTRIBUTIONS.items() if folder.parent == place}  # fmt: skip
    for path in list_modules(name):
        answered = {
            inner
            for node in list_nodes(path, ast.Try)
            if any("ImportError" in ast.unparse(each.type) for each in node.handlers if each.type)
            for inner in ast.walk(ast.Module(node.body, []))
        }
        for node in list_nodes(path, ast.Import, ast.ImportFrom):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif not node.level:
                names = [node.module]
            for first in {each.partition(".")[0] for each in names}:
                # The files of the sandbox import each other as a process without packages does.
                if first in sys.stdlib_module_names or path.with_name(f"{first}.py").exists():
                    continue
                package = owners.get(first) or BROUGHT.get(first) or normal(first)
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield "nip-loop" if first == "nip_prefect" else package, place, node in answered


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_each_import_is_declared_and_each_declared_package_is_imported(name):
    needed = {package for package, _ in requirements(project(name)["dependencies"])}
    extras = packages_of_extras(name)
    imported = [*imports(name)]
    allowed = {name} | needed | extras | FOREIGN.get(name, set())
    assert not [
        f"{place}: {package}"
        for package, place, is_answered in imported
        if package not in allowed and not is_answered
    ]
    unused = (needed | extras) - {package for package, _, _ in imported}
    assert unused - NOT_IMPORTED.get(name, set()) <= (extras if name == "nip-loop" else set())


def gather_base(without: str = "") -> set[str]:
    """What `nip-loop` without extras brings, but for what only `without` brings."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [("nip-loop", frozenset[str]())]
    while waiting:
        if (one := waiting.pop()) in seen or one[0] == without:
            continue
        seen.add(one)
        # Ours by the files, as what is noted where nip is installed may be older.
        is_ours = one[0] in DISTRIBUTIONS
        lines = project(one[0])["dependencies"] if is_ours else importlib.metadata.requires(one[0])
        for needed in map(Requirement, lines or ()):
            extras = one[1] or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append((normal(needed.name), frozenset(map(normal, needed.extras))))
    return {name for name, _ in seen if name not in DISTRIBUTIONS}


def test_the_base_brings_what_is_listed_and_what_prefect_needs():
    assert gather_base(without="prefect") <= BASE
    assert len(gather_base() - BASE) <= MOST_OF_PREFECT


def test_all_have_one_version_and_bound_each_other_by_it():
    versions = {project(name)["version"] for name in DISTRIBUTIONS}
    assert len(versions) == 1
    bounds = {
        re.sub(r"^[\w.-]+(\[[\w-]+\])?", "", line)
        for name in DISTRIBUTIONS
        for lines in (
            project(name)["dependencies"],
            *project(name).get("optional-dependencies", {}).values(),
        )
        for line in lines
        if line.startswith("nip-")
    }
    major, minor, _ = versions.pop().split(".")
    assert bounds == {f">={major}.{minor},<{major}.{int(minor) + 1}"}
