"""Showing a run: its summary, its report, and what is left to do.

summary         a run as a JSON document: status, accuracy by iteration, models, jobs
write_report    the HTML page of a run
newest_run      the name of the run that was created last, damaged ones left out

A run is shown whatever version wrote it: of its settings only those are read that are needed here,
with the defaults of today where they are missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nip_core.errors import CorruptionError, StoreError
from nip_core.evaluation.attack import attack_rows
from nip_core.evaluation.metrics import paired_difference
from nip_core.evaluation.report import GroupReport, IterationReport, ReportData, build_report
from nip_core.evaluation.statistics.differences import holm
from nip_core.parameters import HyperParameters
from nip_core.parameters.stored import with_defaults
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.rollouts.tables import read_rollouts
from nip_core.run_store.manifest import is_committed, read_manifest
from nip_core.run_store.run import RunRecord, RunStore, list_runs
from nip_core.run_store.store import Store
from nip_core.stages.estimate import is_tested, scheme_tests
from nip_core.stages.intervals import shown_metrics, split_by_of
from nip_core.stages.liveness import look
from nip_core.stages.measuring import transcripts_path
from nip_core.stages.models import NOT_SCHEDULED, Decision
from nip_core.stages.prepare import Prepared
from nip_core.stages.providers import dummy_name
from nip_core.stages.too_long import in_words, recorded
from nip_core.stages.transcripts import RunTranscripts
from nip_core.stages.verification import check_run
from nip_lm_server.client import base_served_name

_NOT_DUE = {
    "id": None,
    "outcome": None,
    "status": NOT_SCHEDULED,
    "reason": "no agent of the group trains in this iteration (update_schedule)",
    "trained_tokens": None,
    "backend_events": (),
}
_IN_SUMMARY = (
    *("accuracy", "accuracy_ci95", "completeness", "completeness_ci95"),
    *("soundness", "soundness_ci95", "episodes", "distinct_problems", "questions"),
)
_PROMOTION = TypeAdapter(Decision)
_CHECKSUM = b"<!-- sha256 of the lines above: "


@dataclass(frozen=True)
class RunShown:
    """The part of a run's record and settings that showing it needs."""

    record: RunRecord
    last: int
    """The number of iterations, and of the last, which has nothing but a test."""
    tested: frozenset[int]
    """Those with a test, by the settings."""
    attacks: bool
    """Whether it attacks another run, which is measured with the last."""
    first_models: Mapping[str, str]
    """By group, in agent order: what plays iteration 0."""


def open_shown(run: RunStore) -> RunShown:
    """The run's record and settings. Raises CorruptionError where they make no sense."""
    try:
        record = run.open()
        settings = with_defaults(record.parameters)
        first_models: dict[str, str] = {}
        for name, agent in settings["agents"].items():
            if not agent.get("is_random"):
                name_of = dummy_name if agent["use_dummy_api"] else base_served_name
                group = agent["shared_model_group"] or name
                first_models.setdefault(group, name_of(agent["model_name"]))
        taken_over = (record.contents.get("origin") or [{}])[0]
        first_models |= {group: str(model["model"]) for group, model in taken_over.items()}
        last, text_rl = int(settings["rl"]["num_iterations"]), settings["text_rl"]
        scheme, interval = str(text_rl["test_scheme"]), int(text_rl["test_interval"])
        tested = (i for i in range(last + 1) if scheme_tests(scheme, last, i, interval))
        attacks = settings["attack"]["run"] is not None
        return RunShown(record, last, frozenset(tested), attacks, first_models)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(f"{run.root}/run.json", error) from error


def _damaged(place: str, error: Exception) -> CorruptionError:
    return CorruptionError(
        f"{place}: damaged, not what nip writes there ({type(error).__name__}: {error})"
    )


def _document(run: RunStore, path: str, *needed: str) -> dict[str, Any] | None:
    """A JSON object, or None if there is none. Raises CorruptionError if a key is missing."""
    value = run.read_json_or_none(path)
    if value is None and not run.store.exists(path):
        return None
    if not isinstance(value, dict):
        raise CorruptionError(f"{path}: damaged, an object was expected")
    missing = [key for key in needed if key not in value]
    if missing:
        raise CorruptionError(f"{path}: damaged, {', '.join(missing)} is missing")
    return value


def newest_run(store: Store, on_damaged: Callable[[str], None]) -> str | None:
    """Name of the run that was created last, or None if there is none that can be read.

    `on_damaged` is told of each run that is left out because its run.json can't be read.
    """
    created = []
    for name in list_runs(store):
        try:
            created.append((str(open_shown(RunStore(store, name)).record.created_at), name))
        except StoreError as error:  # one of another format version, too
            on_damaged(str(error))
    return max(created)[1] if created else None


def status_of(run: RunStore) -> str:
    """running, finished, or stopped (which running again continues)."""
    shown = open_shown(run)
    is_tested = shown.last not in shown.tested or run.store.exists(run.metrics(shown.last, TEST))
    is_tested &= not shown.attacks or run.store.exists(run.metrics(shown.last, ATTACK))
    if is_tested and run.finished_iterations() >= shown.last:
        return "finished"
    return "running" if is_running(run) else "stopped"


def is_running(run: RunStore) -> bool:
    """Return whether somebody who may be alive holds the run. Raises CorruptionError."""
    seen = look(run)
    return seen.owner is not None and not seen.is_gone


def iterations_of(run: RunStore, last: int) -> list[int]:
    """Iterations of which anything is on record."""
    return [i for i in range(last + 1) if run.store.list(run.iteration(i))]


def summary(run: RunStore) -> dict[str, Any]:
    """A run as JSON: ``run``, ``status`` and ``iterations``.

    Entry k of ``iterations`` tests the models that play iteration k; entry 0 is untrained, and a
    last entry without jobs tests the final models.
    """
    shown = open_shown(run)
    entries = []
    for iteration in iterations_of(run, shown.last):
        test = _document(run, run.metrics(iteration, TEST))
        if test is not None:
            test = shown_metrics(run, iteration, TEST, test, shown.record.parameters)
        jobs = _jobs(run, shown, iteration)
        entries.append(
            {
                "iteration": iteration,
                "test": None if test is None else {key: test.get(key) for key in _IN_SUMMARY},
                "models": _served(run, shown, iteration),
                "promotion": promotion_of(run, iteration),
                "jobs": {
                    group: {"id": job["id"], "status": _status(job), "reason": job["reason"]}
                    for group, job in jobs.items()
                },
            }
        )
    attack = _document(run, run.metrics(shown.last, ATTACK), "attack") if shown.attacks else None
    return {
        "run": run.name,
        "status": status_of(run),
        "created_at": shown.record.created_at,
        "code_version": shown.record.code_version,
        "report": report_location(run),
        "left_out": {split: len(problems) for split, problems in (recorded(run) or {}).items()},
        "iterations": entries,
        **({} if attack is None else {"attack": _attack_shown(attack)}),
    }


def _attack_shown(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an attack's figures that a summary has."""
    kind, rows = attack_rows(metrics)
    short = (kind, "updates", *_IN_SUMMARY, "fooled", "p_accept", "distinct")
    whole = ("steps_to_exploit", "exploitability", "completeness_change")
    return {
        **metrics["attack"],
        f"by_{kind}": [{key: row[key] for key in short if key in row} for row in rows],
        **{key: metrics[key] for key in whole if key in metrics},
    }


def _status(job: Mapping[str, Any]) -> str:
    return str(job["outcome"] or job["status"])


def _served(run: RunStore, shown: RunShown, iteration: int) -> dict[str, str]:
    """By group, the name of the model that plays the iteration."""
    path = run.models(max(iteration - 1, 0))
    swap = _document(run, path, "groups") if iteration > 0 else None
    if swap is None:
        return dict(shown.first_models)
    try:
        return {group: str(model["model"]) for group, model in swap["groups"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def promotion_of(run: RunStore, iteration: int) -> dict[str, Any] | None:
    """The decision of the gate after the training of an iteration; None where there was none.

    Raises CorruptionError for one that makes no sense.
    """
    path = run.models(iteration)
    promotion = (_document(run, path, "groups") or {}).get("promotion")
    if promotion is None:
        return None
    try:
        _PROMOTION.validate_python(promotion)
    except ValidationError as error:
        raise CorruptionError(
            f"{path}: damaged, the record of the gate is not what nip writes"
        ) from error
    return dict(promotion)


def _jobs(run: RunStore, shown: RunShown, iteration: int) -> dict[str, Any]:
    """Jobs by group. A group that was not due has a stand-in that says so."""
    jobs: dict[str, Any] = {}
    swap = _document(run, run.models(iteration), "groups") or {}
    for group in shown.first_models:
        path = run.job(iteration, group)
        job = _document(run, path, "id", "outcome", "status", "reason")
        if job is not None:
            jobs[group] = job
        elif group in swap.get("not_scheduled", ()):
            jobs[group] = _NOT_DUE
    return jobs


def report_location(run: RunStore) -> str | None:
    """Return where the report lies, or None if there is none yet."""
    path = f"{run.root}/report.html"
    if not run.store.exists(path):
        return None
    local = run.store.local_path(path)
    return str(local) if local is not None else f"{run.store.url}/{path}"


def write_report(run: RunStore, status: str | None = None) -> None:
    """(Re)write the run's report from what is committed."""
    shown = open_shown(run)
    record = shown.record
    iterations: list[IterationReport] = []
    transcripts = RunTranscripts(run, record)
    baselines: dict[str, Any] = {}
    # 1. By iteration, from small documents.
    for iteration in iterations_of(run, shown.last):
        metrics = {
            split: run.read_json_or_none(run.metrics(iteration, split))
            for split in (TEST, TRAIN, VALIDATION, CANDIDATE)
        }
        for split in (TEST, TRAIN):
            if (measured := metrics[split]) is not None:
                metrics[split] = shown_metrics(run, iteration, split, measured, record.parameters)
        believed = (metrics[TEST] or {}).get("believe_the_prover")
        if believed is not None:
            baselines["believe the prover (last iteration)"] = believed
            baselines.setdefault("believe the prover (untrained)", believed)
        voted = (metrics[TEST] or {}).get("majority")
        if voted is not None:
            baselines["majority of its plays (last iteration)"] = voted
        iterations.append(
            IterationReport(
                iteration=iteration,
                test=metrics[TEST],
                train=metrics[TRAIN],
                groups=_group_reports(run, shown, iteration),
                promotion=promotion_of(run, iteration),
                gate=[played for split in (VALIDATION, CANDIDATE) if (played := metrics[split])],
                stage_s=run.read_json_or_none(f"{run.iteration(iteration)}/times.json") or {},
            )
        )
        # 2. Episodes worth reading, which takes the tables of the split.
        for split in (TEST, TRAIN, ATTACK):
            transcripts.add(iteration, split)
    # 3. The page, with its checksum in its last line.
    page = build_report(
        ReportData(
            run=run.name,
            status=status or status_of(run),
            iterations=iterations,
            parameters=record.parameters,
            transcripts=transcripts.chosen,
            transcripts_left_out=transcripts.left_out,
            baselines=baselines,
            attack=run.read_json_or_none(run.metrics(shown.last, ATTACK)),
            comparisons=_comparisons(run, shown, iterations),
            created_at=record.created_at,
            code_version=record.code_version,
            left_out=in_words(recorded(run) or {}) or None,
        )
    )
    run.store.put(f"{run.root}/report.html", _with_checksum(page.encode()))


def _with_checksum(page: bytes) -> bytes:
    return page + _CHECKSUM + f"{sha256(page).hexdigest()} -->\n".encode()


def report_is_whole(content: bytes) -> bool | None:
    """Return whether a report is what its last line says; None for one without that line."""
    page, mark, _ = content.rpartition(_CHECKSUM)
    return content == _with_checksum(page) if mark else None


def _group_reports(run: RunStore, shown: RunShown, iteration: int) -> dict[str, GroupReport]:
    before = _served(run, shown, iteration)
    swapped = run.read_json_or_none(run.models(iteration))
    reports = {}
    for group, job in _jobs(run, shown, iteration).items():
        after = swapped["groups"][group] if swapped else None
        dataset = run.dataset(iteration, group)
        committed = is_committed(run.store, dataset)
        extra: Mapping[str, Any] = read_manifest(run.store, dataset).extra if committed else {}
        reports[group] = GroupReport(
            episodes=extra.get("episodes"),
            examples=extra.get("examples"),
            job_id=job["id"],
            status=_status(job),
            loss=_losses(job),
            trained_tokens=job["trained_tokens"],
            model_before=before[group],
            model_after=after["model"] if after else None,
            proof=_describe_proof(after["proof"]) if after and after.get("proof") else None,
            note=job["reason"],
            method=extra.get("method"),
            counts=extra.get("counts") or {},
            tokens=extra.get("tokens"),
            training_usd=extra.get("training_usd"),
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
    """In a line: how near what is served is to what was saved, and how far from the next."""
    detail = proof.get("detail") or {}
    parts = ["proved" if proof.get("matches") else "not proved"]
    for key, words in (
        ("distance_mean", "distance"),
        ("tolerance", "tolerance"),
        ("nearest_other_distance_mean", "nearest other"),
    ):
        if isinstance(detail.get(key), float):
            parts.append(f"{words} {detail[key]:.2g}")
    return ", ".join(parts)


def _comparisons(
    run: RunStore, shown: RunShown, iterations: list[IterationReport]
) -> list[tuple[int, dict[str, Any]]]:
    """Each later test against the first: iteration, `paired_difference`, and its p after Holm."""
    tested = [entry.iteration for entry in iterations if entry.test]
    if len(tested) < 2:
        return []
    tables = [read_rollouts(run.store, run.rollouts(i, TEST)).episodes for i in tested]
    seed, split_by = shown.record.seed, split_by_of(shown.record.parameters)
    pairs = [paired_difference(tables[0], later, seed, split_by=split_by) for later in tables[1:]]
    adjusted = iter(holm([pair["p"] for pair in pairs if pair["p"] is not None]))
    return [
        (iteration, {**pair, "p_holm": None if pair["p"] is None else next(adjusted)})
        for iteration, pair in zip(tested[1:], pairs, strict=True)
    ]


def is_complete(run: RunStore, parameters: HyperParameters, iteration: int) -> bool:
    """Return whether nothing is left to do in the iteration."""
    return run.store.exists(run.models(iteration)) and (
        not is_tested(parameters, iteration) or run.store.exists(run.metrics(iteration, TEST))
    )


def finished_run(prepared: Prepared) -> dict[str, Any] | None:
    """The summary of a run that is finished as its settings are now, its report brought up to date.

    None if anything is left to do. Raises CorruptionError for a file that is damaged or missing.
    """
    run, parameters = prepared.run, prepared.parameters
    last = parameters.rl.num_iterations
    if not all(is_complete(run, parameters, i) for i in range(last)):
        return None
    if is_tested(parameters, last) and not _is_tested(prepared, last):
        return None
    if parameters.attack.run is not None and not run.store.exists(run.metrics(last, ATTACK)):
        return None
    if run.open().parameters["rl"]["num_iterations"] != last:
        return None  # the record is brought up to date when the run is opened
    check_run(run)
    write_report(run, "finished")  # whoever finished it may have been killed before that
    return summary(run)


def finished_test(prepared: Prepared) -> dict[str, Any] | None:
    """Return what `nip evaluate` returns, if the newest models were tested before; otherwise None.

    Raises CorruptionError for a file of the run that is damaged or missing.
    """
    run = prepared.run
    newest = run.finished_iterations()
    if not _is_tested(prepared, newest):
        return None
    check_run(run)
    return {
        "run": run.name,
        "iteration": newest,
        "test": shown_metrics(
            run,
            newest,
            TEST,
            run.read_json(run.metrics(newest, TEST)),
            prepared.parameters.to_dict(),
        ),
    }


def _is_tested(prepared: Prepared, iteration: int) -> bool:
    """Say whether the test was held, and written out as a file where the settings ask for it."""
    run, text_rl = prepared.run, prepared.parameters.text_rl
    if not run.store.exists(run.metrics(iteration, TEST)):
        return False
    path = transcripts_path(run, iteration, TEST, text_rl.transcript_format)
    return not text_rl.save_transcripts or run.store.exists(path)
