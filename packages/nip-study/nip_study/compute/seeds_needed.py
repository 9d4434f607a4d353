"""How many seeds show a difference of two arms, by the spread over seeds that was seen."""

import math

from nip_core.evaluation.statistics.distributions import t_quantile
from nip_core.evaluation.statistics.power import ALPHA, POWER
from nip_core.evaluation.statistics.two_way import NO_ERROR, TwoWay, widen

LEAST_SEEDS = 3
_MOST_SEEDS = 1 << 30  # more than any study trains; it ends a search


def seeds_needed(difference: float, seen: TwoWay) -> int | None:
    """Compute how many seeds show a true `difference` of two arms in 80 % of the cases.

    `seen` is the paired difference of these arms over seeds and questions, which says how much it
    varies with both. More seeds lower the part of the variance that is theirs; the questions stay
    the same ones, and so does their part. What the test adds for few seeds (`two_way`) is added
    here, too. None where no number of seeds is enough: the questions alone vary too much, or the
    difference is 0. At least 3: two seeds show by themselves how much seeds differ by one number,
    and then how often a test finds a difference hangs on that more than on the difference.

    Raises ValueError for one seed or one question, and where nothing shows the spread.
    """
    if not seen.error or seen.error <= NO_ERROR:
        raise ValueError("one seed, one question or no spread at all says nothing of more seeds")
    # What the error was widened by for few seeds says nothing of more of them.
    of_questions = max(seen.error**2 - seen.widened - seen.seed_variance, 0.0)

    def is_enough(seeds: int) -> bool:
        of_seeds = seen.seed_variance * seen.seeds / seeds
        whole, freedom = 0.0, 0.0
        for part, df in ((of_seeds, seeds - 1), (of_questions, seen.questions - 1)):
            if seen.spread == "calibrated":
                more, term = widen(part, df)
            else:
                more, term = 0.0, part**2 / df
            whole, freedom = whole + part + more, freedom + term
        # Satterthwaite's, as for the interval.
        least = float(min(seeds, seen.questions) - 1)
        of_both = max(whole**2 / freedom, least) if freedom else least
        quantiles = t_quantile(1 - ALPHA / 2, of_both) + t_quantile(POWER, of_both)
        return abs(difference) >= quantiles * math.sqrt(whole)

    if is_enough(LEAST_SEEDS):
        return LEAST_SEEDS
    low, high = LEAST_SEEDS, 2 * LEAST_SEEDS
    while not is_enough(high):
        if high >= _MOST_SEEDS:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
