"""A notebook as a page of the site: its cells, and the outputs that it was saved with."""

import base64
import json
import posixpath
from pathlib import Path
from typing import Any


def as_markdown(notebook: Path, pages: Path, folder: str) -> str:
    """The page as Markdown; pictures are written below `pages`, beside the page."""
    document = json.loads(notebook.read_text("utf-8"))
    parts = []
    for number, cell in enumerate(document["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            name = posixpath.join(folder, f"{notebook.stem}-{number}-{place}")
            parts.append(_output(output, pages, name))
    return "\n\n".join(part for part in parts if part) + "\n"


def _output(output: dict[str, Any], pages: Path, name: str) -> str:
    data = output.get("data", {})
    for kind, suffix in (("image/svg+xml", "svg"), ("image/png", "png")):
        if kind in data:
            content = "".join(data[kind])
            picture = content.encode() if suffix == "svg" else base64.b64decode(content)
            (pages / f"{name}.{suffix}").write_bytes(picture)
            return f"![]({posixpath.basename(name)}.{suffix})"
    if "text/html" in data:
        return "".join(data["text/html"])
    text = "".join(output.get("text") or data.get("text/plain") or output.get("traceback") or "")
    return f"```text\n{text.rstrip()}\n```" if text else ""
