"""The rows of a session for readers: a table for each piece."""

from typing import Any

LONGEST = 700


def page(value: dict[str, Any]) -> str:
    """The results as Markdown. The JSON file beside it has every figure."""
    lines = ["# A session on a GPU", ""]
    if value["rehearsal"]:
        lines += [
            "**A rehearsal on a CPU at tiny sizes: it shows that everything runs, no more.**",
            "",
        ]
    lines += [
        "Made by `benchmarks/gpu_session.py`; the JSON file beside this has every figure.",
        "",
    ]
    for name, section in value["pieces"].items():
        lines += [f"## {name}", "", *_made(section)]
        lines += ["| | |", "|---|---|"]
        lines += [f"| {row} | {_cell(figures)} |" for row, figures in section["rows"].items()]
        lines.append("")
    return "\n".join(lines)


def _made(section: dict[str, Any]) -> list[str]:
    """By which command, at which commit, in how long, and whether that was enough."""
    state = "" if section["finished"] else " **Not finished.**"
    if not (runs := section.get("runs")):
        return [f"Not run.{state}", ""]
    seconds = sum(run.get("took_s", 0) for run in runs)
    made = f"At {runs[-1].get('commit') or '?'}, {seconds:.0f} s.{state}"
    return [made, "", f"`{runs[-1].get('command', '?')}`", ""]


def _cell(figures: dict[str, Any]) -> str:
    """The figures that fit into a cell: the plain ones, and those one level below."""
    if "reason" in figures:
        return "not measured: " + _short(figures["reason"])
    parts = []
    if failed := figures.get("failed"):
        parts.append("failed: " + ", ".join(failed))
    for key, value in figures.items():
        if _is_plain(value):
            parts.append(f"{key} {value}")
        elif isinstance(value, dict) and key != "failed":
            parts += [f"{key}: {_plain(value)}"] if _plain(value) else []
        elif isinstance(value, list):
            entries = [_plain(entry) for entry in value if isinstance(entry, dict)]
            parts += [f"{key}: {' / '.join(entries)}"] if any(entries) else []
    return _short("; ".join(parts))


def _plain(figures: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in figures.items() if _is_plain(value))


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) and len(str(value)) < 60


def _short(text: str) -> str:
    joined = " ".join(str(text).replace("|", "/").split())
    return joined if len(joined) <= LONGEST else joined[:LONGEST] + " ..."
