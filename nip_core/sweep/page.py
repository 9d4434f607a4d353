"""The results of a sweep for its reader, as Markdown.

render_results  the table, what was declared, and what did not end
arms_table      the arms, one a row
markdown_table  any table
"""

from collections.abc import Iterable, Sequence

from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.sweep.arm_baselines import baseline_lines
from nip_core.sweep.results_document import (
    FINISHED,
    MAJORITY,
    AskedAgainAt,
    AskedAgainTest,
    AttackResult,
    CellsWritten,
    DeclaredResults,
    OverRuns,
    RunResult,
    SweepResults,
)
from nip_core.sweep.swept_runs import SEED

_HEADS = {"always_fail_rate": "always wrong", MAJORITY: "majority"}
"""Figures whose column has another name."""

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


def arms_table(results: SweepResults) -> str:
    """Write the arms as a Markdown table: means over runs, with intervals."""
    axes = [axis for axis in results.axes if axis != SEED]
    is_voted = any(arm.majority_accuracy is not None for arm in results.arms)
    # Where nothing is played several times there is no majority, and no column for it.
    names = [name for name in results.arms[0].figures if name != MAJORITY or is_voted]
    heads = [*axes, "runs", *(_HEADS.get(name, name) for name in names), "gain"]
    for label, attack in results.arms[0].attacks.items():
        heads += [f"{label}: {name}" for name in (*attack.rates, *attack.losses)]
    rows = []
    for arm in results.arms:
        count = f"{arm.finished}" + (f" of {arm.runs}" if arm.finished < arm.runs else "")
        cells = [*arm.values.values(), count]
        cells += [_cell(arm.figures[name]) for name in names]
        cells.append(_change(arm.gain))
        for attack in arm.attacks.values():
            cells += map(_cell, attack.rates.values())
            cells += map(_change, attack.losses.values())
        rows.append(cells)
    return markdown_table(heads, rows)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table as Markdown. Bars and line breaks in its texts stay in their cells."""
    lines = [_row(heads), "|---" * len(heads) + "|", *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    """Write a row of a Markdown table. Bars and line breaks in its texts stay in their cells."""
    return "| " + " | ".join(_line(cell).replace("|", "\\|") for cell in cells) + " |"


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(value: OverRuns | None) -> str:
    if value is None:
        return "–"
    text = f"{100 * value.mean:.1f}"
    if value.ci95 is not None:
        low, high = value.ci95
        return f"{text} [{100 * low:.1f}, {100 * high:.1f}]"
    return text


def _finished(entries: Sequence[RunResult | AttackResult]) -> str:
    return f"{sum(entry.status == FINISHED for entry in entries)} of {len(entries)}"


def _change(value: OverRuns | None) -> str:
    return "–" if value is None else f"{100 * value.mean:+.1f}"


def render_results(results: SweepResults) -> str:
    """Write the page of a sweep in Markdown: its table, what is said of it, and what went wrong."""
    attacks = results.attacks
    text = f"# Sweep {results.sweep}\n\n{_finished(results.runs)} runs"
    text += f" and {_finished(attacks)} attacks finished.\n\n" if attacks else " finished.\n\n"
    text += arms_table(results)
    text += (
        "\nPercent of the last test's episodes: mean over the finished runs of an arm. In brackets "
        "95 % intervals that count seeds and questions as drawn. In the figure the lowest and the "
        "highest run of each arm. Always wrong: problems on which every play was. Majority: "
        "accuracy of the more frequent verdict on each problem. Gain: points of accuracy from the "
        "first test to the last.\n"
    )
    if results.arms[0].attacks:
        text += _ATTACKS_PAGE
    text += _asked_again_page(results)
    if lines := baseline_lines(results.baselines):
        text += "\n## What the baselines say\n\n" + "".join(f"- {line}\n" for line in lines)
    text += "\n![The arms](arms.svg)\n"
    text += _cells_line(results.cells)
    if results.declared is not None:
        text += _declared_page(results.declared)
    if void := [attack for attack in attacks if attack.caution]:
        text += "\n## Attacks that show less than they seem to\n\n"
        text += "".join(f"- `{attack.run}`: {attack.caution}\n" for attack in void)
    failed = [entry for entry in results.played if entry.failure is not None]
    if failed:
        text += "\n## Not ended\n\n"
        text += "".join(f"- `{run.run}`: {_line(run.failure or '')}\n" for run in failed)
    return text


def _cells_line(cells: CellsWritten | None) -> str:
    """Say where each verdict is, and list the files not read."""
    if cells is None:
        return ""
    text = f"\nEach of the {cells.verdicts:,} verdicts is in `cells.parquet`.\n"
    if cells.left_out:
        text += "\nWhat could not be read is not in it:\n\n"
    return text + "".join(f"- {_line(error)}\n" for error in cells.left_out)


def _asked_again_page(results: SweepResults) -> str:
    """Write the tables of verifiers alone, asked again; "" where none was."""
    asked = [arm for arm in results.arms if arm.any_of]
    if not asked:
        return ""
    heads = ["arm", "test", "k", "generated tokens", *_ANY_OF]
    rows = [
        [
            arm.name,
            _when(test),
            str(row.k),
            f"{row.generated_tokens:,.0f}",
            _cell(row.soundness),
            _cell(row.completeness),
        ]
        for arm in asked
        for test in arm.any_of
        for row in test.rows
    ]
    text = f"\n## Asked again\n{_ASKED_AGAIN}\n{markdown_table(heads, rows)}"
    compared = results.baselines.any_of
    if not compared:
        return text
    attacks = [*compared[0].attacked]
    heads = ["arm", "generated tokens", "soundness", *(f"{label}: soundness" for label in attacks)]
    heads += ["asked again", "k", "generated tokens", *_ANY_OF]
    rows = []
    for pair in compared:
        tokens, of_baseline = pair.generated_tokens
        cells = [pair.arm, f"{tokens:,.0f}", _cell(pair.soundness)]
        cells += [_cell(pair.attacked[label].soundness) for label in attacks]
        # Untrained and trained, in a line each.
        for test in pair.any_of:
            again = [f"{pair.baseline}, {_when(test)}", str(pair.k), f"{of_baseline:,.0f}"]
            rows.append([*cells, *again, _cell(test.soundness), _cell(test.completeness)])
    return f"{text}{_AT_AS_MANY}\n{markdown_table(heads, rows)}"


def _when(test: AskedAgainTest | AskedAgainAt) -> str:
    return "untrained" if test.iteration == 0 else f"iteration {test.iteration}"


def _declared_page(declared: DeclaredResults) -> str:
    """Write what was declared, what came of it, and what was done otherwise."""
    heads = ["hypothesis", "figure", "arm", "against", "difference"]
    heads += ["95 % interval", "p (Holm)", "outcome"]
    text = (
        f"\n## Declared\n\nDeclared at {declared.declared_at} (declaration "
        f"`{declared.sha256[:16]}`). Stopping rule: {_line(declared.stopping)}\n\n"
        f"{_row(heads)}\n{'|---' * len(heads)}|\n"
    )
    for row in declared.outcomes:
        arm, against = (plain_percent(rate) for rate in row.rates)
        cells = [
            row.says + (" (primary)" if row.primary else ""),
            row.figure + (f" after {row.after}" if row.after else ""),
            arm,
            against,
            "–" if row.difference is None else f"{100 * row.difference:+.1f}",
            "–" if row.ci95 is None else f"{100 * row.ci95[0]:+.1f} to {100 * row.ci95[1]:+.1f}",
            "–" if row.p_holm is None else f"{row.p_holm:.3g}",
            row.outcome + (f": {row.because}" if row.because is not None else ""),
        ]
        text += _row(cells) + "\n"
    text += (
        "\nDifferences in points, paired by run and question; intervals and p-values count seeds "
        "and questions as drawn.\n\n### Departures\n\n"
    )
    return text + ("".join(f"- {line}\n" for line in declared.departures) or "None.\n")
