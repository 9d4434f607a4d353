"""Measuring a committed split: its metrics, and its transcripts where the settings ask for them."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import reduce
from hashlib import sha256
from typing import Any

import pyarrow as pa
import yaml

from nip_core.evaluation.attack_figures import (
    OwnTest,
    attack_line,
    figures,
    figures_by_step,
    untold,
)
from nip_core.evaluation.baseline_verifiers import believe_the_prover, believed_line, majority
from nip_core.evaluation.episode_transcripts import transcripts_from_tables
from nip_core.evaluation.figures_in_words import result_line
from nip_core.evaluation.invalid import invalid_answers, invalid_line, invalid_warning
from nip_core.evaluation.league_figures import BY_OPPONENT, figures_by_opponent
from nip_core.evaluation.metrics import evaluate
from nip_core.jobs.document import read_job
from nip_core.jobs.steps import read_step_figures
from nip_core.parameters.tested_iterations import attacks_by_choice, is_tested
from nip_core.records.intervals import combined, measure_baselines, measure_intervals
from nip_core.records.transcript_files import CHECKSUM_SUFFIX, transcripts_path
from nip_core.rollouts.labels import add_counts
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.rollouts.schema import EPISODES
from nip_core.rollouts.tables import (
    RolloutTables,
    StoredRollouts,
    read_rollouts,
    shard_manifest,
    shards_of,
)
from nip_core.run_store.facts import LabelCounts, ShardFacts, SplitFacts
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store
from nip_core.session.attacked_run import is_told, own_test
from nip_core.session.session import Session
from nip_core.stages.served import models_for, opponents_for

_YAML: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the C one is many times faster
_TOLD = (
    *("accuracy", "accuracy_ci95", "completeness", "soundness", "episodes"),
    *("distinct_problems", "questions", "no_decision_rate"),
)


def measure(session: Session, iteration: int, split: str) -> dict[str, Any]:
    """Metrics of a committed split; computed once, then read."""
    run = session.run
    # Written first: who finds the metrics need not look for the transcripts.
    if session.parameters.text_rl.save_transcripts and split != ATTACK:
        save_transcripts(session, iteration, split)
    stored = run.read_json_or_none(run.metrics(iteration, split))
    if stored is None:
        metrics = _measured(session, iteration, split)
    elif split == ATTACK:
        metrics = dict(stored)
    else:
        metrics = combined(stored, write_intervals(session, iteration, split, stored))
    if split == ATTACK:
        words = f"iteration {iteration}: played attack problems: {attack_line(metrics)}"
        session.tell("attack", words, iteration=iteration, split=split)
        return metrics
    before = _test_before(session, iteration) if split == TEST else None
    words = f"iteration {iteration}: played {split} problems: {result_line(metrics, before)}"
    if split == TEST and (believed := believed_line(metrics)):
        words += f", {believed}"
    hinted = [name for name, agent in session.parameters.model_agents.items() if agent.retry_hint]
    many = invalid_warning(metrics, hinted)
    words = "; ".join(filter(None, (words, invalid_line(metrics), many)))
    figures = {name: metrics.get(name) for name in _TOLD}
    session.tell(
        "test" if split == TEST else "played",
        words,
        iteration=iteration,
        split=split,
        accuracy_before=before,
        believed_accuracy=(metrics.get("believe_the_prover") or {}).get("accuracy"),
        **figures,
    )
    return metrics


def _test_before(session: Session, iteration: int) -> float | None:
    """The accuracy of the newest test of an earlier iteration; None without one."""
    run = session.run
    for earlier in range(iteration - 1, -1, -1):
        if is_tested(session.parameters, earlier):
            metrics = run.read_json_or_none(run.metrics(earlier, TEST))
            return None if metrics is None else metrics.get("accuracy")
    return None


def _measured(session: Session, iteration: int, split: str) -> dict[str, Any]:
    run, directory = session.run, session.run.rollouts(iteration, split)
    if split == ATTACK:
        return _measured_attack(session, iteration)
    rollouts = read_rollouts(run.store, directory)
    metrics = evaluate(rollouts.episodes, rollouts.generations, seed=session.parameters.seed)
    provers, claims = session.game.protocol.provers, session.game.scenario.claims
    if provers and claims:
        # What is shown is in the document beside; these metrics stay what they have always been.
        believed = believe_the_prover(
            rollouts.episodes,
            rollouts.generations,
            claims,
            provers=provers,
            counts_silence=True,
        )
        if believed["no_decision_rate"] is not None and believed["no_decision_rate"] < 1:
            metrics["believe_the_prover"] = believed
    if (voted := majority(rollouts.episodes, seed=session.parameters.seed)) and split == TEST:
        metrics["majority"] = voted
    if split == TRAIN and (by_opponent := _by_opponent(session, iteration, rollouts.episodes)):
        metrics[BY_OPPONENT] = by_opponent
    if invalid := invalid_answers(rollouts.generations):
        metrics["invalid_answers"] = invalid
    played = VALIDATION if split == CANDIDATE else split
    metrics["problems_left_out"] = len(session.left_out.get(played, {}))
    metrics["rollouts"] = _digest_of_split(run.store, directory)
    if session.game.scenario.labels_in_play:
        metrics["labels"] = labels_of(run.store, directory) | {
            "workers": session.game.scenario.label_workers()
        }
    intervals = write_intervals(session, iteration, split, metrics, rollouts)
    path = run.metrics(iteration, split)
    return combined(run.write_json_once(path, metrics, lease=session.lease), intervals)


def _by_opponent(session: Session, iteration: int, episodes: pa.Table) -> list[dict[str, Any]]:
    names = {
        agent: {first: model.model for first, model in models.items()}
        for agent, models in opponents_for(session, iteration).items()
    }
    split_by = session.game.scenario.split_by
    return figures_by_opponent(episodes, names, session.parameters.seed, split_by)


def _measured_attack(session: Session, iteration: int) -> dict[str, Any]:
    """Measure what an attack did; with whose verifier it was played, and what was read."""
    run, parameters = session.run, session.parameters
    (verifier,) = [g for g, agents in parameters.groups.items() if "verifier" in agents]
    measured = _measured_choices if attacks_by_choice(parameters) else _measured_steps
    told = is_told(parameters, _attacked(session), session.problems[TEST][0])
    played = measured(session, iteration)
    metrics = {
        "attack": {
            "run": parameters.attack.run,
            "iteration": parameters.attack.iteration,
            "by": parameters.attack.by,
            "model": models_for(session, iteration)[verifier].model,
            "told": told,
        },
        **(untold(played) if told is False else played),
        "problems_left_out": len(session.left_out.get(TEST, {})),
    }
    path = run.metrics(iteration, ATTACK)
    return dict(run.write_json_once(path, metrics, lease=session.lease))


def _attacked(session: Session) -> RunStore:
    assert session.parameters.attack.run is not None  # it is an attack
    return RunStore(session.run.store, session.parameters.attack.run)


def _own_test(session: Session) -> OwnTest:
    return own_test(_attacked(session), session.parameters.attack.iteration)


def _measured_choices(session: Session, iteration: int) -> dict[str, Any]:
    run, directory = session.run, session.run.rollouts(iteration, ATTACK)
    choices = StoredRollouts(run.store, [directory]).choices()
    return {
        **figures(
            read_rollouts(run.store, directory),
            choices,
            session.parameters.seed,
            session.game.scenario.split_by,
            _own_test(session),
        ),
        "rollouts": _digest_of_split(run.store, directory),
    }


def _measured_steps(session: Session, last: int) -> dict[str, Any]:
    """Measure the tests before the first step of training and after each that was tested."""
    run, parameters = session.run, session.parameters
    places = {i: run.rollouts(i, TEST) for i in range(last + 1) if is_tested(parameters, i)}
    tests = {
        i: StoredRollouts(run.store, [place]).episodes(EPISODES.names)
        for i, place in places.items()
    }
    digests = {str(i): _digest_of_split(run.store, place) for i, place in places.items()}
    updates = {i: sum(_updates(run, before) for before in range(i)) for i in places}
    metrics = figures_by_step(
        tests,
        updates,
        parameters.attack.exploited_at,
        parameters.seed,
        session.game.scenario.split_by,
        _own_test(session),
    )
    if metrics["worst"] is not None:
        # By group, the provers that were the worst: they can be played again.
        provers = models_for(session, metrics["worst"]["step"])
        trained = parameters.trainable_groups
        metrics["worst"]["models"] = {g: m.model for g, m in provers.items() if g in trained}
    return {**metrics, "tests": digests}


def _updates(run: RunStore, iteration: int) -> int:
    """The updates of the optimizer that the jobs of an iteration have reported."""
    folder = run.store.list(f"{run.iteration(iteration)}/jobs")
    jobs = [read_job(run, f"{run.iteration(iteration)}/jobs/{name}") for name in folder]
    return sum(max(read_step_figures(job.backend_events), default=0) for job in jobs if job)


def labels_of(store: Store, directory: str) -> dict[str, Any]:
    """Count the solutions of a committed split that were labelled in play, by kind, and time."""
    stage = read_manifest(store, directory)
    shards = [read_manifest(store, directory, shard_manifest(name)) for name in shards_of(stage)]
    made = [ShardFacts.from_manifest(shard).labels for shard in shards]
    return reduce(add_counts, filter(None, made), LabelCounts()).model_dump()


def _digest_of_split(store: Store, directory: str) -> str:
    return SplitFacts.from_manifest(read_manifest(store, directory)).canonical_digest


def save_transcripts(session: Session, iteration: int, split: str) -> str:
    """Write all episodes of a committed split as one YAML or JSON file, if it is not there.

    The texts are those of the rollouts; this is for reading, with its SHA-256 beside it. Returns
    its path in the store.
    """
    run, form = session.run, session.parameters.text_rl.transcript_format
    path = transcripts_path(run, iteration, split, form)
    if run.store.exists(path):
        return path
    rollouts = read_rollouts(run.store, run.rollouts(iteration, split))
    everything = rollouts.episodes.num_rows
    transcripts = transcripts_from_tables(
        rollouts.episodes, rollouts.generations, everything, 0, session.game.protocol
    )
    plain = [asdict(transcript) for transcript in transcripts]
    if form == "json":
        text = json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
    else:
        text = yaml.dump(
            json.loads(json.dumps(plain)), Dumper=_YAML, sort_keys=False, allow_unicode=True
        )
    content = text.encode()
    # First, as nobody looks for it: with the episodes there it must be, too.
    line = f"{sha256(content).hexdigest()}  {path.rpartition('/')[2]}\n"
    run.store.put(f"{path}{CHECKSUM_SUFFIX}", line.encode())
    run.store.put(path, content)
    return path


def write_intervals(
    session: Session,
    iteration: int,
    split: str,
    metrics: Mapping[str, Any],
    rollouts: RolloutTables | None = None,
) -> dict[str, Any]:
    """The document of a committed split with these metrics; made from its rollouts if need be."""
    run, directory = session.run, session.run.rollouts(iteration, split)
    stored = run.read_json_or_none(run.intervals(iteration, split))
    if stored is not None:
        return dict(stored)
    rollouts = rollouts or read_rollouts(run.store, directory)
    scenario, seed = session.game.scenario, session.parameters.seed
    document = measure_intervals(rollouts, metrics, seed, scenario.split_by)
    game = scenario.claims, session.game.protocol.provers
    document["baselines"] = measure_baselines(rollouts, metrics, seed, scenario.split_by, *game)
    document["rollouts"] = _digest_of_split(run.store, directory)
    path = run.intervals(iteration, split)
    return dict(run.write_json_once(path, document, lease=session.lease))
