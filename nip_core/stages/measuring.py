"""Measuring a committed split: its metrics, and its transcripts where the settings ask for them."""

import json
from dataclasses import asdict
from functools import partial, reduce
from hashlib import sha256
from typing import Any

import pyarrow as pa
import yaml

from nip_core.attack_figures.figures import (
    attack_line,
    without_lying,
)
from nip_core.attack_figures.metrics_document import Attacked, AttackMetrics
from nip_core.evaluation.acceptance_figures import measure_acceptance
from nip_core.evaluation.baseline_verifiers import majority
from nip_core.evaluation.baseline_words import believed_line
from nip_core.evaluation.episode_transcripts import transcripts_from_tables
from nip_core.evaluation.figures_in_words import result_line
from nip_core.evaluation.invalid import (
    find_help,
    invalid_answers,
    invalid_line,
    invalid_warning,
)
from nip_core.evaluation.league_figures import figures_by_opponent
from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.split_metrics import (
    LabelledSolutions,
    OpponentMetrics,
    SplitIntervals,
    SplitMetrics,
)
from nip_core.parameters.derived.tested_iterations import is_tested
from nip_core.records.attack_measured import (
    describe_start,
    is_told,
    measure_choices,
    measure_steps,
    read_own_test,
)
from nip_core.records.intervals import combine_metrics, measure_baselines, measure_intervals
from nip_core.records.transcript_files import CHECKSUM_SUFFIX, name_transcripts_file
from nip_core.report.measured_rows import MeasuredRows
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION, name_played_problems
from nip_core.rollouts.scripted_call import find_attack_script
from nip_core.rollouts.storage.shard_manifests import add_counts, shard_manifest, shards_of
from nip_core.rollouts.storage.tables import StoredRollouts, read_rollouts
from nip_core.run_store.documents import validate_document
from nip_core.run_store.facts import LabelCounts, ShardFacts, read_split_digest
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore, read_document
from nip_core.run_store.store import Store
from nip_core.session.session import Session
from nip_core.stages.served import find_models, find_opponents

_YAML: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the C one is many times faster


def measure(session: Session, iteration: int, split: str) -> SplitMetrics | AttackMetrics:
    """Measure a committed split, or read its metrics on record, and tell of them."""
    if split == ATTACK:
        return _measure_attack(session, iteration)
    # Written first: who finds the metrics need not look for the transcripts.
    if session.parameters.text_rl.save_transcripts:
        save_transcripts(session, iteration, split)
    recorded_metrics = read_document(
        session.run, session.run.metrics(iteration, split), SplitMetrics
    )
    if recorded_metrics is None:
        metrics = _measured(session, iteration, split)
    else:
        metrics = combine_metrics(
            recorded_metrics, write_intervals(session, iteration, split, recorded_metrics)
        )
    earlier_accuracy = _test_before(session, iteration) if split == TEST else None
    problems = name_played_problems(session.parameters, split)
    result = result_line(metrics, earlier_accuracy)
    words = f"iteration {iteration}: played {problems} problems: {result}"
    if split == TEST and (believed := believed_line(metrics)):
        words += f", {believed}"
    warning = invalid_warning(metrics.invalid_answers, find_help(session.parameters))
    words = "; ".join(filter(None, (words, invalid_line(metrics.invalid_answers), warning)))
    session.tell(
        "test" if split == TEST else "played",
        words,
        iteration=iteration,
        split=split,
        accuracy_before=earlier_accuracy,
        believed_accuracy=metrics.believed_accuracy,
        accuracy=metrics.accuracy,
        accuracy_ci95=metrics.accuracy_ci95 and list(metrics.accuracy_ci95),
        completeness=metrics.completeness,
        soundness=metrics.soundness,
        episodes=metrics.episodes,
        distinct_problems=metrics.distinct_problems,
        questions=metrics.questions,
        no_decision_rate=metrics.no_decision_rate,
    )
    return metrics


def _measure_attack(session: Session, iteration: int) -> AttackMetrics:
    """Measure an attack, or read its metrics on record, and tell of them."""
    recorded_metrics = read_document(
        session.run, session.run.metrics(iteration, ATTACK), AttackMetrics
    )
    metrics = _measured_attack(session, iteration) if recorded_metrics is None else recorded_metrics
    words = f"iteration {iteration}: played attack problems: {attack_line(metrics)}"
    session.tell("attack", words, iteration=iteration, split=ATTACK)
    return metrics


def _measured_attack(session: Session, iteration: int) -> AttackMetrics:
    """Measure an attack; its metrics name the run of the verifier and the provers' knowledge."""
    run, parameters = session.run, session.parameters
    attack, target = parameters.attack, parameters.target_run
    assert target is not None  # it is an attack
    source = RunStore(run.store, target)
    script = find_attack_script(session.game)
    # A script is told nothing.
    is_informed = None if script else is_told(parameters, source, session.problems[TEST][0])
    own_test = read_own_test(source, attack.iteration)
    if parameters.choice is not None:
        figures = measure_choices(run, session.game, iteration, own_test)
    else:
        models = partial(find_models, session)
        figures = measure_steps(run, session.game, iteration, own_test, models)
    (verifier,) = [g for g, agents in parameters.groups.items() if "verifier" in agents]
    facts = Attacked(
        run=target,
        iteration=attack.iteration,
        by=attack.by,
        model=find_models(session, iteration)[verifier].model,
        script=script and script.model,
        told=is_informed,
        **describe_start(run, parameters),
    )
    figures = without_lying(figures) if is_informed is False else figures
    left_out = len(session.left_out.get(TEST, {}))
    metrics = figures.model_copy(update={"attack": facts, "problems_left_out": left_out})
    path = run.metrics(iteration, ATTACK)
    document = run.write_json_once(path, metrics.as_json(), lease=session.lease)
    return validate_document(document, AttackMetrics, path)


def _test_before(session: Session, iteration: int) -> float | None:
    """The accuracy of the newest test of an earlier iteration; None without one."""
    run = session.run
    for earlier in range(iteration - 1, -1, -1):
        if is_tested(session.parameters, earlier):
            metrics = read_document(run, run.metrics(earlier, TEST), SplitMetrics)
            return None if metrics is None else metrics.accuracy
    return None


def _measured(session: Session, iteration: int, split: str) -> SplitMetrics:
    run, directory = session.run, session.run.rollouts(iteration, split)
    rollouts = _read_rows(session, directory)
    figures: dict[str, object] = {}
    provers, claims = session.game.protocol.provers, session.game.scenario.claims
    if provers and claims:
        # The figures shown are in the document beside; these metrics keep their old meaning.
        believed = rollouts.believe(counts_silence=True)
        # Where no prover has claimed anything there is nothing to believe.
        if believed.no_decision_rate is not None and believed.no_decision_rate < 1:
            figures["believe_the_prover"] = believed
    seed = session.parameters.seed
    if split == TEST and (voted := majority(rollouts.episodes, seed=seed)):
        figures["majority"] = voted
    if likely := measure_acceptance(rollouts.episodes, rollouts.read_verdicts(), seed=seed):
        figures["p_accept_figures"] = likely
    if split == TRAIN and (by_opponent := _by_opponent(session, iteration, rollouts.episodes)):
        figures["by_opponent"] = by_opponent
    generations = rollouts.read_generations()
    if invalid := invalid_answers(generations):
        figures["invalid_answers"] = invalid
    problem_split = name_played_problems(session.parameters, split)
    problem_split = VALIDATION if problem_split == CANDIDATE else problem_split
    figures["problems_left_out"] = len(session.left_out.get(problem_split, {}))
    figures["rollouts"] = read_split_digest(run.store, directory)
    if session.game.scenario.labels_in_play:
        figures["labels"] = LabelledSolutions(
            **count_split_labels(run.store, directory),
            workers=session.game.scenario.label_workers(),
        )
    plain_metrics = evaluate(rollouts.episodes, generations, seed=seed)
    del generations  # which are large; the intervals read them anew
    metrics = SplitMetrics.model_validate({**dict(plain_metrics), **figures})
    intervals = write_intervals(session, iteration, split, metrics, rollouts)
    # After the intervals, so that metrics on record have theirs beside them.
    path = run.metrics(iteration, split)
    document = run.write_json_once(path, metrics.as_json(), lease=session.lease)
    return combine_metrics(validate_document(document, SplitMetrics, path), intervals)


def _read_rows(session: Session, directory: str) -> MeasuredRows:
    """Read what the figures of a committed split need."""
    claims, provers = session.game.scenario.claims, session.game.protocol.provers
    return MeasuredRows(StoredRollouts(session.run.store, [directory]), claims, provers)


def _by_opponent(
    session: Session, iteration: int, episodes: pa.Table
) -> tuple[OpponentMetrics, ...]:
    names = {
        agent: {first: model.model for first, model in models.items()}
        for agent, models in find_opponents(session, iteration).items()
    }
    split_by = session.game.scenario.split_by
    return figures_by_opponent(episodes, names, session.parameters.seed, split_by)


def count_split_labels(store: Store, directory: str) -> dict[str, Any]:
    """Count by kind the solutions of a committed split labelled in play, with the time it took."""
    stage = read_manifest(store, directory)
    shards = [read_manifest(store, directory, shard_manifest(name)) for name in shards_of(stage)]
    label_counts = [ShardFacts.from_manifest(shard).labels for shard in shards]
    return reduce(add_counts, filter(None, label_counts), LabelCounts()).model_dump()


def save_transcripts(session: Session, iteration: int, split: str) -> str:
    """Write all episodes of a committed split as one YAML or JSON file, if it is not there.

    The texts are copied from the rollouts; this is for reading, with its SHA-256 beside it. Returns
    its path in the store.
    """
    run, form = session.run, session.parameters.text_rl.transcript_format
    path = name_transcripts_file(run, iteration, split, form)
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
    # First: no caller looks for it, and beside the episodes it must be there, too.
    line = f"{sha256(content).hexdigest()}  {path.rpartition('/')[2]}\n"
    run.store.put(f"{path}{CHECKSUM_SUFFIX}", line.encode())
    run.store.put(path, content)
    return path


def write_intervals(
    session: Session,
    iteration: int,
    split: str,
    metrics: SplitMetrics,
    rollouts: MeasuredRows | None = None,
) -> SplitIntervals:
    """Read the document of a committed split with these metrics, or make it of its rollouts."""
    run, directory = session.run, session.run.rollouts(iteration, split)
    path = run.intervals(iteration, split)
    recorded_intervals = read_document(run, path, SplitIntervals)
    if recorded_intervals is not None:
        return recorded_intervals
    rollouts = rollouts or _read_rows(session, directory)
    scenario, seed = session.game.scenario, session.parameters.seed
    document = measure_intervals(rollouts, metrics, seed, scenario.split_by)
    baselines = measure_baselines(rollouts, metrics, seed, scenario.split_by)
    additions = {"baselines": baselines, "rollouts": read_split_digest(run.store, directory)}
    whole = document.model_copy(update=additions)
    content = run.write_json_once(path, whole.as_json(), lease=session.lease)
    return validate_document(content, SplitIntervals, path)
