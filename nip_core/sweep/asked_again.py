"""What the verifier alone finds by being asked again: any of k verdicts, beside the other arms.

summarize_asked_again    of an arm, for each k, both rates with their intervals, and tokens
compare_at_equal_tokens  each arm with provers beside as many verdicts as make its tokens

Rejecting where any of k plays rejects is `nip_core.evaluation.any_of`; docs/statistics.md says what
it is for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nip_core.evaluation.any_of import count_right_choices
from nip_core.rollouts.plan import TEST
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store
from nip_core.sweep.counted import Counts, average_runs

RATES: Mapping[str, tuple[int, ...]] = {"soundness": (0,), "completeness": (1,)}
TOKENS = ("generated_tokens", "prompt_tokens")
Finding = dict[str, Any]
OverRuns = Callable[[Sequence[float | None]], dict[str, float] | None]


def summarize_asked_again(
    store: Store, runs: Sequence[Mapping[str, Any]], name: str, mean: OverRuns
) -> list[Finding]:
    """The first and the last test of an arm's `runs`, as `collect_results` has them, by k.

    Each has its ``iteration`` and ``rows``: ``k``, by rate its mean, lowest and highest over runs
    with a 95 % interval that counts seeds and questions as drawn, and ``generated_tokens`` and
    ``prompt_tokens`` a problem. `name` seeds the intervals. [] where no problem is played again.
    """
    tests: list[Finding] = []
    for at in (0, -1):
        of_runs = [(run["run"], run["tests"][at]) for run in runs]
        iterations = {test["iteration"] for _, test in of_runs}
        is_again = tests and tests[0]["iteration"] in iterations
        if len(iterations) != 1 or is_again or not all(test["any_of"] for _, test in of_runs):
            continue
        [iteration] = iterations
        counted = [_counts(store, run, iteration) for run, _ in of_runs]
        plays = min(len(test["any_of"]) for _, test in of_runs)
        rows = []
        for k in range(1, plays + 1):
            row: Finding = {"k": k}
            for rate in RATES:
                row[rate] = mean([test["any_of"][k - 1][rate] for _, test in of_runs])
                both_ways = average_runs(
                    [c[rate, k] for c in counted], f"{name} {iteration} {rate} {k}"
                )
                if row[rate] is not None and both_ways is not None and both_ways.ci95 is not None:
                    low, high = both_ways.ci95
                    row[rate]["ci95"] = [max(0.0, low), min(1.0, high)]
            for kind in TOKENS:
                row[kind] = sum(test["any_of"][k - 1][kind] for _, test in of_runs) / len(of_runs)
            rows.append(row)
        tests.append({"iteration": iteration, "rows": rows})
    return tests


def _counts(store: Store, run: str, iteration: int) -> dict[tuple[str, int], Counts]:
    """By rate and k, the rights of each question and its problems."""
    place = RunStore(store, run).rollouts(iteration, TEST)
    columns = ["problem", "question_id", "y", "decision", "outcome"]
    by_problem = count_right_choices(StoredRollouts(store, [place]).episodes(columns)).values()
    counts: dict[tuple[str, int], dict[str, tuple[float, int]]] = {}
    for of in by_problem:
        for rate in (rate for rate, labels in RATES.items() if of.y in labels):
            for k, right in enumerate(of.right.tolist(), 1):
                here = counts.setdefault((rate, k), {})
                hits, problems = here.get(of.question_id, (0.0, 0))
                here[of.question_id] = (hits + right, problems + 1)
    plays = max((len(of.right) for of in by_problem), default=0)
    return {(rate, k): counts.get((rate, k), {}) for rate in RATES for k in range(1, plays + 1)}


def compare_at_equal_tokens(
    arms: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[int, int]]
) -> Iterator[Finding]:
    """Each arm beside a baseline that is asked again, at no more generated tokens.

    `arms` are those of `collect_results`; `pairs` say by their places which is compared with which.
    ``k`` is the highest with no more tokens, at least 1; the figures are those of both.
    """
    for place, other in pairs:
        arm, baseline = arms[place], arms[other]
        tokens = arm["generated_tokens"]
        if not baseline["any_of"] or tokens is None:
            continue
        rows = baseline["any_of"][-1]["rows"]
        # Rounded: a token is not divided, and the last digit is not to decide.
        k = max(
            [r["k"] for r in rows if round(r["generated_tokens"]) <= round(tokens["mean"])] or [1]
        )
        yield {
            "arm": " ".join(arm["values"].values()),
            "baseline": " ".join(baseline["values"].values()),
            "k": k,
            "generated_tokens": [tokens["mean"], rows[k - 1]["generated_tokens"]],
            **{rate: arm[rate] for rate in RATES},
            "attacked": {
                label: {rate: of[rate] for rate in RATES}
                for label, of in arm.get("attacks", {}).items()
            },
            "any_of": [
                {"iteration": test["iteration"], **test["rows"][k - 1]}
                for test in baseline["any_of"]
            ],
        }
