"""The baselines among the arms of a sweep, held against the others.

docs/statistics.md has the rules: the sentences follow from intervals and p-values alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nip_core.evaluation.baseline_verifiers import majority_decisions
from nip_core.evaluation.baseline_words import alone_words
from nip_core.evaluation.confidence_intervals import wilson_of_rate
from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.evaluation.split_metrics import Interval95
from nip_study.compute.outcomes import judge_hypotheses
from nip_study.declare.hypotheses import Hypothesis
from nip_study.documents.asked_again_document import AtEqualTokens
from nip_study.documents.results_document import (
    ArmDifferences,
    BaselineComparison,
    BaselineFindings,
    ProverBelieved,
    SweptTest,
    VerifierAlone,
)
from nip_study.documents.swept_facts import Kind, RunFacts, SweepFacts, SweptGame
from nip_study.parts.counted import (
    Counted,
    Counts,
    Definitions,
    Figure,
    LastTest,
    Verdicts,
    average_runs,
    count_plays,
    make_episodes,
)
from nip_study.parts.document_parts import clip_interval
from nip_study.plan.planned import SEED

_MEANING: Mapping[str, tuple[str, str]] = {
    "alone": ("the verifier alone", "its accuracy is no evidence that talking helps"),
    "voted": (
        "the verifier alone, by the majority of its plays",
        "its accuracy is no evidence that talking helps more than asking again",
    ),
    "random": (
        "with random text in the prover's place",
        "its accuracy is no evidence that it matters what the prover says",
    ),
    "shuffled": (
        "trained on labels drawn at random",
        "its accuracy is no evidence that anything was learned from the labels",
    ),
}
"""By kind of baseline its description, and the conclusion if no arm is shown to be better."""


class ByMajority(Counted):
    """Counts as `Counted` does, but for these `runs` the more frequent verdict on each problem."""

    def __init__(
        self,
        verdicts: Verdicts,
        tests: Mapping[str, LastTest],
        runs: Collection[str],
        definitions: Definitions = 2,
    ) -> None:
        super().__init__(verdicts, tests, definitions)
        self.runs = frozenset(runs)

    def _at(self, tests: Mapping[str, LastTest]) -> "ByMajority":
        return ByMajority(self._verdicts, tests, self.runs, self.definitions)

    def _count(self, name: str, figure: Figure) -> Counts:
        if name not in self.runs or figure != "accuracy":
            return super()._count(name, figure)
        plays = self.plays(name)
        decided = majority_decisions(make_episodes(plays))
        by_problem = {play.problem: play for play in plays}
        votes = (play._replace(decision=decided[problem]) for problem, play in by_problem.items())
        return count_plays(votes, figure)


def compare_with_baselines(
    counter: Counted,
    by_majority: ByMajority,
    sweep: SweepFacts,
    last_tests: Mapping[str, SweptTest],
    asked_again: Iterable[AtEqualTokens],
    differences: ArmDifferences | None = None,
) -> BaselineFindings:
    """Compare the arms of a sweep with the baselines among them.

    `counter` knows the runs that are finished and tested, and `by_majority` the same, with those
    that are compared by a majority; `last_tests` has the last test of each. ``compared`` has each
    arm with each baseline, ``alone`` the arms without provers of which is known how often their
    verifier could be right, ``believed`` how many runs of an arm were right more often than
    believing the prover, and ``any_of`` is `asked_again`. A difference that is among
    `differences`, too, has its interval from there.
    """
    return BaselineFindings(
        compared=tuple(_compare_accuracy(by_majority, sweep, differences)),
        alone=tuple(_find_alone(counter, sweep)),
        believed=tuple(_find_believed(sweep, last_tests)),
        any_of=tuple(asked_again),
    )


def _compare_accuracy(
    majority: ByMajority, sweep: SweepFacts, differences: ArmDifferences | None
) -> Iterator[BaselineComparison]:
    """Compare the accuracy of each arm with each of its baselines."""
    arms = {arm: runs[0].game for arm, runs in sweep.arms.items()}
    kinds = {arm: game.kind for arm, game in arms.items()}
    both = [
        (arm, name, kind)
        for arm in arms
        for name, kind in kinds.items()
        if kinds[arm] is None and kind is not None and _is_for(kind, arms[name], arms[arm])
    ]
    axes = [axis for axis in sweep.axes if axis != SEED]
    # Each on its own: who wants to show that an arm beats them all needs no adjustment for it.
    pairs_of_runs = [
        Hypothesis(
            says="better than the baseline",
            figure="accuracy",
            arm=dict(zip(axes, arm, strict=True)),
            against=dict(zip(axes, baseline, strict=True)),
            expected="higher",
            primary=True,
        )
        for arm, baseline, _ in both
    ]
    results = judge_hypotheses(majority, sweep, pairs_of_runs)
    for (arm, other, kind), result in zip(both, results, strict=True):
        is_voted = any(run.name in majority.runs for run in sweep.arms[other])
        # The table of differences has neither majorities nor untrained verifiers.
        is_other = is_voted or _is_untrained(result.alone)
        yield BaselineComparison(
            arm=" ".join(arm),
            baseline=" ".join(other),
            kind="voted" if is_voted else kind,
            rates=result.rates,
            difference=result.difference,
            # A page says one interval of a difference, though two bootstraps would differ a little.
            ci95=(None if is_other else _find_interval(differences, arm, other)) or result.ci95,
            p=result.p,
            outcome=result.outcome,
            because=result.because,
            alone=result.alone,
        )


def _is_untrained(rates: tuple[float | None, float | None] | None) -> bool:
    """Return whether of a verifier alone the untrained one is the better, and counts."""
    rate_before, rate_after = rates or (None, None)
    return rate_before is not None and rate_after is not None and rate_before > rate_after


def _find_interval(
    differences: ArmDifferences | None, arm: Sequence[str], baseline: Sequence[str]
) -> Interval95 | None:
    """Find the interval of an arm less a baseline where one of them is the first arm."""
    if differences is None:
        return None
    for row in differences.compared:
        if row.figure == "accuracy" and row.attack is None and row.ci95 is not None:
            if (row.arm, differences.first) == (" ".join(arm), " ".join(baseline)):
                return row.ci95
            if (row.arm, differences.first) == (" ".join(baseline), " ".join(arm)):
                return -row.ci95[1], -row.ci95[0]
    return None


def asked_again_pairs(counter: Counted, sweep: SweepFacts) -> list[tuple[int, int]]:
    """Pair the places of each arm with provers with those of verifiers alone on its problems.

    `counter` knows the runs that are finished and tested: their problems must be the same.
    """
    arms = [runs[0].game for runs in sweep.arms.values()]
    problems = [_list_problems(counter, runs) for runs in sweep.arms.values()]
    kinds = [game.kind for game in arms]
    return [
        (place, number)
        for place, arm in enumerate(arms)
        for number, baseline in enumerate(arms)
        if kinds[place] is None and kinds[number] == "alone" and _is_for("alone", baseline, arm)
        if problems[place] == problems[number]
    ]


def _list_problems(counter: Counted, runs: Iterable[RunFacts]) -> set[frozenset[str]]:
    """List the sets of problems of these runs' last tests; one, where all were tested alike."""
    tested_runs = (run.name for run in runs if counter.count(run.name, "accuracy") is not None)
    return {frozenset(play.problem for play in counter.plays(name)) for name in tested_runs}


def _is_for(kind: Kind, baseline: SweptGame, arm: SweptGame) -> bool:
    """Return whether the baseline plays the arm's problems, and with provers the arm's game.

    Where a verifier is alone there is no game to compare; that its problems are the same show the
    verdicts, as for all baselines.
    """
    keys = ["scenario", "dataset", *([] if kind == "alone" else ["protocol"])]
    if any(getattr(baseline, key) != getattr(arm, key) for key in keys):
        return False
    # Of facts of earlier versions nothing more is known than those names.
    is_known = baseline.rules is not None and arm.rules is not None
    return kind == "alone" or not is_known or baseline.rules == arm.rules


def _find_alone(counter: Counted, sweep: SweepFacts) -> Iterator[VerifierAlone]:
    """Put each verifier without provers beside how often it could be right by itself."""
    for arm, runs in sweep.arms.items():
        rate_alone = runs[0].game.rate_alone
        counts = [counter.count(run.name, "accuracy") for run in runs]
        plays = [of_run for of_run in counts if of_run is not None]
        # By the name of the table's interval, so that it is the same one.
        both_ways = average_runs(plays, f"{sweep.name} {' '.join(arm)} accuracy", counter.spread)
        if rate_alone is None or both_ways is None:
            continue
        # Where all are right nothing shows the spread, and Wilson's interval still has a width.
        interval = both_ways.ci95 or wilson_of_rate(both_ways.value, both_ways.questions)
        yield VerifierAlone(
            arm=" ".join(arm),
            accuracy=both_ways.value,
            ci95=clip_interval(interval),
            rate_alone=rate_alone,
            is_above=interval[0] > rate_alone,
        )


def _find_believed(
    sweep: SweepFacts, last_tests: Mapping[str, SweptTest]
) -> Iterator[ProverBelieved]:
    """Count in how many runs of each arm the verifier beats believing the prover."""
    for arm, runs in sweep.arms.items():
        tests = [last_tests[run.name] for run in runs if run.name in last_tests]
        tests = [test for test in tests if test.shows_checking is not None]
        if tests and runs[0].game.kind is None:
            yield ProverBelieved(
                arm=" ".join(arm),
                runs=len(tests),
                more_often=sum(test.shows_checking is True for test in tests),
                believed=sum(test.believed_accuracy or 0 for test in tests) / len(tests),
                without_prover=sum(test.without_prover or 0 for test in tests),
                episodes=sum(test.episodes or 0 for test in tests),
            )


def baseline_lines(findings: BaselineFindings) -> list[str]:
    """Say the baselines' objections to the arms, a sentence each; [] without any."""
    lines = [
        f"`{row.arm}`: {alone_words(row.accuracy, row.ci95, row.rate_alone)}"
        for row in findings.alone
        if row.is_above
    ]
    # Those not shown to be better than the baseline, once both were played.
    lines += [
        _comparison_line(row)
        for row in findings.compared
        if row.outcome != "shown" and None not in row.rates
    ]
    return lines + [
        f"`{row.arm}`: in {row.runs - row.more_often} of {row.runs} runs the verifier "
        "is not shown to be right more often than one that believes the prover "
        f"({plain_percent(row.believed)}{_left_out_words(row)}): its accuracy does not show that "
        "it checks."
        for row in findings.believed
        if row.more_often < row.runs
    ]


def _left_out_words(row: ProverBelieved) -> str:
    """Say how many episodes are left out because no prover spoke in them; "" for none."""
    if not row.without_prover:
        return ""
    return f", without {row.without_prover:,} of {row.episodes:,} episodes in which no prover spoke"


def _comparison_line(row: BaselineComparison) -> str:
    """Write the sentence on an arm not shown to be better than its baseline."""
    description, meaning = _MEANING[row.kind]
    description += ", untrained" if _is_untrained(row.alone) else ""
    if row.because is not None:
        return f"`{row.arm}` was not compared with `{row.baseline}`, {description}: {row.because}."
    arm, baseline = (plain_percent(rate) for rate in row.rates)
    sure = "the same everywhere"
    if row.ci95 is not None:
        low, high = row.ci95
        sure = f"95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
    points = "" if row.difference is None else f"{100 * row.difference:+.1f} points, "
    return (
        f"`{row.arm}`: {arm}, not shown to be more than `{row.baseline}`, {description}: "
        f"{baseline} ({points}{sure}); {meaning}."
    )
