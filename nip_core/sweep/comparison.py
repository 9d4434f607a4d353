"""Several runs side by side: one table, one figure, one page.

compare_runs      the results of the runs as one document
write_comparison  that, a table, a figure and a page into a directory
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from nip_core.costs.spent_and_estimated import costs_of
from nip_core.errors import SettingsError, StoreError
from nip_core.evaluation.figures_in_words import p_value
from nip_core.evaluation.plots import Mark, arms_svg
from nip_core.evaluation.statistics.differences import holm
from nip_core.parameters.stored import with_defaults
from nip_core.run_store.settings_difference import flatten, settings_difference
from nip_core.sweep.page import MAJORITY, METRICS, Results, markdown_table
from nip_core.sweep.played import PlayedRun, check_alike, compare_tests
from nip_lm_server.client import parse_json

RATES = tuple(metric for metric in METRICS if metric != MAJORITY)
BELIEVED = "believed"
"""The column, where there is one, of what believing the prover would give."""
_OWN = ("run_name", "run_store")
_SHORT = 60  # characters of a setting in the page


def compare_runs(runs: Sequence[PlayedRun]) -> Results:
    """The results of the runs, to be encoded as JSON.

    ``runs`` has for each its ``label``, ``status``, the ``iteration`` of its last test, by rate the
    value and its 95 % interval, what believing the prover would give (``believed_accuracy``, in the
    test without ``without_prover`` episodes in which none spoke), the ``gain`` of accuracy since
    its first test, and what it has spent; and ``against``, how much more accurate it is than the
    first of them, paired by problem, with ``p_holm`` adjusted for all of these comparisons.
    ``settings`` has by dotted key, where they differ, the values of all.

    Raises SettingsError for less than two runs, or the same one twice; DatasetError for runs that
    were tested on different problems.
    """
    _check_several(runs)
    for run in runs[1:]:
        check_alike(runs[0], run)
    labels = _labels(runs)
    rows = [_row(label, run) for label, run in zip(labels, runs, strict=True)]
    _add_differences(rows, runs)
    return {"runs": rows, "settings": _settings(runs)}


def _check_several(runs: Sequence[PlayedRun]) -> None:
    places = [run.place for run in runs]
    if len(runs) < 2:
        raise SettingsError("one run can't be compared; name two or more")
    for place in places:
        if places.count(place) > 1:
            raise SettingsError(f"{place} is named {places.count(place)} times; name it once")


def _labels(runs: Sequence[PlayedRun]) -> list[str]:
    """Names, with their places where they alone don't tell runs apart."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else run.place for run in runs]


def _row(label: str, run: PlayedRun) -> dict[str, Any]:
    row: dict[str, Any] = {
        "label": label,
        "place": run.place,
        "status": run.status,
        "code_version": run.record.code_version,
        "iteration": run.tests[-1] if run.tests else None,
        "episodes": None,
        "gain": None,
        "spent": {name: costs["spent"] for name, costs in costs_of(run.records).items()},
    }
    tested = run.test(run.tests[-1]) if run.tests else None
    test = tested.as_json() if tested else {}
    for rate in RATES:
        row[rate] = test.get(rate)
        row[f"{rate}_ci95"] = test.get(f"{rate}_ci95")
    believed = test.get("believe_the_prover") or {}
    row["believed_accuracy"] = believed.get("accuracy")
    row["without_prover"] = believed.get("without_prover")
    if run.tests:
        row["episodes"] = test.get("episodes")
        before = run.test(run.tests[0]).accuracy
        if len(run.tests) > 1 and None not in (before, row["accuracy"]):
            row["gain"] = row["accuracy"] - before
    return row


def _add_differences(rows: Sequence[dict[str, Any]], runs: Sequence[PlayedRun]) -> None:
    first = runs[0]
    for row, run in zip(rows, runs, strict=True):
        row["against"] = None
        if run is not first and run.tests and first.tests:
            row["against"] = compare_tests(
                (first, first.tests[-1]), (run, run.tests[-1]), ["accuracy"]
            )["accuracy"]
    known = [row["against"] for row in rows if row["against"] and row["against"]["p"] is not None]
    for against, p in zip(known, holm([against["p"] for against in known]), strict=True):
        against["p_holm"] = p


def _settings(runs: Sequence[PlayedRun]) -> dict[str, list[Any]]:
    """By key the values of all runs, where they are not all the same."""
    given = [run.record.parameters for run in runs]
    keys = {key for other in given[1:] for key in settings_difference(given[0], other)}
    leaves = [flatten(with_defaults(dict(settings))) for settings in given]
    return {
        key: [of.get(key) for of in leaves]
        for key in sorted(keys)
        if key not in _OWN and not key.endswith("_type")
    }


def comparison_table(results: Results) -> str:
    """The runs as a Markdown table."""
    return markdown_table(*heads_and_rows(results))


def heads_and_rows(results: Results) -> tuple[list[str], list[list[str]]]:
    """The table of the runs as text: one a row, rates in percent with their intervals."""
    heads = ["run", "iteration"]
    heads += ["always wrong" if rate == "always_fail_rate" else rate for rate in RATES]
    has_believed = any(row["believed_accuracy"] is not None for row in results["runs"])
    heads += [*([BELIEVED] if has_believed else []), "gain", "against the first", "p (Holm)"]
    rows = []
    for row in results["runs"]:
        status = "" if row["status"] == "finished" else f" ({row['status']})"
        cells = [row["label"] + status, _or_dash(row["iteration"])]
        cells += [_rate(row[rate], row[f"{rate}_ci95"]) for rate in RATES]
        cells += [_rate(row["believed_accuracy"], None)] if has_believed else []
        cells.append(_points(row["gain"]))
        against = row["against"] or {"difference": None, "ci95": None}
        cells.append(_points(against["difference"], against["ci95"]))
        cells.append(p_value(against.get("p_holm")))
        rows.append(cells)
    return heads, rows


def _or_dash(value: Any) -> str:
    return "–" if value is None else str(value)


def _rate(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.1f}" + (
        f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    )


def _points(value: float | None, interval: Sequence[float] | None = None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.1f}" + (
        f" [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]" if interval else ""
    )


def comparison_figure(results: Results) -> str:
    """The runs below each other, each rate a mark with its 95 % interval, as an SVG element."""
    return arms_svg([(row["label"], _marks(row)) for row in results["runs"]], "runs")


def _marks(row: Mapping[str, Any]) -> dict[str, Mark | None]:
    marks: dict[str, Mark | None] = {}
    for rate in RATES:
        value = row[rate]
        low, high = row[f"{rate}_ci95"] or (value, value)
        marks[rate] = None if value is None else Mark(value, low, high)
    return marks


def render_comparison(results: Results) -> str:
    """All of it as one HTML page that needs nothing but itself."""
    heads, rows = heads_and_rows(results)
    style = resources.files("nip_core.evaluation").joinpath("report.css").read_text("utf-8")
    return _template().render(
        style=Markup(style),  # noqa: S704, which is the report's own
        figure=Markup(comparison_figure(results)),  # noqa: S704, in which names are escaped
        heads=heads,
        rows=[[(row[0], ""), *map(_value_and_interval, row[1:])] for row in rows],
        results=results,
        settings={
            key: [_short(value) for value in values] for key, values in results["settings"].items()
        },
    )


def _value_and_interval(cell: str) -> tuple[str, str]:
    value, bracket, interval = cell.partition(" [")
    return value, f"[{interval}" if bracket else ""


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= _SHORT else f"{shown[:_SHORT]}…"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("nip_core.sweep", "."), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("comparison.html.jinja")


def write_comparison(results: Results, directory: Path) -> Path:
    """Write results.json, table.md, figure.svg and index.html; returns the page's path.

    Those of an earlier comparison of the same runs are replaced. Raises SettingsError if something
    else is there, and StoreError if it can't be written.
    """
    _check_free(directory, results)
    files = {
        "results.json": json.dumps(results, indent=2),
        "table.md": comparison_table(results),
        "figure.svg": comparison_figure(results),
        "index.html": render_comparison(results),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{directory}: can't be written to: {error.strerror}") from error
    return directory / "index.html"


def _check_free(directory: Path, results: Results) -> None:
    """Raise SettingsError for a directory whose files are not a comparison of the same runs."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    before = None
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        content = parse_json((directory / "results.json").read_text(encoding="utf-8"))
        before = [(run["label"], run["place"]) for run in content["runs"]]
    if before is None:
        raise SettingsError(
            f"{directory}: something else is there, which nothing is written over; name another "
            "directory by --out"
        )
    if {place for _, place in before} != {run["place"] for run in results["runs"]}:
        raise SettingsError(
            f"{directory}: a comparison of {', '.join(label for label, _ in before)} is there; "
            "name another directory by --out, or delete that one"
        )
