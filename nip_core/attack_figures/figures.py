"""The figures of an attack on a verifier.

figures_by_choice  soundness and completeness for each number of messages, and the attack's cost
figures_by_script  the same of an attack whose messages a script writes
without_lying      the figures of an attack whose provers nothing told to lie
choose_episodes    the episodes that count for one number of messages
plain_rollouts     the same, each with its own generations
count_messages     how many messages an attack has sampled
sum_up_spent       the tokens of an attack's generations
attack_line        the figures in a line
attack_shown       the part of them that a summary has

`step_figures` has the figures of an attack by training, `losses` the losses by cause.
`metrics_document` has the document, `sentences` says it in sentences.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.attack_figures.acceptance_thresholds import CURVE_KEYS, measure_threshold_curve
from nip_core.attack_figures.effort import Price, effort_of_choice
from nip_core.attack_figures.losses import (
    NO_OWN_TEST,
    OwnTest,
    count_fooled,
    follow_losses,
    say_unknown,
)
from nip_core.attack_figures.metrics_document import (
    AttackMetrics,
    ChoiceMetrics,
    Spent,
    StepMetrics,
)
from nip_core.attack_figures.reach import measure_reach
from nip_core.evaluation.figures_in_words import plain_percent
from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.spread import Resampling, find_questions
from nip_core.rollouts.acceptance import find_acceptance
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.table_rows import read_rows
from nip_core.rollouts.trees import Leaf, generation_numbers, parse_path
from nip_core.scenarios import RULE_MODEL
from nip_core.scenarios.scripts import OF_SCRIPT

_LIKELY = "p_accept"
"""A column beside the episodes' own: P(accept) of the verdict."""


def _no_price(_: Mapping[str, tuple[int, int]]) -> None:
    return None


COUNTED = ("episode", "branch_path", "agent", "invalid_reason")
"""Columns of generations from which messages are counted."""
SPENT = ("key", "agent", "prompt_tokens", "completion_tokens")
"""Columns of generations from which tokens are counted."""


def figures_by_choice(
    rollouts: RolloutTables,
    choices: pa.Table,
    seed: int,
    split_by: Sequence[str] = (),
    own_test: OwnTest = NO_OWN_TEST,
    attackers: Collection[str] = (),
    price: Price = _no_price,
) -> AttackMetrics:
    """Measure an attack by best-of-n, with intervals by question (see `find_questions`).

    - ``by_n``: in ascending order of `n`, all that `evaluate` gives of the episodes that count for
      it, with ``fooled``, the number of wrong solutions that were accepted, ``p_accept``, the mean
      estimate of the chosen messages (higher than the truth where there were many to choose from),
      ``distinct``, the mean number of different messages among them, ``by_threshold``, see
      `measure_thresholds`, and ``effort``, with dollars by `price`
    - ``trained``, ``lost_to_lying``, ``lost_to_training``, ``completeness_change``: see
      `follow_losses`, of the smallest n and the largest
    - ``reach``: of the messages of `attackers` on wrong problems among which was chosen
    - ``episodes`` (leaves of trees, the continuations included), ``generations``,
      ``prompt_tokens``, ``completion_tokens`` and ``agents``: of all that was played
    """
    episodes, numbers = rollouts.episodes, sorted(set(choices["n"].to_pylist()))
    tables = {n: choose_episodes(episodes, choices, n) for n in numbers}
    resampling = Resampling(seed, find_questions(episodes, split_by))
    messages = count_messages(episodes, rollouts.generations, attackers, numbers[-1])
    losses = follow_losses(own_test, tables[numbers[0]], tables[numbers[-1]], resampling, split_by)
    return _chosen(
        rollouts,
        choices,
        resampling,
        price,
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
    own_test: OwnTest = NO_OWN_TEST,
    attackers: Collection[str] = (),
    price: Price = _no_price,
) -> AttackMetrics:
    """Measure an attack by a script, as `figures_by_choice` does one with a single message.

    A message that the script writes for `attackers` is no call: no model was asked.

    ``lost_to_script`` is soundness of the own test less soundness of this one, on the wrong
    problems in common. There is no reach, as nothing is sampled, and nothing that is lost to lying
    or training.
    """
    resampling = Resampling(seed, find_questions(rollouts.episodes, split_by))
    test = choose_episodes(rollouts.episodes, choices, 1)
    losses = follow_losses(own_test, test, test, resampling, split_by)
    return _chosen(
        rollouts,
        choices,
        resampling,
        price,
        trained=losses.trained,
        lost_to_script=losses.to_lying,
    )


def _chosen(
    rollouts: RolloutTables,
    choices: pa.Table,
    resampling: Resampling,
    price: Price,
    **extra: Any,
) -> AttackMetrics:
    """Measure the episodes that count, by number of messages, with the effort of all."""
    episodes = rollouts.episodes
    numbers = sorted(set(choices["n"].to_pylist()))
    of_n = {n: choices.filter(pc.equal(choices["n"], n)) for n in numbers}
    # No model was asked for a message that a script, the attack itself or a rule has written.
    model = rollouts.generations["model_asked"]
    is_written = pc.or_(pc.starts_with(model, OF_SCRIPT), pc.equal(model, RULE_MODEL))
    calls = rollouts.generations.filter(pc.invert(pc.fill_null(is_written, False)))
    efforts = effort_of_choice(calls, numbers, price)
    likely = find_acceptance(episodes, rollouts.generations)
    with_likely = episodes.append_column(_LIKELY, likely)
    rows = []
    for n in numbers:
        row = _with_n(n, choose_episodes(with_likely, choices, n), of_n[n], resampling)
        rows.append(row.model_copy(update={"effort": efforts[n]}))
    return AttackMetrics(
        by_n=tuple(rows),
        **extra,
        episodes=episodes.num_rows,
        distinct_problems=len(set(episodes["problem"].to_pylist())),
        **sum_up_spent(rollouts.generations),
    )


def sum_up_spent(generations: pa.Table) -> dict[str, Any]:
    """Sum up what these generations took, by the names that the document has for it."""
    agents = _spent(generations)
    return {
        "generations": sum(usage.generations for usage in agents.values()),
        "prompt_tokens": sum(usage.prompt_tokens for usage in agents.values()),
        "completion_tokens": sum(usage.completion_tokens for usage in agents.values()),
        "agents": agents,
    }


def without_lying(figures: AttackMetrics) -> AttackMetrics:
    """Put on record: nothing was lost to lying, as nothing told the provers to lie."""
    loss = say_unknown("nothing told the provers to argue for acceptance")
    return figures.model_copy(update={"lost_to_lying": loss})


def plain_rollouts(rollouts: RolloutTables, choices: pa.Table, n: int) -> RolloutTables:
    """Make plain episodes of the chosen ones for `n`, each with the generations on its way."""
    episodes, generations = rollouts.episodes, rollouts.generations
    rows: dict[str, list[int]] = {key: [] for key in episodes["key"].to_pylist()}
    for key, number in generation_numbers(read_rows(episodes, Leaf), generations):
        rows[key].append(number)
    episode_table = choose_episodes(episodes, choices, n)
    pairs = [(key, number) for key in episode_table["key"].to_pylist() for number in rows[key]]
    spoken = generations.take(pa.array([number for _, number in pairs], pa.int64()))
    spoken = _replaced(spoken, "episode", [key for key, _ in pairs])
    return RolloutTables(episode_table, _replaced(spoken, "branch_path", [""] * len(pairs)))


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
    course = ", ".join(
        f"{varied_words(row)}: soundness {plain_percent(row.soundness)}, completeness "
        f"{plain_percent(row.completeness)}"
        for row in metrics.rows
    )
    if metrics.untrained is None or metrics.worst is None:
        return course
    return (
        f"{course} on validation problems; on test problems soundness "
        f"{plain_percent(metrics.untrained.soundness)} before any training, "
        f"{plain_percent(metrics.worst.soundness)} with the provers after step {metrics.worst.step}"
    )


def varied_words(row: ChoiceMetrics | StepMetrics) -> str:
    """Name the part of the attack with these figures, as "n 4" or "step 20"."""
    return f"n {row.n}" if isinstance(row, ChoiceMetrics) else f"step {row.step}"


def attack_shown(metrics: AttackMetrics, of_each: Sequence[str]) -> dict[str, Any]:
    """Encode an attack's figures for a summary; of each n or step it has the metrics `of_each`."""
    kind, encoded = metrics.varies, metrics.as_json()
    short = (kind, "updates", *of_each, "fooled", "p_accept", "distinct", *CURVE_KEYS, "effort")
    rows = [row.as_json() for row in metrics.rows]
    whole = (
        *("steps_to_exploit", "exploited_below", "course_on", "course"),
        *("worst", "untrained", "trained"),
        *("lost_to_lying", "lost_to_training", "lost_to_script", "completeness_change", "reach"),
        "gallery",
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


def _with_n(n: int, episodes: pa.Table, choices: pa.Table, resampling: Resampling) -> ChoiceMetrics:
    likely = episodes[_LIKELY].combine_chunks()
    episodes = episodes.drop_columns([_LIKELY])
    rates = evaluate(episodes, None, seed=resampling.seed, questions=resampling.questions)
    return ChoiceMetrics(
        n=n,
        **dict(rates),
        fooled=count_fooled(episodes),
        p_accept=pc.mean(choices["p_accept"]).as_py(),
        distinct=pc.mean(choices["distinct"]).as_py(),
        **measure_threshold_curve(episodes, likely, resampling),
    )


def choose_episodes(episodes: pa.Table, choices: pa.Table, n: int) -> pa.Table:
    """Choose the one episode of each tree whose verdict counts for `n`, as a plain episode."""
    keys = choices.filter(pc.equal(choices["n"], n))["episode"].combine_chunks()
    table = episodes.filter(pc.is_in(episodes["key"], value_set=keys))
    return _replaced(table, "branch_path", [""] * table.num_rows)


def _replaced(table: pa.Table, column: str, values: list[str]) -> pa.Table:
    index = table.schema.get_field_index(column)
    field = table.schema.field(index)
    return table.set_column(index, field, pa.array(values, field.type))
