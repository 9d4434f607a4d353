"""What each page shows: values for the templates.

runs_page, run_page, matrix_page, episodes_page, episode_page, jobs_page, compare_page, pair_page

Each takes a run and what its address asks for, and gives the values of the template of its name.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import NipError
from nip_core.evaluation.embedding import thinned
from nip_core.evaluation.episode_transcripts import DECISION_WORDS
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.viewer.episode_page import EpisodePage, read_episode, read_examples
from nip_core.viewer.index import Episodes
from nip_core.viewer.matrix import KINDS, MATRIX_SORTS, MOST_COLUMNS, count_matrix, pair_episodes
from nip_core.viewer.queries import (
    CHOICES,
    PER_PAGE,
    SORTS,
    Query,
    QueryError,
    find_rows,
    list_models,
)
from nip_core.viewer.runs import ShownRun, ShownRuns

Values = dict[str, Any]
SPLITS = (TEST, TRAIN, VALIDATION, CANDIDATE, ATTACK)
_MOST_CHOICES = 200  # entries of a menu
_MOST_PLACES, _FEWEST_PLACES = 400, 10  # of all runs, and of one


class NotThereError(LookupError):
    """An address names something that is not there; the message says what."""


def list_splits(table: pa.Table) -> list[str]:
    """The splits that were played, tests first."""
    known = pc.unique(table["split"]).to_pylist()
    return sorted(known, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS))


def list_iterations(table: pa.Table) -> list[int]:
    """The iterations of which anything was played."""
    return sorted(pc.unique(table["iteration"]).to_pylist())


def find_asked_rows(run: ShownRun, episodes: Episodes, query: Query) -> Any:
    """The rows of the index that a query asks for, texts looked for in the files."""
    if not query.text:
        return find_rows(episodes.table, query)
    without = find_rows(episodes.table, query)
    return find_rows(episodes.table, query, run.search.keys(episodes, without, query.text))


def paginate(total: int, page: int, per_page: int = PER_PAGE) -> Values:
    """Say which of `total` a page shows; a page behind the last is the last."""
    pages = max(1, -(-total // per_page))
    page = min(page, pages)
    first = (page - 1) * per_page
    return {
        "total": total,
        "pages": pages,
        "page": page,
        "first": first,
        "last": min(first + per_page, total),
    }


def list_choices(run: ShownRun, episodes: Episodes) -> Values:
    """The values that filters can have, by filter."""
    table = episodes.table
    wrong, right = run.words

    def values(name: str) -> list[tuple[str, str]]:
        known = [value for value in pc.unique(table[name]).to_pylist() if value is not None]
        more = [("none", "none")] if table[name].null_count else []
        return [*((str(v), str(v)) for v in sorted(known)[:_MOST_CHOICES]), *more]

    return {
        "iteration": [(str(i), str(i)) for i in list_iterations(table)][-_MOST_CHOICES:],
        "split": [(name, name) for name in list_splits(table)],
        "difficulty": values("difficulty"),
        "mutation": values("mutation"),
        "model": [(name, name) for name in list_models(table)][:_MOST_CHOICES],
        **{name: [*choices.items()] for name, choices in CHOICES.items()},
        "label": [("1", right), ("0", wrong)],
    }


def runs_page(runs: ShownRuns) -> Values:
    """All runs, the newest first."""
    shown = [(run, run.overview()) for run in runs.all()]
    shown.sort(key=lambda of: str(of[1].report.created_at if of[1].report else ""), reverse=True)
    rows = []
    for run, overview in shown:
        tested = overview.values.get("tested", [])
        last = tested[-1] if tested else None
        accuracies = [(e.iteration, e.test.get("accuracy")) for e in tested]
        rows.append(
            {
                "run": run,
                "overview": overview,
                "last": last,
                "curve": [(i, value) for i, value in accuracies if value is not None],
                "place": run.tree.store.url,
            }
        )
    return {"rows": rows}


def matrix_page(run: ShownRun, asked: Mapping[str, str], pairs: list[tuple[str, str]]) -> Values:
    """Problems by iterations."""
    episodes = run.episodes()
    query = Query.parse(pairs, ("sort", "until"))
    if query.iteration or query.text:
        raise QueryError("the matrix shows all iterations; look for texts among the episodes")
    sort = asked.get("sort") or "failures"
    if sort not in MATRIX_SORTS:
        raise QueryError(f"sort={sort}: use one of {', '.join(MATRIX_SORTS)}")
    splits = list_splits(episodes.table)
    split = query.split or (splits[0] if splits else "")
    # Of an iteration that shows one verdict, the rows are those of problems that have it there.
    plain = Query.parse([(n, v) for n, v in query.filters.items() if n != "split"])
    rows = find_rows(episodes.table, Query(**{**vars(plain), "split": split, "sort": "played"}))
    table = episodes.table.take(pa.array(rows))
    every = list_iterations(table)
    until = _read_number(asked.get("until"), every[-1] if every else 0)
    columns = [i for i in every if i <= until][-MOST_COLUMNS:]
    count = pc.count_distinct(table["problem"]).as_py() if table.num_rows else 0
    paged = paginate(count, query.page)
    shown = count_matrix(table, columns, paged["first"], PER_PAGE, sort) if columns else None
    earlier = [i for i in every if columns and i < columns[0]]
    later = [i for i in every if columns and i > columns[-1]]
    kept = {**query.filters, **({"sort": sort} if sort != "failures" else {})}

    def address(**changes: Any) -> str:
        named = {**kept, **({"until": until} if later else {}), **changes}
        named = {name: value for name, value in named.items() if value not in ("", None)}
        return f"?{urlencode(named)}" if named else ""

    return {
        "query": query,
        "split": split,
        "sort": sort,
        "sorts": MATRIX_SORTS,
        "menus": list_choices(run, episodes),
        "matrix": shown,
        "paging": paged,
        "address": address,
        "earlier": earlier[-1] if earlier else None,
        "later": later[min(MOST_COLUMNS, len(later)) - 1] if later else None,
        "episodes": episodes,
    }


def _read_number(text: str | None, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise QueryError(f"{text}: a number was expected")
    return int(text)


_LISTED = (
    *("key", "iteration", "split", "problem", "sample", "y", "difficulty", "mutation"),
    *("decision", "decision_value", "outcome", "verdict", "reward", "rounds", "invalid"),
    *("completion_tokens", "models", "branch_path"),
)


def episodes_page(run: ShownRun, pairs: list[tuple[str, str]]) -> Values:
    """Episodes that an address asks for."""
    episodes, query = run.episodes(), Query.parse(pairs)
    rows = find_asked_rows(run, episodes, query)
    paged = paginate(len(rows), query.page)
    chosen = rows[paged["first"] : paged["last"]]
    table = episodes.table.select(_LISTED).take(pa.array(chosen, pa.int64()))
    verdicts = _count_verdicts(episodes.table, rows)
    return {
        "query": query,
        "episodes": episodes,
        "menus": list_choices(run, episodes),
        "sorts": SORTS,
        "rows": table.to_pylist(),
        "paging": paged,
        "verdicts": verdicts,
    }


def _count_verdicts(table: pa.Table, rows: Any) -> dict[str, int]:
    counted = pc.value_counts(table["verdict"].take(pa.array(rows, pa.int64())))
    return {of["values"]: of["counts"] for of in counted.to_pylist()}


def find_episode(episodes: Episodes, key: str) -> int:
    """The row of an episode. Raises NotThereError."""
    row = pc.index(episodes.table["key"], key).as_py()
    if row < 0:
        raise NotThereError(f"there is no episode {key[:40]!r} in the run")
    return int(row)


def open_episode(run: ShownRun, episodes: Episodes, row: int) -> EpisodePage:
    """Read an episode. Raises CorruptionError."""
    shard = episodes.shards[episodes.table["shard"][row].as_py()]
    key = episodes.table["key"][row].as_py()
    return read_episode(run.tree.store, shard, key, run.game)


def episode_page(run: ShownRun, key: str, tab: str, pairs: list[tuple[str, str]]) -> Values:
    """One episode, its neighbours among those that the address asks for, and its lineage."""
    if tab not in ("", "asked", "facts"):
        raise QueryError(f"tab={tab}: use asked or facts")
    episodes, query = run.episodes(), Query.parse(pairs, ("tab",))
    at = find_episode(episodes, key)
    rows = find_asked_rows(run, episodes, query)
    places = np.flatnonzero(rows == at)
    place = int(places[0]) if len(places) else None
    keys = episodes.table["key"]

    def neighbour(step: int) -> str | None:
        if place is None or not 0 <= place + step < len(rows):
            return None
        return str(keys[int(rows[place + step])].as_py())

    values: Values = {
        "query": query,
        "tab": tab,
        "key": key,
        "place": place,
        "of": len(rows),
        "before": neighbour(-1),
        "after": neighbour(1),
        "same": _find_same_problem(episodes.table, at),
        "about": episodes.table.slice(at, 1).to_pylist()[0],
        "page": None,
        "damage": "",
    }
    try:
        values["page"] = page = open_episode(run, episodes, at)
        values["lineage"] = _trace_lineage(run, page) if tab == "facts" else None
    except (NipError, OSError) as error:
        values["damage"] = str(error)
    return values


def _find_same_problem(table: pa.Table, at: int) -> list[Values]:
    """The same problem and sample of this split in all iterations, with trees by branch."""
    here = table.slice(at, 1).to_pylist()[0]
    mask = pc.equal(table["problem"], here["problem"])
    for name in ("split", "sample", "branch_path"):
        mask = pc.and_(mask, pc.equal(table[name], here[name]))
    columns = ["key", "iteration", "verdict", "decision", "decision_value", "outcome"]
    same: list[Values] = table.filter(mask).select(columns).sort_by("iteration").to_pylist()
    return same[-_MOST_CHOICES:]


def _trace_lineage(run: ShownRun, page: EpisodePage) -> Values:
    """The models that answered with the jobs that made them, and what was learned from it."""
    models: dict[str, Values] = {}
    agents = {(turn.row.model_served, turn.row.agent) for turn in page.turns}
    served = {name for name, _ in agents}
    with run.lock:
        for record in run.records.all():
            for group, model in ({} if record.swap is None else record.swap.groups).items():
                if model.model in served:
                    models.setdefault(model.model, {"group": group, **asdict(model)})
        iteration = page.row.iteration
        groups = list(run.records.shown.first_models)
    used = [
        {"group": group, **example}
        for group in groups
        for example in read_examples(
            run.tree.store, run.tree.dataset(iteration, group), page.row.key
        )
    ]
    return {"agents": sorted(agents), "models": models, "used": used}


def jobs_page(run: ShownRun) -> Values:
    """Fine-tune jobs with their losses, settings and proofs."""
    from nip_core.jobs.document import read_job

    jobs: list[Values] = []
    damage: list[str] = []
    with run.lock:
        try:
            reports = run.overview().report
            iterations = reports.iterations if reports else []
            for entry in reversed(list(iterations)):
                for group, report in entry.groups.items():
                    if report.job_id is None and report.status in (None, "not scheduled"):
                        continue
                    path = run.tree.job(entry.iteration, group)
                    job: Values = {"iteration": entry.iteration, "group": group, "report": report}
                    try:
                        job["record"] = read_job(run.tree, path)
                    except NipError as error:
                        job["record"] = None
                        damage.append(str(error))
                    jobs.append(job)
        except NipError as error:
            damage.append(str(error))
    return {"jobs": jobs, "job_damage": damage}


def list_places(tables: Mapping[str, pa.Table], split: str) -> list[str]:
    """Of every run iterations with this split, as RUN@ITERATION; of long runs some of them.

    `tables` are those of the indices, by run.
    """
    places = []
    most = max(_FEWEST_PLACES, _MOST_PLACES // max(1, len(tables)))
    for run, table in tables.items():
        played = table.filter(pc.equal(table["split"], split)) if split else table
        places += [f"{run}@{i}" for i in thinned(list_iterations(played), most)]
    return places


def compare_page(runs: ShownRuns, asked: Mapping[str, str]) -> Values:
    """The episodes of two places in pairs, changed verdicts first."""
    unknown = {*asked} - {"a", "b", "split", "kind", "page"}
    if unknown:
        raise QueryError(
            f"{', '.join(sorted(unknown))}: a comparison has a, b, split, kind and page"
        )
    kind = asked.get("kind", "")
    if kind and kind not in KINDS:
        raise QueryError(f"kind={kind}: use one of {', '.join(KINDS)}")
    tables = {run.name: run.episodes().table for run in runs.all()}
    splits = sorted({split for table in tables.values() for split in list_splits(table)})
    split = asked.get("split") or (TEST if TEST in splits else (splits[0] if splits else ""))
    places = list_places(tables, split)
    a, b = asked.get("a", ""), asked.get("b", "")
    values: Values = {
        "a": a,
        "b": b,
        "split": split,
        "splits": splits,
        "places": places,
        "kind": kind,
        "kinds": KINDS,
        "pairs": None,
    }
    if not (a and b):
        return values
    parts = [_read_episodes_at(runs, place, split) for place in (a, b)]
    page = max(1, _read_number(asked.get("page"), 1))
    names = [place.rpartition("@")[0] for place in (a, b)]
    shown = pair_episodes(parts[0], parts[1], page, PER_PAGE, kind)
    total = shown.counts[kind] if kind else sum(shown.counts.values())
    base = {"a": a, "b": b, "split": split}

    def address(**changes: Any) -> str:
        named = {**base, "kind": kind, **changes}
        return f"?{urlencode({name: v for name, v in named.items() if v not in ('', None)})}"

    rates = [
        (pc.sum(pc.equal(part["verdict"], "right")).as_py() or 0, part.num_rows) for part in parts
    ]
    return {
        **values,
        "pairs": shown,
        "paging": paginate(total, page),
        "address": address,
        "names": names,
        "rates": rates,
    }


def _read_episodes_at(runs: ShownRuns, place: str, split: str) -> pa.Table:
    name, _, iteration = place.rpartition("@")
    run = runs.get(name)
    if run is None:
        raise NotThereError(f"there is no run {name[:60]!r} among those that are shown")
    query = Query(iteration=str(_read_number(iteration, 0)), split=split, sort="played")
    table = run.episodes().table
    return table.take(pa.array(find_rows(table, query), pa.int64()))


def pair_page(runs: ShownRuns, asked: Mapping[str, str]) -> Values:
    """Two episodes side by side: `a` and `b` are RUN/KEY."""
    sides = []
    for side in ("a", "b"):
        name, _, key = asked.get(side, "").rpartition("/")
        run = runs.get(name)
        if run is None:
            raise NotThereError(f"{side}: there is no run {name[:60]!r} among those that are shown")
        episodes = run.episodes()
        at = find_episode(episodes, key)
        of: Values = {"run": run, "key": key, "page": None, "damage": ""}
        of["about"] = episodes.table.slice(at, 1).to_pylist()[0]
        try:
            of["page"] = open_episode(run, episodes, at)
        except (NipError, OSError) as error:
            of["damage"] = str(error)
        sides.append(of)
    return {"sides": sides}


def describe_verdict(row: Mapping[str, Any]) -> str:
    """The verdict of a row in words, with its value where that says more."""
    if row.get("outcome") == "failed":
        return "failed"
    value, words = row.get("decision_value"), DECISION_WORDS[row["decision"]]
    return words if value is None or abs(value) in (0, 1) else f"{words}, {value:+g}"
