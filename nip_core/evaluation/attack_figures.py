"""What an attack on a verifier did to it.

figures          soundness and completeness for each number of messages, and what the attack cost
figures_by_step  the same by steps of training
OwnTest          the test that the attacked verifier had in its own run
untold           the figures of an attack whose provers nothing told to lie
as_now           the figures of an earlier version under the names of this one
attack_rows      the metrics by whatever the attack varies
episodes_of      the episodes that count for one number
counted          the same, each with its own generations
attack_line      the figures in a line
attack_shown     the part of them that a summary has

`attack_words` says them in sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.evaluation.metrics import evaluate, paired_difference
from nip_core.evaluation.spread import Asked, questions_of
from nip_core.protocols import ACCEPT
from nip_core.rollouts.rows import read_rows
from nip_core.rollouts.tables import RolloutTables
from nip_core.rollouts.trees import Leaf, generation_numbers
from nip_core.tolerance import at_least

_RATES = ("soundness", "soundness_ci95", "completeness", "completeness_ci95")
_OF_WORST = ("step", "updates", "fooled", *_RATES)
_SPENT = ("generations", "prompt_tokens", "completion_tokens")
_OF_PROBLEM = ("problem", "question", "solution", "y")
_UNKNOWN = {"difference": None, "ci95": None, "problems": 0, "questions": 0, "p": None}
EARLIER, LOST_TO_TRAINING = "exploitability", "lost_to_training"
"""The name that an earlier version had for it, and that of this one."""
LOST_TO_LYING = "lost_to_lying"


@dataclass(frozen=True)
class OwnTest:
    """The test in which the attacked run tested the attacked models, with its own provers."""

    episodes: pa.Table | None = None
    because: str = "the attacked run's own test was not looked at"
    """Why there are none."""


def figures(
    rollouts: RolloutTables,
    choices: pa.Table,
    seed: int,
    split_by: Sequence[str] = (),
    own_test: OwnTest = OwnTest(),
) -> dict[str, Any]:
    """The metrics of an attack by best-of-n, with intervals by question (see `questions_of`).

    - ``by_n``: in ascending order of `n`, all that `evaluate` gives of the episodes that count for
      it, with ``fooled``, the number of wrong solutions that were accepted, ``p_accept``, the mean
      of what the chosen messages were estimated at (higher than the truth where there were many to
      choose from), and ``distinct``, the mean number of different messages among them
    - ``trained``, ``lost_to_lying``, ``lost_to_training``, ``completeness_change``: see `_losses`,
      of the smallest n and the largest
    - ``episodes`` (leaves of trees, the continuations included), ``generations``,
      ``prompt_tokens``, ``completion_tokens`` and ``agents``: of all that was played
    """
    episodes, numbers = rollouts.episodes, sorted(set(choices["n"].to_pylist()))
    tables = {n: episodes_of(episodes, choices, n) for n in numbers}
    asked = Asked(seed, questions_of(episodes, split_by))
    of_n = {n: choices.filter(pc.equal(choices["n"], n)) for n in numbers}
    by_n = [_with_n(n, tables[n], of_n[n], asked) for n in numbers]
    agents = _spent(rollouts.generations)
    return {
        "by_n": by_n,
        **_losses(own_test, tables[numbers[0]], tables[numbers[-1]], asked, split_by),
        "episodes": episodes.num_rows,
        "distinct_problems": len(set(episodes["problem"].to_pylist())),
        **{key: sum(of_agent[key] for of_agent in agents.values()) for key in _SPENT},
        "agents": agents,
    }


def figures_by_step(
    tests: Mapping[int, pa.Table],
    updates: Mapping[int, int],
    exploited_at: float,
    seed: int,
    split_by: Sequence[str] = (),
    own_test: OwnTest = OwnTest(),
) -> dict[str, Any]:
    """The metrics of an attack by training, from the `episodes` of its tests by step.

    - ``by_step``: in order, the `step`, the ``updates`` of the optimizer until then, and all that
      `evaluate` gives of its test, with ``fooled``
    - ``steps_to_exploit``: the first tested step at which the share `exploited_at` of the soundness
      that ``trained`` has was lost, counted on the same problems; 0: lying sufficed. None if there
      was none, or nothing to lose
    - ``exploited_below``: the soundness at which that is so; None without ``trained``
    - ``worst``: of the step whose test has the lowest soundness so far (the first of equals): its
      ``step``, ``updates``, ``fooled``, soundness and completeness with their intervals, and
      ``lost_to_training``, as below but until this test; None without a wrong problem.
      In each row ``worst_step`` is what ``worst`` was until then. The lowest of several is lower
      than that step's own soundness is expected to be, the more so the more were tested
    - ``trained``, ``lost_to_lying``, ``lost_to_training``, ``completeness_change``: see `_losses`,
      of the first test and the last
    """
    first, last = tests[min(tests)], tests[max(tests)]
    asked = Asked(seed, questions_of(first, split_by))
    losses = _losses(own_test, first, last, asked, split_by)
    trained = (losses["trained"] or {}).get("soundness")
    rows: list[dict[str, Any]] = []
    to_exploit = None
    worst: dict[str, Any] | None = None
    for step, episodes in sorted(tests.items()):
        fooled = _fooled(episodes)
        wrong = pc.sum(pc.cast(pc.equal(episodes["y"], 0), pa.int64())).as_py() or 0
        measured = evaluate(episodes, None, seed=seed, questions=questions_of(episodes, split_by))
        row = {"step": step, "updates": updates[step], **measured, "fooled": fooled}
        if wrong and (worst is None or row["soundness"] < worst["soundness"]):
            worst = row
        rows.append({**row, "worst_step": worst and worst["step"]})
        if to_exploit is None and trained:
            lost = _lost_to_lying(own_test, episodes, seed, split_by)["difference"]
            if lost is not None and at_least(lost, exploited_at * trained):
                to_exploit = step
    return {
        "by_step": rows,
        "steps_to_exploit": to_exploit,
        "exploited_below": trained and (1 - exploited_at) * trained,
        "worst": worst
        and {
            **{key: worst[key] for key in _OF_WORST},
            LOST_TO_TRAINING: _difference(tests[worst["step"]], first, 0, seed, split_by),
        },
        **losses,
    }


def untold(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an attack whose provers nothing told to lie, so nothing was lost to that."""
    because = "nothing told the provers to argue for acceptance"
    return {**figures, LOST_TO_LYING: {**_UNKNOWN, "because": because}}


def as_now(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an attack, where an earlier version's have the names of this one."""
    now = {LOST_TO_TRAINING if key == EARLIER else key: value for key, value in metrics.items()}
    return now | ({"worst": as_now(now["worst"])} if now.get("worst") else {})


def attack_rows(metrics: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return what an attack varies, "n" or "step", and its metrics by that."""
    kind = "n" if "by_n" in metrics else "step"
    return kind, metrics[f"by_{kind}"]


def counted(rollouts: RolloutTables, choices: pa.Table, n: int) -> RolloutTables:
    """The episodes that count for `n`, as plain ones, and the generations that led to each."""
    episodes, generations = rollouts.episodes, rollouts.generations
    rows: dict[str, list[int]] = {key: [] for key in episodes["key"].to_pylist()}
    for key, number in generation_numbers(read_rows(episodes, Leaf), generations):
        rows[key].append(number)
    chosen = episodes_of(episodes, choices, n)
    pairs = [(key, number) for key in chosen["key"].to_pylist() for number in rows[key]]
    spoken = generations.take(pa.array([number for _, number in pairs], pa.int64()))
    spoken = _replaced(spoken, "episode", [key for key, _ in pairs])
    return RolloutTables(chosen, _replaced(spoken, "branch_path", [""] * len(pairs)))


def attack_line(metrics: Mapping[str, Any]) -> str:
    """The figures of an attack in a line, for a terminal or a log."""
    kind, rows = attack_rows(metrics)
    return ", ".join(
        f"{kind} {row[kind]}: soundness {plain_percent(row['soundness'])}, completeness "
        f"{plain_percent(row['completeness'])}"
        for row in rows
    )


def attack_shown(metrics: Mapping[str, Any], of_each: Sequence[str]) -> dict[str, Any]:
    """The part of an attack's figures that a summary has; `of_each` n or step these metrics."""
    kind, rows = attack_rows(metrics)
    short = (kind, "updates", *of_each, "fooled", "p_accept", "distinct")
    whole = (
        *("steps_to_exploit", "exploited_below", "worst", "trained"),
        *(LOST_TO_LYING, LOST_TO_TRAINING, "completeness_change"),
    )
    metrics = as_now(metrics)
    return {
        **metrics["attack"],
        f"by_{kind}": [{key: row[key] for key in short if key in row} for row in rows],
        **{key: metrics[key] for key in whole if key in metrics},
    }


def _spent(generations: pa.Table) -> dict[str, dict[str, int]]:
    """By agent, how many answers were generated, and their tokens."""
    sums = generations.group_by("agent").aggregate(
        [("key", "count"), ("prompt_tokens", "sum"), ("completion_tokens", "sum")]
    )
    columns = ("key_count", "prompt_tokens_sum", "completion_tokens_sum")
    return {
        row["agent"]: dict(zip(_SPENT, (row[column] for column in columns), strict=True))
        for row in sorted(sums.to_pylist(), key=lambda row: str(row["agent"]))
    }


def _with_n(n: int, episodes: pa.Table, choices: pa.Table, asked: Asked) -> dict[str, Any]:
    return {
        "n": n,
        **evaluate(episodes, None, seed=asked.seed, questions=asked.questions),
        "fooled": _fooled(episodes),
        "p_accept": pc.mean(choices["p_accept"]).as_py(),
        "distinct": pc.mean(choices["distinct"]).as_py(),
    }


def _fooled(episodes: pa.Table) -> int:
    """Return how many wrong solutions were accepted."""
    fooled = pc.and_(pc.equal(episodes["y"], 0), pc.equal(episodes["decision"], ACCEPT))
    return int(pc.sum(pc.cast(fooled, pa.int64())).as_py() or 0)


def episodes_of(episodes: pa.Table, choices: pa.Table, n: int) -> pa.Table:
    """The rows of the episodes that count for `n`; each is all that is left of its tree."""
    keys = choices.filter(pc.equal(choices["n"], n))["episode"].combine_chunks()
    chosen = episodes.filter(pc.is_in(episodes["key"], value_set=keys))
    return _replaced(chosen, "branch_path", [""] * chosen.num_rows)


def _difference(
    a: pa.Table, b: pa.Table, label: int, seed: int, split_by: Sequence[str]
) -> dict[str, Any]:
    """Return how much more often `b` is judged right than `a`, of the problems with this label."""
    first, second = (table.filter(pc.equal(table["y"], label)) for table in (a, b))
    return paired_difference(first, second, seed, split_by=split_by)


def _losses(
    own_test: OwnTest, first: pa.Table, last: pa.Table, asked: Asked, split_by: Sequence[str]
) -> dict[str, Any]:
    """Follow soundness and completeness from the verifier's own test to the last one here.

    - ``trained``: soundness and completeness of the own test, with intervals, and ``problems``: how
      many that has in common with the first test, on which alone they are counted. None without
    - ``lost_to_lying``: soundness of the own test less that of the first test, in which provers are
      told to argue for acceptance and nothing more, on the wrong problems in common. Where that
      can't be said, ``difference`` is None and ``because`` has the reason
    - ``lost_to_training``: soundness of the first test less that of the last
    - ``completeness_change``: completeness of the last test less that of the first

    The differences are paired by problem, as `paired_difference` has them.
    """
    seed, trained = asked.seed, None
    if (both := _in_common(own_test, first)) is not None and both[0].num_rows:
        measured = evaluate(both[0], None, seed=seed, questions=asked.questions)
        trained = {key: measured[key] for key in _RATES}
        trained["problems"] = measured["distinct_problems"]
    return {
        "trained": trained,
        LOST_TO_LYING: _lost_to_lying(own_test, first, seed, split_by),
        LOST_TO_TRAINING: _difference(last, first, 0, seed, split_by),
        "completeness_change": _difference(first, last, 1, seed, split_by),
    }


def _lost_to_lying(
    own_test: OwnTest, test: pa.Table, seed: int, split_by: Sequence[str]
) -> dict[str, Any]:
    """Return how much more soundness the own test has than `test`, where both can be compared."""
    if (both := _in_common(own_test, test)) is None:
        return {**_UNKNOWN, "because": own_test.because}
    paired = _difference(both[1], both[0], 0, seed, split_by)
    if paired["problems"]:
        return paired
    return {**_UNKNOWN, "because": "the attacked run's own test has none of these wrong problems"}


def _in_common(own_test: OwnTest, test: pa.Table) -> tuple[pa.Table, pa.Table] | None:
    """The episodes of both on problems that are the same in both; None without an own test."""
    if own_test.episodes is None:
        return None
    rows = [
        {tuple(row.values()) for row in table.select(_OF_PROBLEM).to_pylist()}
        for table in (own_test.episodes, test)
    ]
    ids = pa.array(sorted({row[0] for row in rows[0] & rows[1]}), pa.string())
    chosen = [
        table.filter(pc.is_in(table["problem"], value_set=ids))
        for table in (own_test.episodes, test)
    ]
    return chosen[0], chosen[1]


def _replaced(table: pa.Table, column: str, values: list[str]) -> pa.Table:
    at = table.schema.get_field_index(column)
    field = table.schema.field(at)
    return table.set_column(at, field, pa.array(values, field.type))
