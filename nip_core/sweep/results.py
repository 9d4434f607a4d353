"""The results of a sweep's runs: one document, one table, one figure.

collect_results  a sweep -> its results, from what is in the store
write_results    them, every verdict, a page and a figure into the store, under sweeps/NAME
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nip_core.errors import StoreError
from nip_core.evaluation.attack_words import caution
from nip_core.evaluation.baseline_words import shows_checking
from nip_core.evaluation.plots import Mark, arms_svg
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.records.attack_on_record import read_shown_attack
from nip_core.records.iterations import Records
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store
from nip_core.showing.summary import summarise_run
from nip_core.sweep.arm_baselines import (
    ByMajority,
    asked_again_pairs,
    baseline_kind,
    compare_with_baselines,
)
from nip_core.sweep.arm_differences import subtract_first_arm
from nip_core.sweep.asked_again import compare_at_equal_tokens, summarize_asked_again
from nip_core.sweep.attacks import SweptAttack
from nip_core.sweep.cells import encode_parquet, read_verdicts
from nip_core.sweep.counted import Counted, Figure, LastTest, average_runs
from nip_core.sweep.declaration import StudyDeclaration, list_departures, read_declaration
from nip_core.sweep.outcomes import judge_hypotheses
from nip_core.sweep.page import render_results
from nip_core.sweep.results_document import (
    DAMAGED,
    FINISHED,
    NOT_BEGUN,
    ArmAttack,
    ArmResult,
    AttackResult,
    BaselineFindings,
    CellsWritten,
    DeclaredResults,
    OverRuns,
    RunResult,
    SweepResults,
    SweptTest,
    sum_up,
)
from nip_core.sweep.swept_runs import SEED, Sweep, SweptRun


def collect_results(
    store: Store, sweep: Sweep, failures: Mapping[str, str] | None = None
) -> SweepResults:
    """Collect what came of a sweep: its runs with their tests, its arms and what they differ by.

    `failures` says by run why it did not end. A run that has not begun has the status "not begun".
    An arm's figures are means over those of its runs that are finished, with the lowest and the
    highest of them; None without one; so are those of its attacks. Rates have a 95 % interval that
    counts seeds and questions as drawn, where there are several of both.
    """
    begun = {*list_runs(store)}
    runs = [_read_run(store, run, begun, failures or {}) for run in sweep.runs]
    by_name = {run.run: run for run in runs}
    tests = dict(_locate_last_tests(sweep, by_name))
    counted = Counted(store, tests)
    arms = [
        _sum_up_arm(store, sweep, counted, arm, [by_name[run.name] for run in swept], swept)
        for arm, swept in sweep.arms.items()
    ]
    declaration = read_declaration(store, sweep.name)
    hypotheses = () if declaration is None else declaration.plan.hypotheses
    results = SweepResults(
        sweep=sweep.name,
        axes=sweep.axes,
        arms=tuple(arms),
        runs=tuple(runs),
        baselines=_find_baselines(store, sweep, counted, tests, runs, arms),
        differences=subtract_first_arm(counted, sweep, hypotheses),
    )
    if declaration is None:
        return results
    declared = _judge_declaration(store, sweep, counted, declaration, results)
    return results.model_copy(update={"declared": declared})


def _find_baselines(
    store: Store,
    sweep: Sweep,
    counted: Counted,
    tests: Mapping[str, LastTest],
    runs: Sequence[RunResult],
    arms: Sequence[ArmResult],
) -> BaselineFindings:
    """Compare the arms with the baselines among them."""
    last_tests = {run.run: test for run in runs if (test := run.last_test) is not None}
    # A verifier alone that plays problems several times is held to its majority, the stronger one.
    voted = [
        run.name
        for run in sweep.runs
        if baseline_kind(run.parameters) == "alone"
        and run.name in last_tests
        and last_tests[run.name].majority_accuracy is not None
    ]
    asked_again = compare_at_equal_tokens(arms, asked_again_pairs(sweep))
    by_majority = ByMajority(store, tests, voted)
    return compare_with_baselines(counted, by_majority, sweep, last_tests, asked_again)


def _judge_declaration(
    store: Store,
    sweep: Sweep,
    counted: Counted,
    declaration: StudyDeclaration,
    results: SweepResults,
) -> DeclaredResults:
    """Compare what was declared with what came, and list what was done otherwise."""
    status = {entry.run: entry.status for entry in results.played}
    return DeclaredResults(
        sha256=declaration.sha256,
        declared_at=declaration.declared_at,
        code_version=declaration.code_version,
        stopping=declaration.plan.stopping,
        outcomes=tuple(judge_hypotheses(counted, sweep, declaration.plan.hypotheses)),
        departures=list_departures(store, sweep, declaration, status),
    )


def _locate_last_tests(
    sweep: Sweep, by_name: Mapping[str, RunResult]
) -> Iterator[tuple[str, LastTest]]:
    """Say by run, attacks among them, where its last test is; only of finished, tested ones."""
    for run in sweep.runs:
        result = by_name[run.name]
        if (test := result.last_test) is not None:
            yield run.name, LastTest(test.iteration)
        for attack in run.attacks:
            if result.attacks[attack.label].status == FINISHED:
                yield attack.name, LastTest(attack.parameters.rl.num_iterations, attack.n)


@dataclass(frozen=True)
class _Read:
    """What is known of a run, or of an attack."""

    status: str
    failure: str | None
    """Why it did not end, or can't be read."""
    records: Records | None = None
    """None for a run that has not begun, or can't be read."""


def _read_run(
    store: Store, run: SweptRun, begun: set[str], failures: Mapping[str, str]
) -> RunResult:
    """Read what became of a run: its status, its tests, and the attacks on it."""
    read = _read_records(store, run.name, begun, failures)
    return RunResult(
        run=run.name,
        values=run.values,
        status=read.status,
        failure=read.failure,
        tests=None if read.records is None else tuple(_read_tests(read.records)),
        attacks={
            attack.label: _read_attack(store, attack, begun, failures) for attack in run.attacks
        },
    )


def _read_attack(
    store: Store, attack: SweptAttack, begun: set[str], failures: Mapping[str, str]
) -> AttackResult:
    """Read what became of an attack: its status, and figures of its largest n, or last step."""
    read = _read_records(store, attack.name, begun, failures)
    shown = None
    if read.records is not None and read.status == FINISHED:
        shown = read_shown_attack(read.records)
    if shown is None:
        return AttackResult(run=attack.name, status=read.status, failure=read.failure)
    last = shown.rows[-1]
    return AttackResult(
        run=attack.name,
        status=read.status,
        failure=read.failure,
        soundness=last.soundness,
        completeness=last.completeness,
        fooled=last.fooled,
        # What an earlier version has played knows of no loss to lying.
        lost_to_lying=shown.lost_to_lying and shown.lost_to_lying.difference,
        lost_to_training=shown.lost_to_training and shown.lost_to_training.difference,
        caution=caution(shown),
    )


def _read_records(store: Store, name: str, begun: set[str], failures: Mapping[str, str]) -> _Read:
    """Read the status of a run, and open its records. Without a whole summary it is damaged."""
    failure = failures.get(name)
    if name not in begun:
        return _Read(NOT_BEGUN, failure)
    run = RunStore(store, name)
    records = Records(run)
    try:
        # All that a user would be shown: what is damaged anywhere is better said than averaged.
        status = str(summarise_run(run, records)["status"])
    except StoreError as error:
        # One damaged run keeps nobody from the results of the others.
        return _Read(DAMAGED, str(error))
    # Another process may have finished a run that failed here.
    return _Read(status, None if status == FINISHED else failure, records)


def _read_tests(records: Records) -> Iterator[SweptTest]:
    """Read the tests of a run in order, with the intervals and baselines of this version."""
    for record in records.all():
        metrics = record.metrics(TEST)
        if metrics:
            yield _read_test(record.iteration, metrics)


def _read_test(iteration: int, metrics: SplitMetrics) -> SweptTest:
    """Take from the metrics of a test what a sweep compares."""
    voted, believed = metrics.majority, metrics.believe_the_prover
    return SweptTest(
        iteration=iteration,
        accuracy=metrics.accuracy,
        completeness=metrics.completeness,
        soundness=metrics.soundness,
        always_fail_rate=metrics.always_fail_rate,
        majority_accuracy=voted and voted.accuracy,
        any_of=metrics.any_of,
        believed_accuracy=metrics.believed_accuracy,
        without_prover=believed and believed.without_prover,
        shows_checking=shows_checking(metrics),
        episodes=metrics.episodes,
        distinct_problems=metrics.distinct_problems,
        generated_tokens=_divide(metrics.completion_tokens, metrics.episodes),
        prompt_tokens=_divide(metrics.prompt_tokens, metrics.episodes),
    )


def _divide(tokens: int | None, episodes: int | None) -> float | None:
    return tokens / episodes if tokens is not None and episodes else None


def _sum_up_arm(
    store: Store,
    sweep: Sweep,
    counted: Counted,
    arm: Sequence[str],
    runs: Sequence[RunResult],
    swept: Sequence[SweptRun],
) -> ArmResult:
    """Average what an arm is judged by over the last tests of its finished runs."""
    tested = [run for run in runs if run.last_test is not None]
    last = [test for run in tested if (test := run.last_test) is not None]
    of_arm = f"{sweep.name} {' '.join(arm)}"
    plays = _Plays(counted, [run.run for run in tested], of_arm)
    return ArmResult(
        values=dict(zip([axis for axis in sweep.axes if axis != SEED], arm, strict=True)),
        runs=len(runs),
        finished=sum(run.status == FINISHED for run in runs),
        accuracy=plays.average("accuracy", [test.accuracy for test in last]),
        completeness=plays.average("completeness", [test.completeness for test in last]),
        soundness=plays.average("soundness", [test.soundness for test in last]),
        always_fail_rate=sum_up(test.always_fail_rate for test in last),
        majority_accuracy=sum_up(test.majority_accuracy for test in last),
        gain=sum_up(_find_gain(run.tests or ()) for run in tested),
        generated_tokens=sum_up(test.generated_tokens for test in last),
        prompt_tokens=sum_up(test.prompt_tokens for test in last),
        any_of=summarize_asked_again(store, tested, of_arm),
        attacks={
            label: _sum_up_attack(counted, label, runs, swept, of_arm) for label in sweep.attacks
        },
    )


def _find_gain(tests: Sequence[SweptTest]) -> float | None:
    """Return by how much accuracy rose from the first test to the last; None without two."""
    first, last = tests[0].accuracy, tests[-1].accuracy
    return None if len(tests) < 2 or first is None or last is None else last - first


def _sum_up_attack(
    counted: Counted,
    label: str,
    runs: Sequence[RunResult],
    swept: Sequence[SweptRun],
    of_arm: str,
) -> ArmAttack:
    """Average what an attack did to the runs of an arm."""
    attacks = [run.attacks[label] for run in runs if label in run.attacks]
    finished = [attack for attack in attacks if attack.status == FINISHED]
    plays = _Plays(counted, [attack.run for attack in finished], f"{of_arm} {label}")
    return ArmAttack(
        runs=sum(run.name_after(label) is not None for run in swept),
        finished=len(finished),
        soundness=plays.average("soundness", [attack.soundness for attack in finished]),
        completeness=plays.average("completeness", [attack.completeness for attack in finished]),
        lost_to_lying=sum_up(attack.lost_to_lying for attack in finished),
        lost_to_training=sum_up(attack.lost_to_training for attack in finished),
    )


class _Plays:
    """The plays of some runs. Rates get their intervals over seeds and questions from them."""

    def __init__(self, counted: Counted, runs: Sequence[str], name: str):
        self._counted, self._runs, self._name = counted, runs, name

    def average(self, figure: Figure, values: Iterable[float | None]) -> OverRuns | None:
        """Average the `values` of a rate, one of each run. The name seeds the interval."""
        counts = [self._counted.count(run, figure) for run in self._runs]
        plays = [of_run for of_run in counts if of_run is not None]
        return sum_up(values, average_runs(plays, f"{self._name} {figure}"))


def write_results(
    store: Store, sweep: Sweep, results: SweepResults, out: Store | None = None
) -> str:
    """Write results.json, cells.parquet, README.md and arms.svg of the sweep; return their place.

    That is beside its runs, under sweeps/NAME; with `out` at the top of that store.
    """
    to, root = (store, f"sweeps/{results.sweep}/") if out is None else (out, "")
    table, left_out = read_verdicts(store, sweep)
    cells = CellsWritten(verdicts=table.num_rows, left_out=tuple(left_out))
    results = results.model_copy(update={"cells": cells})
    to.put(f"{root}cells.parquet", encode_parquet(table))
    to.put(f"{root}results.json", json.dumps(results.as_json(), indent=2).encode())
    to.put(f"{root}README.md", render_results(results).encode())
    to.put(f"{root}arms.svg", arms_svg(_marks(results)).encode())
    local = to.local_path(f"{root}README.md")
    return str(local) if local is not None else f"{to.url}/{root}README.md"


def _marks(results: SweepResults) -> list[tuple[str, dict[str, Mark | None]]]:
    """Return what the figure shows: by arm the mean, the lowest and the highest of each rate."""
    return [
        (
            " · ".join(arm.values.values()) or results.sweep,
            {
                name: None if figure is None else Mark(figure.mean, figure.lowest, figure.highest)
                for name, figure in arm.figures.items()
            },
        )
        for arm in results.arms
    ]


def _mark(figure: Mapping[str, float] | None) -> Mark | None:
    return None if figure is None else Mark(figure["mean"], figure["lowest"], figure["highest"])
