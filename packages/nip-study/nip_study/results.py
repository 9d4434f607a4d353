"""The results of a sweep's runs: one document, one table, one figure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nip_core.run_store.store import Store
from nip_study.compute.arm_baselines import ByMajority, asked_again_pairs, compare_with_baselines
from nip_study.compute.arm_differences import subtract_first_arm
from nip_study.compute.asked_again import (
    compare_at_equal_tokens,
    compare_attacked,
    summarize_asked_again,
)
from nip_study.compute.cells import encode_parquet
from nip_study.compute.effort_curves import average_curves
from nip_study.compute.outcomes import judge_hypotheses
from nip_study.compute.post_hoc import judge_post_hoc
from nip_study.compute.swept_controls import collect_controls
from nip_study.compute.swept_tests import measure_attack, measure_test
from nip_study.declare.declaration import declaration_path, timestamp_path
from nip_study.documents.results_document import (
    FINISHED,
    ArmAttack,
    ArmDifferences,
    ArmResult,
    BaselineFindings,
    CellsWritten,
    DeclaredResults,
    RunResult,
    SweepResults,
    SweptTest,
)
from nip_study.documents.swept_facts import RunFacts, SweepFacts
from nip_study.facts_on_record import Collected
from nip_study.pages.effort_figure import efforts_svg
from nip_study.pages.page import render_results
from nip_study.parts.arms_figure import Mark, arms_svg
from nip_study.parts.counted import Counted, Figure, LastTest, Verdicts, average_runs
from nip_study.parts.document_parts import OverRuns, sum_up
from nip_study.plan.planned import SEED, find_attack
from nip_study.plan.swept_runs import Sweep

CELLS, FACTS = "cells.parquet", "facts.json"
DECLARATION, STAMP = "declaration.json", "declaration.tsr"


def compute_results(collected: Collected) -> SweepResults:
    """Compute the results of a sweep: its runs with their tests, its arms and their differences.

    An arm's figures are means over those of its runs that are finished, with the lowest and the
    highest of them; None without one; so are those of its attacks. Rates have a 95 % interval that
    counts seeds and questions as drawn, where there are several of both.
    """
    facts, verdicts = collected.facts, Verdicts(collected.verdicts, collected.facts.intervals)
    runs = [_measure_run(verdicts, run) for run in facts.runs]
    by_name = {run.run: run for run in runs}
    tests = dict(_locate_last_tests(facts, by_name))
    counter = Counted(verdicts, tests, facts.definitions)
    arms = [
        _sum_up_arm(verdicts, facts, counter, arm, [by_name[run.name] for run in of_arm], of_arm)
        for arm, of_arm in facts.arms.items()
    ]
    declaration = collected.declaration
    hypotheses = () if declaration is None else declaration.plan.hypotheses
    differences = subtract_first_arm(counter, facts, hypotheses)
    results = SweepResults(
        sweep=facts.name,
        axes=facts.axes,
        arms=tuple(arms),
        runs=tuple(runs),
        baselines=_find_baselines(verdicts, facts, counter, tests, runs, arms, differences),
        differences=differences,
        cells=CellsWritten(verdicts=collected.verdicts.num_rows, left_out=facts.left_out),
        controls=collect_controls(counter, facts),
        intervals=facts.intervals,
    )
    if declaration is None:
        return results
    declared_results = DeclaredResults(
        sha256=declaration.sha256,
        declared_at=declaration.declared_at,
        code_version=declaration.code_version,
        stopping=declaration.plan.stopping,
        outcomes=tuple(judge_hypotheses(counter, facts, hypotheses)),
        departures=facts.departures,
        stamp=facts.stamp,
        definitions=facts.definitions,
        post_hoc=judge_post_hoc(collected.verdicts, tests, facts, hypotheses),
    )
    return results.model_copy(update={"declared": declared_results})


def _measure_run(verdicts: Verdicts, run: RunFacts) -> RunResult:
    """Measure the tests of a run, and the attacks on it."""
    plays = verdicts.tests(run.name)
    tests = None
    if run.tests is not None:
        tests = tuple(
            measure_test(plays[place], test, run.seed)
            for test in run.tests
            if (place := LastTest(test.iteration)) in plays
        )
    return RunResult(
        run=run.name,
        values=run.values,
        status=run.status,
        failure=run.failure,
        tests=tests,
        attacks={attack.label: measure_attack(verdicts, run, attack) for attack in run.attacks},
    )


def _find_baselines(
    verdicts: Verdicts,
    facts: SweepFacts,
    counter: Counted,
    tests: Mapping[str, LastTest],
    runs: Sequence[RunResult],
    arms: Sequence[ArmResult],
    differences: ArmDifferences | None,
) -> BaselineFindings:
    """Compare the arms with the baselines among them."""
    last_tests = {run.run: test for run in runs if (test := run.last_test) is not None}
    # A verifier alone that plays problems several times is held to its majority, the stronger one.
    voted = [
        run.name
        for run in facts.runs
        if run.game.kind == "alone"
        and run.name in last_tests
        and last_tests[run.name].majority_accuracy is not None
    ]
    pairs = asked_again_pairs(counter, facts)
    asked_again = compare_at_equal_tokens(arms, pairs)
    by_majority = ByMajority(verdicts, tests, voted, facts.definitions)
    findings = compare_with_baselines(
        counter, by_majority, facts, last_tests, asked_again, differences
    )
    under_attack = tuple(compare_attacked(arms, pairs))
    return findings.model_copy(update={"under_attack": under_attack}) if under_attack else findings


def _locate_last_tests(
    facts: SweepFacts, by_name: Mapping[str, RunResult]
) -> Iterator[tuple[str, LastTest]]:
    """Say by run, attacks among them, where its last test is; only of finished, tested ones."""
    for run in facts.runs:
        if (test := by_name[run.name].last_test) is not None:
            yield run.name, LastTest(test.iteration)
        for attack in run.attacks:
            if attack.status == FINISHED:
                yield attack.name, LastTest(attack.iteration, attack.n)


def _sum_up_arm(
    verdicts: Verdicts,
    sweep: SweepFacts,
    counter: Counted,
    arm: Sequence[str],
    runs: Sequence[RunResult],
    swept: Sequence[RunFacts],
) -> ArmResult:
    """Average the figures of an arm over the last tests of its finished runs."""
    tested_runs = [run for run in runs if run.last_test is not None]
    last = [test for run in tested_runs if (test := run.last_test) is not None]
    of_arm = f"{sweep.name} {' '.join(arm)}"
    plays = _Plays(counter, [run.run for run in tested_runs], of_arm)
    return ArmResult(
        values=dict(zip([axis for axis in sweep.axes if axis != SEED], arm, strict=True)),
        runs=len(runs),
        finished=sum(run.status == FINISHED for run in runs),
        accuracy=plays.average("accuracy", [test.accuracy for test in last]),
        completeness=plays.average("completeness", [test.completeness for test in last]),
        soundness=plays.average("soundness", [test.soundness for test in last]),
        always_fail_rate=sum_up(test.always_fail_rate for test in last),
        majority_accuracy=sum_up(test.majority_accuracy for test in last),
        gain=sum_up(_find_gain(run.tests or ()) for run in tested_runs),
        generated_tokens=sum_up(test.generated_tokens for test in last),
        prompt_tokens=sum_up(test.prompt_tokens for test in last),
        any_of=summarize_asked_again(verdicts, tested_runs, of_arm),
        attacks={
            label: _sum_up_attack(verdicts, counter, label, runs, swept, of_arm)
            for label in sweep.attacks
        },
    )


def _find_gain(tests: Sequence[SweptTest]) -> float | None:
    """Return by how much accuracy rose from the first test to the last; None without two."""
    first, last = tests[0].accuracy, tests[-1].accuracy
    return None if len(tests) < 2 or first is None or last is None else last - first


def _sum_up_attack(
    verdicts: Verdicts,
    counter: Counted,
    label: str,
    runs: Sequence[RunResult],
    swept: Sequence[RunFacts],
    of_arm: str,
) -> ArmAttack:
    """Average the effects of an attack on the runs of an arm."""
    attacks = [run.attacks[label] for run in runs if label in run.attacks]
    finished = [attack for attack in attacks if attack.status == FINISHED]
    plays = _Plays(counter, [attack.run for attack in finished], f"{of_arm} {label}")
    facts = [attack for run in swept for attack in run.attacks if attack.label == label]
    finished_attacks = [attack for attack in facts if attack.status == FINISHED]
    return ArmAttack(
        runs=sum(find_attack(run, label) is not None for run in swept),
        finished=len(finished),
        soundness=plays.average("soundness", [attack.soundness for attack in finished]),
        completeness=plays.average("completeness", [attack.completeness for attack in finished]),
        lost_to_lying=sum_up(attack.lost_to_lying for attack in finished),
        lost_to_training=sum_up(attack.lost_to_training for attack in finished),
        lost_to_script=sum_up(attack.lost_to_script for attack in finished),
        verifier_tokens=sum_up(attack.verifier_tokens for attack in finished),
        by_effort=average_curves(verdicts, finished_attacks, f"{of_arm} {label}"),
        rarest=sum_up(attack.rarest for attack in finished),
        rarest_to_train=sum_up(attack.rarest_to_train for attack in finished),
    )


class _Plays:
    """The plays of some runs. Rates get their intervals over seeds and questions from them."""

    def __init__(self, counter: Counted, runs: Sequence[str], name: str):
        self._counted, self._runs, self._name = counter, runs, name

    def average(self, figure: Figure, values: Iterable[float | None]) -> OverRuns | None:
        """Average the `values` of a rate, one of each run. The name seeds the interval."""
        counts = [self._counted.count(run, figure) for run in self._runs]
        plays = [of_run for of_run in counts if of_run is not None]
        return sum_up(values, average_runs(plays, f"{self._name} {figure}", self._counted.spread))


def write_results(
    store: Store, sweep: Sweep, collected: Collected, out: Store | None = None
) -> tuple[SweepResults, str]:
    """Write the results of a sweep, with their facts and verdicts; return them, and their place.

    That is beside its runs, under sweeps/NAME; with `out` at the top of that store, where a
    declaration is copied to as well, with its time stamp.
    """
    place, root = (store, f"sweeps/{sweep.name}/") if out is None else (out, "")
    results = compute_results(collected)
    place.put(f"{root}{CELLS}", encode_parquet(collected.verdicts))
    place.put(f"{root}{FACTS}", json.dumps(collected.facts.as_json(), indent=1).encode())
    if out is not None and collected.declaration is not None:
        place.put(DECLARATION, store.get(declaration_path(sweep.name)))
        if store.exists(stamp := timestamp_path(sweep.name)):
            place.put(STAMP, store.get(stamp))
    for name, content in render_files(results).items():
        place.put(f"{root}{name}", content)
    local = place.local_path(f"{root}README.md")
    return results, str(local) if local is not None else f"{place.url}/{root}README.md"


def render_files(results: SweepResults) -> dict[str, bytes]:
    """Encode the results as their document, their page and its figures, by the names of files."""
    files = {
        "results.json": json.dumps(results.as_json(), indent=2),
        "README.md": render_results(results),
        "arms.svg": arms_svg(_marks(results)),
    }
    if (efforts := efforts_svg(results)) is not None:
        files["efforts.svg"] = efforts
    return {name: text.encode() for name, text in files.items()}


def _marks(results: SweepResults) -> list[tuple[str, dict[str, Mark | None]]]:
    """Return the points of the figure: by arm the mean, the lowest and the highest of each rate."""
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
