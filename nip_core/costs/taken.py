"""The loads of episodes by runs on record: the measure for a run of the same game.

`python -m nip_core.costs.taken RUN...` prints, as JSON, the experience that is bundled.
"""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from nip_core.attack_figures.metrics_document import AnyMetrics
from nip_core.costs.experience import Experience, Keys
from nip_core.costs.loads import Load, Loads, count_passes
from nip_core.costs.repeats import measure_repetition
from nip_core.errors import StoreError
from nip_core.parameters import HyperParameters
from nip_core.parameters.stored import complete_settings, read_settings
from nip_core.records.iterations import IterationRecord, Records
from nip_core.records.spending import STAGE_BY_SPLIT, Spent
from nip_core.rollouts.plan import TEST, TRAIN, may_choose
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store, is_missing, open_store

BUNDLED = Path(__file__).parent / "taken.json"
_BUNDLED_WORDS = "nip's own run of this game, bundled with it"
_UNREADABLE = (StoreError, KeyError, TypeError, AttributeError, ValueError)
"""The errors of reading a run of another version, or a damaged one."""
_LOOKED_AT = 50  # runs, the newest: an estimate of a large store must not take minutes
_ITERATIONS = 6  # of each: as many of the first and of the last
_SPLIT_BY_STAGE = {stage: split for split, stage in STAGE_BY_SPLIT.items()}


def read_experience(run: RunStore) -> Experience:
    """Return the experience of a run by its finished iterations.

    Raises StoreError for a record it can't read, or another of `_UNREADABLE`.
    """
    records = Records(run)
    parameters = read_settings(records.shown.record.parameters)
    keys = Keys.of(complete_settings(records.shown.record.parameters))
    spending: dict[str, list[tuple[float, Spent]]] = {}
    job_tokens: dict[str, list[tuple[float, int]]] = {}
    last = records.shown.last
    for iteration in _some([*range(records.over()), last]):
        record = records.of(iteration)
        ends = (record.stored_figures(split) for split in (TEST, *records.shown.measured_last))
        if iteration == last and not any(ends):
            continue  # begun at most, and its journals may be long
        for key, count, stage in _played(parameters, keys, record):
            spending.setdefault(key, []).append((count, stage))
        for group in parameters.trainable_groups if iteration < last else ():
            job = record.spent.get(f"train {group}")
            episodes = _count(record.stored_metrics(TRAIN), parameters, TRAIN)
            if job is not None and episodes:
                of_method = f"{group} {parameters.method(iteration)}"
                times = episodes * count_passes(parameters, iteration, group)
                job_tokens.setdefault(of_method, []).append((times, job.trained_tokens))
    groups = {name: _ratio(all_) for name, all_ in job_tokens.items()}
    return Experience(
        {key: _mean(all_, has_calls=key == keys.game) for key, all_ in spending.items()},
        {keys.training: groups} if groups else {},
        f"run {run.name}",
    )


def _ratio(parts: Iterable[tuple[float, int]]) -> float:
    """Return tokens by episode and pass, from pairs of both."""
    times, tokens = zip(*parts, strict=True)
    return float(sum(tokens) / sum(times))


def _some(iterations: list[int]) -> list[int]:
    half = _ITERATIONS // 2
    return iterations if len(iterations) <= _ITERATIONS else iterations[:half] + iterations[-half:]


def _played(
    parameters: HyperParameters, keys: Keys, record: IterationRecord
) -> Iterator[tuple[str, float, Spent]]:
    """Give of each played stage its key, its episodes or trees, and its spending."""
    for stage, spending in record.spent.items():
        split = _SPLIT_BY_STAGE.get(stage)
        if split is None:
            continue
        count = _count(record.stored_figures(split), parameters, split)
        key = keys.game
        if may_choose(split):
            key = keys.choices
        elif split == TRAIN and parameters.method(record.iteration) == "dpo":
            key = keys.trees
        if count:
            yield key, count, spending


def _count(metrics: AnyMetrics | None, parameters: HyperParameters, split: str) -> float:
    """Count the episodes of a split, or the roots of its trees."""
    if metrics is None:
        return 0
    problems = float(metrics.distinct_problems or 0)
    if may_choose(split):
        return problems * parameters.rl.num_test_iterations
    if split == TRAIN and parameters.trainer == "pure_text_malt":
        return float(parameters.rollouts_per_iteration or problems)
    return float(metrics.episodes or 0)


def _mean(spending: Iterable[tuple[float, Spent]], has_calls: bool) -> Loads:
    """By agent, for each episode. Calls are not on record by agent, so each has an equal share.

    Where a call brings several answers, it is answers that are on record: then there are 0.
    """
    parts = list(spending)
    episodes = sum(count for count, _ in parts)
    agents = dict.fromkeys(agent for _, stage in parts for agent in stage.by_agent)
    calls = has_calls * sum(stage.calls for _, stage in parts) / episodes / max(len(agents), 1)
    return {
        agent: Load(
            calls,
            sum(stage.by_agent.get(agent, (0, 0))[0] for _, stage in parts) / episodes,
            sum(stage.by_agent.get(agent, (0, 0))[1] for _, stage in parts) / episodes,
        )
        for agent in agents
    }


def find_experience(parameters: HyperParameters) -> Experience:
    """Return the experience of the game of these settings; of several runs, by the newest one.

    Looks at runs on this machine's disks, and writes nothing. A run that can't be read tells
    nothing.
    """
    keys = Keys.of(parameters.to_dict())
    place = parameters.run_store
    experiences: Iterable[Experience] = ()
    repeats = None
    if "://" not in place and not is_missing(place, "run_store"):
        store = open_store(place, read_only=True)
        experiences = _of_store(store, parameters.run_name, keys)
        repeats = _repeats(store, parameters)
    facts = json.loads(BUNDLED.read_text(encoding="utf-8"))
    experiences = chain(experiences, [Experience.from_facts(facts, _BUNDLED_WORDS)])
    return replace(_joined(experiences, keys, _needed(parameters, keys)), repeated=repeats)


def _repeats(store: Store, parameters: HyperParameters) -> float | None:
    """Return how often the attacked run's provers repeat themselves, for an attack by best-of-n."""
    target, choice = parameters.target_run, parameters.choice
    if target is None or choice is None or choice.counts[-1] == 1:
        return None
    try:
        return measure_repetition(RunStore(store, target), parameters.choosing_provers)
    except _UNREADABLE:
        return None


def _joined(experiences: Iterable[Experience], keys: Keys, needed: Collection[str]) -> Experience:
    """Take each key from the first source with it, until all `needed` ones are there."""
    episode_keys = {keys.game, keys.trees, keys.choices}
    episodes: dict[str, Loads] = {}
    training: dict[str, Mapping[str, float]] = {}
    sources: list[str] = []
    for each in experiences:
        loads = {k: v for k, v in each.episodes.items() if k in episode_keys - episodes.keys()}
        jobs = {} if training else {k: v for k, v in each.trained.items() if k == keys.training}
        if loads or jobs:
            sources.append(each.source)
        episodes |= loads
        training |= jobs
        if {*needed} <= episodes.keys() | training.keys():
            break
    return Experience(episodes, training, " and ".join(sources))


def _needed(parameters: HyperParameters, keys: Keys) -> set[str]:
    """Return the keys of all parts that a run with these settings plays and trains."""
    if parameters.choice is not None:
        return {keys.choices}
    needed = {keys.game}
    if parameters.trainer == "pure_text_malt":
        needed.add(keys.trees)
    if parameters.trainable_groups and parameters.rl.num_iterations:
        needed.add(keys.training)
    return needed


def _of_store(store: Store, own_name: str, keys: Keys) -> Iterator[Experience]:
    """Give what runs of the same game tell: the run itself, then the others, the newest first."""
    runs = []
    for name in list_runs(store):
        run = RunStore(store, name)
        try:
            record = run.open()
        except _UNREADABLE:
            continue  # `nip verify` says what is wrong with it
        runs.append((name == own_name, record.created_at, record.parameters, run))
    newest = sorted(runs, key=lambda each: each[:2], reverse=True)
    for _, _, parameters, run in newest[:_LOOKED_AT]:
        try:
            if Keys.of(complete_settings(parameters)).game == keys.game:
                yield read_experience(run)
        except _UNREADABLE:
            continue


def _main(places: list[str]) -> None:
    episodes: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for place in map(Path, places):
        store = open_store(str(place.absolute().parent), read_only=True)
        facts = read_experience(RunStore(store, place.name)).facts()
        episodes |= facts["episodes"]
        training |= facts["trained"]
    facts_of_all = {"episodes": episodes, "trained": training}
    sys.stdout.write(json.dumps(facts_of_all, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
