"""The commands `nip diff` and `nip compare`: two runs, and several, against each other."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from nip_cli.printing.console import make_console
from nip_cli.printing.options import AsJson, complete_run
from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say
from nip_core.errors import DatasetError, SettingsError
from nip_core.evaluation.figures_in_words import plain_percent

if TYPE_CHECKING:
    from nip_study.compare.comparison import RunComparison
    from nip_study.compare.diff import GroupModels, PairedTest, RunDifferences
    from nip_study.compare.scored_rows import Columns

Store = Annotated[
    str, typer.Option(help="Where runs are kept that are named without a path or an address.")
]


_BESIDE = ("iteration", "gain", "against the first", "p (Holm)")


def _run(metavar: str, words: str) -> Any:
    return typer.Argument(metavar=metavar, help=words, autocompletion=complete_run)


def diff(
    a: Annotated[str, _run("A", "A run: its name, or STORE/NAME.")],
    b: Annotated[str, _run("B", "Another run, of this store or another.")],
    run_store: Store = "runs",
    as_json: AsJson = False,
) -> None:
    """Show how two runs differ: settings, code, data, models, and results paired by problem."""
    from nip_study.compare.diff import find_differences
    from nip_study.compare.played import find_played_run

    differing = find_differences(find_played_run(a, run_store), find_played_run(b, run_store))
    if as_json:
        print_json(asdict(differing))
    else:
        _show_difference(differing)
    if differing.not_compared is not None:
        sys.stdout.flush()
        raise DatasetError(f"results not compared: {differing.not_compared}")


def compare(
    names: Annotated[
        list[str],
        _run("RUN...", "Names, or STORE/NAME; or files of scores: .eval, .json, .jsonl."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Runs: directory for the page and its parts; default: comparison."),
    ] = None,
    run_store: Store = "runs",
    as_json: AsJson = False,
    question: Annotated[
        str,
        typer.Option(
            "--id", help=".jsonl: the key that names the question; rows are paired by it."
        ),
    ] = "id",
    score: Annotated[
        str | None,
        typer.Option(help="Files: the key of the score (default: score), or the scorer of a log."),
    ] = None,
    arm: Annotated[
        str | None,
        typer.Option(
            help=".jsonl: the key that names the arm, such as model; default: a file is one."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Files: the key (of a log: in the metadata) that alike questions share."),
    ] = None,
    missing_score: Annotated[
        float | None,
        typer.Option(
            "--missing", help="Files: the score of answers that have none; without it, an error."
        ),
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="Files: compare the questions that all arms have.")
    ] = False,
    difference: Annotated[
        float | None,
        typer.Option(help="Files: how many questions would show it? Default: the one seen."),
    ] = None,
) -> None:
    """Put runs side by side, or scores of other programs: each against the first, paired.

    Of runs: one table, one figure, one page, written to OUT; an earlier comparison of the same runs
    is replaced, and nothing else.

    Of files: one table. A file is a log of Inspect, or has one JSON object a line, such as
    {"id": "q1", "score": 1}.
    """
    from nip_study.compare.scored_arms import are_files
    from nip_study.compare.scored_rows import Columns

    if are_files(names):
        if out is not None:
            raise SettingsError("--out is for runs: of files there is one table, and --json")
        columns = Columns(question or "id", score, arm, cluster, missing_score)
        _compare_scores(names, columns, common, difference, as_json)
        return
    options = {"--id": question != "id", "--score": score, "--arm": arm, "--cluster": cluster}
    options |= {"--missing": missing_score is not None, "--common": common}
    options |= {"--difference": difference is not None}
    if of_files := [name for name, value in options.items() if value]:
        raise SettingsError(
            f"{', '.join(of_files)}: for files of scores, and these are runs; leave it"
        )
    from nip_study.compare.comparison import compare_runs, write_comparison
    from nip_study.compare.played import find_played_run

    place = out or Path("comparison")
    results = compare_runs([find_played_run(name, run_store) for name in names])
    if as_json:
        print_json({**results.as_json(), "page": str(write_comparison(results, place))})
        return
    _show_comparison(results)
    sys.stdout.flush()
    say(f"page: {write_comparison(results, place)}")


def _compare_scores(
    names: Sequence[str],
    columns: "Columns",
    only_common: bool,
    difference: float | None,
    as_json: bool,
) -> None:
    """Compare the scores in files, and print the table."""
    from nip_study.compare.scored_arms import compare_files, comparison_rows

    paths = [Path(name) for name in names]
    results = compare_files(paths, columns, only_common=only_common, difference=difference)
    if as_json:
        print_json(results.as_json())
        return
    heads, rows = comparison_rows(results)
    _print_tables(heads, rows, (heads[1:3], heads[3:]))
    clusters = results.arms[0].clusters
    by_cluster = "" if clusters == results.arms[0].questions else f", in {clusters:,} clusters"
    say(f"{'percent, and points of a difference,' if results.are_rates else 'scores'} with 95 %")
    say(f"intervals; paired by question{by_cluster}; p adjusted for all rows (Holm)")
    say("detectable: the smallest true difference that these questions show in 80 % of the cases")
    target = "the difference seen" if difference is None else f"a difference of {difference:g}"
    say(f"needed: so many questions, alike to these, show {target} in 80 % of the cases")
    if results.left_out:
        say(f"left out: {results.left_out:,} questions that not all arms have")


def _show_difference(differing: "RunDifferences") -> None:
    from nip_study.compare.diff import find_lone_agents

    width = _width()
    console = make_console(width=width)
    for letter, run in zip("ab", differing.runs, strict=True):
        say(f"{letter}  {run.run}, {run.status} ({run.place})")
    say(f"\nsettings: {'' if differing.settings else 'the same'}".rstrip())
    lone = find_lone_agents(differing.settings)
    for name, lone_rates in lone.items():
        say(f"  agents.{name}: only {lone_rates.run} has it, {lone_rates.model or 'at random'}")
    for key, values in differing.settings.items():
        if not any(key.startswith(f"agents.{name}.") for name in lone):
            _show_pair(key, [_text(value) for value in values], width)
    first, second = differing.code
    say(f"code: {first}" if first == second else f"code: a {first}, b {second}")
    names = ", ".join(differing.data)
    say(f"data: {f'not the same: {names}' if names else 'the same'}")
    for group, models in differing.models.items():
        only = _find_only(models)
        if only is not None:
            say(f"models: {group}: only {only} has such a group")
            continue
        for moment, pair in (("first", models.first), ("last", models.last)):
            same = {True: "the same", False: "not the same", None: "not known to be the same"}
            say(f"models: {group}, {moment}: {same[pair.same]}")
            for letter, model in (("a", pair.a), ("b", pair.b)):
                if model is not None and pair.same is not True:
                    digest = f" ({model.digest[:12]})" if model.digest else ""
                    say(f"  {letter}  {model.model}{digest}")
    if differing.results:
        console.print(_results_table(differing.results))
        say("b less a in points, paired by problem; p below 0.05 where the interval is without 0")


def _find_only(models: "GroupModels") -> str | None:
    """Say which run alone has the group; None where both have."""
    pairs = (models.first, models.last)
    if all(pair.b is None for pair in pairs):
        return "a"
    return "b" if all(pair.a is None for pair in pairs) else None


def _results_table(results: Sequence["PairedTest"]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("test", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("a", "b", "b - a", "95 % interval", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in results:
        place = f"{entry.test} ({entry.iterations[0]}, {entry.iterations[1]})"
        for rate, values in entry.rates.items():
            interval, gap, p = values.ci95, values.difference, values.p
            table.add_row(
                place,
                rate,
                plain_percent(values.a),
                plain_percent(values.b),
                "-" if gap is None else f"{100 * gap:+.1f}",
                f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}" if interval else "-",
                "-" if p is None else ("< 0.0001" if p < 0.0001 else f"{p:.2g}"),
            )
            place = ""
    return table


def _show_comparison(results: "RunComparison") -> None:
    """Two tables, as both in one would not fit on 80 columns."""
    from nip_study.compare.comparison import BELIEVED, heads_and_rows

    heads, rows = heads_and_rows(results)
    neighbours = (*((BELIEVED,) if BELIEVED in heads else ()), *_BESIDE)
    _print_tables(heads, rows, (("accuracy", "completeness", "soundness"), neighbours))
    say("percent of the last test, and points of accuracy, with 95 % intervals;")
    say("against the first run, paired by problem; p adjusted for all rows (Holm)")


def _print_tables(
    heads: Sequence[str], rows: Sequence[Sequence[str]], parts: Sequence[Sequence[str]]
) -> None:
    """Print the columns of each part as a table, each behind the first column of all."""
    console = make_console(width=_width())
    for part in parts:
        indices = [heads.index(name) for name in part]
        table = Table(box=SIMPLE_HEAD, padding=0)
        table.add_column(heads[0], overflow="fold")
        for i in indices:
            table.add_column(heads[i], justify="right", no_wrap=True)
        for row in rows:
            table.add_row(row[0], *(row[i] for i in indices))
        console.print(table)


def _width() -> int:
    return max(shutil.get_terminal_size((80, 24)).columns, 80)


def _show_pair(key: str, texts: list[str], width: int) -> None:
    """A setting with both values, in a line where there is room."""
    line = f"  {key}: {texts[0]} -> {texts[1]}"
    if len(line) <= width:
        say(line)
        return
    say(f"  {key}:")
    for letter, text in zip("ab", texts, strict=True):
        room = width - 7
        say(f"    {letter}  {text if len(text) <= room else text[: room - 1] + '…'}")


def _text(value: Any) -> str:
    from nip_core.run_store.settings_difference import ABSENT

    return ABSENT if value == ABSENT else json.dumps(value, ensure_ascii=False)
