"""How fast rollouts become a training dataset, against reading and writing the same with pyarrow.

    python benchmarks/dataset.py [--rollouts 100000] [--out docs/results/dataset.json]

Rollouts of `nip` with nine rounds are made up, with messages of about 300 bytes on problems of the
bundled `families` set, and committed in shards of 500 by the functions that commit what is played.
Then, in two cases (the threshold is reached by about half of them; by all), three times each and
in turn, every one in a process of its own:

nip      choose the verifier's examples by expert iteration, render them, write the Parquet file
         with its digest, as the stage that builds a dataset does
pyarrow  read both tables of every shard whole, and write the examples of the file above, which are
         in memory, in the same schema, row groups and compression

What is covered: time and processor time (medians), the latter of all processes and threads, and
the peak memory of nip's processes together (sampled; what they share counts for each). The bar is
on time and memory. What is not: the JSONL that is
uploaded, which is derived later (its time is given for information), and the commit's copy.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from measured_commit import describe_commit

from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import EpisodeSpec, plan_episodes
from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.rollouts.storage.table_rows import Episode, Generation
from nip_core.rollouts.storage.tables import StoredRollouts, commit_shard, join_shards
from nip_core.run_store.local_store import LocalStore
from nip_core.scenarios.datasets import load_problems
from nip_core.trainers import chooser
from nip_core.trainers.dataset import EXAMPLES, Dataset, write_examples
from nip_core.trainers.lines import write_jsonl

ROUNDS, SHARD, BYTES, REPEATS = 9, 500, 300, 3
DIRECTORY = "dataset/iterations/0000/rollouts/train"
CASES = {"half": 0.9, "all": -9.0}
MOST_TIMES, MOST_MB = 3.0, 1000.0


def make_game(threshold: float, rollouts: int = 1) -> Game:
    """The game that was played, with a threshold for the verifier."""
    return Game(
        load_parameters(
            {
                "run_name": "dataset",
                "dataset": "families",
                "nip_protocol": {"max_message_rounds": ROUNDS, "min_message_rounds": ROUNDS},
                "rl": {"rollouts_per_iteration": rollouts},
                "pure_text_ei": {"reward_threshold": threshold},
            }
        )
    )


# Making rollouts up


def make_rollouts(place: Path, count: int) -> None:
    """Commit `count` rollouts under `place`."""
    store, numbers = LocalStore(place), range(-(-count // SHARD))
    with ProcessPoolExecutor(initializer=_get_ready, initargs=(place, count)) as processes:
        names = list(processes.map(_make_shard, numbers))
    join_shards(store, DIRECTORY, names)


_ready: list[Any] = []


def _get_ready(place: Path, count: int) -> None:
    game = make_game(0.9, count)
    problems = load_problems(game.scenario, "families", "train")
    words = " ".join(problem.question for problem in problems).split()
    specs = plan_episodes(game.parameters, problems, "train", 0)
    _ready[:] = [LocalStore(place), game, specs, words]


def _make_shard(number: int) -> str:
    store, game, specs, words = _ready
    random = Random(number)
    mine = specs[number * SHARD : (number + 1) * SHARD]
    played = [play(game, spec, words, random) for spec in mine]
    generations = [row for _, rows in played for row in rows]
    tables = build_tables([episode for episode, _ in played], generations)
    commit_shard(store, DIRECTORY, f"{number:04d}", tables)
    return f"{number:04d}"


def play(
    game: Game, spec: EpisodeSpec, words: list[str], random: Random
) -> tuple[Episode, list[Generation]]:
    """Make up an episode with its calls."""
    decision = random.randrange(2)
    is_right = decision == spec.problem.y
    rows: list[Generation] = []
    tokens = 600
    for round_ in range(ROUNDS):
        agent = "prover" if round_ % 2 else "verifier"
        is_last = round_ == ROUNDS - 1
        text = _message("Answer" if round_ % 2 else "Question", words, random)
        if is_last:
            text = f"Decision: {'accept' if decision else 'reject'}"
        rows.append(
            Generation(
                key=spec.generation_key(AnswerPlace(round_, agent)),
                parent_key=rows[-1].key if rows else None,
                episode=spec.key,
                branch_path="",
                round=round_,
                agent=agent,
                attempt=0,
                model_asked=f"{agent}-model",
                model_served=f"{agent}-model",
                text=text,
                decision=decision if is_last else 2,
                decision_value=(1.0 if decision else -1.0) if is_last else None,
                finish_reason="stop",
                invalid_reason=None,
                prompt_tokens=tokens,
                completion_tokens=len(text) // 4,
            )
        )
        tokens += len(text) // 4
    episode = Episode(
        key=spec.key,
        run=spec.run,
        split=spec.split,
        iteration=0,
        problem=spec.problem.id,
        question_id=spec.problem.question_id,
        sample=spec.sample,
        branch_path="",
        protocol="nip",
        question=spec.problem.question,
        solution=spec.problem.solution,
        y=spec.problem.y,
        difficulty=spec.problem.difficulty,
        mutation=spec.problem.mutation,
        seed=spec.seed,
        prover_stance=None,
        rounds=ROUNDS,
        decision=decision,
        decision_value=1.0 if decision else -1.0,
        outcome="finished",
        error=None,
        rewards={"prover": float(decision), "verifier": 1.0 if is_right else -1.0},
    )
    return episode, rows


def _message(begin: str, words: list[str], random: Random) -> str:
    text = " ".join(random.choices(words, k=BYTES // 4))
    return f"{begin}: {text[: BYTES - len(begin)]}".rstrip()


# What is measured, each in a process of its own


def run_nip(place: Path, case: str) -> dict[str, Any]:
    """Build the dataset; its file stays for the others."""
    game, file = make_game(CASES[case]), place / f"{case}.parquet"
    rollouts = StoredRollouts(LocalStore(place), [DIRECTORY])
    used = stopwatch()
    choice = chooser("supervised")(game, "verifier", 0, rollouts, ["verifier"])
    written = write_examples(file, "supervised", choice.examples)
    return {**used(), "examples": written.examples, "digest": written.digest}


def run_pyarrow(place: Path, case: str) -> dict[str, Any]:
    """Read the rollouts' files, and write the examples."""
    examples = pq.read_table(place / f"{case}.parquet")
    groups = examples.to_batches(max_chunksize=500)
    used = stopwatch()
    rows = 0
    for kind in ("episodes", "generations"):
        for file in sorted((place / DIRECTORY).glob(f"{kind}-*.parquet")):
            rows += pq.read_table(file).num_rows
    read = used()["seconds"]
    with pq.ParquetWriter(place / "again.parquet", EXAMPLES, compression="zstd") as writer:
        for group in groups:
            writer.write_table(pa.Table.from_batches([group], EXAMPLES))
    return {**used(), "read_seconds": read, "rows": rows}


def run_jsonl(place: Path, case: str) -> dict[str, Any]:
    """Derive and check the file that is uploaded."""
    dataset = Dataset(place / f"{case}.parquet", "supervised", case)
    used = stopwatch()
    lines = write_jsonl(dataset.rows(), "supervised", place / "lines.jsonl", case)
    return {**used(), "examples": lines}


def stopwatch() -> Callable[[], dict[str, float]]:
    """Return what says how long it has been, and how much processor time was used meanwhile."""

    def now() -> tuple[float, float]:
        usages = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.perf_counter(), sum(u.ru_utime + u.ru_stime for u in usages)

    began = now()
    return lambda: dict(
        zip(("seconds", "cpu_seconds"), map(float.__sub__, now(), began), strict=True)
    )


class PeakMemory(threading.Thread):
    """The most memory that this process and those it started had together, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mb = 0.0

    def run(self) -> None:
        """Look ten times a second."""
        own = psutil.Process()
        while True:
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.mb = max(self.mb, total / 1e6)
            time.sleep(0.1)


RUNS = {"nip": run_nip, "pyarrow": run_pyarrow, "jsonl": run_jsonl}


def in_own_process(what: str, place: Path, case: str) -> dict[str, Any]:
    """One measurement."""
    command = [sys.executable, __file__, "--measure", what, case, "--place", str(place)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{case:>5} {what:>8}: {measured['seconds']:.1f} s", file=sys.stderr, flush=True)
    return measured


def measure(place: Path, rollouts: int) -> Iterator[dict[str, Any]]:
    """A row for each case."""
    for case in CASES:
        samples: dict[str, list[dict[str, Any]]] = {"nip": [], "pyarrow": []}
        for _ in range(REPEATS):
            for what, measured in samples.items():
                measured.append(in_own_process(what, place, case))
        jsonl = in_own_process("jsonl", place, case)
        nip, pyarrow, nip_cpu, pyarrow_cpu = (
            statistics.median(m[kind] for m in samples[what])
            for kind in ("seconds", "cpu_seconds")
            for what in ("nip", "pyarrow")
        )
        assert len({m["digest"] for m in samples["nip"]}) == 1
        yield {
            "case": case,
            "rollouts": rollouts,
            "examples": samples["nip"][0]["examples"],
            "dataset_mb": round((place / f"{case}.parquet").stat().st_size / 1e6, 1),
            "nip_seconds": round(nip, 2),
            "pyarrow_seconds": round(pyarrow, 2),
            "factor": round(nip / pyarrow, 2),
            "nip_cpu_seconds": round(nip_cpu, 2),
            "pyarrow_cpu_seconds": round(pyarrow_cpu, 2),
            "cpu_factor": round(nip_cpu / pyarrow_cpu, 2),
            "all_seconds": {w: [round(m["seconds"], 2) for m in samples[w]] for w in samples},
            "rollouts_per_second": round(rollouts / nip),
            "peak_rss_mb": round(max(m["peak_rss_mb"] for m in samples["nip"])),
            "jsonl_seconds": round(jsonl["seconds"], 2),
            "jsonl_peak_rss_mb": round(jsonl["peak_rss_mb"]),
        }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| chosen | examples | nip, s | pyarrow, s | factor | of processor time | rollouts per s "
        "| peak memory, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['case']} | {row['examples']:,} | {row['nip_seconds']:.1f} "
            f"| {row['pyarrow_seconds']:.1f} | {row['factor']:.2f} | {row['cpu_factor']:.2f} "
            f"| {row['rollouts_per_second']:,} | {row['peak_rss_mb']:,} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Make the rollouts, measure, print and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--place", type=Path, help="keep rollouts here, and use those that are")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "CASE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, case = arguments.measure
        memory = PeakMemory()
        memory.start()
        measured = RUNS[what](arguments.place, case)
        print(json.dumps({**measured, "peak_rss_mb": memory.mb}))
        return
    load = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.place or Path(temporary)
        if not (place / DIRECTORY / "manifest.json").exists():
            make_rollouts(place, arguments.rollouts)
        rows = list(measure(place, arguments.rollouts))
    met = all(r["factor"] <= MOST_TIMES and r["peak_rss_mb"] <= MOST_MB for r in rows)
    result = {
        "cases": rows,
        "bar": {"factor": MOST_TIMES, "peak_rss_mb": MOST_MB, "met": met},
        "commit": describe_commit(),
        "machine": {
            "system": platform.machine(),
            "python": platform.python_version(),
            "cores": psutil.cpu_count(),
            "load_before": round(load, 1),
        },
        "pyarrow": version("pyarrow"),
    }
    print(table(rows))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
