"""A run's rollouts as logs of inspect_ai: a file for each iteration and split.

export_run   the files
split_log    one of them, in memory

Agents are roles, a problem is a sample and a play of it an epoch. Every call stands in the
transcript in a span of its agent, with the chat that the model was asked with, and every message in
a span of its channel. Scores are those of the task `nip_inspect/play`; the figures in the header
are the run's own, as `nip show` has them. The lineage stands in the header's metadata.

Not covered: the seeds of single calls, and raw requests, which no run keeps.
"""

import gc
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import GenerateConfig, ModelConfig

from nip_core.errors import SettingsError
from nip_core.evaluation.metrics import evaluate, weigh_episodes
from nip_core.evaluation.split_metrics import BREAKDOWNS, BatchMetrics
from nip_core.evaluation.spread import find_questions
from nip_core.game.render import Game
from nip_core.hashing import derive_key
from nip_core.records.intervals import find_split_columns
from nip_core.records.iterations import Records
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.table_rows import Episode, Generation, Timing, read_rows, stored_row
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import generations_by_episode
from nip_core.run_store.facts import SplitFacts
from nip_core.run_store.manifest import is_committed, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.showing.transcripts import read_committed_rollouts, rebuild_game
from nip_inspect.export_sample import Split, sample_of, usage_by_agent, usage_by_model
from nip_inspect.scoring import RATES, is_right, summary

SPLITS = (TEST, TRAIN, VALIDATION, CANDIDATE, ATTACK)
_ZIP, _THREADS = "inspect_ai._util.zipfile", "_ZSTD_THREADS"
"""A private part of Inspect; versions without it go their own way."""
Row = dict[str, Any]


def export_run(
    run: RunStore, directory: Path, splits: Sequence[str] = (), iterations: Sequence[int] = ()
) -> list[Path]:
    """Write the logs of a run into `directory`, in the place of earlier ones of the same splits.

    Without `splits` they are all that were played, without `iterations` those of all. A log is
    there whole or not at all. Raises SettingsError where there is nothing to export, or no test
    although the caller named no split; CorruptionError for a damaged file.
    """
    records = Records(run)
    choice = _chosen(run, records, splits, iterations)
    game = rebuild_game(records.shown.record)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{directory}: can't be written to ({error.strerror})") from None
    files = []
    for iteration, split in choice:
        with _in_haste():
            log = split_log(records, iteration, split, game)
            stamp = str(log.eval.created)[:19].replace(":", "-")
            path = directory / f"{stamp}_{log.eval.task}_{log.eval.task_id}.eval"
            half = path.with_suffix(".partial")
            write_eval_log(log, half, format="eval")
        os.replace(half, path)
        files.append(path)
    return files


@contextmanager
def _in_haste() -> Iterator[None]:
    """Spare two thirds of the time for many small samples.

    Inspect compresses each sample with twelve threads of its own, which pays for large ones alone.
    The collector would look again and again at objects that all live until the log is written.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        zipping: ModuleType | None = import_module(_ZIP)
    except ImportError:
        zipping = None
    threads = getattr(zipping, _THREADS, None)
    if zipping is not None and threads is not None:
        setattr(zipping, _THREADS, 0)
    try:
        yield
    finally:
        if zipping is not None and threads is not None:
            setattr(zipping, _THREADS, threads)
        if collects:
            gc.enable()


def _chosen(
    run: RunStore, records: Records, splits: Sequence[str], iterations: Sequence[int]
) -> list[tuple[int, str]]:
    """Iterations and splits to export, in order."""
    if unknown := [split for split in splits if split not in SPLITS]:
        raise SettingsError(f"--split {unknown[0]!r}: use one of {', '.join(SPLITS)}")
    committed_splits = [
        (iteration, split)
        for iteration in records.iterations()
        for split in SPLITS
        if is_committed(run.store, run.rollouts(iteration, split))
    ]
    counts: dict[str, list[int]] = defaultdict(list)
    for iteration, split in committed_splits:
        counts[split].append(iteration)
    on_record = "; ".join(f"{s}: iterations {_listed(numbers)}" for s, numbers in counts.items())
    wanted_splits = [(i, s) for i, s in committed_splits if not iterations or i in iterations]
    for split in splits or (TEST,):
        if split not in {s for _, s in wanted_splits}:
            iterations_words = f" of iteration {_listed(iterations)}" if iterations else ""
            raise SettingsError(
                f"run {run.name!r} has no {split} episodes{iterations_words} to export; it has "
                f"{on_record or 'none yet'}"
                + ("" if splits or not on_record else "; name what to export with --split")
            )
    for iteration in iterations:
        if iteration not in {i for i, _ in wanted_splits}:
            raise SettingsError(f"--iteration {iteration}: run {run.name!r} has {on_record}")
    return [(i, s) for i, s in wanted_splits if not splits or s in splits]


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def split_log(records: Records, iteration: int, split: str, game: Game | None) -> EvalLog:
    """The log of a committed split; without its `game` it has no chats and no channels."""
    run, record = records.run, records.shown.record
    rollouts = read_committed_rollouts(run, iteration, split)
    assert rollouts is not None  # it was looked for
    # 1. Rows, by episode.
    episodes = [*read_rows(rollouts.episodes, Episode)]
    timings = StoredRollouts(run.store, [run.rollouts(iteration, split)]).timings()
    times = {row.key: row for row in read_rows(timings, Timing)}
    generations = [*read_rows(rollouts.generations, Generation)]
    rows_of = generations_by_episode(episodes, generations)
    questions = find_questions(rollouts.episodes, find_split_columns(record.parameters))
    # 2. Samples.
    facts = Split(
        game,
        times,
        questions,
        record.parameters,
        dict(enumerate(weigh_episodes(rollouts.episodes))),
    )
    epochs = _epochs(episodes)
    samples = [
        sample_of(facts, number, row, rows_of[row.key], epochs[number])
        for number, row in enumerate(episodes)
    ]
    # 3. The header.
    metrics = _metrics(records, iteration, split, rollouts)
    started = min((s.started_at for s in samples if s.started_at), default=record.created_at)
    completed = max((s.completed_at for s in samples if s.completed_at), default=started)
    return EvalLog(
        status="success",
        eval=_spec(records, iteration, split, str(started), samples),
        results=_results(metrics, episodes, questions, facts.weights),
        stats=EvalStats(
            started_at=str(started),
            completed_at=str(completed),
            model_usage=usage_by_model(generations),
            role_usage=usage_by_agent(generations),
        ),
        samples=samples,
    )


def _epochs(episodes: Sequence[Episode]) -> list[int]:
    """Of each episode, the number of its play of the problem, from 1; leaves are plays each."""
    order = sorted(
        range(len(episodes)), key=lambda k: (episodes[k].sample, episodes[k].branch_path)
    )
    variant_counts: dict[str, int] = defaultdict(int)
    epochs = [0] * len(episodes)
    for number in order:
        problem = episodes[number].problem
        variant_counts[problem] += 1
        epochs[number] = variant_counts[problem]
    return epochs


def _metrics(records: Records, iteration: int, split: str, rollouts: RolloutTables) -> BatchMetrics:
    """The figures on record; of an attack, and where a kill came between, those of the rows."""
    metrics = None if split == ATTACK else records.of(iteration).metrics(split)
    if metrics is not None:
        return metrics
    tables = rollouts.episodes, rollouts.generations
    return evaluate(*tables, seed=records.shown.record.seed)


def _results(
    measured: BatchMetrics,
    episodes: Sequence[Episode],
    questions: Mapping[str, str],
    weights: Mapping[int, float],
) -> EvalResults:
    count, metrics = len(episodes), measured.as_json()

    def score(name: str, scorer: str, figures: dict[str, EvalMetric]) -> EvalScore:
        return EvalScore(
            name=name, scorer=scorer, scored_samples=count, unscored_samples=0, metrics=figures
        )

    # 1. Verdicts.
    verdicts: dict[str, EvalMetric] = {}
    for name, label in RATES.items():
        among = [k for k, row in enumerate(episodes) if label is None or row.y == label]
        right = [float(is_right(stored_row(episodes[k]))) for k in among]
        clusters = [questions[episodes[k].problem] for k in among]
        error = summary(right, clusters, [weights[k] for k in among])[1]
        verdicts |= _figure(name, f"{name}_stderr", metrics, error)
    scores = [score("verdict", "verdict", verdicts)]
    # 2. Rewards, by agent.
    for agent, of_agent in metrics["agents"].items():
        paid = [(k, row.rewards[agent]) for k, row in enumerate(episodes) if agent in row.rewards]
        clusters = [questions[episodes[k].problem] for k, _ in paid]
        error = summary([reward for _, reward in paid], clusters, [weights[k] for k, _ in paid])[1]
        scores.append(score(agent, "rewards", _figure("mean_reward", "stderr", of_agent, error)))
    # 3. All of them, as nip has them.
    plain = {name: value for name, value in metrics.items() if name not in BREAKDOWNS}
    return EvalResults(
        total_samples=count, completed_samples=count, scores=scores, metadata={"metrics": plain}
    )


def _figure(
    name: str, error_name: str, metrics: Mapping[str, Any], error: float | None
) -> dict[str, EvalMetric]:
    """A figure on record, with its 95 % interval beside it, and its standard error."""
    if metrics.get(name) is None:
        return {}
    interval = metrics.get(f"{name}_ci95")
    figures = {
        name: EvalMetric(
            name=name, value=metrics[name], metadata={"ci95": interval} if interval else None
        )
    }
    if error is not None:
        figures[error_name] = EvalMetric(name=error_name, value=error)
    return figures


def _spec(
    records: Records, iteration: int, split: str, created: str, samples: Sequence[EvalSample]
) -> EvalSpec:
    run, record = records.run, records.shown.record
    settings, entry = record.parameters, records.of(iteration)
    group_of = _groups(settings)
    models = {agent: entry.served.get(group, group) for agent, group in group_of.items()}
    identity = derive_key("inspect", run.name, iteration, split)
    return EvalSpec(
        eval_id=derive_key("eval", identity),
        run_id=derive_key("run", run.name),
        created=created,
        task=f"{run.name}-{split}-{iteration:04d}",
        task_id=derive_key("task", identity).replace("_", "x"),  # it divides parts of file names
        task_args={"run": run.name, "iteration": iteration, "split": split},
        dataset=EvalDataset(
            name=settings["dataset"],
            samples=len({sample.id for sample in samples}),
            sample_ids=[*dict.fromkeys(str(sample.id) for sample in samples)],
        ),
        model=models.get("verifier") or next(iter(models.values()), "random"),
        model_roles={
            agent: ModelConfig(model=model, config=_sampling(settings["agents"][agent]))
            for agent, model in models.items()
        },
        config=EvalConfig(epochs=max((sample.epoch for sample in samples), default=1)),
        packages={"inspect_ai": version("inspect_ai"), "nip-loop": record.code_version},
        metadata=_lineage(records, iteration, split),
    )


def _groups(settings: Mapping[str, Any]) -> dict[str, str]:
    """By agent with a model, its group."""
    return {
        name: agent.get("shared_model_group") or name
        for name, agent in settings["agents"].items()
        if not agent.get("is_random")
    }


def _sampling(agent: Mapping[str, Any]) -> GenerateConfig:
    return GenerateConfig(temperature=agent.get("temperature"), top_p=agent.get("top_p"))


def _lineage(records: Records, iteration: int, split: str) -> dict[str, Any]:
    """Tell the episodes' origin, by files that a reader can open in the run store."""
    run, record, entry = records.run, records.shown.record, records.of(iteration)
    directory = run.rollouts(iteration, split)
    manifest = read_manifest(run.store, directory)
    earlier = records.of(iteration - 1) if iteration else None
    return {
        "run": run.name,
        "run_store": run.store.url,
        "iteration": iteration,
        "split": split,
        "rollouts": directory,
        "canonical_digest": SplitFacts.from_manifest(manifest).canonical_digest,
        "manifest_digest": manifest.digest,
        "models": entry.served,
        # The origin of the models: the swap before, with jobs, digests and proofs.
        "models_made_by": earlier.swap.to_document()["groups"] if earlier and earlier.swap else {},
        "code_version": record.code_version,
        "seed": record.seed,
        "created_at": record.created_at,
        "forked_from": record.forked_from,
        "problems_digest": record.contents.get("problems"),
        "settings": dict(record.parameters),
        "manifests": entry.manifests,
    }
