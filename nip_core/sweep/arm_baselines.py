"""What the baselines among the arms of a sweep say of the others.

baseline_kind           which baseline an arm is, by its settings
ByMajority              how often its verifier was right by the majority of several plays
asked_again_pairs       which arms are compared with a verifier alone that is asked again
compare_with_baselines  all that they say of a sweep's arms, as plain data
baseline_lines          the same in words

docs/statistics.md has the rules: what is said follows from intervals and p-values alone.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from nip_core.evaluation.baseline_verifiers import alone_words, majority_decisions
from nip_core.evaluation.confidence_intervals import wilson_of_rate
from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.parameters import HyperParameters
from nip_core.protocols import ACCEPT, REJECT, make_protocol
from nip_core.records.intervals import rate_alone_of
from nip_core.rollouts.plan import TEST
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store
from nip_core.sweep.counted import Counted, Counts, Figure, LastTest, average_runs
from nip_core.sweep.declaration import Hypothesis
from nip_core.sweep.outcomes import judge_hypotheses
from nip_core.sweep.swept_runs import Sweep, SweptRun

Kind = Literal["alone", "random", "shuffled"]
Finding = dict[str, Any]
Arm = tuple[str, ...]

_MEANING: Mapping[str, tuple[str, str]] = {
    "alone": (
        "the verifier alone",
        "its accuracy is no evidence that talking helps",
    ),
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
"""By kind of baseline what it is, and what follows where an arm is not shown to be better."""


def baseline_kind(parameters: HyperParameters) -> Kind | None:
    """Return which baseline these settings are; None for a game that baselines are there for."""
    provers = make_protocol(parameters).provers
    if not provers:
        return "alone"
    if all(parameters.agents[name].is_random for name in provers):
        return "random"
    return "shuffled" if parameters.dataset_options.shuffle_train_labels else None


class ByMajority(Counted):
    """As `Counted`, but in these `runs` the more frequent verdict on each problem counts, once."""

    def __init__(self, store: Store, tests: Mapping[str, LastTest], runs: Collection[str]):
        super().__init__(store, tests)
        self.runs = frozenset(runs)

    def _read(self, name: str, figure: Figure) -> Counts:
        if name not in self.runs or figure != "accuracy":
            return super()._read(name, figure)
        place = RunStore(self._store, name).rollouts(self._tests[name].iteration, TEST)
        columns = ["problem", "question_id", "y", "decision", "outcome"]
        episodes = StoredRollouts(self._store, [place]).episodes(columns)
        decided, counts = majority_decisions(episodes), dict[str, tuple[float, int]]()
        labels = {row["problem"]: row for row in episodes.to_pylist()}
        for problem, decision in decided.items():
            row = labels[problem]
            hits, plays = counts.get(row["question_id"], (0.0, 0))
            right = decision == (ACCEPT if row["y"] else REJECT)
            counts[row["question_id"]] = (hits + right, plays + 1)
        return counts


def compare_with_baselines(
    counted: Counted,
    by_majority: ByMajority,
    sweep: Sweep,
    last_tests: Mapping[str, Mapping[str, Any]],
) -> dict[str, list[Finding]]:
    """Compare the arms of a sweep with the baselines that are among them.

    `counted` knows the runs that are finished and tested, and `by_majority` the same, with those
    that are compared by a majority; `last_tests` has of each the figures of
    its last test with `shows_checking`. ``compared`` has each arm with each baseline, ``alone`` the
    arms without provers of which is known how often their verifier could be right, and ``believed``
    how many runs of an arm were right more often than believing the prover.
    """
    return {
        "compared": _compared(by_majority, sweep),
        "alone": [*_alone(counted, sweep)],
        "believed": [*_believed(sweep, last_tests)],
    }


def _compared(counted: ByMajority, sweep: Sweep) -> list[Finding]:
    arms = {arm: runs[0].parameters for arm, runs in sweep.arms.items()}
    kinds = {arm: baseline_kind(parameters) for arm, parameters in arms.items()}
    both = [
        (arm, other)
        for arm in arms
        for other, kind in kinds.items()
        if kinds[arm] is None and kind is not None and _is_for(kind, arms[other], arms[arm])
    ]
    axes = [axis for axis in sweep.axes if axis != "seed"]
    # Each on its own: who wants to show that an arm beats them all needs no adjustment for it.
    asked = [
        Hypothesis(
            says="better than the baseline",
            figure="accuracy",
            arm=dict(zip(axes, arm, strict=True)),
            against=dict(zip(axes, other, strict=True)),
            expected="higher",
            primary=True,
        )
        for arm, other in both
    ]
    voted = counted.runs
    keys = ("rates", "difference", "ci95", "p", "outcome")
    return [
        {
            "arm": " ".join(arm),
            "baseline": " ".join(other),
            "kind": "voted" if voted & {run.name for run in sweep.arms[other]} else kinds[other],
        }
        | {key: result[key] for key in keys}
        | ({"because": result["because"]} if "because" in result else {})
        for (arm, other), result in zip(both, judge_hypotheses(counted, sweep, asked), strict=True)
    ]


def asked_again_pairs(sweep: Sweep) -> list[tuple[int, int]]:
    """The places of each arm with provers and of each without that plays the same problems."""
    arms = [runs[0].parameters for runs in sweep.arms.values()]
    kinds = [baseline_kind(parameters) for parameters in arms]
    return [
        (place, other)
        for place, arm in enumerate(arms)
        for other, baseline in enumerate(arms)
        if kinds[place] is None and kinds[other] == "alone" and _is_for("alone", baseline, arm)
    ]


def _is_for(kind: Kind, baseline: HyperParameters, arm: HyperParameters) -> bool:
    """Return whether the baseline plays the arm's problems, and with provers its protocol."""
    keys = ["scenario", "dataset", *([] if kind == "alone" else ["interaction_protocol"])]
    return all(getattr(baseline, key) == getattr(arm, key) for key in keys)


def _alone(counted: Counted, sweep: Sweep) -> Iterator[Finding]:
    for arm, runs in sweep.arms.items():
        rate_alone = rate_alone_of(runs[0].parameters.to_dict())
        plays = [
            counts for run in runs if (counts := counted.count(run.name, "accuracy")) is not None
        ]
        # By the name of the table's interval, so that it is the same one.
        both_ways = average_runs(plays, f"{sweep.name} {' '.join(arm)} accuracy")
        if rate_alone is None or both_ways is None:
            continue
        interval = both_ways.ci95 or wilson_of_rate(both_ways.value, both_ways.questions)
        yield {
            "arm": " ".join(arm),
            "accuracy": both_ways.value,
            "ci95": [max(0.0, interval[0]), min(1.0, interval[1])],
            "rate_alone": rate_alone,
            "is_above": interval[0] > rate_alone,
        }


def _believed(sweep: Sweep, last_tests: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for arm, runs in sweep.arms.items():
        tests = [test for test in _tests(runs, last_tests) if test["shows_checking"] is not None]
        if tests and baseline_kind(runs[0].parameters) is None:
            yield {
                "arm": " ".join(arm),
                "runs": len(tests),
                "more_often": sum(test["shows_checking"] for test in tests),
                "believed": sum(test["believed_accuracy"] for test in tests) / len(tests),
                "without_prover": sum(test["without_prover"] or 0 for test in tests),
                "episodes": sum(test["episodes"] for test in tests),
            }


def _tests(
    runs: Sequence[SweptRun], last_tests: Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    return [last_tests[run.name] for run in runs if run.name in last_tests]


def baseline_lines(results: Mapping[str, Sequence[Finding]]) -> list[str]:
    """Say what the baselines hold against the arms, a sentence each; [] for nothing."""
    lines = [
        f"`{row['arm']}`: {alone_words(row['accuracy'], row['ci95'], row['rate_alone'])}"
        for row in results["alone"]
        if row["is_above"]
    ]
    lines += [_comparison(row) for row in results["compared"] if _is_told(row)]
    return lines + [
        f"`{row['arm']}`: in {row['runs'] - row['more_often']} of {row['runs']} runs the verifier "
        "is not shown to be right more often than one that believes the prover "
        f"({plain_percent(row['believed'])}{_left_out(row)}): its accuracy does not show that it "
        "checks."
        for row in results["believed"]
        if row["more_often"] < row["runs"]
    ]


def _left_out(row: Finding) -> str:
    """Say how many episodes that leaves out, as no prover had spoken in them."""
    if not row["without_prover"]:
        return ""
    counted = f"{row['without_prover']:,} of {row['episodes']:,} episodes"
    return f", without {counted} in which no prover spoke"


def _is_told(row: Finding) -> bool:
    """Return whether an arm is not shown to be better than the baseline, once both were played."""
    return row["outcome"] != "shown" and None not in row["rates"]


def _comparison(row: Finding) -> str:
    what, meaning = _MEANING[row["kind"]]
    if "because" in row:
        return (
            f"`{row['arm']}` was not compared with `{row['baseline']}`, {what}: {row['because']}."
        )
    arm, baseline = (plain_percent(rate) for rate in row["rates"])
    sure = "the same everywhere"
    if row["ci95"] is not None:
        low, high = row["ci95"]
        sure = f"95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
    return (
        f"`{row['arm']}`: {arm}, not shown to be more than `{row['baseline']}`, {what}: {baseline} "
        f"({100 * row['difference']:+.1f} points, {sure}); {meaning}."
    )
