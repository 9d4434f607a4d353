"""Attacked verifiers of a sweep, beside the untrained one under the same attack and a theorem."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nip_core.attack_figures.controls import NO_CONTROL
from nip_core.evaluation.confidence_intervals import wilson_of_rate
from nip_core.evaluation.figures_in_words import DASH, p_value, percent_cell
from nip_core.evaluation.split_metrics import Interval95
from nip_core.evaluation.statistics.clustered import effective_trials
from nip_core.evaluation.statistics.guaranteed import p_below
from nip_study.compute.given_rate import bound_rate
from nip_study.documents.results_document import FINISHED, SweepResults
from nip_study.documents.swept_controls_document import (
    AttackControls,
    AttackedVerifier,
    ScriptsLeftOut,
)
from nip_study.documents.swept_facts import RunFacts, SweepFacts
from nip_study.parts.counted import Counted, Counts, Figure, average_runs
from nip_study.parts.document_parts import adjust, clip_interval
from nip_study.parts.page_tables import markdown_table, one_line

_PAGE = """
## Attacked verifiers beside the untrained one

An attack on the models that the runs began with, with the same settings (`iteration: 0`), is the
control of the one on trained verifiers: without it nobody can tell what training did. Percent, with
95 % intervals over seeds and questions; of the untrained verifier, whose weights all seeds share
where they begin with the same model, over questions.
"""
_GUARANTEED = """
Guaranteed: the soundness that a verifier has at least which checks all it can, against any prover,
by a theorem about the game. A learned verifier may keep less: p is that of a soundness so low if it
is as guaranteed in truth, one-sided, by exact tails for so many trials as the verdicts are worth; p
(Holm) is adjusted for all tests of this table. Nobody declared them.
"""
_LEVEL = 0.95


@dataclass(frozen=True)
class _Made:
    """The finished attacks of a name on the runs of an arm."""

    arm: str
    label: str
    name: str
    """Seeds the bootstrap, as in the arm's table."""
    is_trained: bool
    way: str | None
    runs: tuple[str, ...]
    guaranteed: float | None
    begins_with: str | None
    """See `RunFacts`."""


def collect_controls(counter: Counted, facts: SweepFacts) -> AttackControls | None:
    """Put each attacked verifier beside the untrained one; None without an attack.

    None also for facts of an earlier version, which do not say which attacks are the same.
    """
    attacks = [attack for run in facts.runs for attack in run.attacks]
    if all(attack.way is None for attack in attacks):
        return None
    rows: list[AttackedVerifier] = []
    without: list[str] = []
    by_arm = [[*_group_attacks(" ".join(arm), runs, facts)] for arm, runs in facts.arms.items()]
    for groups in by_arm:
        trained_groups = [group for group in groups if group.is_trained]
        controls = [group for group in groups if not group.is_trained]
        # An arm without training is the control of all that play its game in the same way.
        others = [group for arm in by_arm for group in arm if not group.is_trained]
        for group in trained_groups:
            if (row := _measure(counter, group)) is None:
                continue
            rows.append(row)
            control = _find_control(group, controls) or _find_control(group, others)
            control_rates = None if control is None else _measure(counter, control)
            if control_rates is None:
                without.append(f"{group.arm} {group.label}".strip())
            elif control in controls:
                rows.append(control_rates)
        # One whose attack on trained verifiers is not in this arm stands by itself.
        ways = {group.way for group in trained_groups}
        lone_controls = [_measure(counter, group) for group in controls if group.way not in ways]
        rows += [row for row in lone_controls if row is not None]
    adjusted = zip(rows, adjust([row.p for row in rows]), strict=True)
    return AttackControls(
        verifiers=tuple(row.model_copy(update={"p_holm": p}) for row, p in adjusted),
        without_control=tuple(without),
        scripts_left_out=tuple(_list_left_out(facts)),
    )


def _find_control(group: _Made, controls: Sequence[_Made]) -> _Made | None:
    """Find the same attack on the untrained verifier; of several the one of that name."""
    both = (group.way, group.begins_with)
    same_way = [control for control in controls if (control.way, control.begins_with) == both]
    same_way.sort(key=lambda control: control.label == group.label)
    return same_way[-1] if same_way else None


def _group_attacks(arm: str, runs: Sequence[RunFacts], facts: SweepFacts) -> Iterator[_Made]:
    """Group the finished attacks on the runs of an arm by name, and by whose models they attack."""
    for label in facts.attacks:
        for is_trained in (True, False):
            attacks = [
                attack
                for run in runs
                for attack in run.attacks
                if attack.label == label and bool(attack.attacked_iteration) == is_trained
            ]
            finished = tuple(attack.name for attack in attacks if attack.status == FINISHED)
            if finished:
                yield _Made(
                    arm=arm,
                    label=label,
                    name=f"{facts.name} {arm} {label}",
                    is_trained=is_trained,
                    way=attacks[0].way,
                    runs=finished,
                    guaranteed=runs[0].game.guaranteed,
                    begins_with=runs[0].begins_with,
                )


def _measure(counter: Counted, group: _Made) -> AttackedVerifier | None:
    """Measure the last tests of these attacks; None without a wrong problem in them."""
    sound = _average(counter, group, "soundness")
    if sound is None:
        return None
    complete = _average(counter, group, "completeness")
    return AttackedVerifier(
        arm=group.arm,
        attack=group.label,
        verifier="trained" if group.is_trained else "untrained",
        runs=len(group.runs),
        questions=sound.questions,
        soundness=sound.rate,
        soundness_ci95=sound.ci95,
        completeness=None if complete is None else complete.rate,
        completeness_ci95=None if complete is None else complete.ci95,
        guaranteed=group.guaranteed,
        # Nothing is lower than 0.
        p=_find_p(sound.counts, group.guaranteed) if group.guaranteed else None,
    )


@dataclass(frozen=True)
class _Rate:
    rate: float
    ci95: Interval95 | None
    questions: int
    counts: Sequence[Counts]


def _average(counter: Counted, group: _Made, figure: Figure) -> _Rate | None:
    """Average a rate over runs and questions, with the interval that the arm's table has."""
    run_counts = [counter.count(run, figure) for run in group.runs]
    counts = [of_run for of_run in run_counts if of_run]
    if not group.is_trained:
        # Runs of one base model are plays of the same verifier, so only questions are drawn.
        counts = _merge(counts)
    mean = average_runs(counts, f"{group.name} {figure}", counter.spread)
    if mean is None:
        return None
    interval = mean.ci95
    if len(counts) == 1:
        interval = wilson_of_rate(mean.value, _count_trials(counts[0]))
    clipped = None if interval is None else clip_interval(interval)
    return _Rate(mean.value, clipped, mean.questions, counts)


def _merge(runs: Sequence[Counts]) -> list[Counts]:
    """Take several runs of one verifier as one with so many plays of each question."""
    merged: dict[str, tuple[float, float]] = {}
    for counts in runs:
        for question, (hits, plays) in counts.items():
            hits_before, plays_before = merged.get(question, (0.0, 0))
            merged[question] = (hits_before + hits, plays_before + plays)
    return [merged] if merged else []


def _count_trials(counts: Counts) -> float:
    """Count of how many independent trials the plays of one run are worth."""
    hits, plays = np.array([*counts.values()], float).T
    return len(plays) if np.all(plays == 1) else effective_trials(hits, plays)


def _find_p(counts: Sequence[Counts], number: float) -> float | None:
    """Test whether a rate is lower than a number; None where nothing shows its spread."""
    if len(counts) == 1:
        [of_run] = counts
        hits = sum(hit for hit, _ in of_run.values())
        plays = sum(count for _, count in of_run.values())
        return p_below(hits / plays, _count_trials(of_run), number)
    # As where a declared hypothesis has a number.
    mean = average_runs(counts, "guaranteed", "robust")
    verdicts = round(sum(count for of_run in counts for _, count in of_run.values()))
    bounds = None if mean is None else bound_rate(mean, verdicts, _LEVEL)
    return None if bounds is None else bounds.p_lower(number)


def _list_left_out(facts: SweepFacts) -> Iterator[ScriptsLeftOut]:
    """List by arm the scripts of its scenario that attack none of its trained verifiers."""
    for arm, runs in facts.arms.items():
        attacks = [attack for run in runs for attack in run.attacks if attack.attacked_iteration]
        scripts = {attack.script for attack in attacks if attack.status == FINISHED}
        left_out = tuple(name for name in runs[0].game.scripts if name not in scripts)
        if attacks and left_out:
            yield ScriptsLeftOut(arm=" ".join(arm) or facts.name, scripts=left_out)


def controls_page(results: SweepResults) -> str:
    """Write attacked verifiers beside the untrained one; "" without attacks on trained ones."""
    controls = results.controls
    if controls is None:
        is_attacked = any(attack.soundness is not None for attack in results.attacks)
        return f"\n{NO_CONTROL} of these attacks is among these results.\n" if is_attacked else ""
    if not controls.verifiers:
        return ""
    is_guaranteed = any(row.guaranteed is not None for row in controls.verifiers)
    heads = ["arm", "attack", "verifier", "runs", "soundness", "completeness"]
    heads += ["guaranteed", "p", "p (Holm)"] if is_guaranteed else []
    text = f"{_PAGE}{_GUARANTEED if is_guaranteed else ''}\n"
    text += markdown_table(heads, [_list_cells(row, is_guaranteed) for row in controls.verifiers])
    if controls.without_control:
        names = ", ".join(f"`{one_line(name)}`" for name in controls.without_control)
        text += f"\n{NO_CONTROL}: {names}.\n"
    if controls.scripts_left_out:
        text += "\nScripts that come with the scenario and were not played:\n\n"
        for script in controls.scripts_left_out:
            names = ", ".join(f"`{one_line(name)}`" for name in script.scripts)
            text += f"- `{one_line(script.arm)}`: {names}\n"
    return text


def _list_cells(row: AttackedVerifier, is_guaranteed: bool) -> list[str]:
    cells = [row.arm, row.attack, row.verifier, str(row.runs)]
    cells.append(percent_cell(row.soundness, row.soundness_ci95))
    cells.append(percent_cell(row.completeness, row.completeness_ci95))
    if not is_guaranteed:
        return cells
    guarantee = DASH if row.guaranteed is None else percent_cell(row.guaranteed)
    return [*cells, guarantee, p_value(row.p), p_value(row.p_holm)]
