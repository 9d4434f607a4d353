"""What a played batch says about the agents: one JSON-encodable dict of numbers.

evaluate            every metric of one batch, with intervals and breakdowns
paired_difference   how much better one batch is than another on the same problems
mean_by_problem     accuracy or a reward, every problem counting the same

Conventions
- An episode is right when the verifier decided and its decision equals `y`. No decision counts
  as wrong, and so does one in the middle of the scale (neither), and a failed episode, whatever
  its decision column says.
- Completeness is how often a correct solution (y = 1) is accepted, soundness how often a buggy
  one (y = 0) is rejected.
- A rate of nothing is None (JSON null), never NaN; so is its interval.
- Numbers don't depend on the order of the rows.
- Episodes of one problem (repeated plays, groups, the leaves of a tree) are not independent of
  each other: intervals come from the differences between problems.

Everything is columnar: no Python loop runs over rows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_core.errors import DatasetError
from nip_core.evaluation.intervals import (
    Interval,
    bootstrap_mean,
    bootstrap_rate,
    bootstrap_ratio,
    rate_interval,
)
from nip_core.protocols import ACCEPT, NEITHER, NO_DECISION

_DECISIONS = 4  # different decisions, see `nip_core.protocols.scales`
_GENERATION_COLUMNS = (
    "episode",
    "agent",
    "invalid_reason",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
)
_GENERATION_METRICS = (
    "generations",
    "retry_rate",
    "retry_rate_ci95",
    "token_limit_rate",
    "token_limit_rate_ci95",
    "prompt_tokens",
    "completion_tokens",
)

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Columns:
    """The columns of `episodes` that verdicts are counted from, as arrays of one length."""

    problem: Ints  # index into the sorted ids of the problems
    problem_ids: tuple[str, ...]
    y: Ints
    decision: Ints  # 2 where the episode failed
    failed: Bools
    right: Bools


def evaluate(episodes: pa.Table, generations: pa.Table | None, *, seed: int = 0) -> dict[str, Any]:
    """All metrics of the `episodes`, and of the `generations` they are made of if given.

    Rates are in [0, 1]. Each rate and mean `x` has its 95 % interval [low, high] under `x_ci95`:
    Wilson's for a rate where each problem was tried once, else a bootstrap by problem from `seed`.
    The keys:

    - ``episodes``, ``distinct_problems``
    - ``accuracy``, ``completeness``, ``soundness``, ``precision`` (correct solutions among the
      accepted)
    - ``acceptance_rate``, ``neither_rate`` (decided in the middle of the scale),
      ``no_decision_rate`` (failed episodes included), ``terminated_rate`` (ended by the protocol,
      undecided), ``failed_rate``
    - ``mean_decision_value``: of the verdicts that have one, from -1 (sure to reject) to 1
    - ``always_fail_rate``: problems on which every play was wrong
    - ``agreement``: how often two plays of one problem end with the same decision, mean over the
      problems played at least twice without failing
    - ``mean_rounds`` of the episodes that didn't fail
    - ``retry_rate`` (invalid answers), ``token_limit_rate`` (cut off): over generations, None
      without them; ``generations``, ``prompt_tokens``, ``completion_tokens``: counts
    - ``agents``: by agent ``mean_reward`` and ``std_reward`` (no interval) over the episodes that
      rewarded it, and the generation metrics again
    - ``by_difficulty``, ``by_mutation``: by value, all of the above of these episodes. "none" is
      unmutated and correct, "unknown" has no value recorded.

    Raises:
        DatasetError: a generation belongs to none of the episodes.
    """
    spoken = None if generations is None else generations.select(_GENERATION_COLUMNS)
    return {
        **_measures(episodes, spoken, seed),
        "by_difficulty": _breakdown(episodes, spoken, episodes["difficulty"], seed),
        "by_mutation": _breakdown(episodes, spoken, _mutation(episodes), seed),
    }


def _measures(episodes: pa.Table, generations: pa.Table | None, seed: int) -> dict[str, Any]:
    """What `evaluate` returns, without the breakdowns."""
    columns = _columns(episodes)
    problem, decision = columns.problem, columns.decision
    of_generations = None if generations is None else problem[_rows_of(generations, episodes)]
    whole = {
        "acceptance_rate": decision == ACCEPT,
        "neither_rate": decision == NEITHER,
        "no_decision_rate": decision == NO_DECISION,
        "terminated_rate": _equals(episodes["outcome"], "terminated"),
        "failed_rate": columns.failed,
    }
    rounds = _integers(episodes["rounds"]).astype(np.float64)
    values = np.asarray(episodes["decision_value"].to_numpy(), dtype=np.float64)  # null is NaN
    valued = ~columns.failed & ~np.isnan(values)
    return {
        "episodes": len(problem),
        "distinct_problems": len(columns.problem_ids),
        **_rate("accuracy", problem, columns.right, seed),
        **_rate("completeness", problem, columns.right, seed, among=columns.y == 1),
        **_rate("soundness", problem, columns.right, seed, among=columns.y == 0),
        **_rate("precision", problem, columns.y == 1, seed, among=decision == ACCEPT),
        **{
            key: v
            for name, hit in whole.items()
            for key, v in _rate(name, problem, hit, seed).items()
        },
        **_average("mean_decision_value", problem[valued], values[valued], seed),
        **_always_fail_rate(columns, seed),
        **_agreement(columns, seed),
        **_average("mean_rounds", problem[~columns.failed], rounds[~columns.failed], seed),
        **_generation_rates(generations, of_generations, seed),
        "agents": _by_agent(episodes, columns, generations, of_generations, seed),
    }


def mean_by_problem(episodes: pa.Table, reward_of: str | None = None) -> float | None:
    """Accuracy, or the reward of the agent `reward_of`: the mean over problems of the mean over
    their plays; None without problems. Counted as in `paired_difference`, whose difference it is
    between two tables."""
    return _mean(_problem_means(_columns(episodes), episodes, reward_of))


def paired_difference(
    a: pa.Table, b: pa.Table, seed: int, *, reward_of: str | None = None
) -> dict[str, Any]:
    """How much better `b` is than `a`: the mean over problems of (b - a), with its interval.

    Both are episodes tables over the same problems; several plays of a problem are averaged
    first. Compared is accuracy, or the reward of the agent `reward_of` where given (an episode
    without a reward for it counts 0). The 95 % interval is a bootstrap by problem from `seed`.
    Returns ``difference``, ``ci95`` and ``problems``; the first two are None without problems.

    Raises:
        DatasetError: the two don't cover the same problems.
    """
    first, second = _columns(a), _columns(b)
    if first.problem_ids != second.problem_ids:
        only_a = sorted(set(first.problem_ids) - set(second.problem_ids))
        only_b = sorted(set(second.problem_ids) - set(first.problem_ids))
        raise DatasetError(
            "a paired difference needs the same problems on both sides, but "
            f"{len(only_a)} are only in the first (such as {only_a[:3]}) and "
            f"{len(only_b)} only in the second (such as {only_b[:3]})"
        )
    differences = _problem_means(second, b, reward_of) - _problem_means(first, a, reward_of)
    interval = bootstrap_mean(differences, seed)
    return {
        "difference": _mean(differences),
        "ci95": None if interval is None else list(interval),
        "problems": len(first.problem_ids),
    }


def _columns(episodes: pa.Table) -> _Columns:
    ids = sorted(pc.unique(episodes["problem"]).to_pylist())
    problem = pc.index_in(episodes["problem"], value_set=pa.array(ids, pa.string()))
    failed = _equals(episodes["outcome"], "failed")
    decision = np.where(failed, NO_DECISION, _integers(episodes["decision"]))
    y = _integers(episodes["y"])
    return _Columns(_integers(problem), tuple(ids), y, decision, failed, decision == y)


def _rows_of(generations: pa.Table, episodes: pa.Table) -> Ints:
    """The row in `episodes` of each generation's episode."""
    rows = pc.index_in(generations["episode"], value_set=episodes["key"].combine_chunks())
    if rows.null_count:
        lost = generations["episode"].filter(pc.is_null(rows))[0].as_py()
        raise DatasetError(f"generations of episode {lost}, which is not among the episodes")
    return _integers(rows)


def _integers(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _equals(column: pa.ChunkedArray, value: str) -> Bools:
    return np.asarray(pc.fill_null(pc.equal(column, value), False).to_numpy(), dtype=bool)


def _ratio(part: float, whole: float) -> float | None:
    return None if whole == 0 else float(part) / float(whole)


def _mean(values: Floats) -> float | None:
    # fsum rounds once, so that the order of the rows can't show in the last digit.
    return None if len(values) == 0 else math.fsum(values.tolist()) / len(values)


def _with_interval(name: str, value: float | None, interval: Interval | None) -> dict[str, Any]:
    return {name: value, f"{name}_ci95": None if interval is None else list(interval)}


def _rate(
    name: str, problem: Ints, hit: Bools, seed: int, *, among: Bools | None = None
) -> dict[str, Any]:
    """The share of `hit` within `among`, and its interval; `problem` is that of each entry."""
    if among is not None:
        problem, hit = problem[among], hit[among]
    trials = np.bincount(problem)
    successes = np.bincount(problem[hit], minlength=len(trials))
    tried = trials > 0
    interval = rate_interval(successes[tried], trials[tried], seed)
    return _with_interval(name, _ratio(successes.sum(), trials.sum()), interval)


def _average(name: str, problem: Ints, values: Floats, seed: int) -> dict[str, Any]:
    """The mean of `values`, and its interval; `problem` is that of each value."""
    counts = np.bincount(problem)
    played = counts > 0
    sums = _sums(problem, values, len(counts))
    interval = bootstrap_ratio(sums[played], counts[played], seed)
    return _with_interval(name, _mean(values), interval)


def _sums(problem: Ints, values: Floats, size: int) -> Floats:
    """The sum of the values of each problem."""
    order = np.lexsort((values, problem))  # a sum in one order, whatever the order of the rows
    sums = np.bincount(problem[order], weights=values[order], minlength=size)
    return np.asarray(sums, dtype=np.float64)


def _always_fail_rate(columns: _Columns, seed: int) -> dict[str, Any]:
    size = len(columns.problem_ids)
    right = np.bincount(columns.problem[columns.right], minlength=size)
    return _rate("always_fail_rate", np.arange(size), right == 0, seed)


def _agreement(columns: _Columns, seed: int) -> dict[str, Any]:
    """Mean over repeated problems of the share of pairs of plays with equal decisions."""
    size = len(columns.problem_ids)
    played = ~columns.failed
    cells = columns.problem[played] * _DECISIONS + columns.decision[played]
    counts = np.bincount(cells, minlength=size * _DECISIONS).reshape(size, _DECISIONS)
    plays = counts.sum(axis=1)
    repeated = plays >= 2
    equal = (counts * (counts - 1)).sum(axis=1)[repeated]
    shares = equal / (plays * (plays - 1))[repeated]
    interval = bootstrap_rate(shares, np.ones(len(shares), dtype=np.int64), seed)
    return _with_interval("agreement", _mean(shares), interval)


def _generation_rates(
    generations: pa.Table | None, problem: Ints | None, seed: int
) -> dict[str, Any]:
    """`problem` is that of each generation."""
    if generations is None or problem is None:
        return dict.fromkeys(_GENERATION_METRICS)
    invalid = np.asarray(pc.is_valid(generations["invalid_reason"]).to_numpy(), dtype=bool)
    cut = _equals(generations["finish_reason"], "length")
    return {
        "generations": generations.num_rows,
        **_rate("retry_rate", problem, invalid, seed),
        **_rate("token_limit_rate", problem, cut, seed),
        "prompt_tokens": int(_integers(generations["prompt_tokens"]).sum()),
        "completion_tokens": int(_integers(generations["completion_tokens"]).sum()),
    }


def _rewards(episodes: pa.Table) -> tuple[Ints, pa.ChunkedArray, Floats]:
    """The rewards as (row of the episode, agent, reward), one entry per rewarded agent."""
    column = episodes["rewards"]
    lengths = np.asarray(pc.list_value_length(column).to_numpy(), dtype=np.int64)
    flat = pc.list_flatten(column)
    rows = np.repeat(np.arange(episodes.num_rows), lengths)
    values = np.asarray(pc.struct_field(flat, "reward").to_numpy(), dtype=np.float64)
    return rows, pc.struct_field(flat, "agent"), values


def _by_agent(
    episodes: pa.Table,
    columns: _Columns,
    generations: pa.Table | None,
    of_generations: Ints | None,
    seed: int,
) -> dict[str, Any]:
    rows, rewarded, rewards = _rewards(episodes)
    names = set(pc.unique(rewarded).to_pylist())
    if generations is not None:
        names |= set(pc.unique(generations["agent"]).to_pylist())
    found: dict[str, Any] = {}
    for name in sorted(names):
        is_own = _equals(rewarded, name)
        own = rewards[is_own]
        mean = _average("mean_reward", columns.problem[rows[is_own]], own, seed)
        spread = _mean((own - mean["mean_reward"]) ** 2) if len(own) else None
        spoken, problem = None, None
        if generations is not None and of_generations is not None:
            said = _equals(generations["agent"], name)
            spoken, problem = generations.filter(pa.array(said)), of_generations[said]
        found[name] = {
            **mean,
            "std_reward": None if spread is None else math.sqrt(spread),
            **_generation_rates(spoken, problem, seed),
        }
    return found


def _mutation(episodes: pa.Table) -> pa.ChunkedArray:
    none = pc.if_else(pc.equal(episodes["y"], 1), "none", "unknown")
    return pc.coalesce(episodes["mutation"], none)


def _breakdown(
    episodes: pa.Table, generations: pa.Table | None, by: pa.ChunkedArray, seed: int
) -> dict[str, Any]:
    values = pc.fill_null(by, "unknown")
    rows = None if generations is None else _rows_of(generations, episodes)
    found: dict[str, Any] = {}
    for name in sorted(pc.unique(values).to_pylist()):
        among = _equals(values, name)
        spoken = None
        if generations is not None and rows is not None:
            spoken = generations.filter(pa.array(among[rows]))
        found[name] = _measures(episodes.filter(pa.array(among)), spoken, seed)
    return found


def _problem_means(columns: _Columns, episodes: pa.Table, reward_of: str | None) -> Floats:
    """The mean per problem, in the order of the sorted ids, of accuracy or of a reward."""
    size = len(columns.problem_ids)
    plays = np.bincount(columns.problem, minlength=size)
    if reward_of is None:
        right = np.bincount(columns.problem[columns.right], minlength=size)
        return np.asarray(right / plays, dtype=np.float64)
    rows, agents, rewards = _rewards(episodes)
    own = _equals(agents, reward_of)
    sums = _sums(columns.problem[rows[own]], rewards[own], size)
    return np.asarray(sums / plays, dtype=np.float64)
