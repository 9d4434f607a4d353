"""Say on the pages of measured speed how old a figure is: how often its code has changed since.

    python benchmarks/mark_old.py [--check]

For each part of a file of figures it counts the commits after the measured one that touch the code
that was measured, writes that into the part, and makes the page anew. Nothing is measured. With
--check nothing is written; the command ends with 1 where a part has no mark that should have one.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from beside import page, tinker_page

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
SERVER = "packages/nip-lm-server/nip_lm_server"
ENGINES = (f"{SERVER}/engines", f"{SERVER}/serving", f"{SERVER}/api")
TRAINING = (f"{SERVER}/training", f"{SERVER}/jobs")
MEASURED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "side_by_side.json": {
        "a": ENGINES,
        "b": TRAINING,
        "c": (f"{SERVER}/lora", f"{SERVER}/serving", f"{SERVER}/engines"),
        "d": ("nip_core/rollouts",),
        "e": ("nip_core/rollouts", "nip_core/run_store"),
        "f": (f"{SERVER}/lora", f"{SERVER}/proving"),
        "g": ("nip_core/rollouts", "nip_core/run_store", "nip_core/session"),
        "h": ("nip_core/rollouts", "nip_core/trainers", "nip_core/stages"),
        "i": ("packages/nip-view/nip_view",),
        "j": ("nip_cli", "nip_core/session"),
    },
    "tinker_peers.json": {
        "rates": (f"{SERVER}/tinker", f"{SERVER}/api/tinker", f"{SERVER}/training/resident"),
        "faults": (f"{SERVER}/tinker", f"{SERVER}/api/tinker"),
        "bare": (f"{SERVER}/tinker", f"{SERVER}/api/tinker", f"{SERVER}/training/resident"),
    },
}
"""By file and part, the code whose speed it tells."""
PAGES = {"side_by_side.json": page.page, "tinker_peers.json": tinker_page.page}


def list_parts(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """List the parts of a file of figures by name, those of further models too."""
    for name, part in document.items():
        if name not in ("models", "commits"):
            yield name, part
    for parts in document.get("models", {}).values():
        yield from parts.items()


def count_changes(commit: str, paths: Sequence[str]) -> int | None:
    """Count the commits since one that touch these paths; None where it is not in this history."""
    command = ["git", "-C", str(ROOT), "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None


def describe_age(commit: str, paths: Sequence[str]) -> str | None:
    """Say how often the measured code has changed since; None where it has not."""
    changes = count_changes(commit, paths)
    if changes == 0:
        return None
    code = ", ".join(f"`{path.removeprefix('packages/nip-lm-server/')}`" for path in paths)
    if changes is None:
        return f"{commit} is not in this history, so it is not known how often {code} have changed."
    return f"{changes} commits since in {code}."


def main() -> None:
    """Mark, or check the marks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    unmarked = []
    for name, parts in MEASURED.items():
        document = json.loads((RESULTS / name).read_text(encoding="utf-8"))
        for key, part in list_parts(document):
            age = describe_age(part["commit"], parts[key])
            if age is not None and "old" not in part:
                unmarked.append(f"{name}: {key}")
            part.pop("old", None)
            if age is not None:
                part["old"] = age
        if not check:
            text = json.dumps(document, indent=1) + "\n"
            (RESULTS / name).write_text(text, encoding="utf-8")
            (RESULTS / name).with_suffix(".md").write_text(PAGES[name](document), encoding="utf-8")
    if check and unmarked:
        raise SystemExit(f"measured before its code changed, and not marked: {unmarked}")


if __name__ == "__main__":
    main()
