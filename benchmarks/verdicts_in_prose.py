"""In how many recorded answers does each way of reading a verdict alone decide?

    python benchmarks/verdicts_in_prose.py RUN... --out docs/results/verdicts_in_prose.json
    python benchmarks/verdicts_in_prose.py --play quickstart deterministic --out ...

RUN is the directory of a run. `--play` first trains bundled configurations, at a small size and
without Prefect, in `--store`. Each answer that may decide is read three times: as nip reads it,
without verdicts in other words (`nip_core.game.answers.other_words`), and without the second look
in plainer words (`nip_core.game.answers.plainer`). A way of reading alone decides where the verdict
is gone without it. Counted too is what it makes invalid, which is asked for again.

What is covered: the words in which models answered these runs' prompts. What is not: other models.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from nip_core.game.answers import parsing
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.game.render import Game
from nip_core.parameters.stored import read_settings
from nip_core.protocols import NO_DECISION
from nip_core.rollouts.storage.table_rows import Episode, Generation, read_rows
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.rollouts.trees import generations_by_episode
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

ROOT = Path(__file__).parent.parent
WAYS = ("other_words", "plainer")
SMALL = (
    "rl.num_iterations=1",
    "rl.rollouts_per_iteration=64",
    "dataset_options.max_test_size=100",
    "text_rl.test_scheme=all",
)


def main() -> int:
    """Count over all runs, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--play", nargs="*", default=[], metavar="CONFIG")
    parser.add_argument("--store", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begun = time.monotonic()
    runs = [*options.runs, *(play(config, options.store) for config in options.play)]
    counts = {path.name: count(path) for path in runs}
    whole = sum(counts.values(), Counter[str]())
    results = {
        "command": f"python benchmarks/verdicts_in_prose.py {' '.join(sys.argv[1:])}",
        "commit": commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {sys.version.split()[0]}",
        "seconds": round(time.monotonic() - begun),
        "runs": {name: dict(sorted(of_run.items())) for name, of_run in counts.items()},
        "all": dict(sorted(whole.items())),
        "share_of_decisions": {
            way: round(whole[f"decided by {way} alone"] / max(1, whole["decided"]), 5)
            for way in WAYS
        },
    }
    text = json.dumps(results, indent=1) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)
    return 0


def play(config: str, store: Path) -> Path:
    """Train a bundled configuration at a small size, or go on with it; the run's directory."""
    from nip_core.loop import train
    from nip_core.parameters import load_parameters

    name = f"verdicts-{config}"
    overrides = [f"run_name={name}", f"run_store={store}", *SMALL]
    asyncio.run(train(load_parameters(config, overrides)))
    return store / name


def count(path: Path) -> Counter[str]:
    """Count the answers of a run that may decide, by what each way of reading makes of them."""
    counts: Counter[str] = Counter()
    for text, form in answers(path):
        counts["may decide"] += 1
        verdict = read(text, form)
        counts["invalid" if verdict is None else _word(verdict)] += 1
        for way, without in (("other_words", without_other_words), ("plainer", without_plainer)):
            with without():
                other = read(text, form)
            if other == verdict:
                continue
            if verdict not in (None, NO_DECISION):
                counts[f"decided by {way} alone"] += 1
            elif verdict is None:
                counts[f"made invalid by {way} alone"] += 1
            else:
                counts[f"made a message by {way} alone"] += 1
    return counts


def _word(verdict: int) -> str:
    return "a message" if verdict == NO_DECISION else "decided"


def answers(path: Path) -> Iterator[tuple[str, AnswerForm]]:
    """Give the texts of answers that may decide, each with the form that was asked for."""
    run = RunStore(open_store(str(path.parent)), path.name)
    game = Game(read_settings(run.open().parameters))
    for directory in sorted(path.glob("iterations/*/rollouts/*")):
        place = str(directory.relative_to(path.parent))
        # What a run was stopped in has no manifest, and nothing of it counts.
        if not is_committed(run.store, place):
            continue
        tables = read_rollouts(run.store, place)
        episodes = [*read_rows(tables.episodes, Episode)]
        by_episode = generations_by_episode(episodes, read_rows(tables.generations, Generation))
        seen: set[str] = set()
        for episode in episodes:
            rows = by_episode[episode.key]
            try:
                turns = game.turns(rows, episode.seed)
            except InvalidResponse:  # another version of nip has read it otherwise
                turns = []
            for row in rows:
                if row.key in seen or row.model_served == "random":
                    continue
                seen.add(row.key)  # a tree's answer stands in every leaf behind it
                before = [turn for turn in turns if turn.round < row.round]
                form = game.form(row.agent, row.round, episode.seed, before)
                if form.scale is not None:
                    yield row.text, form


def read(text: str, form: AnswerForm) -> int | None:
    """Read the decision of an answer; NO_DECISION for a message, None for an invalid one."""
    try:
        return parse_response(text, form).decision
    except InvalidResponse:
        return None


@contextmanager
def _replaced(name: str, function: Callable[..., object]) -> Iterator[None]:
    """Read with another function in the parser's place of this name."""
    kept = getattr(parsing, name)
    setattr(parsing, name, function)
    try:
        yield
    finally:
        setattr(parsing, name, kept)


def without_other_words() -> AbstractContextManager[None]:
    """Read decision lines alone."""
    return _replaced("find_claims", lambda answer: [])


def without_plainer() -> AbstractContextManager[None]:
    """Read without the second look."""
    return _replaced("_second_look", lambda text, form: None)


def commit() -> str:
    """Name the commit that is measured."""
    git = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
