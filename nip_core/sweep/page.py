"""The results of a sweep for its reader, as Markdown.

render_results  the table, what was declared, and what did not end
arms_table      the arms, one a row
markdown_table  any table
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.sweep.arm_baselines import baseline_lines

MAJORITY = "majority_accuracy"
"""Where problems are played several times: of the verdict that is the more frequent."""
METRICS = ("accuracy", "completeness", "soundness", "always_fail_rate", MAJORITY)
"""Of the last test, which an arm is judged by."""
AFTER_ATTACK = ("soundness", "completeness")
"""Of the largest n, or the last tested step, of an attack."""
LOSSES = ("lost_to_lying", "lost_to_training")

_ATTACKS_PAGE = """
Of the attacks: soundness and completeness with the largest n of an attack by best-of-n, or after
the last step of a sneaky one, and how many points of soundness were lost to what. To lying: from
the last test of the run itself to provers that are told to argue for acceptance and nothing more,
on the same wrong problems. To training: from there to the last step, or the largest n. Soundness
after an attack is an upper bound: a prover that was not tried may fool more. Each attack is a run
of its own.
"""

_ANY_OF = ("soundness", "completeness")
_ASKED_AGAIN = """
Rejecting where any of k plays of a problem rejects, in the first test and the last: the mean over
all choices of k plays, so without bias.
"""
_AT_AS_MANY = """
Beside each arm with provers the highest k that takes no more generated tokens than its episodes (at
least 1): what the verifier finds with them by being asked again, by itself.
"""

Results = dict[str, Any]


def arms_table(results: Results) -> str:
    """The arms as a Markdown table: means over runs, with intervals."""
    axes = [axis for axis in results["axes"] if axis != "seed"]
    is_voted = any(arm[MAJORITY] is not None for arm in results["arms"])
    metrics = [metric for metric in METRICS if metric != MAJORITY or is_voted]
    names = {"always_fail_rate": "always wrong", MAJORITY: "majority"}
    heads = [*axes, "runs", *(names.get(metric, metric) for metric in metrics), "gain"]
    attacks = [*results["arms"][0].get("attacks", {})]
    for attack in attacks:
        heads += [f"{attack}: {name.replace('_', ' ')}" for name in (*AFTER_ATTACK, *LOSSES)]
    rows = []
    for arm in results["arms"]:
        count = f"{arm['finished']}" + (
            f" of {arm['runs']}" if arm["finished"] < arm["runs"] else ""
        )
        cells = [*arm["values"].values(), count]
        cells += [_cell(arm[metric]) for metric in metrics]
        cells.append(_change(arm["gain"]))
        for attack in attacks:
            attacked = arm["attacks"][attack]
            cells += [_cell(attacked[metric]) for metric in AFTER_ATTACK]
            cells += [_change(attacked[loss]) for loss in LOSSES]
        rows.append(cells)
    return markdown_table(heads, rows)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown, whatever its texts have in them."""
    lines = [_row(heads), "|---" * len(heads) + "|", *map(_row, rows)]
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


def _finished(entries: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(entry['status'] == 'finished' for entry in entries)} of {len(entries)}"


def _change(value: Mapping[str, Any] | None) -> str:
    return "–" if value is None else f"{100 * value['mean']:+.1f}"


def render_results(results: Results) -> str:
    """The table with what stands beside it, as Markdown."""
    attacks = [attack for run in results["runs"] for attack in run.get("attacks", {}).values()]
    text = f"# Sweep {results['sweep']}\n\n{_finished(results['runs'])} runs"
    text += f" and {_finished(attacks)} attacks finished.\n\n" if attacks else " finished.\n\n"
    text += arms_table(results)
    text += (
        "\nPercent of the last test's episodes: mean over the finished runs of an arm. In brackets "
        "95 % intervals that count seeds and questions as drawn. In the figure the lowest and the "
        "highest run of each arm. Always wrong: problems on which every play was. Majority: "
        "accuracy of the more frequent verdict on each problem. Gain: points of accuracy from the "
        "first test to the last.\n"
    )
    if results["arms"][0].get("attacks"):
        text += _ATTACKS_PAGE
    text += _asked_again_page(results)
    if lines := baseline_lines(results["baselines"]):
        text += "\n## What the baselines say\n\n" + "".join(f"- {line}\n" for line in lines)
    text += "\n![The arms](arms.svg)\n"
    text += _cells_line(results.get("cells"))
    if "declared" in results:
        text += _declared_page(results["declared"])
    played = [entry for run in results["runs"] for entry in (run, *run.get("attacks", {}).values())]
    if void := [entry for entry in attacks if entry.get("caution")]:
        text += "\n## Attacks that show less than they seem to\n\n"
        text += "".join(f"- `{attack['run']}`: {attack['caution']}\n" for attack in void)
    failed = [entry for entry in played if "failure" in entry]
    if failed:
        text += "\n## Not ended\n\n"
        text += "".join(f"- `{run['run']}`: {_line(run['failure'])}\n" for run in failed)
    return text


def _cells_line(cells: Mapping[str, Any] | None) -> str:
    """Say where each verdict is, and which could not be read."""
    if cells is None:
        return ""
    text = f"\nEach of the {cells['verdicts']:,} verdicts is in `cells.parquet`.\n"
    if cells["left_out"]:
        text += "\nWhat could not be read is not in it:\n\n"
    return text + "".join(f"- {_line(error)}\n" for error in cells["left_out"])


def _asked_again_page(results: Results) -> str:
    """The tables of what the verifier alone finds by being asked again; "" where nobody was."""
    asked = [arm for arm in results["arms"] if arm["any_of"]]
    if not asked:
        return ""
    heads = ["arm", "test", "k", "generated tokens", *_ANY_OF]
    rows = [
        [
            " ".join(arm["values"].values()),
            _when(test),
            str(row["k"]),
            f"{row['generated_tokens']:,.0f}",
            *(_cell(row[rate]) for rate in _ANY_OF),
        ]
        for arm in asked
        for test in arm["any_of"]
        for row in test["rows"]
    ]
    text = f"\n## Asked again\n{_ASKED_AGAIN}\n{markdown_table(heads, rows)}"
    compared = results["baselines"]["any_of"]
    if not compared:
        return text
    attacks = [*compared[0]["attacked"]]
    heads = ["arm", "generated tokens", "soundness", *(f"{label}: soundness" for label in attacks)]
    heads += ["asked again", "k", "generated tokens", "soundness", "completeness"]
    rows = []
    for pair in compared:
        tokens, of_baseline = pair["generated_tokens"]
        cells = [pair["arm"], f"{tokens:,.0f}", _cell(pair["soundness"])]
        cells += [_cell(pair["attacked"][label]["soundness"]) for label in attacks]
        # Untrained and trained, in a line each.
        for test in pair["any_of"]:
            rows.append(
                [
                    *cells,
                    f"{pair['baseline']}, {_when(test)}",
                    str(pair["k"]),
                    f"{of_baseline:,.0f}",
                    *(_cell(test[rate]) for rate in _ANY_OF),
                ]
            )
    return f"{text}{_AT_AS_MANY}\n{markdown_table(heads, rows)}"


def _when(test: Mapping[str, Any]) -> str:
    return "untrained" if test["iteration"] == 0 else f"iteration {test['iteration']}"


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
            row["figure"] + (f" after {row['after']}" if row["after"] else ""),
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
