"""What came of it: metrics of a played split, the run's summary, its report.

measure         metrics of one committed split, written once
summary         a run as a JSON document: status, accuracy by iteration, models, jobs
write_report    the HTML page of a run
"""

from collections.abc import Mapping
from typing import Any

from nip_core.evaluation.baselines import believe_the_prover
from nip_core.evaluation.metrics import evaluate, paired_difference
from nip_core.evaluation.report import GroupReport, IterationReport, ReportData, build_report
from nip_core.evaluation.transcripts import Transcript, transcripts_from_tables
from nip_core.parameters import HyperParameters
from nip_core.rollouts.tables import read_rollouts
from nip_core.run_store.lease import Owner, ThisMachine
from nip_core.run_store.manifest import is_committed, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.stages.estimate import is_tested
from nip_core.stages.session import Session

TRANSCRIPTS_PER_SPLIT = 40

CLAIMS = {"they match": 1, "they differ": 0}
"""What the bundled tiny model's prover says of a right and of a wrong solution."""


def metrics_path(run: RunStore, iteration: int, split: str) -> str:
    """The document with the metrics of one split of an iteration."""
    return f"{run.iteration(iteration)}/metrics-{split}.json"


def measure(session: Session, iteration: int, split: str) -> dict[str, Any]:
    """Metrics of a committed split; computed once, then read."""
    run = session.run
    path = metrics_path(run, iteration, split)
    stored = run.read_json_or_none(path)
    if stored is not None:
        return dict(stored)
    directory = run.rollouts(iteration, split)
    rollouts = read_rollouts(run.store, directory)
    metrics = evaluate(rollouts.episodes, rollouts.generations, seed=session.parameters.seed)
    if "prover" in session.parameters.agents:
        believed = believe_the_prover(rollouts.episodes, rollouts.generations, CLAIMS)
        if believed["no_decision_rate"] is not None and believed["no_decision_rate"] < 1:
            metrics["believe_the_prover"] = believed
    metrics["rollouts"] = read_manifest(run.store, directory).extra["canonical_digest"]
    return dict(run.write_json_once(path, metrics, lease=session.lease))


def status_of(run: RunStore) -> str:
    """running, finished, or stopped (which running again continues)."""
    parameters = HyperParameters.from_dict(dict(run.open().parameters))
    last = parameters.rl.num_iterations
    done = run.finished_iterations() >= last and (
        not is_tested(parameters, last) or run.store.exists(metrics_path(run, last, "test"))
    )
    if done:
        return "finished"
    lease = run.read_json_or_none(f"{run.root}/lease.json")
    if lease and lease["state"] == "held" and not ThisMachine().is_gone(Owner(**lease["owner"])):
        return "running"
    return "stopped"


def _iterations(run: RunStore, last: int) -> list[int]:
    """Iterations of which anything is on record."""
    return [i for i in range(last + 1) if run.store.list(run.iteration(i))]


def summary(run: RunStore) -> dict[str, Any]:
    """A run as JSON: ``run``, ``status`` and ``iterations``.

    Entry k of ``iterations`` tests the models that play iteration k; entry 0 is untrained, and a
    last entry without jobs tests the final models.
    """
    record = run.open()
    parameters = HyperParameters.from_dict(dict(record.parameters))
    entries = []
    for iteration in _iterations(run, parameters.rl.num_iterations):
        test = run.read_json_or_none(metrics_path(run, iteration, "test"))
        entries.append(
            {
                "iteration": iteration,
                "test": None
                if test is None
                else {
                    key: test[key]
                    for key in (
                        "accuracy",
                        "accuracy_ci95",
                        "completeness",
                        "completeness_ci95",
                        "soundness",
                        "soundness_ci95",
                        "episodes",
                        "distinct_problems",
                    )
                },
                "models": _served(run, parameters, iteration),
                "jobs": {
                    group: {"id": job["id"], "status": job["outcome"] or job["status"]}
                    for group, job in _jobs(run, parameters, iteration).items()
                },
            }
        )
    return {
        "run": run.name,
        "status": status_of(run),
        "created_at": record.created_at,
        "code_version": record.code_version,
        "report": report_location(run),
        "iterations": entries,
    }


def _served(run: RunStore, parameters: HyperParameters, iteration: int) -> dict[str, str]:
    if iteration > 0:
        stored = run.read_json_or_none(run.models(iteration - 1))
        if stored is not None:
            return {group: model["model"] for group, model in stored["groups"].items()}
    from nip_core.stages.providers import served_name

    return {
        group: served_name(parameters.group_parameters(group).model_name)
        for group in parameters.groups
    }


def _jobs(run: RunStore, parameters: HyperParameters, iteration: int) -> dict[str, Any]:
    found = {}
    for group in parameters.trainable_groups:
        job = run.read_json_or_none(run.job(iteration, group))
        if job is not None:
            found[group] = job
    return found


def report_location(run: RunStore) -> str | None:
    """Where the report lies, or None if there is none yet."""
    path = f"{run.root}/report.html"
    if not run.store.exists(path):
        return None
    local = run.store.local_path(path)
    return str(local) if local is not None else f"{run.store.url}/{path}"


def read_transcripts(run: RunStore, iteration: int, split: str, limit: int) -> list[Transcript]:
    """A stable sample of a committed split's transcripts; empty if it is not committed."""
    directory = run.rollouts(iteration, split)
    if not is_committed(run.store, directory):
        return []
    rollouts = read_rollouts(run.store, directory)
    return transcripts_from_tables(rollouts.episodes, rollouts.generations, limit, seed=0)


def write_report(run: RunStore, status: str | None = None) -> str:
    """(Re)write the run's report from what is committed; returns where it lies."""
    record = run.open()
    parameters = HyperParameters.from_dict(dict(record.parameters))
    iterations: list[IterationReport] = []
    transcripts: list[Transcript] = []
    baselines: dict[str, Any] = {}
    for iteration in _iterations(run, parameters.rl.num_iterations):
        test = run.read_json_or_none(metrics_path(run, iteration, "test"))
        train = run.read_json_or_none(metrics_path(run, iteration, "train"))
        if test and "believe_the_prover" in test:
            baselines["believe the prover (last iteration)"] = test["believe_the_prover"]
            baselines.setdefault("believe the prover (untrained)", test["believe_the_prover"])
        iterations.append(
            IterationReport(
                iteration=iteration,
                test=test,
                train=train,
                groups=_group_reports(run, parameters, iteration),
                stage_s=run.read_json_or_none(f"{run.iteration(iteration)}/times.json") or {},
            )
        )
        for split in ("test", "train"):
            transcripts += read_transcripts(run, iteration, split, TRANSCRIPTS_PER_SPLIT)
    page = build_report(
        ReportData(
            run=run.name,
            status=status or status_of(run),
            iterations=iterations,
            parameters=record.parameters,
            transcripts=transcripts,
            transcripts_per_group=TRANSCRIPTS_PER_SPLIT,
            baselines=baselines,
            paired=_paired(run, parameters, iterations),
            created_at=record.created_at,
            code_version=record.code_version,
        )
    )
    run.store.put(f"{run.root}/report.html", page.encode())
    location = report_location(run)
    assert location is not None
    return location


def _group_reports(
    run: RunStore, parameters: HyperParameters, iteration: int
) -> dict[str, GroupReport]:
    before = _served(run, parameters, iteration)
    swapped = run.read_json_or_none(run.models(iteration))
    reports = {}
    for group, job in _jobs(run, parameters, iteration).items():
        after = swapped["groups"][group] if swapped else None
        dataset = run.dataset(iteration, group)
        committed = is_committed(run.store, dataset)
        extra: Mapping[str, Any] = read_manifest(run.store, dataset).extra if committed else {}
        reports[group] = GroupReport(
            episodes=extra.get("episodes"),
            examples=extra.get("examples"),
            job_id=job["id"],
            status=job["outcome"] or job["status"],
            loss=_losses(job),
            trained_tokens=job["trained_tokens"],
            model_before=before[group],
            model_after=after["model"] if after else None,
            proof=_describe_proof(after["proof"]) if after and after.get("proof") else None,
            note=job["reason"],
        )
    return reports


def _losses(job: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(step, training loss) from the back-end's metrics events."""
    points = []
    for event in job["backend_events"]:
        data = event.get("data") or {}
        if event.get("type") == "metrics" and data.get("train_loss") is not None:
            points.append((int(data["step"]), float(data["train_loss"])))
    return points


def _describe_proof(proof: Mapping[str, Any]) -> str:
    detail = proof.get("detail") or {}
    shown = ", ".join(
        f"{key} {value:.2g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in detail.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    )
    return f"{'matches' if proof.get('matches') else 'does not match'}" + (
        f" ({shown})" if shown else ""
    )


def _paired(
    run: RunStore, parameters: HyperParameters, iterations: list[IterationReport]
) -> dict[str, Any] | None:
    tested = [entry.iteration for entry in iterations if entry.test]
    if len(tested) < 2:
        return None
    first, last = (
        read_rollouts(run.store, run.rollouts(i, "test")).episodes for i in (tested[0], tested[-1])
    )
    return paired_difference(first, last, parameters.seed)
