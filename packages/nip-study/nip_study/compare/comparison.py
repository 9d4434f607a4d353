"""Several runs side by side: one table, one figure, one page."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from pydantic import Field, JsonValue

from nip_base.formats.bounds import parse_json
from nip_core.costs.spent_and_estimated import read_costs
from nip_core.errors import SettingsError, StoreError
from nip_core.evaluation.figures_in_words import DASH, p_value, percent_cell, points_cell
from nip_core.evaluation.split_metrics import Interval95, PairedDifference, SplitMetrics
from nip_core.parameters.stored import complete_settings
from nip_core.run_store.settings_difference import flatten
from nip_study.compare.played import PlayedRun, check_alike, compare_tests, subtract_settings
from nip_study.documents.results_document import FINISHED
from nip_study.parts.arms_figure import Mark, arms_svg
from nip_study.parts.document_parts import Part, adjust
from nip_study.parts.page_tables import markdown_table

RATES = ("accuracy", "completeness", "soundness", "always_fail_rate")
BELIEVED = "believed"
"""The column, where there is one, of the accuracy of believing the prover."""
_SHORT = 60  # characters of a setting in the page


class AgainstFirst(PairedDifference):
    """How much more accurate a run is than the first of the table, paired by problem."""

    p_holm: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """Adjusted for all comparisons of the table; no key where there is no p-value."""


class AmountsSpent(Part):
    """The tokens and dollars of a run."""

    prompt_tokens: int
    completion_tokens: int
    training_tokens: int
    tokens: int
    usd: float | None
    """None where a price is not known."""


class ComparedRun(Part):
    """A run in a comparison, with the figures of its last test."""

    label: str
    """Its name; its place, where another run has the same name."""
    place: str
    status: str = ""
    code_version: str = ""
    iteration: int | None = None
    """Of the last test; None without one."""
    episodes: int | None = None
    gain: float | None = None
    """Of accuracy, since the first test."""
    spent: AmountsSpent | None = None
    accuracy: float | None = None
    accuracy_ci95: Interval95 | None = None
    completeness: float | None = None
    completeness_ci95: Interval95 | None = None
    soundness: float | None = None
    soundness_ci95: Interval95 | None = None
    always_fail_rate: float | None = None
    always_fail_rate_ci95: Interval95 | None = None
    believed_accuracy: float | None = None
    """The accuracy of believing the prover."""
    without_prover: int | None = None
    """Episodes that this leaves out, as no prover spoke in them."""
    against: AgainstFirst | None = None
    """None for the first run, and without a test of both."""

    @property
    def rates(self) -> dict[str, tuple[float | None, Interval95 | None]]:
        """Return the rates of `RATES` with their intervals, by name."""
        return {rate: (getattr(self, rate), getattr(self, f"{rate}_ci95")) for rate in RATES}


class RunComparison(Part):
    """The document ``results.json`` of runs side by side."""

    runs: tuple[ComparedRun, ...]
    settings: Mapping[str, list[JsonValue]] = {}
    """By dotted key, where they differ, the values of all runs."""


def compare_runs(runs: Sequence[PlayedRun]) -> RunComparison:
    """Compare the last tests of the runs: their figures, and how far each is from the first run.

    Raises SettingsError for less than two runs, or the same one twice; DatasetError for runs that
    were tested on different problems.
    """
    _check_several(runs)
    for run in runs[1:]:
        check_alike(runs[0], run)
    against = _compare_with_first(runs)
    rows = [
        _describe_run(label, run, difference)
        for label, run, difference in zip(_labels(runs), runs, against, strict=True)
    ]
    return RunComparison(runs=tuple(rows), settings=_differing_settings(runs))


def _check_several(runs: Sequence[PlayedRun]) -> None:
    places = [run.place for run in runs]
    if len(runs) < 2:
        raise SettingsError("one run can't be compared; name two or more")
    for place in places:
        if places.count(place) > 1:
            raise SettingsError(f"{place} is named {places.count(place)} times; name it once")


def _labels(runs: Sequence[PlayedRun]) -> list[str]:
    """Name each run; by its place, where another has the same name."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else run.place for run in runs]


def _describe_run(label: str, run: PlayedRun, against: AgainstFirst | None) -> ComparedRun:
    """Take the figures of a run in a comparison from its last test."""
    test = run.test(run.tests[-1]) if run.tests else SplitMetrics()
    first_rates = run.test(run.tests[0]) if len(run.tests) > 1 else SplitMetrics()
    first, last = first_rates.accuracy, test.accuracy
    believed = test.believe_the_prover
    costs = read_costs(run.records)
    return ComparedRun(
        label=label,
        place=run.place,
        status=run.status,
        code_version=run.record.code_version,
        iteration=run.tests[-1] if run.tests else None,
        episodes=test.episodes,
        gain=None if first is None or last is None else last - first,
        spent=AmountsSpent.model_validate(
            {name: amounts["spent"] for name, amounts in costs.items()}
        ),
        **{name: getattr(test, name) for rate in RATES for name in (rate, f"{rate}_ci95")},
        believed_accuracy=test.believed_accuracy,
        without_prover=believed and believed.without_prover,
        against=against,
    )


def _compare_with_first(runs: Sequence[PlayedRun]) -> list[AgainstFirst | None]:
    """Compare the last test of each run with the first run's; None for the first, and untested."""
    first, *later = runs
    rows: list[AgainstFirst | None] = [None]
    for run in later:
        if not run.tests or not first.tests:
            rows.append(None)
            continue
        paired = compare_tests((first, first.tests[-1]), (run, run.tests[-1]), ["accuracy"])
        rows.append(AgainstFirst.model_validate(paired["accuracy"].as_json()))
    # All rows are looked at together, so the chance that one of them misleads is theirs together.
    adjusted = zip(rows, adjust([None if row is None else row.p for row in rows]), strict=True)
    return [row and row.model_copy(update={"p_holm": p}) for row, p in adjusted]


def _differing_settings(runs: Sequence[PlayedRun]) -> dict[str, list[JsonValue]]:
    """Return by key the values of all runs, where they are not all the same."""
    keys = {key for later in runs[1:] for key in subtract_settings(runs[0], later)}
    leaves = [flatten(complete_settings(dict(run.record.parameters))) for run in runs]
    return {key: [settings.get(key) for settings in leaves] for key in sorted(keys)}


def comparison_table(results: RunComparison) -> str:
    """Write the runs as a Markdown table."""
    return markdown_table(*heads_and_rows(results))


def heads_and_rows(results: RunComparison) -> tuple[list[str], list[list[str]]]:
    """Write the cells of the table, a row for each run, rates in percent with their intervals."""
    heads = ["run", "iteration"]
    heads += ["always wrong" if rate == "always_fail_rate" else rate for rate in RATES]
    has_believed = any(row.believed_accuracy is not None for row in results.runs)
    heads += [*([BELIEVED] if has_believed else []), "gain", "against the first", "p (Holm)"]
    rows = []
    for row in results.runs:
        status = "" if row.status == FINISHED else f" ({row.status})"
        cells = [row.label + status, DASH if row.iteration is None else str(row.iteration)]
        cells += [percent_cell(value, interval) for value, interval in row.rates.values()]
        cells += [percent_cell(row.believed_accuracy)] if has_believed else []
        cells.append(points_cell(row.gain))
        against = row.against
        cells.append(DASH if against is None else points_cell(against.difference, against.ci95))
        cells.append(p_value(None if against is None else against.p_holm))
        rows.append(cells)
    return heads, rows


def comparison_figure(results: RunComparison) -> str:
    """Draw the runs below each other, each rate a mark with its 95 % interval, as SVG."""
    return arms_svg([(row.label, _marks(row)) for row in results.runs], "runs")


def _marks(row: ComparedRun) -> dict[str, Mark | None]:
    """Return by rate the points of the figure: the value, and the ends of its interval."""
    return {
        rate: None if value is None else Mark(value, *(interval or (value, value)))
        for rate, (value, interval) in row.rates.items()
    }


def render_comparison(results: RunComparison) -> str:
    """Write the whole comparison as one HTML page. It needs no other file."""
    heads, rows = heads_and_rows(results)
    style = resources.files("nip_core.report").joinpath("report.css").read_text("utf-8")
    return _template().render(
        style=Markup(style),  # noqa: S704, which is the report's own
        figure=Markup(comparison_figure(results)),  # noqa: S704, in which names are escaped
        heads=heads,
        rows=[[(row[0], ""), *map(_value_and_interval, row[1:])] for row in rows],
        results=results,
        settings={
            key: [_short(value) for value in values] for key, values in results.settings.items()
        },
    )


def _value_and_interval(cell: str) -> tuple[str, str]:
    value, bracket, interval = cell.partition(" [")
    return value, f"[{interval}" if bracket else ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("nip_study", "."), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("comparison.html.jinja")


def write_comparison(results: RunComparison, directory: Path) -> Path:
    """Write results.json, table.md, figure.svg and index.html; return the page's path.

    Those of an earlier comparison of the same runs are replaced. Raises SettingsError if something
    else is there, and StoreError if it can't be written.
    """
    _check_free(directory, results)
    files = {
        "results.json": json.dumps(results.as_json(), indent=2),
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


def _check_free(directory: Path, results: RunComparison) -> None:
    """Raise SettingsError for a directory whose files are not a comparison of the same runs."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    earlier = _read_comparison(directory)
    if earlier is None:
        raise SettingsError(
            f"{directory}: something else is there, which nothing is written over; name another "
            "directory by --out"
        )
    if {run.place for run in earlier.runs} != {run.place for run in results.runs}:
        raise SettingsError(
            f"{directory}: a comparison of {', '.join(run.label for run in earlier.runs)} is "
            "there; name another directory by --out, or delete that one"
        )


def _read_comparison(directory: Path) -> RunComparison | None:
    """Read the comparison in a directory; None if something else lies there."""
    try:
        text = (directory / "results.json").read_text(encoding="utf-8")
        return RunComparison.model_validate(parse_json(text))
    except (OSError, ValueError):
        # Damaged or a stranger's: neither is this function's to say, and neither is written over.
        return None
