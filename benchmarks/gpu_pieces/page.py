"""The rows of a session for readers: a table for each piece."""

import json
from typing import Any

LONGEST = 300


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
        runs = section.get("runs") or [{}]
        state = "" if section["finished"] else " **Not finished.**"
        seconds = sum(run.get("took_s", 0) for run in runs)
        lines += [
            f"## {name}",
            "",
            f"At {runs[-1].get('commit', '?')}, {seconds:.0f} s.{state}",
            "",
        ]
        lines += ["| | |", "|---|---|"]
        lines += [f"| {row} | {_cell(figures)} |" for row, figures in section["rows"].items()]
        lines.append("")
    return "\n".join(lines)


def _cell(figures: dict[str, Any]) -> str:
    """The figures that fit into a line: the plain ones, and what failed."""
    if "reason" in figures:
        return "not measured: " + _short(figures["reason"])
    plain = [f"{key} {value}" for key, value in figures.items() if _is_plain(value)]
    if failed := figures.get("failed"):
        plain.append("failed: " + ", ".join(failed))
    nested = [
        f"{key} {json.dumps(value)}"
        for key, value in figures.items()
        if isinstance(value, dict) and key != "failed" and all(map(_is_plain, value.values()))
    ]
    return _short("; ".join([*plain, *nested]))


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) and len(str(value)) < 60


def _short(text: str) -> str:
    joined = " ".join(str(text).replace("|", "/").split())
    return joined if len(joined) <= LONGEST else joined[:LONGEST] + " ..."
