"""The metrics of a played batch.

Conventions
- An episode is right when the verifier decided and its decision equals `y`. No decision counts
  as wrong, and so does one in the middle of the scale (neither), and a failed episode with any
  value in its decision column.
- Completeness is how often a correct solution (y = 1) is accepted, soundness how often a buggy
  one (y = 0) is rejected.
- A rate of nothing is None (JSON null), never NaN; so is its interval.
- A tree of responses counts as one play of its problem: each leaf with its share, where the
  children of a node share alike. So accuracy is the mean over answers, not over leaves.
- Numbers don't depend on the order of the rows.
- Episodes of one problem (repeated plays, groups, the leaves of a tree) are not independent of
  each other, nor are problems of one question: see `spread`.

Everything is columnar: no Python loop runs over rows, except over rows of trees.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import DatasetError
from nip_core.evaluation.confidence_intervals import Interval
from nip_core.evaluation.split_metrics import (
    AgentMeasures,
    BatchMetrics,
    Measures,
    PairedDifference,
)
from nip_core.evaluation.spread import (
    Bools,
    ByProblem,
    Floats,
    Ints,
    Resampling,
    find_questions,
    number_questions,
    sums_by,
)
from nip_core.evaluation.statistics.clustered import difference_interval
from nip_core.evaluation.statistics.paired import compare_pairs
from nip_core.protocols import ACCEPT, NEITHER, NO_DECISION
from nip_core.rollouts.storage.table_rows import read_rows
from nip_core.rollouts.trees import Leaf, Tree, leaf_weights, parse_path, tree_of
from nip_core.scenarios import RULE_MODEL
from nip_core.tools import REFUSED

_Figures = dict[str, float | Interval | None]
"""Figures by the names that the models have for them."""
_DECISIONS = 4  # different decisions, see `nip_core.protocols.scales`
_GENERATION_COLUMNS = (
    *("episode", "agent", "invalid_reason", "finish_reason"),
    *("prompt_tokens", "completion_tokens", "model_asked", "tool_result"),
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


@dataclass(frozen=True)
class _Columns:
    """The columns of `episodes` that verdicts are counted from, as arrays of one length."""

    problem: Ints  # index into the sorted ids of the problems
    problem_ids: tuple[str, ...]
    y: Ints
    decision: Ints  # 2 where the episode failed
    failed: Bools
    right: Bools
    weight: Floats  # 1; of a leaf its share of the tree


def evaluate(
    episodes: pa.Table,
    generations: pa.Table | None,
    *,
    seed: int = 0,
    questions: Mapping[str, str] | None = None,
) -> BatchMetrics:
    """Compute all metrics of the `episodes`, and of their `generations` if given.

    Rates are in [0, 1]. Each rate and mean `x` has its 95 % interval [low, high] under `x_ci95`:
    Wilson's for a rate where each problem was tried once, else a bootstrap by problem from `seed`.
    With `questions`, by problem as `find_questions` has them, they are by question where a question
    was tried several times, see `nip_core.evaluation.statistics`. The keys:

    - ``episodes`` (leaves, of trees), ``distinct_problems``
    - ``accuracy``, ``completeness``, ``soundness``, ``precision`` (correct solutions among the
      accepted)
    - ``acceptance_rate``, ``neither_rate`` (decided in the middle of the scale),
      ``no_decision_rate`` (failed episodes included), ``terminated_rate`` (ended by the protocol,
      undecided), ``failed_rate``
    - ``mean_decision_value``: of the verdicts that have one, from -1 (sure to reject) to 1
    - ``always_fail_rate``: problems on which every play was wrong
    - ``worst_problem_accuracy``: the lowest accuracy on one problem, of those played at least
      twice; None without such, as one play is right or wrong. A minimum has no interval here
    - ``agreement``: how often two plays of one problem end with the same decision, mean over the
      problems played at least twice without failing
    - ``mean_rounds`` of the episodes that didn't fail
    - ``retry_rate`` (invalid answers), ``token_limit_rate`` (cut off): over generations, None
      without them; ``generations``, ``prompt_tokens``, ``completion_tokens``: counts
    - ``agents``: by agent ``mean_reward`` and ``std_reward`` (no interval) over the episodes that
      rewarded it, the generation metrics again, and where there are some, ``by_rule``, its
      verdicts that `Scenario.rejects` gave, and its ``tool_calls``
    - ``by_difficulty``, ``by_mutation``: by value, all of the above of these episodes. "none" is
      unmutated and correct, "unknown" has no value recorded; ``by_tool_calls`` where there are
      calls, and no trees, whose leaves share them.

    Raises:
        DatasetError: a generation belongs to none of the episodes.
    """
    spoken = None if generations is None else generations.select(_GENERATION_COLUMNS)
    resampling = Resampling(seed, questions)
    by_calls = {}
    if (calls := _count_calls(episodes, spoken)) is not None:
        by_calls["by_tool_calls"] = _breakdown(episodes, spoken, calls, resampling)
    return BatchMetrics(
        **dict(_measures(episodes, spoken, resampling)),
        **by_calls,
        by_difficulty=_breakdown(episodes, spoken, episodes["difficulty"], resampling),
        by_mutation=_breakdown(episodes, spoken, _mutation(episodes), resampling),
    )


def _measures(episodes: pa.Table, generations: pa.Table | None, resampling: Resampling) -> Measures:
    """Compute what `evaluate` returns, but for the breakdowns."""
    # 1. Columns as arrays; everything below counts rows of them.
    columns = _columns(episodes)
    spread = resampling.spread(columns.problem_ids)
    problem, decision = columns.problem, columns.decision
    of_generations = None if generations is None else problem[_rows_of(generations, episodes)]
    # 2. Shares of all episodes, by the rows in which they hold.
    whole = {
        "acceptance_rate": decision == ACCEPT,
        "neither_rate": decision == NEITHER,
        "no_decision_rate": decision == NO_DECISION,
        "terminated_rate": _equals(episodes["outcome"], "terminated"),
        "failed_rate": columns.failed,
    }
    # 3. Means leave out episodes that failed: they have no rounds and no verdict of their own.
    weight, is_played = columns.weight, ~columns.failed
    rounds = _integers(episodes["rounds"]).astype(np.float64)
    values = np.asarray(episodes["decision_value"].to_numpy(), dtype=np.float64)  # null is NaN
    valued = is_played & ~np.isnan(values)

    def rate(name: str, hit: Bools, among: Bools | None = None) -> _Figures:
        return _rate(name, problem, hit, spread, among=among, weight=weight)

    def average(name: str, values: Floats, among: Bools) -> _Figures:
        return _average(name, problem[among], values[among], spread, weight[among])

    figures: _Figures = {
        "episodes": len(problem),
        "distinct_problems": len(columns.problem_ids),
        **rate("accuracy", columns.right),
        **rate("completeness", columns.right, columns.y == 1),
        **rate("soundness", columns.right, columns.y == 0),
        **rate("precision", columns.y == 1, decision == ACCEPT),
        **{key: v for name, hit in whole.items() for key, v in rate(name, hit).items()},
        **average("mean_decision_value", values, valued),
        **_always_fail_rate(columns, spread),
        "worst_problem_accuracy": _worst_problem_accuracy(columns, episodes),
        **_agreement(columns, spread),
        **average("mean_rounds", rounds, is_played),
        **_generation_rates(generations, of_generations, spread),
    }
    agents = _by_agent(episodes, columns, generations, of_generations, spread)
    return Measures.model_validate({**figures, "agents": agents})


def mean_by_problem(episodes: pa.Table, reward_of: str | None = None) -> float | None:
    """Average accuracy, or the reward of the agent `reward_of`, over plays and then over problems.

    None without problems. `paired_difference` is the difference of two of these.
    """
    return _mean(_problem_means(_columns(episodes), episodes, reward_of))


def paired_difference(
    a: pa.Table,
    b: pa.Table,
    seed: int,
    *,
    reward_of: str | None = None,
    split_by: Sequence[str] = (),
) -> PairedDifference:
    """Compare `b` with `a`: the mean over problems of (b - a), with its interval.

    Both are episodes tables over the same problems; several plays of a problem are averaged
    first. Compared is accuracy, or the reward of the agent `reward_of` where given (an episode
    without a reward for it counts 0). For accuracy, where both sides have played each problem as
    often, interval and ``p`` are those of `compare_pairs`, by question (see `find_questions`), and
    agree: the interval excludes 0 exactly if p is below 0.05. Else there is no p, and the 95 %
    interval is a bootstrap by problem from `seed` where every question has one problem, or
    cluster-robust. With problems of one question only it is None.

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
    question = number_questions(first.problem_ids, find_questions(a, split_by))
    changes = None if reward_of else _count_changes(first, second, question)
    if changes is None:
        interval, p = difference_interval(differences, question, seed), None
    else:
        interval, p = compare_pairs(differences, question, changes)
    return PairedDifference(
        difference=_mean(differences),
        ci95=interval,
        problems=len(first.problem_ids),
        questions=int(question.max(initial=-1)) + 1,
        p=p,
    )


def _count_changes(first: _Columns, second: _Columns, question: Ints) -> Floats | None:
    """Count by question what became right less what became wrong.

    None where the sides have not played each problem as often, and of trees.
    """
    size = len(first.problem_ids)
    plays = [np.bincount(side.problem, minlength=size) for side in (first, second)]
    is_whole = all(np.all(side.weight == 1) for side in (first, second))
    if size == 0 or not is_whole or np.any(plays[0] != plays[1]):
        return None
    right = [np.bincount(side.problem[side.right], minlength=size) for side in (first, second)]
    return np.bincount(question, weights=right[1] - right[0]).astype(np.float64)


def _columns(episodes: pa.Table) -> _Columns:
    ids = sorted(pc.unique(episodes["problem"]).to_pylist())
    problem = pc.index_in(episodes["problem"], value_set=pa.array(ids, pa.string()))
    failed = _equals(episodes["outcome"], "failed")
    # A failed episode may have decided before it failed; that verdict stands for nothing.
    decision = np.where(failed, NO_DECISION, _integers(episodes["decision"]))
    y = _integers(episodes["y"])
    weight = weigh_episodes(episodes)
    return _Columns(_integers(problem), tuple(ids), y, decision, failed, decision == y, weight)


def weigh_episodes(episodes: pa.Table) -> Floats:
    """Return how much each episode counts: 1, or as a leaf its share of its tree."""
    weights = np.ones(episodes.num_rows)
    is_leaf = pc.not_equal(episodes["branch_path"], "")
    rows: list[int] = np.flatnonzero(is_leaf.to_numpy()).tolist()
    trees: dict[Tree, dict[tuple[int, ...], int]] = defaultdict(dict)
    leaves = read_rows(episodes.select(Leaf._fields).filter(is_leaf), Leaf)
    for row, leaf in zip(rows, leaves, strict=True):
        trees[tree_of(leaf)][parse_path(leaf.branch_path)] = row
    for tree in trees.values():
        for path, weight in leaf_weights(tree).items():
            weights[tree[path]] = weight
    return weights


def _rows_of(generations: pa.Table, episodes: pa.Table) -> Ints:
    """Find the row in `episodes` of each generation's episode."""
    rows = pc.index_in(generations["episode"], value_set=episodes["key"].combine_chunks())
    if rows.null_count:
        episode = generations["episode"].filter(pc.is_null(rows))[0].as_py()
        raise DatasetError(f"generations of episode {episode}, which is not among the episodes")
    return _integers(rows)


def _integers(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _equals(column: pa.ChunkedArray, value: str) -> Bools:
    return np.asarray(pc.fill_null(pc.equal(column, value), False).to_numpy(), dtype=bool)


def _ratio(part: float, whole: float) -> float | None:
    return None if whole == 0 else float(part) / float(whole)


def _mean(values: Floats, weight: Floats | None = None) -> float | None:
    weight = np.ones(len(values)) if weight is None else weight
    # fsum rounds once, so that the order of the rows can't show in the last digit.
    return _ratio(math.fsum((values * weight).tolist()), math.fsum(weight.tolist()))


def _with_interval(name: str, value: float | None, interval: Interval | None) -> _Figures:
    return {name: value, f"{name}_ci95": interval}


def _rate(
    name: str,
    problem: Ints,
    hit: Bools,
    spread: ByProblem,
    *,
    among: Bools | None = None,
    weight: Floats | None = None,
) -> _Figures:
    """Compute the share of `hit` within `among`, and its interval.

    `problem` and `weight` (1 without) have one value for each entry.
    """
    weight = np.ones(len(problem)) if weight is None else weight
    if among is not None:
        problem, hit, weight = problem[among], hit[among], weight[among]
    trials = sums_by(problem, weight)
    successes = sums_by(problem[hit], weight[hit], len(trials))
    interval = spread.rate(problem, hit, weight)
    return _with_interval(name, _ratio(successes.sum(), trials.sum()), interval)


def _average(
    name: str, problem: Ints, values: Floats, spread: ByProblem, weight: Floats
) -> _Figures:
    """Average the `values`, with an interval; `problem` and `weight` have one value for each."""
    return _with_interval(name, _mean(values, weight), spread.mean(problem, values, weight))


def _always_fail_rate(columns: _Columns, spread: ByProblem) -> _Figures:
    size = len(columns.problem_ids)
    right = np.bincount(columns.problem[columns.right], minlength=size)
    return _rate("always_fail_rate", np.arange(size), right == 0, spread)


def _worst_problem_accuracy(columns: _Columns, episodes: pa.Table) -> float | None:
    repeated = np.bincount(columns.problem, minlength=len(columns.problem_ids)) >= 2
    rates = _problem_means(columns, episodes, None)[repeated]
    return float(rates.min()) if len(rates) else None


def _agreement(columns: _Columns, spread: ByProblem) -> _Figures:
    """Average over repeated problems the share of pairs of plays with equal decisions.

    A pair counts as much as the weights of its two plays say, multiplied.
    """
    size = len(columns.problem_ids)
    is_played = ~columns.failed
    cells = columns.problem[is_played] * _DECISIONS + columns.decision[is_played]
    weight = columns.weight[is_played]
    shape = size, _DECISIONS
    sums = sums_by(cells, weight, size * _DECISIONS).reshape(shape)
    squares = sums_by(cells, weight**2, size * _DECISIONS).reshape(shape)
    repeated = np.bincount(columns.problem[is_played], minlength=size) >= 2
    equal = (sums**2 - squares).sum(axis=1)[repeated]
    shares = equal / (sums.sum(axis=1) ** 2 - squares.sum(axis=1))[repeated]
    interval = spread.mean_share(np.flatnonzero(repeated), shares)
    return _with_interval("agreement", _mean(shares), interval)


def _generation_rates(
    generations: pa.Table | None, problem: Ints | None, spread: ByProblem
) -> _Figures:
    """Measure the generations; `problem` has one entry for each of them."""
    if generations is None or problem is None:
        return dict.fromkeys(_GENERATION_METRICS)
    invalid = np.asarray(pc.is_valid(generations["invalid_reason"]).to_numpy(), dtype=bool)
    cut = _equals(generations["finish_reason"], "length")
    return {
        "generations": generations.num_rows,
        **_rate("retry_rate", problem, invalid, spread),
        **_rate("token_limit_rate", problem, cut, spread),
        "prompt_tokens": int(_integers(generations["prompt_tokens"]).sum()),
        "completion_tokens": int(_integers(generations["completion_tokens"]).sum()),
    }


def _rewards(episodes: pa.Table) -> tuple[Ints, pa.ChunkedArray, Floats]:
    """List the rewards as (row of the episode, agent, reward), one entry per rewarded agent."""
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
    spread: ByProblem,
) -> dict[str, AgentMeasures]:
    rows, rewarded, rewards = _rewards(episodes)
    names = set(pc.unique(rewarded).to_pylist())
    if generations is not None:
        names |= set(pc.unique(generations["agent"]).to_pylist())
    by_agent: dict[str, AgentMeasures] = {}
    for name in sorted(names):
        is_paid = _equals(rewarded, name)
        paid = rewards[is_paid]
        problems, weight = columns.problem[rows[is_paid]], columns.weight[rows[is_paid]]
        mean = _mean(paid, weight)
        variance = None if mean is None else _mean((paid - mean) ** 2, weight)
        spoken, problem = None, None
        if generations is not None and of_generations is not None:
            is_own = _equals(generations["agent"], name)
            spoken, problem = generations.filter(pa.array(is_own)), of_generations[is_own]
        figures: _Figures = {
            **_average("mean_reward", problems, paid, spread, weight),
            "std_reward": None if variance is None else math.sqrt(variance),
            **_generation_rates(spoken, problem, spread),
        }
        if spoken is not None and (ruled := _equals(spoken["model_asked"], RULE_MODEL).sum()):
            figures["by_rule"] = int(ruled)
        if spoken is not None and (calls := _find_calls(spoken).sum()):
            figures["tool_calls"] = int(calls)
        by_agent[name] = AgentMeasures.model_validate(figures)
    return by_agent


def _find_calls(generations: pa.Table) -> Bools:
    """Find the calls for which a tool was used."""
    return np.asarray(mark_calls(generations["tool_result"]).to_numpy(), dtype=bool)


def mark_calls(results: pa.ChunkedArray) -> pa.ChunkedArray:
    """Tell for each result whether a tool was used; results that are marked already stay so."""
    if pa.types.is_boolean(results.type):
        return pc.fill_null(results, False)
    return pc.fill_null(pc.invert(pc.match_substring_regex(results, REFUSED)), False)


def _count_calls(episodes: pa.Table, generations: pa.Table | None) -> pa.ChunkedArray | None:
    """Count the calls of a tool in each episode, as texts; None: there are none, or trees."""
    if generations is None or not (calls := _find_calls(generations)).any():
        return None
    if pc.any(pc.not_equal(episodes["branch_path"], "")).as_py():
        return None
    rows = _rows_of(generations.filter(pa.array(calls)), episodes)
    counts = np.bincount(rows, minlength=episodes.num_rows)
    return pa.chunked_array([pa.array(counts).cast(pa.string())])


def _mutation(episodes: pa.Table) -> pa.ChunkedArray:
    none = pc.if_else(pc.equal(episodes["y"], 1), "none", "unknown")
    return pc.coalesce(episodes["mutation"], none)


def _breakdown(
    episodes: pa.Table,
    generations: pa.Table | None,
    groups: pa.ChunkedArray,
    resampling: Resampling,
) -> dict[str, Measures]:
    values = pc.fill_null(groups, "unknown")
    rows = None if generations is None else _rows_of(generations, episodes)
    by_value: dict[str, Measures] = {}
    for name in sorted(pc.unique(values).to_pylist()):
        among = _equals(values, name)
        spoken = None
        if generations is not None and rows is not None:
            spoken = generations.filter(pa.array(among[rows]))
        by_value[name] = _measures(episodes.filter(pa.array(among)), spoken, resampling)
    return by_value


def _problem_means(columns: _Columns, episodes: pa.Table, reward_of: str | None) -> Floats:
    """Average accuracy or a reward by problem, in the order of the sorted ids."""
    size = len(columns.problem_ids)
    plays = sums_by(columns.problem, columns.weight, size)
    if reward_of is None:
        right = sums_by(columns.problem[columns.right], columns.weight[columns.right], size)
        return np.asarray(right / plays, dtype=np.float64)
    rows, agents, rewards = _rewards(episodes)
    own = _equals(agents, reward_of)
    sums = sums_by(columns.problem[rows[own]], rewards[own] * columns.weight[rows[own]], size)
    return np.asarray(sums / plays, dtype=np.float64)
