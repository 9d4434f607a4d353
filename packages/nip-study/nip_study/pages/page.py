"""The results of a sweep for its reader, as Markdown."""

from collections.abc import Iterator, Sequence

from nip_core.attack_figures.reach import reach_share
from nip_core.evaluation.figures_in_words import (
    ALL_EQUAL,
    DASH,
    amount,
    p_value,
    percent_cell,
    points_cell,
)
from nip_core.evaluation.statistics.differences import at_most
from nip_study.compute.arm_baselines import baseline_lines
from nip_study.compute.effort_curves import effort_page
from nip_study.compute.post_hoc import compared_cells, name_group, post_hoc_page, range_cell
from nip_study.compute.swept_controls import controls_page
from nip_study.documents.results_document import (
    FINISHED,
    MAJORITY,
    ArmDifference,
    ArmDifferences,
    AttackResult,
    CellsWritten,
    DeclaredResults,
    HypothesisOutcome,
    RunResult,
    SweepResults,
)
from nip_study.documents.swept_facts import StampFacts
from nip_study.pages.asked_again_page import asked_again_page
from nip_study.pages.lone_runs import lone_runs_page
from nip_study.parts.document_parts import OverRuns
from nip_study.parts.page_tables import markdown_table, one_line, write_cell, write_row
from nip_study.parts.two_way import Spread
from nip_study.plan.planned import SEED

_MOST_LISTED = 12  # departures of one kind
_HEADS = {"always_fail_rate": "always wrong", MAJORITY: "majority"}
"""Figures whose column has another name."""

_ATTACKS_PAGE = """
Of the attacks: soundness and completeness with the largest n of an attack by best-of-n, or in the
last test of a sneaky one (with the worst provers by validation, or after the last step), and how
many points of soundness were lost to what. To lying: from the last test of the run itself to
provers that are told to argue for acceptance and nothing more, on the same wrong problems. To
training: from there to that test, or the largest n. Soundness after an attack is an upper bound: a
prover that was not tried may fool more. Each attack is a run of its own.
"""
_REACH_PAGE = """
Reach: kinds of message rarer than this may never have been among those that an attack sampled on
wrong problems (3/E, of E messages; mean over attacks). A script samples none.
"""
_TO_TRAIN = """
To train: sampled once in a step that rewarded nothing else, a kind of message trained nobody. Rarer
than this it may never have trained the provers (mean over attacks).
"""
_SCRIPTS_PAGE = """
Lost to the script: from the last test of the run itself to the one in which a script wrote the
provers' messages. Training has no part in it.
"""
_HELD_OUT_PAGE = """
Held out: scripts that no attacked run was trained against, as the sweep's file says.
"""

_EQUALITIES = """
Within ± m: both one-sided tests against a difference of m points hold, so that the interval beside
it lies within the margin. Not shown to be within ± m: it does not; the arms may differ by more, or
less.
"""
_GATE = """
The others wait for the gate: unless it is shown, none of them is tested.
"""
_GIVEN = """
Against a given number: the difference of the arm's rate to it, over seeds and questions. To be
higher or lower is tested one-sided, and the bound of that test is beside the outcome. Intervals and
bounds are exact ones (Clopper and Pearson's) for so many independent trials as the verdicts are
worth:
"""
_WORST = """
After worst: of each run the test of an attack with the lowest soundness, of all n and all steps
that were tested on test problems. It is a minimum over tests, chosen on the problems that it is
counted on, and so biased: lower than that attack leaves on other problems, the more so the more was
tested. The worst:
"""

_HONEST = """
After an attack, soundness is that of the attack's test. Completeness is that of the run's own test,
with the honest prover, and accuracy the mean of both, unless a hypothesis asks for the attacker's
(`balanced: attacked`). Rates are means over runs.
"""
_ALONE = """
A verifier alone is the untrained or the trained one, whichever has more of the figure over all
runs; both are shown. Chosen on the problems that it is counted on, the better of two equal ones is
a little too high, in its favour.
"""

_MANY_SEEDS = 1_000  # beyond, the number is no plan
_ROUGHLY = {2: "0.4 to 60", 3: "0.4 to 9", 4: "0.5 to 5", 5: "0.5 to 4", 6: "0.5 to 3"}
"""By the number of pairs, how many times a variance the true one is in 80 of 100 cases (χ²)."""
_UNDECLARED = """
Points that an arm has more than `{first}`, the first arm of the file: over the seeds that are
finished in both, paired by seed and question. Intervals and p-values count seeds and questions as
drawn; p (Holm) is adjusted for all comparisons of this table. Nobody said beforehand which of them
matters: what stands out here is a reason to declare it, and to play other seeds.
"""
_SEEDS = """
Seeds needed: so many pairs would show such a difference in 80 of 100 cases (5 % two-sided, the same
questions), if seeds differ as much as those that were played. More questions: no number of seeds is
enough with these.
"""


def arms_table(results: SweepResults) -> str:
    """Write the arms as a Markdown table: means over runs, with intervals."""
    axes = [axis for axis in results.axes if axis != SEED]
    is_voted = any(arm.majority_accuracy is not None for arm in results.arms)
    # Where nothing is played several times there is no majority, and no column for it.
    names = [name for name in results.arms[0].figures if name != MAJORITY or is_voted]
    heads = [*axes, "runs", *(_HEADS.get(name, name) for name in names), "gain"]
    held_out = _list_held_out(results)
    for label, attack in results.arms[0].attacks.items():
        head = f"{label} (held out)" if label in held_out else label
        heads += [f"{head}: {name}" for name in (*attack.rates, *attack.losses, "reach")]
    rows = []
    for arm in results.arms:
        count = f"{arm.finished}" + (f" of {arm.runs}" if arm.finished < arm.runs else "")
        cells = [*arm.values.values(), count]
        cells += [write_cell(arm.figures[name]) for name in names]
        cells.append(_change(arm.gain))
        for attack in arm.attacks.values():
            cells += map(write_cell, attack.rates.values())
            cells += map(_change, attack.losses.values())
            reach = (attack.rarest, attack.rarest_to_train)
            cells.append(reach_share(*(None if rate is None else rate.mean for rate in reach)))
        rows.append(cells)
    # Where an attack has no figure in any arm there is no column for it.
    of_attacks = results.arms[0].attacks.values()
    own = len(heads) - sum(len(a.rates) + len(a.losses) + 1 for a in of_attacks)
    columns = [i for i in range(len(heads)) if i < own or any(row[i] != DASH for row in rows)]
    return markdown_table([heads[i] for i in columns], [[row[i] for i in columns] for row in rows])


def differences_table(differences: ArmDifferences) -> str:
    """Write each arm less the first as a Markdown table, in percent and points."""
    heads = ["figure", "arm", "it has", "the first has", "difference", "p (Holm)", "pairs"]
    rows = [
        [
            row.figure + ("" if row.attack is None else f" after {row.attack}"),
            row.arm,
            *map(percent_cell, row.rates),
            _difference_cell(row),
            p_value(row.p_holm),
            str(row.pairs),
            *_seeds_cells(row),
        ]
        for row in differences.compared
        if row.difference is not None
    ]
    return markdown_table([*heads, "seeds needed", "for 5 points"], rows)


def _difference_cell(row: ArmDifference) -> str:
    sure = row.because or (ALL_EQUAL if row.ci95 is None else "")
    return points_cell(row.difference, row.ci95) + (f" ({sure})" if sure else "")


def _seeds_cells(row: ArmDifference) -> tuple[str, str]:
    """Say how many seeds would show this difference, and one of 5 points."""
    if row.seeds_needed is None:
        return DASH, DASH
    needed = row.seeds_needed
    return (
        DASH if not row.difference else _seeds_cell(needed.for_this),
        _seeds_cell(needed.for_five_points),
    )


def _seeds_cell(seeds: int | None) -> str:
    if seeds is None:
        return "more questions"
    return f"> {_MANY_SEEDS:,}" if seeds > _MANY_SEEDS else f"about {seeds}"


def differences_summary(differences: ArmDifferences | None, intervals: Spread) -> str:
    """Write the table with its reading, for a terminal; "" where there is none."""
    if differences is None or not differences.compared:
        return ""
    head = f"Each arm less the first (`{one_line(differences.first)}`), not declared, in points:"
    return f"{head}\n\n{_differences_body(differences, intervals)}\n"


def _differences_body(differences: ArmDifferences, intervals: Spread) -> str:
    """Write the table, the number of comparisons, how rough seeds are, and the missing rows."""
    compared = [row for row in differences.compared if row.difference is not None]
    text = f"{differences_table(differences)}\n" if compared else ""
    test_count = sum(row.p is not None for row in compared)
    text += f"- {test_count} comparison{'' if test_count == 1 else 's'}, not declared"
    if differences.declared:
        text += f"; {differences.declared} more {'was' if differences.declared == 1 else 'were'}"
    text += ".\n"
    pairs = [row.pairs for row in compared if row.seeds_needed is not None]
    if compared and not pairs:
        text += "- How many seeds are needed can't be said: nothing shows how much they differ.\n"
    elif pairs and (roughly := _ROUGHLY.get(min(pairs))) is not None:
        text += (
            f"- From {min(pairs)} pairs, the number of seeds is a rough guess: as a rule the true "
            f"one is {roughly} times as large.\n"
        )
    if 2 in pairs:
        held = {"robust": "91 to 98", "calibrated": "90 to 97"}[intervals]
        text += f"- With 2 pairs an interval holds the truth in {held} of 100 cases, not in 95.\n"
    # A reason for each arm, however many of its figures it is one for.
    reasons = {(row.arm, row.because): row for row in differences.compared if row not in compared}
    return text + "".join(
        f"- Not compared: `{one_line(arm)}`: {reason}.\n" for arm, reason in reasons
    )


def _finished(entries: Sequence[RunResult | AttackResult]) -> str:
    return f"{sum(entry.status == FINISHED for entry in entries)} of {len(entries)}"


def _change(value: OverRuns | None) -> str:
    return DASH if value is None else points_cell(value.mean)


def render_results(results: SweepResults) -> str:
    """Write the page of a sweep in Markdown: its table, the conclusions, and the failures."""
    attacks = results.attacks
    text = f"# Sweep {results.sweep}\n\n{_finished(results.runs)} runs"
    text += f" and {_finished(attacks)} attacks finished.\n\n" if attacks else " finished.\n\n"
    text += arms_table(results)
    kind = ", wider where there are few (calibrated)" if results.intervals == "calibrated" else ""
    text += (
        "\nPercent of the last test's episodes: mean over the finished runs of an arm. In brackets "
        f"95 % intervals that count seeds and questions as drawn{kind}. In the figure the lowest "
        "and the highest run of each arm. Always wrong: problems on which every play was. "
        "Majority: accuracy of the more frequent verdict on each problem. Gain: points of accuracy "
        "from the first test to the last.\n"
    )
    if results.arms[0].attacks:
        of_arms = [attack for arm in results.arms for attack in arm.attacks.values()]
        text += _ATTACKS_PAGE
        text += _SCRIPTS_PAGE if any(attack.lost_to_script for attack in of_arms) else ""
        text += _REACH_PAGE if any(attack.rarest for attack in of_arms) else ""
        text += _TO_TRAIN if any(attack.rarest_to_train for attack in of_arms) else ""
        text += _HELD_OUT_PAGE if _list_held_out(results) else ""
        text += _apart_line(results)
    text += lone_runs_page(results)
    text += controls_page(results) + effort_page(results) + asked_again_page(results)
    if lines := baseline_lines(results.baselines):
        text += "\n## What the baselines say\n\n" + "".join(f"- {line}\n" for line in lines)
    text += "\n![The arms](arms.svg)\n"
    text += _cells_line(results.cells)
    text += _differences_page(results.differences, results.intervals)
    if results.declared is not None:
        text += _declared_page(results.declared)
    if void := [attack for attack in attacks if attack.caution]:
        text += "\n## Attacks that show less than they seem to\n\n"
        text += "".join(f"- `{attack.run}`: {attack.caution}\n" for attack in void)
    failed = [entry for entry in results.played if entry.failure is not None]
    if failed:
        text += "\n## Not ended\n\n"
        text += "".join(f"- `{run.run}`: {one_line(run.failure or '')}\n" for run in failed)
    return text


def _list_held_out(results: SweepResults) -> set[str]:
    return {name for run in results.runs for name, one in run.attacks.items() if one.is_held_out}


def _apart_line(results: SweepResults) -> str:
    """Name the attacks on other problems than the runs' own; "" where there is none."""
    labels = dict.fromkeys(
        label for run in results.runs for label, one in run.attacks.items() if one.is_apart
    )
    if not labels:
        return ""
    names = ", ".join(f"`{one_line(label)}`" for label in labels)
    return f"\nOn other problems than the runs' own tests, so no loss is paired: {names}.\n"


def _differences_page(differences: ArmDifferences | None, intervals: Spread) -> str:
    """Write each arm less the first; "" where there is none, or all was declared."""
    if differences is None or not differences.compared:
        return ""
    text = "\n## Each arm less the first: not declared\n"
    text += _UNDECLARED.format(first=one_line(differences.first))
    text += f"\n{_differences_body(differences, intervals)}"
    return text + (_SEEDS if any(row.seeds_needed for row in differences.compared) else "")


def _cells_line(cells: CellsWritten | None) -> str:
    """Say where each verdict is, and list the files not read."""
    if cells is None:
        return ""
    text = (
        f"\nEach of the {cells.verdicts:,} verdicts is in `cells.parquet`, and what else the "
        "figures need in `facts.json`: `nip sweep --recompute DIR` makes this page of them.\n"
    )
    if cells.left_out:
        text += "\nWhat could not be read is not in it:\n\n"
    return text + "".join(f"- {one_line(error)}\n" for error in cells.left_out)


def _declared_page(results: DeclaredResults) -> str:
    """Write the declaration, its outcomes, and the departures."""
    heads = ["hypothesis", "figure", "arm", "against", "difference"]
    heads += ["95 % interval", "p (Holm)", "outcome"]
    text = (
        f"\n## Declared\n\nDeclared at {results.declared_at} (declaration "
        f"`{results.sha256[:16]}`). Stopping rule: {one_line(results.stopping)}\n\n"
        f"{_stamp_line(results.stamp)}{write_row(heads)}\n{'|---' * len(heads)}|\n"
    )
    for row in results.outcomes:
        kinds = [kind for kind, is_one in (("primary", row.primary), ("gate", row.gate)) if is_one]
        cells = [
            row.says + (f" ({', '.join(kinds)})" if kinds else ""),
            *compared_cells(row),
            _interval_cell(row),
            DASH if row.p_holm is None else f"{row.p_holm:.3g}",
            _outcome_cell(row),
        ]
        text += write_row(cells) + "\n"
    text += (
        "\nDifferences in points, paired by run and question; intervals and p-values count seeds "
        "and questions as drawn.\n"
    )
    text += _notes_on(results.outcomes, is_honest=results.definitions > 1) + "\n### Departures\n\n"
    departures = _join_departures(results.departures)
    text += "".join(f"- {line}\n" for line in departures) or "None.\n"
    return text + post_hoc_page(results.post_hoc)


def _join_departures(departures: Sequence[str]) -> Iterator[str]:
    """Join what is the same of many runs to one line; all stand in the document."""
    by_kind: dict[str, list[str]] = {}
    for line in departures:
        subject, _, kind = line.partition(": ")
        by_kind.setdefault(kind, []).append(subject)
    for kind, subjects in by_kind.items():
        if len(subjects) > _MOST_LISTED and kind:
            first, last = subjects[0], subjects[-1]
            yield f"{len(subjects)}, from {first} to {last}, all in `results.json`: {kind}"
        else:
            yield from (f"{subject}: {kind}" if kind else subject for subject in subjects)


def _stamp_line(stamp: StampFacts | None) -> str:
    """Explain a third party's time stamp; "" without one."""
    if stamp is None:
        return ""
    begun_runs = stamp.begun_before
    shows = (
        "none of its runs had begun then, by their own clocks"
        if not begun_runs
        else f"{amount(begun_runs, 'run')} had begun by then, so it does not show that the "
        "declaration is older than they are"
    )
    return (
        f"`declaration.tsr` says that the declaration existed at {stamp.time}; {shows}. nip has "
        "verified its signature, and not whose it is. A reader who trusts a time-stamping "
        "authority verifies that: "
        "`openssl ts -verify -data declaration.json -in declaration.tsr -CAfile CA.pem`.\n\n"
    )


def _interval_cell(row: HypothesisOutcome) -> str:
    """Write the interval of a difference; of an equality the one that both tests go by."""
    interval, level = row.ci95, ""
    if row.interval_of_tests is not None:
        interval, level = row.interval_of_tests, f" ({100 * (1 - 2 * row.alpha):g} %)"
    return range_cell(interval) + (level if interval is not None else "")


def _outcome_cell(row: HypothesisOutcome) -> str:
    """Say the outcome of a hypothesis; of an equality, within which margin."""
    text: str = row.outcome
    for side, bound in (("most", row.at_most), ("least", row.at_least)):
        if bound is not None and row.outcome != "not tested":
            text += f" (at {side} {100 * bound:.1f})"
    if row.margin is not None and row.outcome != "not tested":
        margin_text = f"within ± {100 * row.margin:g}"
        text = margin_text if row.outcome == "shown" else f"not shown to be {margin_text}"
    return text + (f": {row.because}" if row.because is not None else "")


def _trials(row: HypothesisOutcome) -> str:
    """Say how many trials an arm's verdicts are worth; of equal ones, their upper bound."""
    worth = f"{row.trials:,.0f} trials, from {row.pairs} runs and {row.questions} questions."
    if row.rates[0] not in (0.0, 1.0):
        if row.trials is None or row.questions is None or row.trials <= row.questions:
            return worth
        return (
            f"{worth} No bound is tighter than with a question as a trial. Of other runs than "
            f"these {row.pairs} it tells little."
        )
    bound = at_most(0, row.pairs)
    assert bound is not None  # there are runs
    return (
        f"{worth} All verdicts are the same, so a question is a trial (the rule of three). That is "
        f"about other questions: {row.pairs} equal runs leave possible that up to "
        f"{100 * bound:.0f} % of all runs are otherwise."
    )


def _notes_on(outcomes: Sequence[HypothesisOutcome], *, is_honest: bool) -> str:
    """Say how equalities, the gate and worst attacks are to be read, where there are any."""
    text = _EQUALITIES if any(row.margin is not None for row in outcomes) else ""
    if is_honest and any(row.attack is not None for row in outcomes):
        text += _HONEST
    text += _ALONE if any(row.alone is not None for row in outcomes) else ""
    rows = [row for row in outcomes if row.trials is not None]
    if rows:
        text += _GIVEN + "\n" + "".join(f"- {one_line(row.says)}: {_trials(row)}\n" for row in rows)
    text += _GATE if any(row.gate for row in outcomes) else ""
    worst: dict[str, dict[str, None]] = {}  # by the attacks that it is the worst of, in order
    for row in outcomes:
        group = "" if isinstance(row.attack, str | None) else name_group(row.attack)
        worst.setdefault(group, {}).update(dict.fromkeys(row.worst))
    if any(worst.values()):
        text += _WORST + "\n"
    for group, lines in worst.items():
        if group and lines:
            text += f"- {group}: {'; '.join(f'`{one_line(line)}`' for line in lines)}\n"
        else:
            text += "".join(f"- `{one_line(line)}`\n" for line in lines)
    return text
