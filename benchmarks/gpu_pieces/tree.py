"""The distributions of this tree where they are not installed: what pip would have noted of them.

Games, problems and commands are looked up in the metadata of distributions, so a tree that is on
the path alone has none of them.
"""

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT, *sorted((ROOT / "packages").glob("nip-*"))]


def is_installed() -> bool:
    """Tell whether pip knows nip here."""
    try:
        distribution("nip-loop")
    except PackageNotFoundError:
        return False
    return True


def write_metadata(place: Path) -> Path:
    """Write name, version and entry points of each distribution into a folder for the path."""
    for package in PACKAGES:
        project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
        name, version = project["name"], project["version"]
        folder = place / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        needs = "".join(f"Requires-Dist: {need}\n" for need in project.get("dependencies", ()))
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
        (folder / "entry_points.txt").write_text(_list_entry_points(project))
    return place


def _list_entry_points(project: dict[str, Any]) -> str:
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in groups.items()
    )
