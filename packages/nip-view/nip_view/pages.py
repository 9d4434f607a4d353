"""The contents of each page: values for the templates.

runs_page, run_page, matrix_page, episodes_page, episode_page, jobs_page, compare_page, pair_page

Each takes a run and the query of its address, and gives the values of the template of its name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import NipError
from nip_core.evaluation.episode_transcripts import DECISION_WORDS, Message
from nip_core.evaluation.figures_in_words import true_minus
from nip_core.jobs.job import JobRecord
from nip_core.report.report import GroupReport, IterationReport
from nip_core.rollouts.plan import EVERY_SPLIT
from nip_core.showing.episodes.episode_filters import (
    CHOICES,
    SORTS,
    filter_rows,
    find_rows,
    list_models,
    sort_rows,
)
from nip_core.showing.episodes.episode_index import RIGHT, IndexedEpisode
from nip_view.downloads import write_line, write_store
from nip_view.episode_list import find_in_turns, list_episodes
from nip_view.episode_page import EpisodePage, UsedExample, read_episode, read_examples
from nip_view.noting import JOINED
from nip_view.parts.matrix import (
    MATRIX_SORTS,
    MOST_COLUMNS,
    PairedEpisode,
    count_matrix,
)
from nip_view.parts.queries import PER_PAGE, Query, QueryError, read_number
from nip_view.parts.run_index import Episodes, read_episodes
from nip_view.runs import Overview, ShownRun, ShownRuns
from nip_view.timeline import lay_out_timeline

Values = dict[str, Any]
SPLITS = EVERY_SPLIT
_MOST_CHOICES = 200  # entries of a menu


class NotThereError(LookupError):
    """An address names something that is not there; the message names it."""


def list_splits(table: pa.Table) -> list[str]:
    """List the splits in the index, tests first."""
    splits = pc.unique(table["split"]).to_pylist()
    return sorted(splits, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS))


def list_iterations(table: pa.Table) -> list[int]:
    """List the iterations in the index."""
    return sorted(pc.unique(table["iteration"]).to_pylist())


def find_asked_rows(run: ShownRun, episodes: Episodes, query: Query) -> Any:
    """Find the rows of a query, in its order. Raises CorruptionError where texts can't be read."""
    filters = query.to_filters()
    rows = filter_rows(episodes.table, filters, run.notes.find_keys(filters))
    if filters.asks_for_calls:
        rows = run.search.find(run.index.calls, episodes, rows, query)
    return sort_rows(episodes.table, rows, query.sort)


@dataclass(frozen=True)
class Paging:
    """Which part of a list a page shows."""

    total: int
    pages: int
    page: int
    """Counted from 1."""
    first: int
    """The first entry shown, counted from 0."""
    last: int
    """The entry behind the last one."""


def paginate(total: int, page: int, per_page: int = PER_PAGE) -> Paging:
    """Say which of `total` entries a page shows; a page behind the last is the last."""
    pages = max(1, -(-total // per_page))
    page = min(page, pages)
    first = (page - 1) * per_page
    return Paging(total, pages, page, first, min(first + per_page, total))


def list_choices(run: ShownRun, episodes: Episodes) -> Values:
    """List the values of each filter, for its menu."""
    table = episodes.table
    wrong, right = run.words
    rounds = pc.max(table["rounds"]).as_py() or 0

    def values(name: str) -> list[tuple[str, str]]:
        values = [value for value in pc.unique(table[name]).to_pylist() if value is not None]
        more = [("none", "none")] if table[name].null_count else []
        return [*((str(v), str(v)) for v in sorted(values)[:_MOST_CHOICES]), *more]

    return {
        "iteration": [(str(i), str(i)) for i in list_iterations(table)][-_MOST_CHOICES:],
        "split": [(name, name) for name in list_splits(table)],
        "difficulty": values("difficulty"),
        "mutation": values("mutation"),
        "model": [(name, name) for name in list_models(table)][:_MOST_CHOICES],
        "agent": [(name, name) for name in episodes.agents],
        "round": [(str(k), str(k)) for k in range(min(rounds, _MOST_CHOICES))],
        **{name: [*choices.items()] for name, choices in CHOICES.items()},
        "label": [("1", right), ("0", wrong)],
    }


@dataclass(frozen=True)
class RunRow:
    """A run in the list of all."""

    run: ShownRun
    overview: Overview
    last: IterationReport | None
    """The last iteration that was tested."""
    curve: list[tuple[int, float]]
    """Accuracies by iteration."""
    place: str


def runs_page(runs: ShownRuns) -> Values:
    """Show all runs, the newest first."""
    pairs = [(run, run.overview()) for run in runs.all()]
    pairs.sort(
        key=lambda pair: str(pair[1].report.created_at if pair[1].report else ""), reverse=True
    )
    rows = []
    for run, overview in pairs:
        tested_entries = overview.values.get("tested", [])
        last = tested_entries[-1] if tested_entries else None
        accuracies = [(e.iteration, e.test.accuracy) for e in tested_entries]
        curve = [(i, value) for i, value in accuracies if value is not None]
        rows.append(RunRow(run, overview, last, curve, run.tree.store.url))
    return {"rows": rows}


def matrix_page(
    run: ShownRun, query_parameters: Mapping[str, str], pairs: list[tuple[str, str]]
) -> Values:
    """Show problems by iterations."""
    episodes = run.episodes()
    query = Query.parse(pairs, ("sort", "until"))
    if query.iteration or query.asks_for_calls:
        raise QueryError("the matrix shows all iterations; look for texts among the episodes")
    sort = query_parameters.get("sort") or "failures"
    if sort not in MATRIX_SORTS:
        raise QueryError(f"sort={sort}: use one of {', '.join(MATRIX_SORTS)}")
    splits = list_splits(episodes.table)
    split = query.split or (splits[0] if splits else "")
    # Of an iteration that shows one verdict, the rows are those of problems that have it there.
    plain = Query.parse([(n, v) for n, v in query.filters.items() if n != "split"])
    filters = replace(plain.to_filters(), split=split or None, order="played")
    rows = find_rows(episodes.table, filters, run.notes.find_keys(filters))
    table = episodes.table.take(pa.array(rows))
    every = list_iterations(table)
    until = read_number(query_parameters.get("until"), every[-1] if every else 0)
    columns = [i for i in every if i <= until][-MOST_COLUMNS:]
    count = pc.count_distinct(table["problem"]).as_py() if table.num_rows else 0
    paged = paginate(count, query.page)
    matrix = count_matrix(table, columns, paged.first, PER_PAGE, sort) if columns else None
    earlier = [i for i in every if columns and i < columns[0]]
    later = [i for i in every if columns and i > columns[-1]]
    kept_parameters = {**query.filters, **({"sort": sort} if sort != "failures" else {})}

    def address(**changes: Any) -> str:
        parameters = {**kept_parameters, **({"until": until} if later else {}), **changes}
        parameters = {name: value for name, value in parameters.items() if value not in ("", None)}
        return f"?{urlencode(parameters)}" if parameters else ""

    return {
        "query": query,
        "split": split,
        "sort": sort,
        "sorts": MATRIX_SORTS,
        "menus": list_choices(run, episodes),
        "matrix": matrix,
        "paging": paged,
        "address": address,
        "earlier": earlier[-1] if earlier else None,
        "later": later[min(MOST_COLUMNS, len(later)) - 1] if later else None,
        "missing": episodes.find_damage(filters.iteration, filters.split),
        "episodes": episodes,
    }


def episodes_page(run: ShownRun, pairs: list[tuple[str, str]]) -> Values:
    """Show the episodes of a query."""
    episodes, query = run.episodes(), Query.parse(pairs, (JOINED,))
    rows = find_asked_rows(run, episodes, query)
    paged = paginate(len(rows), query.page)
    page_rows = rows[paged.first : paged.last]
    verdicts = _count_verdicts(episodes.table, rows)
    filters = query.to_filters()
    return {
        "query": query,
        "episodes": episodes,
        "menus": list_choices(run, episodes),
        "sorts": SORTS,
        "rows": list_episodes(run.index.calls, episodes, page_rows, query, run.is_prover),
        "paging": paged,
        "trouble": run.index.calls.trouble,
        "verdicts": verdicts,
        "has_acceptance": pc.any(pc.is_valid(episodes.table["p_accept"])).as_py(),
        "line": write_line(run, filters),
        "store": write_store(run),
        "missing": episodes.find_damage(filters.iteration, filters.split),
        "is_unfinished": episodes.is_unfinished(filters.iteration, filters.split),
    }


def _count_verdicts(table: pa.Table, rows: Any) -> dict[str, int]:
    verdict_counts = pc.value_counts(table["verdict"].take(pa.array(rows, pa.int64())))
    return dict(zip(*(column.to_pylist() for column in verdict_counts.flatten()), strict=True))


def find_episode(episodes: Episodes, key: str) -> int:
    """Find the row of an episode. Raises NotThereError."""
    row = pc.index(episodes.table["key"], key).as_py()
    if row < 0:
        raise NotThereError(f"there is no episode {key[:40]!r} in the run")
    return int(row)


def open_episode(run: ShownRun, episodes: Episodes, row: int) -> EpisodePage:
    """Read an episode. Raises CorruptionError."""
    about = episodes.take([row])[0]
    return read_episode(run.tree.store, episodes.shards[about.shard], about.key, run.game)


def episode_page(run: ShownRun, key: str, tab: str, pairs: list[tuple[str, str]]) -> Values:
    """Show one episode, with its neighbours in the query of the address, and its lineage."""
    if tab not in ("", "asked", "facts"):
        raise QueryError(f"tab={tab}: use asked or facts")
    episodes, query = run.episodes(), Query.parse(pairs, ("tab", JOINED))
    index = find_episode(episodes, key)
    rows = find_asked_rows(run, episodes, query)
    same, about = _find_same_problem(episodes, index), episodes.take([index])[0]
    places = np.flatnonzero(rows == index)
    place = int(places[0]) if len(places) else None

    def neighbour(step: int) -> str | None:
        if place is None or not 0 <= place + step < len(rows):
            return None
        return episodes.take([rows[place + step]])[0].key

    values: Values = {
        "query": query,
        "tab": tab,
        "key": key,
        "place": place,
        "of": len(rows),
        "before": neighbour(-1),
        "after": neighbour(1),
        "same": same,
        "beside": _choose_beside(same, about),
        "about": about,
        "page": None,
        "timeline": None,
        "found": [],
        "damage": "",
    }
    try:
        values["page"] = page = open_episode(run, episodes, index)
        values["timeline"] = lay_out_timeline(page, run.game) if tab == "" else None
        values["found"] = find_in_turns(page.turns, query)
        values["lineage"] = _trace_lineage(run, page) if tab == "facts" else None
    except (NipError, OSError) as error:
        values["damage"] = str(error)
    return values


def _find_same_problem(episodes: Episodes, index: int) -> list[IndexedEpisode]:
    """Find the plays of the same problem and sample in all iterations, with trees by branch."""
    table, mask = episodes.table, None
    for name in ("problem", "split", "sample", "branch_path"):
        equal = pc.equal(table[name], table[name][index])
        mask = equal if mask is None else pc.and_(mask, equal)
    return read_episodes(table.filter(mask).sort_by("iteration"))[-_MOST_CHOICES:]


def _choose_beside(
    same: Sequence[IndexedEpisode], about: IndexedEpisode
) -> tuple[IndexedEpisode, IndexedEpisode] | None:
    """Choose the two plays that are worth being read side by side, the earlier one first.

    The other one is the nearest that was right where this one was not, or the other way round;
    without one it is the newest.
    """
    other_rows = [row for row in same if row.key != about.key]
    if not other_rows:
        return None
    is_right = about.verdict == RIGHT
    changed_rows = [row for row in other_rows if (row.verdict == RIGHT) != is_right]
    other_row = min(
        changed_rows, key=lambda row: abs(row.iteration - about.iteration), default=other_rows[-1]
    )
    first, second = sorted((other_row, about), key=lambda row: row.iteration)
    return first, second


@dataclass(frozen=True)
class MadeModel:
    """A model that an iteration gave to a group."""

    group: str
    job_id: str | None
    trained_in: int | None


@dataclass(frozen=True)
class EpisodeLineage:
    """The models that answered in an episode, and the models trained on it."""

    agents: list[tuple[str, str]]
    """Names of models, each with the agent that it answered for."""
    models: dict[str, MadeModel]
    """By name, those that the run has made."""
    used: list[UsedExample]


def _trace_lineage(run: ShownRun, page: EpisodePage) -> EpisodeLineage:
    """Find the jobs that made the models of an episode, and the examples made of it."""
    agents = {(turn.message.model, turn.message.agent) for turn in page.turns}
    names = {name for name, _ in agents}
    models: dict[str, MadeModel] = {}
    with run.lock:
        for record in run.records.all():
            for group, model in ({} if record.swap is None else record.swap.groups).items():
                if model.model in names:
                    made_model = MadeModel(group, model.job_id, model.trained_in)
                    models.setdefault(model.model, made_model)
        groups = list(run.records.shown.first_models)
    used = [
        example
        for group in groups
        for example in read_examples(run.tree, page.row.iteration, group, page.row.key)
    ]
    return EpisodeLineage(sorted(agents), models, used)


@dataclass(frozen=True)
class ShownJob:
    """A fine-tune job; `record` is None where it can't be read."""

    iteration: int
    group: str
    report: GroupReport
    record: JobRecord | None


def jobs_page(run: ShownRun) -> Values:
    """Show fine-tune jobs with their losses, settings and proofs."""
    from nip_core.jobs.document import read_job

    jobs: list[ShownJob] = []
    damage: list[str] = []
    with run.lock:
        try:
            reports = run.overview().report
            iterations = reports.iterations if reports else []
            for entry in reversed(list(iterations)):
                for group, report in entry.groups.items():
                    if report.job_id is None and report.status in (None, "not scheduled"):
                        continue
                    record = None
                    try:
                        record = read_job(run.tree, run.tree.job(entry.iteration, group))
                    except NipError as error:
                        damage.append(str(error))
                    jobs.append(ShownJob(entry.iteration, group, report, record))
        except NipError as error:
            damage.append(str(error))
    return {"jobs": jobs, "job_damage": damage}


def describe_verdict(episode: IndexedEpisode | PairedEpisode) -> str:
    """Say in words how an episode was decided, or that it failed."""
    return "failed" if episode.outcome == "failed" else describe_decision(episode)


def describe_decision(decided: IndexedEpisode | PairedEpisode | Message) -> str:
    """Say a decision in words, with its value if that is between the ends of the scale."""
    value, words = decided.decision_value, DECISION_WORDS[decided.decision]
    return words if value is None or abs(value) in (0, 1) else true_minus(f"{words}, {value:+g}")
