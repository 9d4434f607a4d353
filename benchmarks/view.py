"""How quick `nip view` is, and how much memory it takes, on a run of 100,000 episodes.

    python benchmarks/view.py [--episodes 100000] [--keep DIR] [--out view.json]

A small run is played on the deterministic engine; then the tables of its tests are written many
times over, with other keys, problems and samples, so that no two rows are alike in these. Every
call has a text of its own, of 60 tokens or so: words of a vocabulary of 5,000, some in nearly every
text, most in one of hundreds, and a number that stands nowhere else. The viewer is started as a
user starts it, `nip view`, and asked over HTTP. Measured are the seconds from its start to the
first page of the run, the slowest of several asks for each filter, and the peak of its memory. The
run's tables are read for the first time by this process, from the system's cache.

Each search is asked for a first time, for a text that nobody has looked for, and then again: words
of nearly every call, of few and of one, two in a row, one that stands nowhere, by agent and round.
Its page has the hits of its episodes, with some words around them.

On a machine that does other things too, look at the seconds of a processor: those that the viewer
has taken, for a filter on average, for the first page with the index that is read meanwhile.

Rows are downloaded as CSV and as JSONL, with all texts: 10,000 that lie in every shard.

The bars: the first page in less than 2 s of its being asked for, each filter and each search, also
the first time, in less than 0.5 s, 10,000 rows in less than 5 s, less than 500 MB.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from measured_commit import describe_commit

FIRST_PAGE_S, FILTER_S, SEARCH_S, MEMORY_MB = 2.0, 0.5, 0.5, 500
DOWNLOAD_S = 5.0
ITERATIONS, PER_SHARD, COPIES, REPEATS = 4, 500, 200, 5
CALLS = 10  # of an episode, at most
ASKED = {
    "all episodes": "episodes?split=test",
    "wrong verdicts": "episodes?split=test&verdict=wrong",
    "one iteration, failures first": "episodes?split=test&iteration=3&sort=failures",
    "accepted, most tokens first": "episodes?split=test&decision=1&sort=tokens",
    "a problem": "episodes?split=test&problem=copy-7",
    "a page far behind": "episodes?split=test&sort=reward&page=1500",
    "matrix, failures first": "matrix?split=test",
    "matrix, buggy ones": "matrix?split=test&label=0&page=3",
    "two iterations in pairs": "compare?a=view@0&b=view@4&split=test",
}
SEARCHED = {
    "a word of nearly every call": "text=that",
    "the same of a prover": "text=that&agent=prover",
    "two words in a row": "text=that+the",
    "a number of one call": "text=call+0123456",
    "a word of few": "text=mabasagu",
    "a word that stands nowhere": "text=xylophone",
    "two words of a prover in a round": "text=is+a&agent=prover&round=5",
    "wrong verdicts with a word, most tokens first": "text=because&verdict=wrong&sort=tokens",
    "a page far behind": "text=answer&page=700",
}
DOWNLOADED = "split=test&problem=in_range"  # two of 20 problems, in all iterations
FREQUENT = """the that a is of it and to in not this you for be code answer because wrong right loop
value sum number returns before limit question step check each"""
WORDS, WORDS_PER_TEXT = 5_000, 45  # which makes 60 tokens, or so
SYLLABLES = """ba co de fi gu la me ni po ru sa te vi lo ma ne pi ro su ta"""


def settings(place: Path) -> dict[str, Any]:
    """The run whose tables are multiplied; its rounds are those of the paper."""
    return {
        "run_name": "view",
        "run_store": str(place / "runs"),
        "dataset": "families",
        "agents": {
            "_default": {
                "model_provider": "SelfHosted",
                "model_name": "deterministic",
                "max_tokens_per_message": 64,
            }
        },
        "lm_server": {"engine": "deterministic"},
        "protocol_common": {"shared_reward": True},
        "nip_protocol": {"max_message_rounds": 9, "min_message_rounds": 9},
        "rl": {"num_iterations": ITERATIONS, "rollouts_per_iteration": 40, "num_epochs": 1},
        "dataset_options": {"max_test_size": 20},
        "fine_tuning": {"poll_interval_s": 0.02},
    }


def multiply(place: Path, episodes: int) -> None:
    """Replace the tests of the run, whose problems are the same in each iteration, by so many."""
    from nip_core.rollouts.storage.tables import StoredRollouts
    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store

    store = open_store(place / "runs")
    run = RunStore(store, "view")
    shards = max(1, round(episodes / (ITERATIONS + 1) / PER_SHARD))
    for iteration in range(ITERATIONS + 1):
        directory = run.rollouts(iteration, "test")
        stored = StoredRollouts(store, [directory])
        whole = next(stored.shards())
        timings = stored.timings()
        shutil.rmtree(place / "runs" / directory)
        write_shards(store, directory, shards, whole, timings)


def write_shards(store: Any, directory: str, shards: int, whole: Any, timings: pa.Table) -> None:
    """Commit a split of so many shards, each made of the rows of `whole`."""
    from nip_core.rollouts.storage.parquet import parquet_bytes
    from nip_core.run_store.manifest import commit

    digests = {}
    for shard in range(shards):
        tables = copied(whole, timings, f"{directory.split('/')[-3][-2:]}{shard:03d}", shard)
        name = f"{shard:04d}"
        manifest = commit(
            store,
            directory,
            {f"{kind}-{name}.parquet": parquet_bytes(table) for kind, table in tables.items()},
            rows={kind: table.num_rows for kind, table in tables.items()},
            name=f"manifest-{name}.json",
        )
        digests[f"shard/{name}"] = manifest.digest
    commit(store, directory, {}, inputs=digests)


def copied(whole: Any, timings: pa.Table, mark: str, shard: int) -> dict[str, pa.Table]:
    """The tables of a shard: `PER_SHARD` episodes, those of `whole` in turn, with new keys."""
    # 1. Which episodes, and with each all of its generations.
    size = whole.episodes.num_rows
    number = shard * PER_SHARD + np.arange(PER_SHARD)
    chosen = number % size
    episodes = whole.episodes.take(pa.array(chosen))
    owners = pc.index_in(whole.generations["episode"], whole.episodes["key"].combine_chunks())
    rows_of = [np.flatnonzero(owners.to_numpy() == k) for k in range(size)]
    rows = np.concatenate([rows_of[k] for k in chosen])
    copy = np.repeat(np.arange(PER_SHARD), [len(rows_of[k]) for k in chosen])
    # 2. Keys, problems and samples of their own.
    keys = np.array([f"{mark}-{k:010d}" for k in range(PER_SHARD)])
    copies = number // size
    names = zip(episodes["problem"].to_pylist(), copies % COPIES, strict=True)
    problems = [f"{name}/copy-{n}" for name, n in names]
    episodes = _with(episodes, key=keys, problem=problems, sample=(copies // COPIES).astype("i4"))
    generations = whole.generations.take(pa.array(rows))
    named = np.array([f"{mark}g{k:010d}" for k in range(len(rows))])
    parents = pc.if_else(
        pc.is_null(generations["parent_key"]),
        pa.scalar(None, pa.string()),
        pa.array(np.roll(named, 1)),
    )
    texts = made_up_texts(int(mark) * PER_SHARD * CALLS, len(rows))
    generations = _with(generations, key=named, episode=keys[copy], parent_key=parents, text=texts)
    times = _with(timings.take(pa.array(rows)), key=named)
    return {"episodes": episodes, "generations": generations, "timings": times}


def made_up_texts(first: int, count: int) -> list[str]:
    """Texts that all differ, of words as frequent as in a language; `first` is their first number.

    What a text is like does not depend on who says it, so that each search reads all of them.
    """
    drawn = np.random.default_rng(first)
    vocabulary = np.array([*FREQUENT.split(), *made_up_words()])
    weights = 1 / (np.arange(len(vocabulary)) + 2.7)
    size = (count, WORDS_PER_TEXT)
    chosen = drawn.choice(len(vocabulary), size, p=weights / weights.sum())
    return [
        f"Call {first + number:07d}: {' '.join(words)}."
        for number, words in enumerate(vocabulary[chosen])
    ]


def made_up_words() -> list[str]:
    """Words that no text has but by chance of the draw, the more frequent ones first."""
    drawn, syllables = np.random.default_rng(0), SYLLABLES.split()
    words = ("".join(drawn.choice(syllables, drawn.integers(2, 5))) for _ in range(WORDS))
    return [*dict.fromkeys(words)]


def _with(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        if isinstance(values, pa.ChunkedArray | pa.Array):
            table = table.set_column(at, field, values.cast(field.type))
        else:
            table = table.set_column(at, field, pa.array(list(values), field.type))
    return table


def make(place: Path, episodes: int) -> None:
    """Play the small run, and multiply it."""
    import asyncio

    from nip_core.loop import train
    from nip_core.parameters import load_parameters

    asyncio.run(train(load_parameters(settings(place))))
    multiply(place, episodes)


class Viewer:
    """`nip view` on the run, as a process; use as a context manager."""

    def __init__(self, place: Path) -> None:
        """Start it, and wait for its address."""
        self.began_s = time.monotonic()
        nip = Path(sys.executable).with_name("nip")
        store = ["--run-store", str(place / "runs")]
        self._process = subprocess.Popen(
            [str(nip), "view", *store, "--no-open", "--no-token"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.search(r"http://[\d.]+:\d+/", line):
                self.address = match[0]
                break
        self.ready_s = time.monotonic() - self.began_s

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def ask(self, page: str) -> float:
        """Seconds until the whole page is here."""
        began = time.monotonic()
        with urllib.request.urlopen(self.address + page) as response:
            body = response.read()
        assert response.status == 200 and b"</html>" in body
        return time.monotonic() - began

    def processor_s(self) -> float:
        """Seconds of a processor that the process has taken so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """The most that the process has had in memory so far, in 10⁶ bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak is not None
        return int(peak[1]) * 1024 / 1e6


def measure(place: Path) -> dict[str, Any]:
    """Start the viewer once and ask it for everything."""
    with Viewer(place) as viewer:
        ready_processor_s = viewer.processor_s()
        first_s = viewer.ask("runs/view")
        from_start_s = time.monotonic() - viewer.began_s
        first_processor_s = viewer.processor_s() - ready_processor_s
        first_list_s = viewer.ask("runs/view/" + ASKED["all episodes"])
        filters = {}
        for name, page in ASKED.items():
            address = page if page.startswith("compare") else f"runs/view/{page}"
            before_s = viewer.processor_s()
            seconds = [viewer.ask(address) for _ in range(REPEATS)]
            filters[name] = {
                "slowest_s": round(max(seconds), 3),
                "median_s": round(statistics.median(seconds), 3),
                "processor_s": round((viewer.processor_s() - before_s) / REPEATS, 3),
            }
        searches = {name: measure_search(viewer, asked) for name, asked in SEARCHED.items()}
        return {
            "ready_s": round(viewer.ready_s, 2),
            "ready_processor_s": round(ready_processor_s, 2),
            "first_page_s": round(first_s, 3),
            "first_page_processor_s": round(first_processor_s, 2),
            "first_page_from_start_s": round(from_start_s, 2),
            "first_list_s": round(first_list_s, 3),
            "filters": filters,
            "searches": searches,
            "downloads": {kind: measure_download(viewer, kind) for kind in ("csv", "jsonl")},
            "peak_memory_mb": round(viewer.memory_mb()),
        }


def measure_search(viewer: Viewer, asked: str) -> dict[str, float]:
    """Look for a text for the first time, and again."""
    address = f"runs/view/episodes?split=test&{asked}"
    before_s = viewer.processor_s()
    first_s = viewer.ask(address)
    first_processor_s = viewer.processor_s() - before_s
    return {
        "first_s": round(first_s, 3),
        "again_slowest_s": round(max(viewer.ask(address) for _ in range(REPEATS)), 3),
        "first_processor_s": round(first_processor_s, 3),
    }


def measure_download(viewer: Viewer, kind: str) -> dict[str, float]:
    """Take rows away, all at once."""
    before_s, began_s, size = viewer.processor_s(), time.monotonic(), 0
    with urllib.request.urlopen(
        f"{viewer.address}runs/view/episodes.{kind}?{DOWNLOADED}"
    ) as response:
        while part := response.read(1 << 20):
            size += len(part)
    seconds = time.monotonic() - began_s
    with urllib.request.urlopen(f"{viewer.address}runs/view/episodes?{DOWNLOADED}") as response:
        counted = re.search(rb"<strong>([^<]+)</strong> episode", response.read())
    assert counted is not None
    return {
        "rows": int(re.sub(rb"[^0-9]", b"", counted[1])),
        "seconds": round(seconds, 2),
        "processor_s": round(viewer.processor_s() - before_s, 2),
        "mb": round(size / 1e6, 1),
    }


def main() -> None:
    """Make the run, measure, and say whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="where the run is made, or is already")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    place = arguments.keep or Path(tempfile.mkdtemp())
    try:
        if not (place / "runs/view").exists():
            make(place, arguments.episodes)
        result = {
            "episodes": arguments.episodes,
            **measure(place),
            "commit": describe_commit(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "load_before": round(os.getloadavg()[1], 1),
        }
    finally:
        if arguments.keep is None:
            shutil.rmtree(place)
    slowest = max(of["slowest_s"] for of in result["filters"].values())
    searches = [max(of["first_s"], of["again_slowest_s"]) for of in result["searches"].values()]
    result["bars_met"] = {
        "first_page": result["first_page_s"] < FIRST_PAGE_S,
        "filters": slowest < FILTER_S,
        "searches": max(searches) < SEARCH_S,
        "downloads": all(
            of["seconds"] < DOWNLOAD_S * of["rows"] / 10_000 for of in result["downloads"].values()
        ),
        "memory": result["peak_memory_mb"] < MEMORY_MB,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
