"""A verifier alone, asked again: one rejection among k verdicts rejects.

Rejecting where any of k plays rejects is `nip_core.evaluation.any_of`; docs/statistics.md says what
it is for.
"""

from collections.abc import Iterator, Mapping, Sequence

from nip_core.evaluation.any_of import count_right_choices
from nip_core.evaluation.split_metrics import AnyOfRow
from nip_study.documents.asked_again_document import (
    AskedAgainAt,
    AskedAgainRow,
    AskedAgainTest,
    AtEqualTokens,
    AttackedAtEqualTokens,
    AttackedRates,
)
from nip_study.documents.results_document import ArmResult, RunResult
from nip_study.parts.counted import (
    LABELS,
    Counts,
    Figure,
    LastTest,
    Verdicts,
    average_runs,
    make_episodes,
    share_right,
)
from nip_study.parts.document_parts import OverRuns, sum_up
from nip_study.parts.two_way import Spread

_RATES: tuple[Figure, ...] = ("soundness", "completeness")


def summarize_asked_again(
    verdicts: Verdicts, runs: Sequence[RunResult], name: str
) -> tuple[AskedAgainTest, ...]:
    """Average an arm's `runs` where any of k plays rejects, in their first test and their last.

    Rates have the mean, lowest and highest over runs, with a 95 % interval that counts seeds and
    questions as drawn; `name` seeds it, as it does the arm's own, which are those of one play in
    the last test. Tokens are those of a problem. () where no problem is played again.
    """
    tests: list[AskedAgainTest] = []
    for index in (0, -1):
        of_runs = [(run.run, run.tests[index]) for run in runs if run.tests]
        iterations = {test.iteration for _, test in of_runs}
        is_again = tests and tests[0].iteration in iterations
        by_run = [test.any_of for _, test in of_runs if test.any_of]
        # Runs that stand at different iterations have no mean: it would be of other trainings.
        if len(iterations) != 1 or is_again or len(by_run) < len(of_runs):
            continue
        [iteration] = iterations
        right_counts = [_count_right(verdicts, run, iteration) for run, _ in of_runs]
        # Where a run was played less often, no k is a mean over fewer runs than another.
        plays = min(len(rows) for rows in by_run)
        is_last = all(run.tests[-1].iteration == iteration for run in runs if run.tests)
        rows = []
        for k in range(1, plays + 1):
            of_k = [of_run[k - 1] for of_run in by_run]
            seeds = {rate: f"{name} {iteration} {rate} {k}" for rate in _RATES}
            if is_last and k == 1:
                seeds = {rate: f"{name} {rate}" for rate in _RATES}
            rows.append(_average_row(of_k, right_counts, seeds, verdicts.spread))
        tests.append(AskedAgainTest(iteration=iteration, rows=tuple(rows)))
    return tuple(tests)


def _average_row(
    rows: Sequence[AnyOfRow],
    right_counts: Sequence[Mapping[tuple[str, int], Counts]],
    seeds: Mapping[Figure, str],
    spread: Spread,
) -> AskedAgainRow:
    """Average the rows of several runs for one k; `seeds` names by rate the seeds of the intervals.

    By any play and by majority have one seed: with one play, and often with two, they are one rate.
    """
    k = rows[0].k

    def average(rate: Figure, values: Sequence[float | None] = (), by: str = "") -> OverRuns | None:
        counts = [of_run[by + rate, k] for of_run in right_counts]
        values = values or [share_right([of_run]) for of_run in counts]
        return sum_up(values, average_runs(counts, seeds[rate], spread))

    return AskedAgainRow(
        k=k,
        soundness=average("soundness", [row.soundness for row in rows]),
        completeness=average("completeness", [row.completeness for row in rows]),
        generated_tokens=sum(row.generated_tokens or 0 for row in rows) / len(rows),
        prompt_tokens=sum(row.prompt_tokens or 0 for row in rows) / len(rows),
        majority_soundness=average("soundness", by="majority "),
        majority_completeness=average("completeness", by="majority "),
    )


def _count_right(verdicts: Verdicts, run: str, iteration: int) -> dict[tuple[str, int], Counts]:
    """Count by rate and k the right problems of each question, and its problems.

    Rates are those of rejecting where any play rejects, and of the majority.
    """
    plays = verdicts.tests(run)[LastTest(iteration)]
    by_problem = count_right_choices(make_episodes(plays)).values()
    counts: dict[tuple[str, int], dict[str, tuple[float, int]]] = {}
    for problem in by_problem:
        for rate in (rate for rate in _RATES if problem.y in LABELS[rate]):
            for name, shares in ((rate, problem.right), (f"majority {rate}", problem.voted)):
                for k, right in enumerate(shares.tolist(), 1):
                    cell = counts.setdefault((name, k), {})
                    hits, problems = cell.get(problem.question_id, (0.0, 0))
                    cell[problem.question_id] = (hits + right, problems + 1)
    max_plays = max((len(problem.right) for problem in by_problem), default=0)
    names = [name for rate in _RATES for name in (rate, f"majority {rate}")]
    return {(name, k): counts.get((name, k), {}) for name in names for k in range(1, max_plays + 1)}


def compare_at_equal_tokens(
    arms: Sequence[ArmResult], pairs: Sequence[tuple[int, int]]
) -> Iterator[AtEqualTokens]:
    """Put each arm beside a baseline asked again, at no more generated tokens.

    `pairs` say by the places of `arms` which is compared with which. ``k`` is the highest that was
    played with no more tokens, at least 1; more may fit. The figures are those of both.
    """
    for place, other_place in pairs:
        arm, baseline = arms[place], arms[other_place]
        if not baseline.any_of or arm.generated_tokens is None:
            continue
        tokens, rows = arm.generated_tokens.mean, baseline.any_of[-1].rows
        k = _find_highest(rows, tokens)
        yield AtEqualTokens(
            arm=arm.name,
            baseline=baseline.name,
            k=k,
            generated_tokens=(tokens, rows[k - 1].generated_tokens),
            soundness=arm.soundness,
            completeness=arm.completeness,
            attacked_rates={
                label: AttackedRates(soundness=rates.soundness, completeness=rates.completeness)
                for label, rates in arm.attacks.items()
            },
            any_of=tuple(_take_row(test, k) for test in baseline.any_of),
        )


def compare_attacked(
    arms: Sequence[ArmResult], pairs: Sequence[tuple[int, int]]
) -> Iterator[AttackedAtEqualTokens]:
    """Put the rates of each arm under each attack beside a baseline at no more verifier's tokens.

    `pairs` come from `compare_at_equal_tokens`. Provers' messages cost the baseline nothing
    here, so ``k`` is lower: the verifier finds as much by itself with the effort it made.
    """
    for place, other_place in pairs:
        arm, baseline = arms[place], arms[other_place]
        for label, rates in arm.attacks.items() if baseline.any_of else ():
            if rates.verifier_tokens is None:
                continue
            tokens, rows = rates.verifier_tokens.mean, baseline.any_of[-1].rows
            k = _find_highest(rows, tokens)
            yield AttackedAtEqualTokens(
                arm=arm.name,
                attack=label,
                baseline=baseline.name,
                k=k,
                verifier_tokens=(tokens, rows[k - 1].generated_tokens),
                soundness=rates.soundness,
                completeness=rates.completeness,
                any_of=tuple(_take_row(test, k) for test in baseline.any_of),
            )


def _find_highest(rows: Sequence[AskedAgainRow], tokens: float) -> int:
    """Find the most plays, of those there are, that take no more tokens, at least 1."""
    # Rounded: a token is not divided, and the last digit is not to decide.
    return max([row.k for row in rows if round(row.generated_tokens) <= round(tokens)] or [1])


def _take_row(test: AskedAgainTest, k: int) -> AskedAgainAt:
    """Take the row of k plays out of a test."""
    return AskedAgainAt(iteration=test.iteration, **dict(test.rows[k - 1]))
