"""What came of the runs of a sweep: one document, one table, one figure.

collect        a sweep -> its results, from what is in the store
write          them, a page and a figure into the store, under sweeps/NAME
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from nip_core.errors import StoreError
from nip_core.evaluation.plots import arms_svg
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store
from nip_core.stages.showing import summary
from nip_core.sweep.counted import Counted, Figure, over_runs
from nip_core.sweep.declaration import DAMAGED, Hypothesis, departures, read_declaration
from nip_core.sweep.outcomes import outcomes
from nip_core.sweep.page import MAJORITY, METRICS, Results, page
from nip_core.sweep.plan import Sweep, SweptRun


def collect(store: Store, sweep: Sweep, failures: Mapping[str, str] | None = None) -> Results:
    """The results of a sweep: its runs with their first and last test, and its arms.

    `failures` says by run why it did not end. A run that has not begun has the status "not begun".
    An arm's figures are means over those of its runs that are finished, with the lowest and the
    highest of them; None without one. Rates have a 95 % interval that counts seeds and questions as
    drawn, where there are several of both.
    """
    there = {*list_runs(store)}
    runs = [_run(store, run, there, (failures or {}).get(run.name)) for run in sweep.runs]
    by_name = {run["run"]: run for run in runs}
    tests = {
        run["run"]: run["tests"][-1]["iteration"]
        for run in runs
        if run["status"] == "finished" and run["tests"]
    }
    counted = Counted(store, tests)
    arms = [
        _arm(sweep, counted, arm, [by_name[run.name] for run in swept])
        for arm, swept in sweep.arms.items()
    ]
    results: Results = {"sweep": sweep.name, "axes": list(sweep.axes), "arms": arms, "runs": runs}
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
        "outcomes": outcomes(counted, sweep, hypotheses),
        "departures": departures(store, sweep, declaration, runs),
    }


def _run(store: Store, run: SweptRun, there: set[str], failure: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {"run": run.name, "values": dict(run.values), "status": "not begun"}
    if failure is not None:
        result["failure"] = failure
    if run.name not in there:
        return result
    tree = RunStore(store, run.name)
    try:
        shown = summary(tree)
    except StoreError as error:
        return {**result, "status": DAMAGED, "failure": str(error)}
    if shown["status"] == "finished":
        result.pop("failure", None)  # somebody else may have finished it
    tests = {
        entry["iteration"]: tree.read_json_or_none(tree.metrics(entry["iteration"], "test"))
        for entry in shown["iterations"]
    }
    tested = {i: test for i, test in tests.items() if test}
    result["status"] = shown["status"]
    result["tests"] = [_test(iteration, metrics) for iteration, metrics in tested.items()]
    return result


def _test(iteration: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    voted = metrics.get("majority")
    counts = {key: metrics.get(key) for key in ("episodes", "distinct_problems")}
    figures = {key: metrics.get(key) for key in METRICS if key != MAJORITY}
    return {"iteration": iteration, **figures, MAJORITY: voted and voted["accuracy"], **counts}


def _arm(
    sweep: Sweep, counted: Counted, arm: Sequence[str], runs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    axes = [axis for axis in sweep.axes if axis != "seed"]
    finished = [run for run in runs if run["status"] == "finished"]
    tested = [run for run in finished if run["tests"]]
    values: dict[str, Any] = {"values": dict(zip(axes, arm, strict=True))}
    values |= {"runs": len(runs), "finished": len(finished)}
    for metric in METRICS:
        values[metric] = _over_runs([run["tests"][-1][metric] for run in tested])
    for figure in get_args(Figure):
        plays = [c for run in tested if (c := counted.of(run["run"], figure)) is not None]
        both_ways = over_runs(plays, f"{sweep.name} {' '.join(arm)} {figure}")
        if values[figure] is not None and both_ways is not None and both_ways.ci95 is not None:
            low, high = both_ways.ci95
            values[figure]["ci95"] = [max(0.0, low), min(1.0, high)]  # they are rates
    gains = [
        None
        if None in (ends := [run["tests"][at]["accuracy"] for at in (0, -1)])
        else ends[1] - ends[0]
        for run in tested
        if len(run["tests"]) > 1
    ]
    return {**values, "gain": _over_runs(gains)}


def _over_runs(values: Sequence[float | None]) -> dict[str, float] | None:
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    mean = sum(measured) / len(measured)
    return {"mean": mean, "lowest": min(measured), "highest": max(measured)}


def write(store: Store, results: Results) -> str:
    """Write results.json, README.md and arms.svg of the sweep; where they lie."""
    root = f"sweeps/{results['sweep']}"
    store.put(f"{root}/results.json", json.dumps(results, indent=2, sort_keys=False).encode())
    store.put(f"{root}/README.md", page(results).encode())
    store.put(f"{root}/arms.svg", arms_svg(_points(results)).encode())
    local = store.local_path(f"{root}/README.md")
    return str(local) if local is not None else f"{store.url}/{root}/README.md"


def _points(results: Results) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        (" · ".join(arm["values"].values()) or results["sweep"], arm) for arm in results["arms"]
    ]
