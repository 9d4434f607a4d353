"""How often would a plan's hypotheses be shown, if its runs had these rates? Nothing is played.

    python benchmarks/simulated_plan.py PLAN SPEC [--draws 200] [--seed 0] [--out FILE.json]

PLAN is a plan as `nip declare` takes it. SPEC says by arm how sound and how complete its runs are:

    together: 0.5                   # of a run's soundness in several tests: 0 apart, 1 all alike
    arms:                           # the first that fits a run counts
      - arm: {arm: played}          # as in a hypothesis; {} fits all
        completeness: [0.98, 0.01]  # mean, and standard deviation between seeds
        soundness:
          own: [0.86, 0.02]         # of the run's own test
          no-answer: [0.02, 0.02]   # after the attack of this name
          others: [0.8, 0.05]       # after any other

Each draw gives every run and attack a normal rate, cut at 0 and 1, and a verdict for each of its
problems, which are those of the sweep's settings; `judge_hypotheses` judges them, as it does what
was played. The power of a plan is how often it is shown where the rates differ, its false positives
are how often where they do not.

What is not simulated: questions that are hard for all runs; the several n and steps of an attack,
of which the worst is lower than one test; a verifier alone before its training. 48 runs with 12
attacks each, on 800 problems, took 1.3 s of a processor a draw.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from nip_core.errors import SettingsError
from nip_core.evaluation.spread import shared_text
from nip_core.parameters import HyperParameters
from nip_core.rollouts.plan import ATTACK, TEST, plan_episodes
from nip_core.rollouts.split_problems import load_split_problems
from nip_core.run_store.store import open_store
from nip_core.scenarios import make_scenario
from nip_study.compute.outcomes import judge_hypotheses
from nip_study.declare.declaration import StudyPlan, read_plan
from nip_study.declare.hypotheses import Arm
from nip_study.documents.results_document import HypothesisOutcome
from nip_study.documents.swept_facts import SweepFacts
from nip_study.facts_on_record import collect_sweep
from nip_study.parts.counted import Counted, LastTest, Play, Verdicts
from nip_study.plan.swept_runs import SweptRun, as_text, read_yaml_as

OWN, OTHERS = "own", "others"
FINDINGS = ("shown", "not shown", "contradicted", "not tested")
Rate = Annotated[float, Field(ge=0, le=1)]
MeanAndDeviation = Annotated[list[Rate], Field(min_length=2, max_length=2)]
"""The mean of a rate, and its standard deviation between seeds."""


class ArmRates(BaseModel):
    """The rates of the runs of an arm."""

    model_config = ConfigDict(extra="forbid", strict=True)

    arm: Arm | Annotated[dict[str, str], Field(max_length=0)]
    completeness: MeanAndDeviation
    soundness: dict[str, MeanAndDeviation]
    """By the name of the attack, or `own`, or `others`."""


class SimulationFile(BaseModel):
    """The content of SPEC."""

    model_config = ConfigDict(extra="forbid", strict=True)

    arms: Annotated[list[ArmRates], Field(min_length=1)]
    together: Rate = 0.0


@dataclass(frozen=True)
class SimulatedTest:
    """A test of a run, or of an attack on one, with the spread of its rates."""

    run: str
    attack: str | None
    place: LastTest
    problems: list[tuple[str, str, int]]
    """Of each play: the problem, its question and its label."""
    soundness: MeanAndDeviation
    completeness: MeanAndDeviation

    @property
    def name(self) -> str:
        """Name the run whose test it is."""
        return self.run if self.attack is None else f"{self.run}-{self.attack}"


class DrawnVerdicts(Verdicts):
    """Verdicts of a draw, without the table that they are read from otherwise."""

    def __init__(self, plays: dict[str, dict[LastTest, list[Play]]]):
        self.spread, self._by_run = "calibrated", plays


def simulate_plan(
    plan: StudyPlan, spec: SimulationFile, draws: int, seed: int
) -> list[list[HypothesisOutcome]]:
    """Judge the hypotheses of a plan on so many draws of verdicts.

    Raises SettingsError for a run or an attack without rates, and for rates without any.
    """
    with tempfile.TemporaryDirectory() as store:
        facts = collect_sweep(open_store(store), plan.sweep).facts  # of runs that have not begun
    tests = list(list_tests(plan, facts, spec))
    check_rates(plan, spec)
    places = {test.name: test.place for test in tests}
    random = np.random.default_rng(seed)
    return [
        judge_hypotheses(Counted(verdicts, places, facts.definitions), facts, plan.file.hypotheses)
        for verdicts in draw_verdicts(tests, spec.together, draws, random)
    ]


def check_rates(plan: StudyPlan, spec: SimulationFile) -> None:
    """Refuse rates of no run or attack, as a misspelt name would leave it others. SettingsError."""
    names = [OWN, OTHERS, *plan.sweep.attacks]
    fitting = [find_rates(spec, run) for run in plan.sweep.runs]
    for number, rates in enumerate(spec.arms):
        for name in rates.soundness:
            if name not in names:
                raise SettingsError(
                    f"arms[{number}].soundness.{name}: there is no such attack; it is one of "
                    f"{', '.join(names)}"
                )
        if all(rates is not one for one in fitting):
            raise SettingsError(
                f"arms[{number}]: no run has these rates, as none is of arm {rates.arm} or an "
                "earlier one fits; mend it, or leave it out"
            )


def list_tests(plan: StudyPlan, facts: SweepFacts, spec: SimulationFile) -> Iterator[SimulatedTest]:
    """List the last test of each run of a plan, and of each attack."""
    for run, of_run in zip(plan.sweep.runs, facts.runs, strict=True):
        rates = find_rates(spec, run)
        problems: dict[tuple[object, ...], list[tuple[str, str, int]]] = {}
        own_place = LastTest(run.parameters.rl.num_iterations)
        places = {attack.label: LastTest(attack.iteration, attack.n) for attack in of_run.attacks}
        for label, parameters in (
            (None, run.parameters),
            *((attack.label, attack.parameters) for attack in run.attacks),
        ):
            name = label or OWN
            soundness = rates.soundness.get(name, rates.soundness.get(OTHERS if label else OWN))
            if soundness is None:
                raise SettingsError(f"soundness.{name}: no rate for {run.name}; add it, or others")
            # Attacks differ in how many problems they take, and of which split.
            of_attack = parameters.test_dataset_split, parameters.attack.problems, parameters.seed
            key = (label is None, *of_attack)
            if key not in problems:
                problems[key] = list_problems(parameters, ATTACK if label else TEST)
            place = own_place if label is None else places[label]
            yield SimulatedTest(
                run.name, label, place, problems[key], soundness, rates.completeness
            )


def find_rates(spec: SimulationFile, run: SweptRun) -> ArmRates:
    """Find the first rates that fit a run. Raises SettingsError where there are none."""
    for rates in spec.arms:
        texts = {axis: as_text(value) for axis, value in rates.arm.items()}
        if texts.items() <= run.values.items():
            return rates
    raise SettingsError(f"arms: none fits {run.name}; add it")


def list_problems(parameters: HyperParameters, split: str) -> list[tuple[str, str, int]]:
    """List the problems of a test with their questions and labels, as often as each is played."""
    split_by = make_scenario(parameters).split_by
    specs = plan_episodes(parameters, load_split_problems(parameters)[TEST], split, 0)
    return [
        (p.id, shared_text(p.question_id, p.columns, split_by), p.y)
        for p in (one.problem for one in specs)
    ]


def draw_verdicts(
    tests: list[SimulatedTest], together: float, draws: int, random: np.random.Generator
) -> Iterator[DrawnVerdicts]:
    """Draw the verdicts of all tests. Runs are drawn apart; `together` ties the tests of a run."""
    plays = [play for test in tests for play in test.problems]
    # By play, with the wrong verdict and with the right one.
    pairs = [(Play(*play, 1 - play[2]), Play(*play, play[2])) for play in plays]
    is_wrong = np.array([y == 0 for _, _, y in plays])
    sizes = [len(test.problems) for test in tests]
    runs = list(dict.fromkeys(test.run for test in tests))
    run_of = np.array([runs.index(test.run) for test in tests])
    sound, complete = (
        np.array([getattr(test, figure) for test in tests])
        for figure in ("soundness", "completeness")
    )
    for _ in range(draws):
        of_runs = random.standard_normal((2, len(runs)))
        of_tests = random.standard_normal(len(tests))
        drawn = np.sqrt(together) * of_runs[0][run_of] + np.sqrt(1 - together) * of_tests
        soundness = sound[:, 0] + sound[:, 1] * drawn
        # A run has one completeness, that of its own test, whoever attacks.
        completeness = complete[:, 0] + complete[:, 1] * of_runs[1][run_of]
        rates = np.where(is_wrong, np.repeat(soundness, sizes), np.repeat(completeness, sizes))
        is_right = (random.random(len(pairs)) < rates).tolist()
        verdicts = (pair[right] for pair, right in zip(pairs, is_right, strict=True))
        yield DrawnVerdicts(
            {
                test.name: {test.place: [*islice(verdicts, n)]}
                for test, n in zip(tests, sizes, strict=True)
            }
        )


def sum_up(plan: StudyPlan, drawn: list[list[HypothesisOutcome]]) -> list[dict[str, Any]]:
    """Count the outcomes of each hypothesis, with its mean rates and the first reasons."""
    rows = []
    for hypothesis, outcomes in zip(plan.file.hypotheses, zip(*drawn, strict=True), strict=True):
        counts = Counter(one.outcome for one in outcomes)
        differences = [one.difference for one in outcomes if one.difference is not None]
        untested = Counter(one.because for one in outcomes if one.outcome == "not tested")
        rows.append(
            {
                "says": hypothesis.says,
                "primary": hypothesis.primary,
                **{finding: counts[finding] for finding in FINDINGS},
                "difference": float(np.mean(differences)) if differences else None,
                "because": untested.most_common(1)[0][0] if untested else None,
            }
        )
    return rows


def main() -> None:
    """Simulate the plan, print a table, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.draws < 1:
        parser.error(f"--draws: at least 1 (got {options.draws})")
    try:
        plan, spec = read_plan(options.plan), read_yaml_as(options.spec, SimulationFile)
        drawn = simulate_plan(plan, spec, options.draws, options.seed)
    except SettingsError as error:
        sys.exit(str(error))
    rows = sum_up(plan, drawn)
    print(f"{f'of {options.draws} draws':13} {'   '.join(FINDINGS)}   difference")
    for row in rows:
        counts = " ".join(f"{row[finding]:>{len(finding) + 2}}" for finding in FINDINGS)
        mean = "-" if row["difference"] is None else f"{100 * row['difference']:+.1f}"
        print(f"{'':11}{counts} {mean:>12}   {row['says']}")
        if row["because"] is not None:
            print(f"{'':13} not tested, most often: {row['because']}")
    if options.out is not None:
        document = {"plan": str(options.plan), "spec": str(options.spec), "draws": options.draws}
        document |= {"seed": options.seed, "hypotheses": rows}
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
