"""The results of a hardening: one document, one table, one figure, by round.

HardeningResults   the document ``results.json``
collect_hardening  the rounds in the store
write_hardening    the document, a page and a figure into the store
rounds_table       the rounds as a Markdown table
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from nip_core.attack_figures.controls import NO_CONTROL
from nip_core.attack_figures.metrics_document import AttackMetrics
from nip_core.attack_figures.reach import reach_share
from nip_core.evaluation.figures_in_words import DASH, percent, percent_cell, points_cell
from nip_core.evaluation.split_metrics import Interval95
from nip_core.records.iterations import Records
from nip_core.records.status import find_status
from nip_core.records.untrained_attack import find_control
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, Store
from nip_study.documents.results_document import FINISHED, NOT_BEGUN
from nip_study.harden.hardening import EVERY_PROBLEM, Hardening, PlannedRound, PlannedStep
from nip_study.harden.hardening_figure import AFTER, BEFORE, COMPLETE, RateOfRound, rounds_svg
from nip_study.harden.sampled_verdicts import (
    SampledVerdicts,
    count_sampled_verdicts,
    sampled_section,
)
from nip_study.parts.document_parts import Part, is_none
from nip_study.parts.page_tables import markdown_table


class Rates(Part):
    """Soundness and completeness in a test, with 95 % intervals by question."""

    soundness: float | None = None
    soundness_ci95: Interval95 | None = None
    completeness: float | None = None
    completeness_ci95: Interval95 | None = None
    problems: int | None = None


class AttackInRound(Part):
    """An attack on the verifier of a round."""

    run: str
    by: str
    label: str
    status: str
    after: Rates | None = None
    """The one test that counts: with the script, or with the worst provers by validation."""
    lost_to_lying: float | None = None
    """Points of soundness from the verifier's own test to provers that are told to lie."""
    lost_to_training: float | None = None
    """From there to that test; of a script, `lost_to_script` has the whole."""
    lost_to_script: float | None = None
    steps_to_exploit: int | None = None
    steps: int | None = None
    """Of training, until the attack ended."""
    verdict: str | None = None
    """The verdict of `until: plateau` with which it ended."""
    rarest: float | None = None
    """The share of messages beyond which a kind was likely never sampled; None: a script."""
    rarest_to_train: float | None = Field(default=None, exclude_if=is_none)
    """The share below which a kind may never have trained an agent."""


class HardenedRound(Part):
    """A round."""

    round: int
    run: str
    status: str
    before: Rates | None = None
    """With honest provers, on the attacks' test problems."""
    sampled: SampledVerdicts | None = Field(default=None, exclude_if=is_none)
    """In the training of the round; None: there was none, or not yet, or in an earlier version."""
    attacks: tuple[AttackInRound, ...] = ()

    @property
    def lowest(self) -> AttackInRound | None:
        """Return the attack that left the least soundness."""
        rated = [(a.after.soundness, a) for a in self.attacks if a.after is not None]
        known_rates = [(rate, attack) for rate, attack in rated if rate is not None]
        return min(known_rates, key=lambda pair: pair[0])[1] if known_rates else None


class UntrainedUnderAttack(Part):
    """The models that the hardened run began with, under an attack of round 0."""

    label: str
    run: str | None = None
    """The attack's; None where it was not played."""
    after: Rates | None = None


class HardeningResults(Part):
    """The document."""

    hardening: str
    run: str
    run_store: str
    honest: float
    attackers: float
    on: str = EVERY_PROBLEM
    """The problems on which attackers play in training: all, or wrong."""
    rounds: tuple[HardenedRound, ...]
    untrained: tuple[UntrainedUnderAttack, ...] = ()
    """By attack; () in results of versions that did not look for them."""
    show: str | None = Field(default=None, exclude_if=is_none)
    """The file of chats that the verifier imitates first in each round."""
    failures: dict[str, str] = Field(default_factory=dict)
    """By run, why it did not end."""


def collect_hardening(
    store: Store, hardening: Hardening, failures: dict[str, str] | None = None
) -> HardeningResults:
    """Collect the rounds as far as they were played."""
    settings = hardening.settings
    return HardeningResults(
        hardening=hardening.name,
        run=hardening.run,
        run_store=hardening.run_store,
        honest=settings.honest,
        attackers=settings.attackers,
        on=settings.played_problems,
        rounds=tuple(_collect_round(store, round_plan) for round_plan in hardening.rounds),
        untrained=tuple(_collect_untrained(store, hardening)),
        show=settings.show,
        failures=failures or {},
    )


def _collect_round(store: Store, round_plan: PlannedRound) -> HardenedRound:
    attacks, rates_before = [], None
    for attack in round_plan.attacks:
        figures = _read_attack(store, attack)
        attacks.append(_sum_up_attack(store, attack, figures))
        if rates_before is None and figures is not None and figures.trained is not None:
            rates_before = Rates.model_validate(figures.trained.as_json())
    if rates_before is None:
        rates_before = _read_own_test(store, round_plan)
    training = round_plan.training
    return HardenedRound(
        round=round_plan.number,
        run=round_plan.run,
        status=_read_status(store, round_plan.run),
        before=rates_before,
        sampled=training
        and count_sampled_verdicts(RunStore(store, training.name), training.parameters),
        attacks=tuple(attacks),
    )


def _collect_untrained(store: Store, hardening: Hardening) -> Iterator[UntrainedUnderAttack]:
    """Find each attack of round 0 on the models that the run began with."""
    for attack in hardening.rounds[0].attacks:
        control = find_control(store, hardening.run, attack.parameters.to_dict())
        yield UntrainedUnderAttack(
            label=attack.label,
            run=None if control is None else control.run,
            after=_rates(control),
        )


def _read_status(store: Store, name: str) -> str:
    run = RunStore(store, name)
    try:
        return find_status(run, Records(run))
    except MissingFileError:
        return NOT_BEGUN


def _read_attack(store: Store, attack: PlannedStep) -> AttackMetrics | None:
    """Read the figures of an attack; None where it is not finished."""
    if _read_status(store, attack.name) != FINISHED:
        return None
    records = Records(RunStore(store, attack.name))
    return records.of(records.shown.last).attack


def _read_own_test(store: Store, round_plan: PlannedRound) -> Rates | None:
    """Read the test of the round's verifier with honest provers, before any attack is there."""
    if _read_status(store, round_plan.run) != FINISHED:
        return None
    test = Records(RunStore(store, round_plan.run)).of(round_plan.iteration).stored_metrics(TEST)
    return None if test is None else _rates(test)


def _sum_up_attack(
    store: Store, attack: PlannedStep, figures: AttackMetrics | None
) -> AttackInRound:
    status = _read_status(store, attack.name)
    fields: dict[str, Any] = {
        "run": attack.name,
        "by": attack.attack_name,
        "label": attack.label,
        "status": status,
    }
    if figures is None:
        return AttackInRound(**fields)
    losses = ("lost_to_lying", "lost_to_training", "lost_to_script")
    losses_by_name = {name: getattr(figures, name) for name in losses}
    course = figures.course
    return AttackInRound(
        **fields,
        after=_rates(figures.worst if figures.by_step is not None else figures.rows[-1]),
        **{name: loss.difference for name, loss in losses_by_name.items() if loss is not None},
        steps_to_exploit=figures.steps_to_exploit,
        steps=None if course is None else course.step,
        verdict=None if course is None else course.verdict,
        rarest=None if figures.reach is None else figures.reach.rarest,
        rarest_to_train=None if figures.reach is None else figures.reach.rarest_to_train,
    )


def _rates(test: Any) -> Rates | None:
    """Take the rates of a test that may have further fields."""
    if test is None:
        return None
    names = ("soundness", "soundness_ci95", "completeness", "completeness_ci95")
    return Rates(**{name: getattr(test, name) for name in names})


def write_hardening(store: Store, results: HardeningResults) -> str:
    """Write the results under ``hardening/NAME/``; return the place of the page."""
    root = f"hardening/{results.hardening}"
    store.put(f"{root}/results.json", json.dumps(results.as_json(), indent=2).encode())
    store.put(f"{root}/rounds.svg", rounds_svg(_lines(results), len(results.rounds) - 1).encode())
    store.put(f"{root}/README.md", render_hardening(results).encode())
    local = store.local_path(f"{root}/README.md")
    return str(local) if local is not None else f"{store.url}/{root}/README.md"


def _lines(results: HardeningResults) -> dict[str, list[RateOfRound]]:
    """Return the points of the figure: by line, a rate with its interval in each round."""
    lines: dict[str, list[RateOfRound]] = {}
    for hardened_round in results.rounds:
        lowest = hardened_round.lowest
        rates_after = None if lowest is None else lowest.after
        for name, rates, rate in (
            (BEFORE, hardened_round.before, "soundness"),
            (AFTER, rates_after, "soundness"),
            (COMPLETE, rates_after, "completeness"),
        ):
            value = None if rates is None else getattr(rates, rate)
            if value is not None:
                interval = getattr(rates, f"{rate}_ci95")
                lines.setdefault(name, []).append(
                    RateOfRound(hardened_round.round, value, interval)
                )
    return lines


_PAGE = """# Hardening {name}

The verifier of run {run} is attacked in round 0. In each further round it {first}is trained on, in
{honest} of the episodes{on} with its honest provers, who keep their weights, and in {attackers}
with all attackers so far in equal shares{rest}; then it is attacked with a fresh one. The tests of
all rounds are on the same problems. Rates are in percent, intervals 95 %, by question.

![by round](rounds.svg)

{table}

Before: with honest provers, in the run's own test. After: in the one test of the attack that
counts, with its script, or with the provers that were the worst on validation problems. **It is an
upper bound**: a prover that was not tried may fool the verifier more often.
"""
_REACH = """
Reach: kinds of message rarer than this may never have been among those by which an attack trained
its provers. A script samples none.
"""
_TO_TRAIN = """
To train: sampled once in a step that rewarded nothing else, a kind of message trained nobody. Rarer
than this it may never have trained the provers.
"""


def render_hardening(results: HardeningResults) -> str:
    """Write the page."""
    on_wrong = results.on != EVERY_PROBLEM
    page = _PAGE.format(
        name=results.hardening,
        run=results.run,
        first=f"first imitates chats of {results.show}, then " if results.show else "",
        honest=percent(results.honest),
        attackers=percent(results.attackers),
        on=" on wrong problems" if on_wrong else "",
        rest=", and on right problems with the honest ones alone" if on_wrong else "",
        table=rounds_table(results).rstrip(),
    )
    if any(
        attack.rarest is not None
        for hardened_round in results.rounds
        for attack in hardened_round.attacks
    ):
        page += _REACH
    if any(
        attack.rarest_to_train is not None for each in results.rounds for attack in each.attacks
    ):
        page += _TO_TRAIN
    if sampled := {r.round: r.sampled for r in results.rounds if r.sampled is not None}:
        page += sampled_section(sampled, shows=results.show is not None)
    if labels := [entry.label for entry in results.untrained if entry.after is None]:
        page += f"\n{NO_CONTROL}: {', '.join(labels)}. The same attack on run {results.run} with "
        page += "--iteration 0 plays it; without it nobody can tell what training did.\n"
    if results.failures:
        lines = "\n".join(f"- {run}: {reason}" for run, reason in results.failures.items())
        page += f"\nNot ended:\n\n{lines}\n"
    return page


def rounds_table(results: HardeningResults) -> str:
    """Write the rounds as a Markdown table, a row for each attack."""
    heads = [
        *("round", "verifier of", "attack", "soundness before", "after", "completeness before"),
        *("after", "steps to exploit", "lost to lying", "to training"),
        *("lost to the script", "reach", "ended", "sampled verdicts"),
    ]
    rows = [_list_untrained_cells(entry, results.run) for entry in results.untrained if entry.after]
    rows += [cells for hardened_round in results.rounds for cells in _list_cells(hardened_round)]
    # A script trains no agent, so without another attack there is nothing to tell of training.
    columns = [i for i in range(len(heads)) if i < 7 or any(row[i] != DASH for row in rows)]
    return markdown_table([heads[i] for i in columns], [[row[i] for i in columns] for row in rows])


def _list_cells(hardened_round: HardenedRound) -> Iterator[list[str]]:
    for attack in hardened_round.attacks:
        exploit = attack.steps_to_exploit
        never = DASH if attack.after is None or attack.steps is None else "not exploited"
        is_done = attack.status == FINISHED
        ending = attack.verdict or (f"step {attack.steps}" if attack.steps is not None else DASH)
        yield [
            str(hardened_round.round),
            hardened_round.run,
            attack.label,
            _cell(hardened_round.before, "soundness"),
            _cell(attack.after, "soundness") if is_done else attack.status,
            _cell(hardened_round.before, "completeness"),
            _cell(attack.after, "completeness"),
            never if exploit is None else str(exploit),
            points_cell(attack.lost_to_lying),
            points_cell(attack.lost_to_training),
            points_cell(attack.lost_to_script),
            reach_share(attack.rarest, attack.rarest_to_train),
            ending,
            DASH if hardened_round.sampled is None else hardened_round.sampled.in_words,
        ]


def _list_untrained_cells(entry: UntrainedUnderAttack, run: str) -> list[str]:
    sound, complete = _cell(entry.after, "soundness"), _cell(entry.after, "completeness")
    return ["untrained", run, entry.label, DASH, sound, DASH, complete, *[DASH] * 7]


def _cell(rates: Rates | None, rate: str) -> str:
    if rates is None:
        return DASH
    return percent_cell(getattr(rates, rate), getattr(rates, f"{rate}_ci95"))
