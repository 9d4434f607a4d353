"""What came of the runs of a sweep: one document, one table, one figure.

collect_results  a sweep -> its results, from what is in the store
write_results    them, every verdict, a page and a figure into the store, under sweeps/NAME
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from nip_core.errors import StoreError
from nip_core.evaluation.baseline_verifiers import shows_checking
from nip_core.evaluation.plots import Mark, arms_svg
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.records.intervals import shown_metrics
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunStore, list_runs, read_document
from nip_core.run_store.store import Store
from nip_core.showing.summary import summary
from nip_core.sweep.arm_baselines import (
    ByMajority,
    asked_again_pairs,
    baseline_kind,
    compare_with_baselines,
)
from nip_core.sweep.asked_again import TOKENS, compare_at_equal_tokens, summarize_asked_again
from nip_core.sweep.attacks import SweptAttack
from nip_core.sweep.cells import encode_parquet, read_verdicts
from nip_core.sweep.counted import Counted, Figure, LastTest, average_runs
from nip_core.sweep.declaration import DAMAGED, Hypothesis, list_departures, read_declaration
from nip_core.sweep.outcomes import judge_hypotheses
from nip_core.sweep.page import AFTER_ATTACK, LOSSES, MAJORITY, METRICS, Results, render_results
from nip_core.sweep.swept_runs import Sweep, SweptRun


def collect_results(
    store: Store, sweep: Sweep, failures: Mapping[str, str] | None = None
) -> Results:
    """The results of a sweep: its runs with their first and last test, and its arms.

    `failures` says by run why it did not end. A run that has not begun has the status "not begun".
    An arm's figures are means over those of its runs that are finished, with the lowest and the
    highest of them; None without one; so are those of its attacks. Rates have a 95 % interval that
    counts seeds and questions as drawn, where there are several of both.
    """
    stored = {*list_runs(store)}
    runs = [_run(store, run, stored, failures or {}) for run in sweep.runs]
    by_name = {run["run"]: run for run in runs}
    tests = dict(_tested(sweep, by_name))
    counted = Counted(store, tests)
    arms = [
        _arm(store, sweep, counted, arm, swept, [by_name[run.name] for run in swept])
        for arm, swept in sweep.arms.items()
    ]
    results: Results = {"sweep": sweep.name, "axes": list(sweep.axes), "arms": arms, "runs": runs}
    tested = [run for run in runs if run["status"] == "finished" and run["tests"]]
    last_tests = {run["run"]: run["tests"][-1] for run in tested}
    alone = [run.name for run in sweep.runs if baseline_kind(run.parameters) == "alone"]
    voted = [n for n in alone if n in last_tests and last_tests[n][MAJORITY] is not None]
    by_majority = ByMajority(store, tests, voted)
    results["baselines"] = compare_with_baselines(counted, by_majority, sweep, last_tests)
    results["baselines"]["any_of"] = [*compare_at_equal_tokens(arms, asked_again_pairs(sweep))]
    declaration = read_declaration(store, sweep.name)
    if declaration is not None:
        results["declared"] = _declared(store, sweep, counted, declaration, runs)
    return results


def _declared(
    store: Store,
    sweep: Sweep,
    counted: Counted,
    declaration: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Compare what was declared with what came, and list what was done otherwise."""
    plan = declaration["plan"]
    hypotheses = [Hypothesis.model_validate(hypothesis) for hypothesis in plan["hypotheses"]]
    return {
        **{key: declaration[key] for key in ("sha256", "declared_at", "code_version")},
        "stopping": plan["stopping"],
        "outcomes": judge_hypotheses(counted, sweep, hypotheses),
        "departures": list_departures(store, sweep, declaration, runs),
    }


def _tested(
    sweep: Sweep, by_name: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, LastTest]]:
    """By run, attacks among them, where its last test is; of those that are finished and tested."""
    for run in sweep.runs:
        result = by_name[run.name]
        if result["status"] == "finished" and result["tests"]:
            yield run.name, LastTest(result["tests"][-1]["iteration"])
        for attack in run.attacks:
            if result["attacks"][attack.label]["status"] == "finished":
                yield attack.name, LastTest(attack.parameters.rl.num_iterations, attack.n)


def _run(
    store: Store, run: SweptRun, stored: set[str], failures: Mapping[str, str]
) -> dict[str, Any]:
    result = {"run": run.name, "values": dict(run.values)}
    result |= _played(store, run.name, stored, failures)
    if run.attacks:
        result["attacks"] = {
            attack.label: {"run": attack.name, **_attacked(store, attack, stored, failures)}
            for attack in run.attacks
        }
    return result


def _attacked(
    store: Store, attack: SweptAttack, stored: set[str], failures: Mapping[str, str]
) -> dict[str, Any]:
    """Return what became of an attack: its status, and figures of its largest n, or last step."""
    result = _played(store, attack.name, stored, failures)
    result.pop("tests", None)
    if result["status"] != "finished":
        return result
    shown = summary(RunStore(store, attack.name))["attack"]
    rows = shown.get("by_n") or shown["by_step"]
    figures = {key: rows[-1][key] for key in (*AFTER_ATTACK, "fooled")}
    # What an earlier version has played knows of no loss to lying.
    losses = {loss: (shown.get(loss) or {}).get("difference") for loss in LOSSES}
    return {**result, **figures, **losses, "caution": shown["caution"]}


def _played(
    store: Store, name: str, stored: set[str], failures: Mapping[str, str]
) -> dict[str, Any]:
    """The status of a run, its tests, and why it did not end."""
    result: dict[str, Any] = {"status": "not begun"}
    if name in failures:
        result["failure"] = failures[name]
    if name not in stored:
        return result
    tree = RunStore(store, name)
    try:
        shown = summary(tree)
    except StoreError as error:
        return {**result, "status": DAMAGED, "failure": str(error)}
    if shown["status"] == "finished":
        result.pop("failure", None)  # somebody else may have finished it
    tests = {
        entry["iteration"]: read_document(
            tree, tree.metrics(entry["iteration"], TEST), SplitMetrics
        )
        for entry in shown["iterations"]
    }
    parameters = tree.open().parameters
    result["status"] = shown["status"]
    result["tests"] = [
        _test(iteration, shown_metrics(tree, iteration, TEST, metrics, parameters))
        for iteration, metrics in tests.items()
        if metrics
    ]
    return result


def _test(iteration: int, test: SplitMetrics) -> dict[str, Any]:
    metrics = test.as_json()
    voted, believed = metrics.get("majority"), metrics.get("believe_the_prover")
    of_prover = {
        "believed_accuracy": believed and believed["accuracy"],
        "without_prover": believed and believed.get("without_prover"),
        "shows_checking": shows_checking(test),
    }
    counts = {key: metrics.get(key) for key in ("episodes", "distinct_problems")}
    figures = {key: metrics.get(key) for key in METRICS if key != MAJORITY}
    return {
        "iteration": iteration,
        **figures,
        MAJORITY: voted and voted["accuracy"],
        "any_of": metrics.get("any_of"),
        **of_prover,
        **counts,
        **_tokens(metrics),
    }


def _tokens(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """The tokens that all agents wrote and read in an episode, in the mean."""
    names = dict(zip(TOKENS, ("completion_tokens", "prompt_tokens"), strict=True))
    return {
        name: metrics[key] / metrics["episodes"]
        if metrics.get(key) is not None and metrics.get("episodes")
        else None
        for name, key in names.items()
    }


def _arm(
    store: Store,
    sweep: Sweep,
    counted: Counted,
    arm: Sequence[str],
    swept: Sequence[SweptRun],
    runs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    axes = [axis for axis in sweep.axes if axis != "seed"]
    finished = [run for run in runs if run["status"] == "finished"]
    tested = [run for run in finished if run["tests"]]
    values: dict[str, Any] = {"values": dict(zip(axes, arm, strict=True))}
    values |= {"runs": len(runs), "finished": len(finished)}
    for metric in METRICS:
        values[metric] = _over_runs([run["tests"][-1][metric] for run in tested])
    of_arm = f"{sweep.name} {' '.join(arm)}"
    _add_intervals(values, counted, [run["run"] for run in tested], of_arm)
    gains = [
        None
        if None in (ends := [run["tests"][at]["accuracy"] for at in (0, -1)])
        else ends[1] - ends[0]
        for run in tested
        if len(run["tests"]) > 1
    ]
    values["gain"] = _over_runs(gains)
    for kind in TOKENS:
        values[kind] = _over_runs([run["tests"][-1][kind] for run in tested])
    values["any_of"] = summarize_asked_again(store, tested, of_arm, _over_runs)
    attacks = {label: _attack(counted, label, swept, runs, of_arm) for label in sweep.attacks}
    return values | ({"attacks": attacks} if attacks else {})


def _attack(
    counted: Counted,
    label: str,
    swept: Sequence[SweptRun],
    runs: Sequence[Mapping[str, Any]],
    of_arm: str,
) -> dict[str, Any]:
    """Sum up what an attack did to the runs of an arm."""
    finished = [
        result
        for run in runs
        if (result := run.get("attacks", {}).get(label)) and result["status"] == "finished"
    ]
    values: dict[str, Any] = {
        "runs": sum(run.name_after(label) is not None for run in swept),
        "finished": len(finished),
    }
    for metric in (*AFTER_ATTACK, *LOSSES):
        values[metric] = _over_runs([result[metric] for result in finished])
    _add_intervals(values, counted, [result["run"] for result in finished], f"{of_arm} {label}")
    return values


def _add_intervals(
    values: dict[str, Any], counted: Counted, runs: Sequence[str], name: str
) -> None:
    """Give the rates of an arm their intervals, over seeds and questions."""
    for figure in get_args(Figure):
        plays = [counts for run in runs if (counts := counted.count(run, figure)) is not None]
        both_ways = average_runs(plays, f"{name} {figure}") if values.get(figure) else None
        if both_ways is not None and both_ways.ci95 is not None:
            low, high = both_ways.ci95
            values[figure]["ci95"] = [max(0.0, low), min(1.0, high)]  # they are rates


def _over_runs(values: Sequence[float | None]) -> dict[str, float] | None:
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    mean = sum(measured) / len(measured)
    return {"mean": mean, "lowest": min(measured), "highest": max(measured)}


def write_results(store: Store, sweep: Sweep, results: Results, out: Store | None = None) -> str:
    """Write results.json, cells.parquet, README.md and arms.svg of the sweep; where they lie.

    That is beside its runs, under sweeps/NAME; with `out` at the top of that store.
    """
    to, root = (store, f"sweeps/{results['sweep']}/") if out is None else (out, "")
    table, left_out = read_verdicts(store, sweep)
    results = {**results, "cells": {"verdicts": table.num_rows, "left_out": left_out}}
    to.put(f"{root}cells.parquet", encode_parquet(table))
    to.put(f"{root}results.json", json.dumps(results, indent=2, sort_keys=False).encode())
    to.put(f"{root}README.md", render_results(results).encode())
    to.put(f"{root}arms.svg", arms_svg(_points(results)).encode())
    local = to.local_path(f"{root}README.md")
    return str(local) if local is not None else f"{to.url}/{root}README.md"


def _points(results: Results) -> list[tuple[str, dict[str, Mark | None]]]:
    return [
        (
            " · ".join(arm["values"].values()) or results["sweep"],
            {name: _mark(arm[name]) for name in ("accuracy", "completeness", "soundness")},
        )
        for arm in results["arms"]
    ]


def _mark(figure: Mapping[str, float] | None) -> Mark | None:
    return None if figure is None else Mark(figure["mean"], figure["lowest"], figure["highest"])
