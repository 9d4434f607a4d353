"""Executes the notebooks of docs/notebooks: ``python execute.py [--check]``; `make notebooks`.

Each runs in an empty folder, with this environment's packages, and its outputs are saved. With
`--check` nothing is saved: a cell that raises, or whose output is another one than the saved, is an
error. Outputs hold no times and no paths, so that they are equal on every machine; of pictures it
is looked only at whether they are there (a new version of matplotlib draws them in other words).
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
CELL_S = 900
PICTURES = ("image/svg+xml", "image/png")


def main() -> int:
    """Execute all, or those that are named; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of notebooks, without .ipynb; default: all")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # for matplotlib, in the kernel
    wrong = 0
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if options.names and path.stem not in options.names:
            continue
        saved = nbformat.read(path, as_version=4)
        begin = time.monotonic()
        executed = _executed(nbformat.read(path, as_version=4))
        seconds = time.monotonic() - begin
        if options.check:
            differing = [
                number
                for number, (old, new) in enumerate(zip(saved.cells, executed.cells, strict=True))
                if _shown(old) != _shown(new)
            ]
            wrong += bool(differing)
            for number in differing:
                print(f"{path.name}: cell {number} shows something else; make notebooks")
                print(f"  saved: {_shown(saved.cells[number])}")
                print(f"  now:   {_shown(executed.cells[number])}")
        else:
            nbformat.write(executed, path)
        print(f"{path.name}: {seconds:.0f} s, {path.stat().st_size // 1024} KB")
    return int(wrong > 0)


def _executed(notebook: Any) -> Any:
    """The notebook with its outputs, without when and by what it was executed."""
    with tempfile.TemporaryDirectory() as folder:
        # A picture is the same at every execution: its names are not drawn, its date is not today.
        (Path(folder) / "matplotlibrc").write_text("svg.hashsalt: nip\n", encoding="utf-8")
        client = NotebookClient(notebook, timeout=CELL_S, resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            output.pop("metadata", None) if output["output_type"] == "stream" else None
            if any(kind in output.get("data", {}) for kind in PICTURES):
                output["data"].pop("text/plain", None)
        cell["outputs"] = [o for o in cell.get("outputs", ()) if o.get("name") != "stderr"] or []
        if cell.cell_type != "code":
            cell.pop("outputs")
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def _shown(cell: Any) -> list[Any]:
    """What a reader sees below a cell."""
    shown = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        is_picture = any(kind in data for kind in PICTURES)
        shown.append("a picture" if is_picture else output.get("text") or data.get("text/plain"))
    return shown


if __name__ == "__main__":
    sys.exit(main())
