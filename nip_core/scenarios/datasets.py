"""The problems that are played: bundled, generated, from files, or from Hugging Face.

    load_problems    the problems of one split of a dataset, checked, filtered, reduced
    check_splits     refuses splits that share a question

A dataset has the columns that the scenario names, among them `question`, `solution` and, unless
the scenario has a checker, `y` (1 right, 0 wrong); it may have `id`, `question_id`, `difficulty`
and `mutation`.

The problems left out, and the split of a question where the source doesn't say, follow from
stable hashes of texts and ids, never from the position in a file:

- a source with `train` and `test` only: a tenth of the questions of `train` are its `validation`;
- a single file: by its column `split`, if it has one; else, by question, about 70 in 100 are
  `train`, 10 `validation` and 20 `test`.

A scenario may name other columns by which rows are split (`Scenario.split_by`).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nip_core.errors import DatasetError
from nip_core.hashing import derive_key, derive_seed, named_keys
from nip_core.scenarios.base import NO_LABEL, Problem, Row, Scenario
from nip_core.scenarios.checked import call_scenario, describe_raised
from nip_core.scenarios.dataset_files import Table, read_tables
from nip_core.scenarios.prompt_phrases import join_words
from nip_core.scenarios.row_texts import refuse_half_pair, require_text
from nip_core.scenarios.rows import SPLITS

_MOST_ROWS = 1_000_000
"""That a function of a scenario makes: a generator without an end would fill the memory."""
_NamedProblems = list[tuple[Problem, str]]
_KEPT_SPLITS = 6
_Key = tuple[type[Scenario], str, str, str, tuple[tuple[str, int, int], ...]]
_made_lately: OrderedDict[_Key, _NamedProblems] = OrderedDict()
"""Problems generated, or read of a scenario's own files, see `_key_of`: the many runs of a sweep
share their problems, and to make them takes longer than all other checks of a run."""


def load_problems(
    scenario: Scenario,
    dataset: str,
    split: str,
    *,
    max_size: int | None = None,
    shuffle_seed: int = 42,
    make_balanced: bool = True,
    may_be_empty: bool = False,
) -> list[Problem]:
    """The problems of one split, in the order of the source.

    Args:
        scenario: the domain; its settings may leave rows out.
        dataset: a name of the scenario's own data; a Parquet or JSONL file; a directory with a
            file for each split, or one made by `save_to_disk`; or the name of a Hugging Face
            dataset.
        split: "train", "validation" or "test".
        max_size: keep at most this many, half of each label if balanced.
        shuffle_seed: of the stable shuffle that decides which problems are left out.
        make_balanced: leave out problems of the more frequent label until both are equal.
        may_be_empty: the split is not played, so that it may lack problems.

    Raises:
        DatasetError: the dataset is not there or can't be read, a row breaks a rule, or nothing
            is left. The message names file and row.
    """
    if split not in SPLITS:
        raise DatasetError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
    if max_size is not None and max_size < 1:
        raise DatasetError(f"max_size must be at least 1 (got {max_size})")
    # 1. Read the split and filter its rows.
    problems = _find_problems(scenario, dataset, split, may_be_empty)
    # 2. Check the whole, then leave out problems beyond the size.
    _check_unique(problems)
    balanced = make_balanced and not scenario.labels_in_play
    selected = _reduced([p for p, _ in problems], max_size, shuffle_seed, balanced)
    if not selected and not may_be_empty:
        place = f"dataset {dataset!r}, split {split!r}"
        filters = call_scenario(scenario, "filters", place=place, kind=DatasetError)
        raise DatasetError(_why_empty(place, [p for p, _ in problems], filters))
    return selected


def _find_problems(
    scenario: Scenario, dataset: str, split: str, may_be_empty: bool
) -> _NamedProblems:
    """The problems of a split with the names of their rows, those left out by `keeps` missing."""
    key = _key_of(scenario, dataset, split)
    problems = None if key is None else _made_lately.pop(key, None)
    if problems is None:
        problems = []
        for row, name in _rows_of_split(scenario, dataset, split, may_be_empty):
            if _keeps(scenario, row, name):
                expanded = _made(scenario, "expand", row, name, place=name)
                problems += [(_problem(scenario, r, name), name) for r in expanded]
    if key is not None and problems:  # whether there may be none is another question each time
        _made_lately[key] = problems
        while len(_made_lately) > _KEPT_SPLITS:
            _made_lately.popitem(last=False)
    return problems


def _key_of(scenario: Scenario, dataset: str, split: str) -> _Key | None:
    """Name the sources of a split's problems, with the state of own files; None elsewhere."""
    settings, source = scenario.settings, scenario.bundled.get(dataset)
    is_generated = dataset in scenario.generated
    if not isinstance(settings, BaseModel) or (source is None and not is_generated):
        return None
    files: tuple[tuple[str, int, int], ...] = ()
    if source is not None and not is_generated:
        try:
            place = Path(source)
            paths = sorted(place.iterdir()) if place.is_dir() else [place]
            stats = [(str(path), path.stat()) for path in paths]
        except OSError:  # its reader will say it
            return None
        files = tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)
    return type(scenario), settings.model_dump_json(), dataset, split, files


def check_splits(
    problems_by_split: Mapping[str, Sequence[Problem]], split_by: Sequence[str] = ()
) -> None:
    """Refuse a question in two splits; white space counts as one space.

    Of the further columns those in `split_by` must not stand in two splits either.

    Raises:
        DatasetError: one does; the message names it and both places.
    """
    first_places: dict[str, tuple[str, Problem]] = {}
    for split, problems in problems_by_split.items():
        for problem in problems:
            texts = " ".join([problem.question, *problem.columns.values()])
            keys = {
                "text " + " ".join(texts.split()): "question",
                "id " + problem.question_id: "question",
            }
            for column in split_by:
                text = problem.columns.get(column)
                if text is not None:
                    keys[f"{column} {' '.join(text.split())}"] = column
            for key, column in keys.items():
                first_split, first = first_places.setdefault(key, (split, problem))
                if first_split != split:
                    raise DatasetError(
                        f"the {column} {problem.texts[column][:80]!r} stands in two splits: "
                        f"{first.id} in {first_split} and {problem.id} in {split}; what is tested "
                        "would have been trained on: remove it from one of them"
                    )


def _rows_of_split(
    scenario: Scenario, dataset: str, split: str, may_be_empty: bool
) -> Iterator[tuple[Row, str]]:
    """Yield the rows of `split` with their names; derive a split missing in the source."""
    rows_by_split: Counter[str] = Counter()  # of rows that a hash splits
    # 1. Rows that the scenario makes.
    if dataset in scenario.generated:
        yield from _generated(scenario, dataset, split)
        return
    # 2. A single file: by its column `split`, or by question.
    own = [*scenario.bundled, *scenario.generated]
    tables = read_tables(str(scenario.bundled.get(dataset, dataset)), own)
    whole = tables.get("")
    if whole is not None:
        has_split = "split" in whole.columns
        splits = {str(row.get("split")) for row in whole.rows} if has_split else {split}
        unknown = sorted(splits - {*SPLITS})
        if may_be_empty and split not in splits and unknown:
            raise DatasetError(
                f"{whole.name}: the column split has {', '.join(unknown)}; the splits are called "
                f"{', '.join(SPLITS)}: rename it"
            )
        if split not in splits and whole.rows and not may_be_empty:
            raise DatasetError(
                f"{whole.name}: no row has {split!r} in the column split, which has "
                f"{', '.join(sorted(splits))}; the splits are called {', '.join(SPLITS)}: rename "
                "or add one, or leave the column out to split by a hash"
            )
        for row, name in _rows(scenario, whole):
            of_row = str(row.get("split")) if has_split else _split_of(scenario, row, name)
            rows_by_split[of_row] += 1
            if of_row == split:
                yield row, name
        if rows_by_split and not (rows_by_split[split] or may_be_empty):
            raise _all_elsewhere(whole.name, split, rows_by_split, "a column split")
        return
    # 3. Files or tables by split; a tenth of `train` is `validation` where there is none.
    derived = "validation" not in tables and {"train", "test"} <= set(tables)
    if split == "test" or not derived:
        if split not in tables:
            if may_be_empty:
                return
            raise DatasetError(
                f"dataset {dataset!r} has no split {split!r}, only {', '.join(tables)}; add a "
                "file for it, or give all rows in a single file"
            )
        yield from _rows(scenario, tables[split])
        return
    for row, name in _rows(scenario, tables["train"]):
        text = _split_text(scenario, row, name)
        held_out = derive_seed("validation from train", text) % 10 == 0
        of_row = "validation" if held_out else "train"
        rows_by_split[of_row] += 1
        if of_row == split:
            yield row, name
    if rows_by_split and not (rows_by_split[split] or may_be_empty):
        raise _all_elsewhere(tables["train"].name, split, rows_by_split, "a file for each split")


def _all_elsewhere(
    name: str, split: str, rows_by_split: Counter[str], or_else: str
) -> DatasetError:
    """Say where a hash put a file's rows, if none is in this one."""
    counts = join_words(
        [
            f"{number} in {name_of_split}"
            for name_of_split, number in sorted(rows_by_split.items())
            if number
        ]
    )
    return DatasetError(
        f"{name}: a hash splits its rows, and none is in {split!r} ({counts}); add rows, or "
        f"{or_else}"
    )


def _generated(scenario: Scenario, dataset: str, split: str) -> Iterator[tuple[Row, str]]:
    name = f"{dataset}[{split}]"
    for number, row in enumerate(_made(scenario, "generate", dataset, split, place=name)):
        yield row, f"{name}, row {number}"


def _made(scenario: Scenario, function: str, *arguments: Any, place: str) -> list[Row]:
    """Call a function of the scenario for rows. Raises DatasetError, naming both."""
    result = call_scenario(scenario, function, *arguments, place=place, kind=DatasetError)
    rows: list[Row] = []
    if isinstance(result, Iterable):
        try:
            rows += islice(result, _MOST_ROWS + 1)
        except DatasetError:
            raise
        except Exception as error:  # a generator raises when its rows are asked for
            raise describe_raised(scenario, function, error, place, DatasetError) from error
    if len(rows) > _MOST_ROWS:
        raise DatasetError(
            f"{place}: {function} of scenario {scenario.name} yields more than {_MOST_ROWS:,} "
            "rows; let it come to an end"
        )
    wrong = [row for row in rows if not isinstance(row, Mapping)]
    if wrong or not isinstance(result, Iterable):
        number = f", row {rows.index(wrong[0])}" if wrong and function == "generate" else ""
        raise DatasetError(
            f"{place}{number}: {function} of scenario {scenario.name} must yield dictionaries by "
            f"column (got {(wrong or [result])[0]!r:.80})"
        )
    return rows


def _keeps(scenario: Scenario, row: Row, name: str) -> bool:
    is_kept = call_scenario(scenario, "keeps", row, place=name, kind=DatasetError)
    if not isinstance(is_kept, bool):
        raise DatasetError(
            f"{name}: keeps of scenario {scenario.name} must return True or False (got "
            f"{is_kept!r:.80})"
        )
    return is_kept


def _rows(scenario: Scenario, table: Table) -> Iterator[tuple[Row, str]]:
    if call_scenario(scenario, "takes", table.columns, place=table.name, kind=DatasetError):
        return zip(table.rows, table.row_names, strict=True)
    if not table.rows:
        raise DatasetError(f"{table.name}: has no rows; put problems in it")
    order = [c.name for c in scenario.columns] + ["y"]
    required = [name for name in order if name in scenario.required_columns()]
    absent_columns = [name for name in required if name not in table.columns]
    wrong, right = scenario.words.labels
    labels = f", which is 1 ({right}) or 0 ({wrong})" if "y" in required else ""
    raise DatasetError(
        f"{table.name}: no column {' and no column '.join(absent_columns)} (it has "
        f"{', '.join(sorted(table.columns))}); a dataset needs {join_words(required)}{labels}"
    )


def _split_text(scenario: Scenario, row: Row, name: str) -> str:
    """Find the text of a row for choosing its split."""
    has = [column for column in scenario.split_by if row.get(column) is not None]
    if not has and not {*scenario.split_by} & row.keys():
        raise DatasetError(
            f"{name}: has no column {' or '.join(scenario.split_by)}, by which scenario "
            f"{scenario.name} splits rows (split_by); add it, or a column split"
        )
    return require_text(row, (has or scenario.split_by)[0], name)


def _split_of(scenario: Scenario, row: Row, name: str) -> str:
    place = derive_seed("split of a single file", _split_text(scenario, row, name)) % 100
    return "train" if place < 70 else "validation" if place < 80 else "test"


def _optional(row: Row, column: str, name: str) -> str | None:
    value = row.get(column)
    return None if value is None else refuse_half_pair(str(value), column, name)


def _problem(scenario: Scenario, row: Row, name: str) -> Problem:
    texts = {c.name: require_text(row, c.name, name) for c in scenario.columns if not c.drawn}
    question, solution = texts.pop("question"), texts.pop("solution", "")
    about = [texts[column] for column in scenario.split_by if column in texts]
    return Problem(
        id=_optional(row, "id", name) or derive_key("problem", question, solution, *texts.values()),
        question_id=_optional(row, "question_id", name) or derive_key("question", question, *about),
        question=question,
        solution=solution,
        y=NO_LABEL if scenario.labels_in_play else _label(scenario, row, name),
        difficulty=_optional(row, "difficulty", name),
        mutation=_optional(row, "mutation", name),
        columns=texts,
    )


def _label(scenario: Scenario, row: Row, name: str) -> int:
    """Return the row's label, or the checker's; the two must agree."""
    y = row.get("y")
    wrong, right = scenario.words.labels
    has_checker = call_scenario(scenario, "has_checker", place=name, kind=DatasetError)
    is_label = isinstance(y, bool | int | float) and y in (0, 1)
    if not is_label and not (y is None and has_checker):
        raise DatasetError(f"{name}: y must be 1 ({right}) or 0 ({wrong}) (got {y!r:.80})")
    if not has_checker:
        return int(row["y"])
    try:
        label = scenario.label(row)
    except Exception as error:  # any error of a user's checker
        advice = "mend it, or leave the row out"
        raise describe_raised(scenario, "the checker", error, name, DatasetError, advice) from error
    if not isinstance(label, int) or label not in (0, 1):
        raise DatasetError(
            f"{name}: the checker of scenario {scenario.name} must return 1 ({right}) or 0 "
            f"({wrong}) (got {label!r:.80})"
        )
    if y is not None and y != label:
        raise DatasetError(
            f"{name}: y is {y:g}, and the checker of scenario {scenario.name} says {label}; "
            "correct one of them"
        )
    return int(label)


def _check_unique(problems: Sequence[tuple[Problem, str]]) -> None:
    name_by_id: dict[str, str] = {}
    for problem, name in problems:
        if problem.id in name_by_id:
            raise DatasetError(
                f"{name}: the id {problem.id!r} already stands in {name_by_id[problem.id]}; ids "
                "must differ (without a column `id`, question and solution together must)"
            )
        name_by_id[problem.id] = name


def _reduced(
    problems: Sequence[Problem], max_size: int | None, seed: int, balanced: bool
) -> list[Problem]:
    """Leave out the last problems of a stable shuffle; the order of the rest stays."""
    keys = named_keys([p.id for p in problems], "reduce", seed)
    ranked = [problems[i] for i in sorted(range(len(problems)), key=keys.__getitem__)]
    if balanced:
        by_label = [[p for p in ranked if p.y == y] for y in (0, 1)]
        size = min(map(len, by_label))
        if max_size is not None and size > 0:
            size = min(size, max_size // 2)
        # Half of one is none: a single problem then, of either label.
        ranked = [p for group in by_label for p in group[:size]] if size or not ranked else ranked
        if size == 0 and len({p.y for p in problems}) < 2:
            return []
    selected = {p.id for p in ranked[:max_size]}
    return [p for p in problems if p.id in selected]


def _why_empty(place: str, problems: Sequence[Problem], filters: str) -> str:
    if problems:
        return (
            f"{place}: all {len(problems)} problems have y = {problems[0].y}, so none are left "
            "when both labels must be equally frequent; add others, or set "
            "dataset_options.make_balanced to false"
        )
    return f"{place}: there are no problems{filters}; check the filters, or add rows"
