"""Each arm of a sweep less the first one, for undeclared comparisons.

The first arm is the first one of the file. Declared comparisons are left out: they stand under
"Declared", where no one could choose them by their results.
"""

from collections.abc import Iterator, Mapping, Sequence

from nip_core.errors import SettingsError
from nip_core.hashing import derive_seed
from nip_study.compute.needed import seeds_needed
from nip_study.declare.hypotheses import Arm, Hypothesis, pair_runs
from nip_study.documents.results_document import ArmDifference, ArmDifferences, SeedsNeeded
from nip_study.parts.counted import Counted, Counts, Figure, share_right, subtract_runs
from nip_study.parts.document_parts import adjust, clip_interval
from nip_study.parts.two_way import NO_ERROR, Spread, TwoWay, two_sided_p
from nip_study.plan.planned import SEED, PlannedRun, PlannedSweep, find_attack

FIVE_POINTS = 0.05
_OWN: tuple[Figure, ...] = ("accuracy", "completeness", "soundness")
_AFTER: tuple[Figure, ...] = ("completeness", "soundness")

RunPair = tuple[PlannedRun, PlannedRun]


def subtract_first_arm(
    counter: Counted, sweep: PlannedSweep, hypotheses: Sequence[Hypothesis] = ()
) -> ArmDifferences | None:
    """Subtract the figures of the first arm from those of each other, but for declared ones.

    `counter` knows the runs that are finished and tested. Runs of the same seed are paired, and in
    them questions; intervals and p-values count seeds and questions as drawn (`two_way`). p-values
    are adjusted after Holm over all comparisons. None with fewer than two arms.
    """
    (first, of_first), *other_arms = sweep.arms.items()
    if not other_arms:
        return None
    p_values = [
        (_declared_pairs(sweep, each.arm, each.against), each.figure, each.after)
        for each in hypotheses
        if isinstance(each.against, Mapping)
    ]
    rows, declared_count = list[ArmDifference](), 0
    for figure, attack in _list_figures(sweep):
        for arm, runs in other_arms:
            pairs = _pair_by_seed(runs, of_first)
            if attack and not any(all(find_attack(run, attack) for run in pair) for pair in pairs):
                continue
            if (_name_pairs(pairs), figure, attack) in p_values:
                declared_count += 1
                continue
            name = f"{' '.join(arm)} less {' '.join(first)}"
            rows.append(_subtract(counter, " ".join(arm), name, pairs, figure, attack))
    adjusted = zip(rows, adjust([row.p for row in rows]), strict=True)
    return ArmDifferences(
        first=" ".join(first),
        compared=tuple(row.model_copy(update={"p_holm": p}) for row, p in adjusted),
        declared=declared_count,
    )


def _list_figures(sweep: PlannedSweep) -> Iterator[tuple[Figure, str | None]]:
    """List the figures that arms are compared by: of their own tests, and after each attack."""
    yield from ((figure, None) for figure in _OWN)
    yield from ((figure, attack) for attack in sweep.attacks for figure in _AFTER)


def _pair_by_seed(runs: Sequence[PlannedRun], of_first: Sequence[PlannedRun]) -> list[RunPair]:
    """Pair the runs of two arms that have the same seed; those without a partner are left out."""
    by_seed = {run.values.get(SEED): run for run in of_first}
    return [(run, by_seed[seed]) for run in runs if (seed := run.values.get(SEED)) in by_seed]


def _name_pairs(pairs: Sequence[RunPair]) -> frozenset[frozenset[str]]:
    """Name the compared settings, in either order of the two runs."""
    return frozenset(frozenset(run.name for run in pair) for pair in pairs)


def _declared_pairs(sweep: PlannedSweep, arm: Arm, against: Arm) -> frozenset[frozenset[str]]:
    try:
        return _name_pairs(pair_runs(sweep, arm, against))
    except SettingsError:  # the sweep is not as it was when this was declared
        return frozenset()


def _subtract(
    counter: Counted,
    arm: str,
    name: str,
    pairs: Sequence[RunPair],
    figure: Figure,
    attack: str | None,
) -> ArmDifference:
    """Subtract a figure of two arms over finished pairs of runs; `name` seeds its interval."""
    of_pairs = [[counter.count(find_attack(run, attack), figure) for run in pair] for pair in pairs]
    both = [(a, b) for a, b in of_pairs if a is not None and b is not None]
    difference, because = _find_difference(pairs, both, f"{name} {figure} {attack}", counter.spread)
    interval = None if difference is None else difference.ci95
    return ArmDifference(
        arm=arm,
        figure=figure,
        attack=attack,
        rates=(share_right([first for first, _ in both]), share_right([one for _, one in both])),
        difference=None if difference is None else difference.value,
        ci95=None if interval is None else clip_interval(interval, lowest=-1.0),
        pairs=len(both),
        questions=None if difference is None else difference.questions,
        p=None if difference is None else two_sided_p(difference),
        p_holm=None,
        seeds_needed=None if difference is None else _plan_seeds(difference),
        because=because,
    )


def _find_difference(
    pairs: Sequence[RunPair], both: Sequence[tuple[Counts, Counts]], name: str, spread: Spread
) -> tuple[TwoWay | None, str | None]:
    """Return the difference of both arms, and why there is none, or no interval of it."""
    if not pairs:
        return None, "no seed is in both arms"
    # Questions of two datasets may have the same names.
    if any(run.problems != other_run.problems for run, other_run in pairs):
        return None, "the arms play other problems"
    if not both:
        return None, "no pair of runs is finished and tested"
    if any(first.keys() != second.keys() for first, second in both):
        return None, "the arms were not tested on the same questions"
    difference = subtract_runs(both, derive_seed("arms", name), spread)
    if difference is None:
        return None, "nothing was tested"
    if difference.error is None:
        one = "seed" if difference.seeds == 1 else "question"
        return difference, f"one {one} shows no spread"
    return difference, None


def _plan_seeds(difference: TwoWay) -> SeedsNeeded | None:
    """Say how many seeds would show this difference, or one of 5 points; None without a spread."""
    if not difference.error or difference.error <= NO_ERROR:
        return None
    return SeedsNeeded(
        for_this=seeds_needed(difference.value, difference),
        for_five_points=seeds_needed(FIVE_POINTS, difference),
    )
