#!/usr/bin/env python3
"""The games' problems and the studies' verdicts as a data set that 🤗 datasets loads.

    python benchmarks/games_dataset.py OUT [--cells NAME=FILE …]

makes the folder OUT: README.md, the card, and a Parquet file for each split of the configurations
`bags`, `bags-55`, `bags-56`, `chain` and `verdicts`. The last one has the rows of the studies'
cells.parquet; without --cells all of docs/results are taken. Nothing is played or drawn anew, so
each time the bytes are the same. Then `datasets.load_dataset("OUT", "bags")` loads it.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from nip_core.errors import DatasetError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.rollouts.plan import episode_spec
from nip_core.scenarios import make_scenario
from nip_core.scenarios.checked import draw_columns
from nip_core.scenarios.datasets import load_problems
from nip_core.scenarios.rows import SPLITS, write_table

ROOT = Path(__file__).resolve().parents[1]
# More problems of bags-tiny, as its studies play them, so that their verdicts find their problems.
BAGS = ("scenario_settings.validation_size=240", "scenario_settings.test_size=600")
# Bags of other seeds, as the studies of missing answers play them.
OTHER_BAGS = {
    f"bags-{seed}": (
        f"scenario_settings.seed={seed}",
        f"scenario_settings.validation_size={validation}",
        f"scenario_settings.test_size={test}",
    )
    for seed, validation, test in ((55, 120, 800), (56, 40, 200))
}
CHAIN = (
    *("scenario=chain", "dataset=chains", "interaction_protocol=refereed"),
    *("refereed_protocol.min_message_rounds=4", "refereed_protocol.max_message_rounds=4"),
)
Columns = Mapping[str, tuple[pa.DataType, bool, str]]
"""By name the type, whether it may be null, and the meaning."""
_TEXT, _SMALL, _INT = pa.string(), pa.int8(), pa.int32()
_OF_PROBLEMS: Columns = {
    "id": (_TEXT, False, "the problem's name, by which `verdicts.problem` calls it"),
    "question_id": (_TEXT, False, "the question's name, `verdicts.question`"),
}
_Y: Columns = {"y": (_SMALL, False, "1: the claim is true, 0: it is false")}
_BAGS: Columns = {
    **_OF_PROBLEMS,
    "question": (_TEXT, False, "two lists of digits; provers see them, the verifier does not"),
    "solution": (_TEXT, False, "the claim, always that they are no rearrangements; all see it"),
    **_Y,
    "seed": (pa.int64(), False, "of an episode, see above; coins and challenges follow from it"),
    "coins": (_TEXT, False, "for each challenge the list it was made of; the verifier sees them"),
    "challenges": (_TEXT, False, "the lists of the coins in drawn orders; provers see them"),
}
_CHAIN: Columns = {
    **_OF_PROBLEMS,
    "question": (_TEXT, False, "a start and eight steps modulo 97; provers see them"),
    "solution": (_TEXT, False, "the claim where the chain starts and ends; all see it"),
    **_Y,
    "values": (_TEXT, False, "the true value after each step; provers see them"),
}
_VERDICTS: Columns = {
    "study": (_TEXT, False, "the study's name"),
    "run": (_TEXT, False, "the run of the study's sweep, which has one verifier"),
    "attack": (_TEXT, True, "the attack's name in the study; null: the run's own test"),
    "iteration": (_INT, False, "whose models play; of an attack by training, its step"),
    "n": (_INT, True, "of an attack by best-of-n, the number of messages to choose from"),
    "question": (_TEXT, False, "the question's name"),
    "problem": (_TEXT, False, "the problem's name"),
    "sample": (_INT, False, "how often the problem came before in this test"),
    "y": (_SMALL, False, "the true label: 1 right, 0 wrong"),
    "decision": (_SMALL, False, "0 reject, 1 accept, 2 none, 3 neither; right where it is `y`"),
    "believed": (_SMALL, True, "in own tests, what believing the prover decides (2: nothing)"),
}
_AXIS: tuple[pa.DataType, bool, str] = (_TEXT, True, "a value of the study's design; null: no axis")
_CARD = """\
# Problems and verdicts of neural interactive proofs

A prover argues for a claim, and a verifier that sees less than it accepts or rejects. Here are
problems of two games in which a theorem says how sound a verifier can be, and the verdicts of
verifiers that were trained and attacked. All is made by nip, a durable training loop for such
games, version {version}.

```python
from datasets import load_dataset

bags = load_dataset("PATH", "bags")  # PATH: this folder, or its name on the Hub
```

## Configurations

- `bags`: are two lists of digits rearrangements of each other? Each of three private coins picks a
  list, which is shown in a drawn order, and the prover names it. If the lists are rearrangements,
  no prover gets past a verifier that compares all three answers with its coins in more than 1 of 8
  cases.
- `bags-55`, `bags-56`: the same of other seeds, as the studies `unanswered` and
  `unanswered_smollm2` play them.
- `chain`: does a chain of steps end as claimed? In refereed computation two provers dispute, and
  the verifier calculates the one step that is left.
- `verdicts`: each verdict of the tests and attacks of these studies, without texts. "Here" counts
  the problems of a study that are in the other configurations; all others are of games that are not
  here.

| study | rows | runs | problems | here | axes |
|---|---|---|---|---|---|
{studies}

| configuration | split | rows | with `y` = 1 |
|---|---|---|---|
{splits}

## How it was made

nip's scenarios draw the problems from a seed and calculate their labels. Half of the claims of each
split are true.

- `bags` has the settings of nip's `bags-tiny`: {bags_settings}. It has {validation} validation and
  {test} test problems, as the studies of `bags` have; the first 200 and 400 are those of
  `bags-tiny` itself. `bags-55` and `bags-56` have another `seed` and other sizes alone. No list is
  in two splits of a configuration, in whatever order it is written.
- `chain` has its default settings: {chain_settings}. No chain is in two splits.

`seed` in `bags` is that of the problem's first episode in its split, in iteration 0 of a run with
seed {seed}: 31 bits of the SHA-256 of that place. Another seed gives other coins (`Bags.draw` in
nip); a run draws new ones for each episode. nip plays the folders of problems, too, named as a
run's `dataset`.

`python benchmarks/games_dataset.py OUT` in nip's repository makes the files again; with the same
version of pyarrow the bytes are the same.

## Columns

{columns}

## Limits

- The problems are for studies of soundness, not of ability: a short program solves all of them.
- The theorems hold where provers see no coins, and verifiers neither lists nor steps.
- Verdicts of nip's own studies are of models with half a million weights, on a CPU.
- Rows are not independent: those of one run share a verifier, and those of one question a problem.
  Intervals have to count runs and questions, not rows.
- The pages of a study, `STUDY.md` and `STUDY/README.md` in `docs/results` of nip's repository, say
  who plays in each attack, and some begin with a correction: read them before you quote a figure.

## Licence and citation

MIT, the licence of nip.

```bibtex
{citation}
```
"""


def make_problems(parameters: HyperParameters, columns: Columns) -> dict[str, pa.Table]:
    """Return by split the problems of the settings, with the columns drawn for one episode."""
    scenario, tables = make_scenario(parameters), {}
    for split in SPLITS:
        rows = []
        for problem in load_problems(scenario, parameters.dataset, split):
            seed = episode_spec(parameters, split, 0, problem, 0).seed
            texts = {"question": problem.question, "solution": problem.solution}
            row = {"id": problem.id, "question_id": problem.question_id, "y": problem.y}
            rows.append({**row, **texts, "seed": seed, **draw_columns(scenario, texts, seed)})
        tables[split] = pa.Table.from_pylist(rows, _make_schema(columns))
    return tables


def read_verdicts(cells: Mapping[str, Path]) -> tuple[pa.Table, Columns]:
    """Return the rows of cells files by study, and the columns. Raises DatasetError."""
    tables, axes = {}, set()
    for study, path in sorted(cells.items()):
        try:
            tables[study] = pq.read_table(path, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"--cells {study}={path}: {error}; name a Parquet file") from None
        axes |= {name for name in tables[study].column_names if name.startswith("axis_")}
    columns = {**_VERDICTS, **dict.fromkeys(sorted(axes), _AXIS)}
    required = {name for name, (_, may_be_null, _) in columns.items() if not may_be_null}
    schema, parts = _make_schema(columns), []
    for study, table in tables.items():
        names = {"study", *table.column_names}
        missing, unknown = sorted(required - names), sorted(names - columns.keys())
        if missing or unknown:
            raise DatasetError(
                f"--cells {study}={cells[study]} is no cells.parquet of nip sweep (docs/data.md): "
                f"it lacks the columns {missing} and has {unknown}; name such a file"
            )
        arrays = [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in schema
            if field.name != "study"
        ]
        parts.append(pa.table([pa.repeat(study, table.num_rows), *arrays], schema))
    return pa.concat_tables(parts), columns


def write_dataset(out: Path, cells: Mapping[str, Path]) -> None:
    """Write the card and the Parquet files into `out`, a new folder. Raises DatasetError."""
    bags, chain = load_parameters("bags-tiny", BAGS), load_parameters("deterministic", CHAIN)
    verdicts, columns = read_verdicts(cells)
    tables = {
        "bags": make_problems(bags, _BAGS),
        **{
            name: make_problems(load_parameters("bags-tiny", settings), _BAGS)
            for name, settings in OTHER_BAGS.items()
        },
        "chain": make_problems(chain, _CHAIN),
        "verdicts": {"test": verdicts},
    }
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    text = _CARD.format(
        version=cff["version"],
        studies=_list_studies(tables),
        splits="\n".join(
            f"| `{name}` | {split} | {table.num_rows} | {pc.sum(table['y'])} |"
            for name, by_split in tables.items()
            for split, table in by_split.items()
        ),
        bags_settings=_write_settings(bags),
        chain_settings=_write_settings(chain),
        validation=tables["bags"]["validation"].num_rows,
        test=tables["bags"]["test"].num_rows,
        seed=bags.seed,
        columns="\n\n".join(
            f"**`{name}`**\n\n{_list_columns(listed)}"
            for name, listed in zip(
                tables, (_BAGS, *(_BAGS for _ in OTHER_BAGS), _CHAIN, columns), strict=True
            )
        ),
        citation=_write_citation(cff),
    )
    for name, by_split in tables.items():
        (out / name).mkdir(parents=True)
        for split, table in by_split.items():
            write_table(table, out / name / f"{split}.parquet")
    (out / "README.md").write_text(_write_head(tables) + text, encoding="utf-8")


def _write_head(tables: Mapping[str, Mapping[str, pa.Table]]) -> str:
    """Write the YAML by which 🤗 datasets and the Hub find configurations and splits."""
    head = {
        "license": "mit",
        "language": ["en"],
        "pretty_name": "Problems and verdicts of neural interactive proofs",
        "tags": ["nip", "neural-interactive-proofs", "scalable-oversight"],
        "configs": [
            {
                "config_name": name,
                **({"default": True} if name == "bags" else {}),
                "data_files": [{"split": s, "path": f"{name}/{s}.parquet"} for s in by_split],
            }
            for name, by_split in tables.items()
        ],
    }
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n"


def _make_schema(columns: Columns) -> pa.Schema:
    fields = [pa.field(name, kind, may_be_null) for name, (kind, may_be_null, _) in columns.items()]
    return pa.schema(fields)


def _list_columns(columns: Columns) -> str:
    lines = [
        f"| `{name}` | {kind} | {'yes' if may_be_null else ''} | {meaning} |"
        for name, (kind, may_be_null, meaning) in columns.items()
    ]
    return "\n".join(("| column | type | null | meaning |", "|---|---|---|---|", *lines))


def _list_studies(tables: Mapping[str, Mapping[str, pa.Table]]) -> str:
    verdicts = tables["verdicts"]["test"]
    games = [by_split for name, by_split in tables.items() if name != "verdicts"]
    ids = {i for game in games for table in game.values() for i in table["id"].to_pylist()}
    lines = []
    for study in pc.unique(verdicts["study"]).to_pylist():
        rows = verdicts.filter(pc.equal(verdicts["study"], study))
        problems = {*pc.unique(rows["problem"]).to_pylist()}
        axes = [
            f"`{name}`"
            for name in rows.column_names
            if name.startswith("axis_") and rows[name].null_count < rows.num_rows
        ]
        lines.append(
            f"| `{study}` | {rows.num_rows} | {len(pc.unique(rows['run']))} | {len(problems)} | "
            f"{len(problems & ids)} | {', '.join(axes)} |"
        )
    return "\n".join(lines)


def _write_settings(parameters: HyperParameters) -> str:
    settings = make_scenario(parameters).settings.model_dump(mode="json")
    left_out = {"system_prompt_version", "train_size", "validation_size", "test_size"}
    return ", ".join(
        f"`{name}: {str(value).lower() if isinstance(value, bool) else value}`"
        for name, value in settings.items()
        if name not in left_out
    )


def _write_citation(cff: Mapping[str, Any]) -> str:
    """Write CITATION.cff as BibTeX: the software, and the paper that it refers to."""
    [paper] = cff["references"]
    [number] = (one["value"] for one in paper["identifiers"])
    authors = " and ".join(f"{a['family-names']}, {a['given-names']}" for a in paper["authors"])
    entries = {
        "software{nip": {
            "title": cff["title"],
            "author": " and ".join(f"{{{author['name']}}}" for author in cff["authors"]),
            "version": cff["version"],
        },
        "inproceedings{hammond2025neural": {
            "title": paper["title"],
            "author": authors,
            "booktitle": paper["collection-title"],
            "year": paper["year"],
            "note": number,
        },
    }
    return "\n".join(
        f"@{begin},\n" + "".join(f"  {key} = {{{value}}},\n" for key, value in fields.items()) + "}"
        for begin, fields in entries.items()
    )


def main() -> None:
    """Make the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, help="the folder; new, or empty")
    parser.add_argument("--cells", nargs="+", metavar="NAME=FILE", help="instead of docs/results")
    options = parser.parse_args()
    cells = {p.parent.name: p for p in sorted(ROOT.glob("docs/results/*/cells.parquet"))}
    if options.cells is not None:
        pairs = [text.partition("=") for text in options.cells]
        cells = {name: Path(file) for name, _, file in pairs}
        if len(cells) < len(pairs) or not all(name and file for name, _, file in pairs):
            parser.error(f"--cells: give each study once, as NAME=FILE (got {options.cells})")
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        parser.error(f"{options.out} is there and is no empty folder; name a new one")
    try:
        write_dataset(options.out, cells)
    except DatasetError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
