"""The figures of `benchmarks/wrong_weights.py` as JSON, and the page beside it.

write_page   both of a document with all rows
"""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WHAT = {
    "base": "the base under the adapter's name",
    "slot": "another adapter in its slot",
    "cache": "a stale prefix cache after a reload of the same name",
    "replica": "one replica of two left behind",
    "right": "right",
}
ABOUT = """\
Six adapters of the bundled tiny model, made by PEFT, on two vLLMs (CPU build, float32). In every
row the files in the adapter's directory are those that were made, so their SHA-256 are right.
Served is something else. `nip prove` has the directory of the right one and, by `--among`, that of
the other one. *Named* means that its verdict says what is served: the base, the other adapter, a
stale cache, replicas that disagree. The proofs of right ones are of these six again and again, so
they give no rate of false alarms."""
NOTES = """\
- *The base*: `--served-model-name base NAME`. The list of models has the name as a base model.
- *Another adapter*: `/v1/load_lora_adapter` read the path when another adapter lay there.
- *A stale prefix cache*: the name was proved, other weights were put in its place, and it was
  loaded again with `load_inplace`. vLLM 0.32 says in its log that the cache keeps the last ones'.
- *One replica*: a balancer draws one of two vLLMs for each request; one has the last adapter.
- *Right*: every fifth proof goes through the balancer, with both servers as they should be.
- Rows that were on record before (November 2026, beside much other work): 60 of 61 wrong ones were
  named, the last one was a `cannot_tell` by an error that was mended since, and a proof took from
  5 to 190 seconds.
- While other requests for adapters were in its batches, the base model of such a vLLM gave
  log-probabilities that were up to 15 nats from those that it gave alone. That was seen in three of
  twelve answers, and not looked into. A proof then says that it can't tell.
- On nip's own server the last two can't be made by its API: a name belongs to one job and is used
  once, nothing is loaded in place, and adapters share no cache. The first two need a fault inside
  of the engine. Each load is proved, see [Swap with proof](../lm-server.md#swap-with-proof)."""
_KEPT = ("what", "number", "named", "kind", "answers", "agreeing", "way", "seconds", "whole_s")
_LOOKED = ("files_right", "listed", "path_right")


def write_page(document: dict[str, Any], out: Path) -> None:
    """Write the figures to `out`, and the page beside it with the suffix `.md`."""
    rows = document["rows"]
    short = [
        {key: row[key] for key in (*_KEPT, *_LOOKED)}
        | {"load": round(row["load"][0], 1), "distance": row["figures"].get("distance")}
        for row in rows
    ]
    summary = {what: summarise([row for row in rows if row["what"] == what]) for what in WHAT}
    whole = {**document, "summary": summary, "rows": short}
    out.write_text(json.dumps(whole, indent=None, separators=(",", ":")) + "\n")
    out.with_suffix(".md").write_text(_page(document, summary))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum up rows of one kind."""
    if not rows:
        return {"proofs": 0}
    seconds = [row["seconds"] for row in rows]
    return {
        "proofs": len(rows),
        "named": sum(row["named"] for row in rows),
        "kinds": dict(Counter(row["kind"] for row in rows)),
        # What others could have seen.
        "files_differ": sum(not row["files_right"] for row in rows),
        "not_listed": sum(not row["listed"] for row in rows),
        "path_differs": sum(not row["path_right"] for row in rows),
        "seconds_median": round(statistics.median(seconds), 2),
        "seconds_most": round(max(seconds), 2),
        "distance_most": max(row["figures"].get("distance") or 0.0 for row in rows),
        "load": [round(edge(row["load"][0] for row in rows), 1) for edge in (min, max)],
    }


def _page(document: dict[str, Any], summary: dict[str, Any]) -> str:
    """The page, in Markdown."""
    lines = [
        "# Right files and the wrong thing served",
        "",
        f"`python benchmarks/wrong_weights.py --out docs/results/wrong_weights.json` at "
        f"{document['commit']}, {document['processors']} processors.",
        "",
        ABOUT,
        "",
        "| what is served | SHA-256 of the files | name in `/v1/models` | path in `/v1/models` | "
        "`nip prove` | seconds a name, median and most |",
        "|---|---|---|---|---|---|",
    ]
    for what, title in WHAT.items():
        row = summary[what]
        if not row["proofs"]:
            lines.append(f"| {title} | – | – | – | not measured | – |")
            continue
        of = f"of {row['proofs']}"
        wrong = row["proofs"] - row["named"]
        said = f"{wrong} {of} false alarms" if what == "right" else f"named, {row['named']} {of}"
        path = f"differs, {row['path_differs']} {of}"
        lines.append(
            f"| {title} | differ, {row['files_differ']} {of} | missing, {row['not_listed']} {of} | "
            f"{path} | {said} | {row['seconds_median']:g}, {row['seconds_most']:g} |"
        )
    loads = [edge for row in summary.values() for edge in row.get("load", ())]
    if loads:
        lines += ["", f"Load of the machine meanwhile: {min(loads):g} to {max(loads):g}."]
    planned = document["planned"]
    short = [f"{row['proofs']} of {planned[what]} ({what})"
             for what, row in summary.items() if row["proofs"] < planned[what]]  # fmt: skip
    if short:
        lines += ["", f"Fewer proofs than planned were made: {', '.join(short)}."]
    return "\n".join([*lines, "", NOTES, ""])
