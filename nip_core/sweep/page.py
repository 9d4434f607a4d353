"""The results of a sweep for its reader, as Markdown.

page     the table, what was declared, and what did not end
table    the arms, one a row
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nip_core.evaluation.report_text import plain_percent

MAJORITY = "majority_accuracy"
"""Where problems are played several times: of the verdict that is the more frequent."""
METRICS = ("accuracy", "completeness", "soundness", "always_fail_rate", MAJORITY)
"""Of the last test, which an arm is judged by."""

Results = dict[str, Any]


def table(results: Results) -> str:
    """The arms as a Markdown table: means over runs, with intervals."""
    axes = [axis for axis in results["axes"] if axis != "seed"]
    is_voted = any(arm[MAJORITY] is not None for arm in results["arms"])
    metrics = [metric for metric in METRICS if metric != MAJORITY or is_voted]
    names = {"always_fail_rate": "always wrong", MAJORITY: "majority"}
    heads = [*axes, "runs", *(names.get(metric, metric) for metric in metrics), "gain"]
    lines = [_row(heads), "|---" * len(heads) + "|"]
    for arm in results["arms"]:
        count = f"{arm['finished']}" + (
            f" of {arm['runs']}" if arm["finished"] < arm["runs"] else ""
        )
        cells = [*arm["values"].values(), count]
        cells += [_cell(arm[metric]) for metric in metrics]
        gain = arm["gain"]
        cells.append("–" if gain is None else f"{100 * gain['mean']:+.1f}")
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    """A row of a Markdown table, whatever its texts have in them."""
    return "| " + " | ".join(_line(cell).replace("|", "\\|") for cell in cells) + " |"


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "–"
    text = f"{100 * value['mean']:.1f}"
    if "ci95" in value:
        low, high = value["ci95"]
        return f"{text} [{100 * low:.1f}, {100 * high:.1f}]"
    return text


def page(results: Results) -> str:
    """The table with what stands beside it, as Markdown."""
    finished = sum(run["status"] == "finished" for run in results["runs"])
    text = f"# Sweep {results['sweep']}\n\n{finished} of {len(results['runs'])} runs finished.\n\n"
    text += table(results)
    text += (
        "\nPercent of the last test's episodes: mean over the finished runs of an arm. In brackets "
        "95 % intervals that count seeds and questions as drawn. In the figure the lowest and the "
        "highest run of each arm. Always wrong: problems on which every play was. Majority: "
        "accuracy of the more frequent verdict on each problem. Gain: points of accuracy from the "
        "first test to the last.\n\n![The arms](arms.svg)\n"
    )
    if "declared" in results:
        text += _declared_page(results["declared"])
    failed = [run for run in results["runs"] if "failure" in run]
    if failed:
        text += "\n## Not ended\n\n"
        text += "".join(f"- `{run['run']}`: {_line(run['failure'])}\n" for run in failed)
    return text


def _declared_page(declared: Mapping[str, Any]) -> str:
    heads = ["hypothesis", "figure", "arm", "against", "difference"]
    heads += ["95 % interval", "p (Holm)", "outcome"]
    text = (
        f"\n## Declared\n\nDeclared at {declared['declared_at']} (declaration "
        f"`{declared['sha256'][:16]}`). Stopping rule: {_line(declared['stopping'])}\n\n"
        f"{_row(heads)}\n{'|---' * len(heads)}|\n"
    )
    for row in declared["outcomes"]:
        arm, against = (plain_percent(rate) for rate in row["rates"])
        interval = row["ci95"]
        cells = [
            row["says"] + (" (primary)" if row["primary"] else ""),
            row["figure"],
            arm,
            against,
            "–" if row["difference"] is None else f"{100 * row['difference']:+.1f}",
            "–" if not interval else f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}",
            "–" if row["p_holm"] is None else f"{row['p_holm']:.3g}",
            row["outcome"] + (f": {row['because']}" if "because" in row else ""),
        ]
        text += _row(cells) + "\n"
    text += (
        "\nDifferences in points, paired by run and question; intervals and p-values count seeds "
        "and questions as drawn.\n\n### Departures\n\n"
    )
    return text + ("".join(f"- {line}\n" for line in declared["departures"]) or "None.\n")
