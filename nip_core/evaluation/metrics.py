"""What a played batch says about the agents: one JSON-encodable dict of numbers.

evaluate            every metric of one batch, with intervals and breakdowns
paired_difference   how much better one batch is than another on the same problems

Conventions
- An episode is right when the verifier decided and its decision equals `y`. No decision counts
  as wrong, and so does one in the middle of the scale (neither), and a failed episode, whatever
  its decision column says.
- Completeness is how often a correct solution (y = 1) is accepted, soundness how often a buggy
  one (y = 0) is rejected.
- A rate of nothing is None (JSON null), never NaN; so is its interval.
- Numbers don't depend on the order of the rows.

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
from nip_core.evaluation.intervals import bootstrap_mean, rate_interval
from nip_core.protocols import ACCEPT, NEITHER, NO_DECISION

_DECISIONS = 4  # different decisions, see `nip_core.protocols.scales`

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


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

    Rates are in [0, 1]; intervals are [low, high] at 95 %: Wilson's where each problem was
    played once, else a bootstrap by problem drawn from `seed`. The keys:

    - ``episodes``, ``distinct_problems``
    - ``accuracy``, ``completeness``, ``soundness``, ``precision`` (correct solutions among the
      accepted), each with ``…_ci95``
    - ``acceptance_rate``, ``neither_rate`` (decided in the middle of the scale),
      ``no_decision_rate`` (failed episodes included), ``terminated_rate`` (ended by the protocol,
      undecided), ``failed_rate``
    - ``mean_decision_value``: of the verdicts that have one, from -1 (sure to reject) to 1
    - ``always_fail_rate``: problems on which every play was wrong
    - ``agreement``: how often two plays of one problem end with the same decision, mean over the
      problems played at least twice without failing
    - ``mean_rounds`` of the episodes that didn't fail
    - ``retry_rate`` (invalid answers), ``token_limit_rate`` (cut off), ``prompt_tokens``,
      ``completion_tokens``: over generations, None without them
    - ``agents``: by agent ``mean_reward`` and ``std_reward`` over the episodes that rewarded it,
      and the generation metrics again
    - ``by_difficulty``, ``by_mutation``: by value the counts and the first three rates with
      the interval of accuracy. "none" is unmutated and correct, "unknown" has no value recorded.
    """
    columns = _columns(episodes)
    total = len(columns.y)
    accepted = columns.decision == ACCEPT
    every = np.ones(total, dtype=bool)
    result: dict[str, Any] = {
        "episodes": total,
        "distinct_problems": len(columns.problem_ids),
        **_verdict_rates(columns, every, seed),
        **_rate("precision", columns, columns.y == 1, accepted, seed),
        "acceptance_rate": _ratio(accepted.sum(), total),
        "neither_rate": _ratio((columns.decision == NEITHER).sum(), total),
        "no_decision_rate": _ratio((columns.decision == NO_DECISION).sum(), total),
        "mean_decision_value": _mean_decision_value(episodes, columns),
        "terminated_rate": _ratio(_equals(episodes["outcome"], "terminated").sum(), total),
        "failed_rate": _ratio(columns.failed.sum(), total),
        "always_fail_rate": _always_fail_rate(columns),
        "agreement": _agreement(columns),
        "mean_rounds": _mean_rounds(episodes, columns),
        **_generation_rates(generations),
        "agents": _by_agent(episodes, generations),
        "by_difficulty": _breakdown(columns, episodes["difficulty"], seed),
        "by_mutation": _breakdown(columns, _mutation(episodes), seed),
    }
    return result


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


def _integers(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _equals(column: pa.ChunkedArray, value: str) -> Bools:
    return np.asarray(pc.fill_null(pc.equal(column, value), False).to_numpy(), dtype=bool)


def _ratio(part: float, whole: float) -> float | None:
    return None if whole == 0 else float(part) / float(whole)


def _mean(values: NDArray[np.float64]) -> float | None:
    # fsum rounds once, so that the order of the rows can't show in the last digit.
    return None if len(values) == 0 else math.fsum(values.tolist()) / len(values)


def _rate(name: str, columns: _Columns, hit: Bools, among: Bools, seed: int) -> dict[str, Any]:
    """The share of `hit` within `among`, and its interval under `<name>_ci95`."""
    size = len(columns.problem_ids)
    trials = np.bincount(columns.problem[among], minlength=size)
    successes = np.bincount(columns.problem[among & hit], minlength=size)
    tried = trials > 0
    interval = rate_interval(successes[tried], trials[tried], seed)
    return {
        name: _ratio(successes.sum(), trials.sum()),
        f"{name}_ci95": None if interval is None else list(interval),
    }


def _verdict_rates(columns: _Columns, among: Bools, seed: int) -> dict[str, Any]:
    return {
        **_rate("accuracy", columns, columns.right, among, seed),
        **_rate("completeness", columns, columns.right, among & (columns.y == 1), seed),
        **_rate("soundness", columns, columns.right, among & (columns.y == 0), seed),
    }


def _always_fail_rate(columns: _Columns) -> float | None:
    size = len(columns.problem_ids)
    right = np.bincount(columns.problem[columns.right], minlength=size)
    return _ratio((right == 0).sum(), size)


def _agreement(columns: _Columns) -> float | None:
    """Mean over repeated problems of the share of pairs of plays with equal decisions."""
    size = len(columns.problem_ids)
    played = ~columns.failed
    cells = columns.problem[played] * _DECISIONS + columns.decision[played]
    counts = np.bincount(cells, minlength=size * _DECISIONS).reshape(size, _DECISIONS)
    plays = counts.sum(axis=1)
    repeated = plays >= 2
    equal = (counts * (counts - 1)).sum(axis=1)[repeated]
    return _mean(equal / (plays * (plays - 1))[repeated])


def _mean_decision_value(episodes: pa.Table, columns: _Columns) -> float | None:
    values = np.asarray(episodes["decision_value"].to_numpy(), dtype=np.float64)  # null is NaN
    return _mean(values[~columns.failed & ~np.isnan(values)])


def _mean_rounds(episodes: pa.Table, columns: _Columns) -> float | None:
    rounds = _integers(episodes["rounds"])[~columns.failed]
    return _ratio(rounds.sum(), len(rounds))


def _generation_rates(generations: pa.Table | None) -> dict[str, Any]:
    if generations is None:
        names = ("generations", "retry_rate", "token_limit_rate")
        return dict.fromkeys((*names, "prompt_tokens", "completion_tokens"))
    rows = generations.num_rows
    return {
        "generations": rows,
        "retry_rate": _ratio(rows - generations["invalid_reason"].null_count, rows),
        "token_limit_rate": _ratio(_equals(generations["finish_reason"], "length").sum(), rows),
        "prompt_tokens": int(_integers(generations["prompt_tokens"]).sum()),
        "completion_tokens": int(_integers(generations["completion_tokens"]).sum()),
    }


def _rewards(episodes: pa.Table) -> tuple[Ints, pa.ChunkedArray, NDArray[np.float64]]:
    """The rewards as (row of the episode, agent, reward), one entry per rewarded agent."""
    column = episodes["rewards"]
    lengths = np.asarray(pc.list_value_length(column).to_numpy(), dtype=np.int64)
    flat = pc.list_flatten(column)
    rows = np.repeat(np.arange(episodes.num_rows), lengths)
    values = np.asarray(pc.struct_field(flat, "reward").to_numpy(), dtype=np.float64)
    return rows, pc.struct_field(flat, "agent"), values


def _by_agent(episodes: pa.Table, generations: pa.Table | None) -> dict[str, Any]:
    _, rewarded, rewards = _rewards(episodes)
    names = set(pc.unique(rewarded).to_pylist())
    if generations is not None:
        names |= set(pc.unique(generations["agent"]).to_pylist())
    found: dict[str, Any] = {}
    for name in sorted(names):
        own = rewards[_equals(rewarded, name)]
        mean = _mean(own)
        spread = None if mean is None else _mean((own - mean) ** 2)
        rows = None
        if generations is not None:
            rows = generations.filter(pc.equal(generations["agent"], name))
        found[name] = {
            "mean_reward": mean,
            "std_reward": None if spread is None else math.sqrt(spread),
            **_generation_rates(rows),
        }
    return found


def _mutation(episodes: pa.Table) -> pa.ChunkedArray:
    none = pc.if_else(pc.equal(episodes["y"], 1), "none", "unknown")
    return pc.coalesce(episodes["mutation"], none)


def _breakdown(columns: _Columns, by: pa.ChunkedArray, seed: int) -> dict[str, Any]:
    values = pc.fill_null(by, "unknown")
    found: dict[str, Any] = {}
    for name in sorted(pc.unique(values).to_pylist()):
        among = _equals(values, name)
        rates = _verdict_rates(columns, among, seed)
        found[name] = {
            "episodes": int(among.sum()),
            "distinct_problems": len(np.unique(columns.problem[among])),
            **{key: rates[key] for key in ("accuracy", "accuracy_ci95")},
            **{key: rates[key] for key in ("completeness", "soundness")},
        }
    return found


def _problem_means(
    columns: _Columns, episodes: pa.Table, reward_of: str | None
) -> NDArray[np.float64]:
    """The mean per problem, in the order of the sorted ids, of accuracy or of a reward."""
    size = len(columns.problem_ids)
    plays = np.bincount(columns.problem, minlength=size)
    if reward_of is None:
        right = np.bincount(columns.problem[columns.right], minlength=size)
        return np.asarray(right / plays, dtype=np.float64)
    rows, agents, rewards = _rewards(episodes)
    own = _equals(agents, reward_of)
    problems, values = columns.problem[rows[own]], rewards[own]
    order = np.lexsort((values, problems))  # a sum in one order, whatever the order of the rows
    sums = np.bincount(problems[order], weights=values[order], minlength=size)
    return np.asarray(sums / plays, dtype=np.float64)
