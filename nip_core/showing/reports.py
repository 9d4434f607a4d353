"""Showing a run: its report.

Runs of all versions are shown, as in `nip_core.showing.summary`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nip_core.costs.spent_and_estimated import make_cost_rows, read_costs, read_expected_by
from nip_core.evaluation.baseline_words import left_out_words, remarks
from nip_core.evaluation.split_metrics import Measures, SplitMetrics
from nip_core.evaluation.statistics.differences import holm
from nip_core.records.intervals import find_facets, find_help_on_record, find_rate_alone
from nip_core.records.iterations import IterationRecord, Records
from nip_core.records.left_out import describe_left_out, read_left_out
from nip_core.records.status import find_status
from nip_core.records.untrained_attack import read_section
from nip_core.report.report import (
    Comparison,
    GroupReport,
    IterationReport,
    ReportData,
    build_report,
)
from nip_core.report.report_checksum import add_checksum
from nip_core.rollouts.plan import CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.run_store.run import RunStore
from nip_core.showing.changes import describe_test_changes
from nip_core.showing.transcripts import RunTranscripts


def write_report(run: RunStore, status: str | None = None, records: Records | None = None) -> None:
    """(Re)write the run's report from its committed files; `records` may have read some."""
    records = (records or Records(run)).look_again()
    report = read_report_data(records, status)
    # Episodes worth reading, which takes the tables of some splits.
    transcripts = RunTranscripts(records).chosen()
    page = build_report(
        replace(
            report,
            transcripts=transcripts.shown,
            transcripts_left_out=transcripts.left_out,
            passed_over=transcripts.passed_over,
            changes=describe_test_changes(records),
        )
    )
    # The page with its checksum in its last line.
    run.store.put(f"{run.root}/report.html", add_checksum(page.encode()))


def read_report_data(records: Records, status: str | None = None) -> ReportData:
    """Read the data of a run's report but for the transcripts, from its small documents alone."""
    run, record = records.run, records.shown.record
    test_iterations = [entry.iteration for entry in records.all() if entry.metrics(TEST)]
    for iteration in {*test_iterations[:1], *test_iterations[-1:]}:
        records.whole(iteration)  # its test is shown in detail
    parameters = record.parameters
    iterations = [_iteration_report(entry) for entry in records.all()]
    tests = [entry.test for entry in iterations if entry.test]
    return ReportData(
        run=run.name,
        status=status or find_status(run, records),
        iterations=iterations,
        parameters=parameters,
        baselines=_baselines(tests),
        remarks=remarks(tests[-1], find_rate_alone(parameters), find_help_on_record(parameters))
        if tests
        else (),
        sections=read_section(records),
        comparisons=_comparisons(records),
        created_at=record.created_at,
        code_version=record.code_version,
        left_out=describe_left_out(read_left_out(run) or {}) or None,
        costs=make_cost_rows(read_costs(records)),
        expected_by=read_expected_by(records),
        facets=find_facets(parameters),
    )


def _baselines(tests: Sequence[SplitMetrics]) -> dict[str, Measures]:
    """By label of a row in the report, the metrics of baselines without a verifier."""
    rows: dict[str, Measures] = {}
    believed = [metrics for test in tests if (metrics := test.believe_the_prover) is not None]
    for time, index in (("last iteration", -1), ("untrained", 0)) if believed else ():
        words = left_out_words(believed[index])
        rows[f"believe the prover ({time}{'; ' if words else ''}{words})"] = believed[index]
    voted = [test.majority for test in tests if test.majority is not None]
    if voted:
        rows["majority of its plays (last iteration)"] = voted[-1]
    return rows


def _iteration_report(record: IterationRecord) -> IterationReport:
    """The part of an iteration in the report, made once for as long as its record is the same."""
    if "report" not in record.derived:
        record.derived["report"] = IterationReport(
            iteration=record.iteration,
            test=record.metrics(TEST),
            train=record.metrics(TRAIN),
            groups=_group_reports(record),
            promotion=record.promotion,
            gate=[gate for split in (VALIDATION, CANDIDATE) if (gate := record.metrics(split))],
            stage_s=record.stage_s,
        )
    report: IterationReport = record.derived["report"]
    return report


def _group_reports(record: IterationRecord) -> dict[str, GroupReport]:
    earlier_models, swapped, datasets = record.served, record.swap, record.datasets
    reports = {}
    for group, job in record.jobs.items():
        next_model = swapped.groups[group] if swapped else None
        dataset = datasets[group]
        reports[group] = GroupReport(
            episodes=dataset.episodes,
            examples=dataset.examples,
            job_id=job.id,
            status=str(job.state),
            loss=job.loss,
            trained_tokens=job.trained_tokens,
            model_before=earlier_models[group],
            model_after=next_model.model if next_model else None,
            proof=_describe_proof(next_model.proof) if next_model and next_model.proof else None,
            note=job.reason,
            method=dataset.method,
            counts=dataset.counts or {},
            tokens=dataset.tokens,
            training_usd=dataset.training_usd,
        )
    return reports


def _describe_proof(proof: Mapping[str, Any]) -> str:
    """In a line: how near the served weights are to the saved ones, and how far from the next."""
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


def _comparisons(records: Records) -> list[Comparison]:
    """Compare each later test with the first."""
    pairs = [(record.iteration, record.change) for record in records.all()]
    changes = [(iteration, pair) for iteration, pair in pairs if pair is not None]
    adjusted = iter(holm([pair.p for _, pair in changes if pair.p is not None]))
    return [
        Comparison(iteration, pair, None if pair.p is None else next(adjusted))
        for iteration, pair in changes
    ]
