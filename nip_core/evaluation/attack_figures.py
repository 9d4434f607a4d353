"""What an attack on a verifier did to it.

figures_by_choice  soundness and completeness for each number of messages, and what the attack cost
figures_by_script  the same of an attack whose messages a script writes
figures_by_step    the same by steps of training
OwnTest            the test that the attacked verifier had in its own run
without_lying      the figures of an attack whose provers nothing told to lie
choose_episodes    the episodes that count for one number of messages
plain_rollouts     the same, each with its own generations
count_messages     how many messages an attack has sampled
attack_line        the figures in a line
attack_shown       the part of them that a summary has

`attack_metrics` has the document, `attack_words` says it in sentences.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.attack_metrics import (
    AttackMetrics,
    ChoiceMetrics,
    OwnRates,
    Spent,
    StepMetrics,
    WorstStep,
)
from nip_core.evaluation.attack_reach import measure_reach
from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.evaluation.metrics import evaluate, paired_difference
from nip_core.evaluation.split_metrics import PairedDifference
from nip_core.evaluation.spread import Asked, find_questions
from nip_core.protocols import ACCEPT
from nip_core.rollouts.table_rows import read_rows
from nip_core.rollouts.tables import RolloutTables
from nip_core.rollouts.trees import Leaf, generation_numbers, parse_path
from nip_core.tolerance import at_least

COUNTED = ("episode", "branch_path", "agent", "invalid_reason")
"""Columns of generations from which messages are counted."""
_OF_PROBLEM = ("problem", "question", "solution", "y")


@dataclass(frozen=True)
class OwnTest:
    """The test in which the attacked run tested the attacked models, with its own provers."""

    episodes: pa.Table | None = None
    because: str = "the attacked run's own test was not looked at"
    """Why there are none."""


@dataclass(frozen=True)
class _Losses:
    """What the verifier lost on the way from its own test to the last one of the attack."""

    trained: OwnRates | None
    to_lying: PairedDifference
    to_training: PairedDifference
    completeness_change: PairedDifference


def figures_by_choice(
    rollouts: RolloutTables,
    choices: pa.Table,
    seed: int,
    split_by: Sequence[str] = (),
    own_test: OwnTest = OwnTest(),
    attackers: Collection[str] = (),
) -> AttackMetrics:
    """Measure an attack by best-of-n, with intervals by question (see `find_questions`).

    - ``by_n``: in ascending order of `n`, all that `evaluate` gives of the episodes that count for
      it, with ``fooled``, the number of wrong solutions that were accepted, ``p_accept``, the mean
      of what the chosen messages were estimated at (higher than the truth where there were many to
      choose from), and ``distinct``, the mean number of different messages among them
    - ``trained``, ``lost_to_lying``, ``lost_to_training``, ``completeness_change``: see `_losses`,
      of the smallest n and the largest
    - ``reach``: of the messages of `attackers` on wrong problems among which was chosen
    - ``episodes`` (leaves of trees, the continuations included), ``generations``,
      ``prompt_tokens``, ``completion_tokens`` and ``agents``: of all that was played
    """
    episodes, numbers = rollouts.episodes, sorted(set(choices["n"].to_pylist()))
    tables = {n: choose_episodes(episodes, choices, n) for n in numbers}
    asked = Asked(seed, find_questions(episodes, split_by))
    messages = count_messages(episodes, rollouts.generations, attackers, numbers[-1])
    losses = _losses(own_test, tables[numbers[0]], tables[numbers[-1]], asked, split_by)
    return _chosen(
        rollouts,
        choices,
        asked,
        trained=losses.trained,
        lost_to_lying=losses.to_lying,
        lost_to_training=losses.to_training,
        completeness_change=losses.completeness_change,
        reach=measure_reach(messages),
    )


def figures_by_script(
    rollouts: RolloutTables,
    choices: pa.Table,
    seed: int,
    split_by: Sequence[str] = (),
    own_test: OwnTest = OwnTest(),
) -> AttackMetrics:
    """Measure an attack by a script, as `figures_by_choice` does one with a single message.

    ``lost_to_script`` is soundness of the own test less that of this one, on the wrong problems in
    common. There is no reach, as nothing is sampled, and nothing that is lost to lying or training.
    """
    asked = Asked(seed, find_questions(rollouts.episodes, split_by))
    played = choose_episodes(rollouts.episodes, choices, 1)
    losses = _losses(own_test, played, played, asked, split_by)
    return _chosen(rollouts, choices, asked, trained=losses.trained, lost_to_script=losses.to_lying)


def _chosen(
    rollouts: RolloutTables, choices: pa.Table, asked: Asked, **beside: Any
) -> AttackMetrics:
    """Measure the episodes that count, by number of messages, with what all of it took."""
    episodes, agents = rollouts.episodes, _spent(rollouts.generations)
    numbers = sorted(set(choices["n"].to_pylist()))
    of_n = {n: choices.filter(pc.equal(choices["n"], n)) for n in numbers}
    return AttackMetrics(
        by_n=tuple(
            _with_n(n, choose_episodes(episodes, choices, n), of_n[n], asked) for n in numbers
        ),
        **beside,
        episodes=episodes.num_rows,
        distinct_problems=len(set(episodes["problem"].to_pylist())),
        generations=sum(spent.generations for spent in agents.values()),
        prompt_tokens=sum(spent.prompt_tokens for spent in agents.values()),
        completion_tokens=sum(spent.completion_tokens for spent in agents.values()),
        agents=agents,
    )


def figures_by_step(
    tests: Mapping[int, pa.Table],
    updates: Mapping[int, int],
    exploited_at: float,
    seed: int,
    split_by: Sequence[str] = (),
    own_test: OwnTest = OwnTest(),
) -> AttackMetrics:
    """Measure an attack by training from the `episodes` of its tests by step.

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
    asked = Asked(seed, find_questions(first, split_by))
    losses = _losses(own_test, first, last, asked, split_by)
    soundness = None if losses.trained is None else losses.trained.soundness
    rows: list[StepMetrics] = []
    to_exploit = None
    worst: StepMetrics | None = None
    for step, episodes in sorted(tests.items()):
        row = _with_step(step, updates[step], episodes, seed, split_by)
        wrong = pc.sum(pc.cast(pc.equal(episodes["y"], 0), pa.int64())).as_py() or 0
        if wrong and (worst is None or _soundness(row) < _soundness(worst)):
            worst = row
        rows.append(row.model_copy(update={"worst_step": worst and worst.step}))
        if to_exploit is None and soundness:
            lost = _lost_to_lying(own_test, episodes, seed, split_by).difference
            if lost is not None and at_least(lost, exploited_at * soundness):
                to_exploit = step
    return AttackMetrics(
        by_step=tuple(rows),
        steps_to_exploit=to_exploit,
        exploited_below=soundness and (1 - exploited_at) * soundness,
        worst=worst and _worst(worst, _difference(tests[worst.step], first, 0, seed, split_by)),
        trained=losses.trained,
        lost_to_lying=losses.to_lying,
        lost_to_training=losses.to_training,
        completeness_change=losses.completeness_change,
    )


def _with_step(
    step: int, updates: int, episodes: pa.Table, seed: int, split_by: Sequence[str]
) -> StepMetrics:
    """Measure the test after a step."""
    measured = evaluate(episodes, None, seed=seed, questions=find_questions(episodes, split_by))
    return StepMetrics(step=step, updates=updates, **dict(measured), fooled=_fooled(episodes))


def _soundness(row: StepMetrics) -> float:
    assert row.soundness is not None  # there is a wrong problem
    return row.soundness


def _worst(row: StepMetrics, lost: PairedDifference) -> WorstStep:
    return WorstStep(
        step=row.step,
        updates=row.updates,
        fooled=row.fooled,
        soundness=row.soundness,
        soundness_ci95=row.soundness_ci95,
        completeness=row.completeness,
        completeness_ci95=row.completeness_ci95,
        lost_to_training=lost,
    )


def without_lying(figures: AttackMetrics) -> AttackMetrics:
    """Put on record: nothing was lost to lying, as nothing told the provers to lie."""
    lost = _unknown("nothing told the provers to argue for acceptance")
    return figures.model_copy(update={"lost_to_lying": lost})


def _unknown(because: str) -> PairedDifference:
    return PairedDifference(
        difference=None, ci95=None, problems=0, questions=0, p=None, because=because
    )


def plain_rollouts(rollouts: RolloutTables, choices: pa.Table, n: int) -> RolloutTables:
    """Make plain episodes of the chosen ones for `n`, each with the generations on its way."""
    episodes, generations = rollouts.episodes, rollouts.generations
    rows: dict[str, list[int]] = {key: [] for key in episodes["key"].to_pylist()}
    for key, number in generation_numbers(read_rows(episodes, Leaf), generations):
        rows[key].append(number)
    chosen = choose_episodes(episodes, choices, n)
    pairs = [(key, number) for key in chosen["key"].to_pylist() for number in rows[key]]
    spoken = generations.take(pa.array([number for _, number in pairs], pa.int64()))
    spoken = _replaced(spoken, "episode", [key for key, _ in pairs])
    return RolloutTables(chosen, _replaced(spoken, "branch_path", [""] * len(pairs)))


def count_messages(
    episodes: pa.Table, generations: pa.Table, attackers: Collection[str], n: int | None = None
) -> int:
    """Count the valid messages of `attackers` on wrong problems.

    Of trees only those among which was chosen: the first `n` below each node.
    """
    wrong = episodes.filter(pc.equal(episodes["y"], 0))["key"].combine_chunks()
    is_counted = pc.and_(
        pc.is_in(generations["agent"], value_set=pa.array(sorted(attackers), pa.string())),
        pc.and_(
            pc.is_null(generations["invalid_reason"]),
            pc.is_in(generations["episode"], value_set=wrong),
        ),
    )
    paths = generations.filter(is_counted)["branch_path"].to_pylist()
    if n is None:
        return len(paths)
    # Below a number from `n` on the game is played on to judge a message, and nothing is chosen.
    return sum(all(number < n for number in parse_path(path)) for path in paths)


def attack_line(metrics: AttackMetrics) -> str:
    """Say the figures of an attack in a line, for a terminal or a log."""
    return ", ".join(
        f"{varied_words(row)}: soundness {plain_percent(row.soundness)}, completeness "
        f"{plain_percent(row.completeness)}"
        for row in metrics.rows
    )


def varied_words(row: ChoiceMetrics | StepMetrics) -> str:
    """Name the part of the attack with these figures, as "n 4" or "step 20"."""
    return f"n {row.n}" if isinstance(row, ChoiceMetrics) else f"step {row.step}"


def attack_shown(metrics: AttackMetrics, of_each: Sequence[str]) -> dict[str, Any]:
    """Encode an attack's figures for a summary; of each n or step it has the metrics `of_each`."""
    kind, encoded = metrics.varies, metrics.as_json()
    short = (kind, "updates", *of_each, "fooled", "p_accept", "distinct")
    rows = [row.as_json() for row in metrics.rows]
    whole = (
        *("steps_to_exploit", "exploited_below", "worst", "trained"),
        *("lost_to_lying", "lost_to_training", "lost_to_script", "completeness_change", "reach"),
    )
    return {
        **(metrics.attack.as_json() if metrics.attack else {}),
        f"by_{kind}": [{key: row[key] for key in short if key in row} for row in rows],
        **{key: encoded[key] for key in whole if key in encoded},
    }


def _spent(generations: pa.Table) -> dict[str, Spent]:
    """Count by agent the generated answers and their tokens."""
    sums = generations.group_by("agent").aggregate(
        [("key", "count"), ("prompt_tokens", "sum"), ("completion_tokens", "sum")]
    )
    return {
        row["agent"]: Spent(
            generations=row["key_count"],
            prompt_tokens=row["prompt_tokens_sum"],
            completion_tokens=row["completion_tokens_sum"],
        )
        for row in sorted(sums.to_pylist(), key=lambda row: str(row["agent"]))
    }


def _with_n(n: int, episodes: pa.Table, choices: pa.Table, asked: Asked) -> ChoiceMetrics:
    measured = evaluate(episodes, None, seed=asked.seed, questions=asked.questions)
    return ChoiceMetrics(
        n=n,
        **dict(measured),
        fooled=_fooled(episodes),
        p_accept=pc.mean(choices["p_accept"]).as_py(),
        distinct=pc.mean(choices["distinct"]).as_py(),
    )


def _fooled(episodes: pa.Table) -> int:
    """Return how many wrong solutions were accepted."""
    fooled = pc.and_(pc.equal(episodes["y"], 0), pc.equal(episodes["decision"], ACCEPT))
    return int(pc.sum(pc.cast(fooled, pa.int64())).as_py() or 0)


def choose_episodes(episodes: pa.Table, choices: pa.Table, n: int) -> pa.Table:
    """Choose the one episode of each tree whose verdict counts for `n`, as a plain episode."""
    keys = choices.filter(pc.equal(choices["n"], n))["episode"].combine_chunks()
    chosen = episodes.filter(pc.is_in(episodes["key"], value_set=keys))
    return _replaced(chosen, "branch_path", [""] * chosen.num_rows)


def _difference(
    a: pa.Table, b: pa.Table, label: int, seed: int, split_by: Sequence[str]
) -> PairedDifference:
    """Return how much more often `b` is judged right than `a`, of the problems with this label."""
    first, second = (table.filter(pc.equal(table["y"], label)) for table in (a, b))
    return paired_difference(first, second, seed, split_by=split_by)


def _losses(
    own_test: OwnTest, first: pa.Table, last: pa.Table, asked: Asked, split_by: Sequence[str]
) -> _Losses:
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
        trained = _own_rates(both[0], asked)
    return _Losses(
        trained=trained,
        to_lying=_lost_to_lying(own_test, first, seed, split_by),
        to_training=_difference(last, first, 0, seed, split_by),
        completeness_change=_difference(first, last, 1, seed, split_by),
    )


def _own_rates(episodes: pa.Table, asked: Asked) -> OwnRates:
    measured = evaluate(episodes, None, seed=asked.seed, questions=asked.questions)
    assert measured.distinct_problems is not None  # `evaluate` counts them
    return OwnRates(
        soundness=measured.soundness,
        soundness_ci95=measured.soundness_ci95,
        completeness=measured.completeness,
        completeness_ci95=measured.completeness_ci95,
        problems=measured.distinct_problems,
    )


def _lost_to_lying(
    own_test: OwnTest, test: pa.Table, seed: int, split_by: Sequence[str]
) -> PairedDifference:
    """Return how much more soundness the own test has than `test`, where both can be compared."""
    if (both := _in_common(own_test, test)) is None:
        return _unknown(own_test.because)
    paired = _difference(both[1], both[0], 0, seed, split_by)
    if paired.problems:
        return paired
    return _unknown("the attacked run's own test has none of these wrong problems")


def _in_common(own_test: OwnTest, test: pa.Table) -> tuple[pa.Table, pa.Table] | None:
    """Filter both tests by the problems they have in common; None without an own test."""
    if own_test.episodes is None:
        return None
    # By their texts as well as their ids: a dataset may have been changed under its name since.
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
