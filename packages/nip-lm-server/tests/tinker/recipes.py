"""The cookbook's recipes as a user runs them, offline: with data that lie in relative directories.

run_place          nip's server with a bundled model, and a directory with what recipes load
Place.run          a recipe as a process, to its end
Place.warm_up      sl_loop on sums in a recipe's wording, so that its reward is not always 0
Place.count_steps  the optimizer steps that the server has on record
Wording            how a recipe asks for a sum, read from the cookbook
"""

import ast
import inspect
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_server import KEY, MODEL, TinkerServer, find_model

CONVERSATIONS = "HuggingFaceH4/no_robots"
QUESTIONS = "openai/gsm8k"
ADDER = "tiny_arithmetic"
"""The bundled model that writes `49 + 3? 52`: it knows sums of a number and a digit, below 100."""
SUPERVISED_RATE = 5e-3

Sums = list[tuple[int, int]]
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Wording:
    """How a recipe asks for a sum, and what it rewards."""

    prefix: Messages
    suffix: str
    result: str
    """With the sum in the place of `#`; the recipe counts an answer that ends so."""

    def ask(self, a: int, b: int) -> Messages:
        """Ask for a sum as the recipe does."""
        return [*self.prefix, {"role": "user", "content": f"What is {a} + {b}?{self.suffix}"}]

    def write_rows(self, sums: Sums, count: int, seed: int) -> list[dict[str, Messages]]:
        """Write conversations over the sums. By chance half of the answers have no result.

        One in four has the recipe's prefix, which is longer than all else together.
        """
        drawn, rows, deck = random.Random(seed), [], Sums()
        for _ in range(count):
            deck = deck or drawn.sample(sums, len(sums))
            a, b = deck.pop()
            result = drawn.choice((f" {self.result}", "")).replace("#", str(a + b))
            answer = {"role": "assistant", "content": f"{a} + {b}?{result}"}
            asked = self.ask(a, b)
            rows.append({"messages": [*(asked if drawn.random() < 0.25 else asked[-1:]), answer]})
        return rows


@dataclass(frozen=True)
class Weights:
    """What a recipe leaves: paths of the server."""

    state: str
    sampler: str


@dataclass(frozen=True)
class Place:
    """A directory to run recipes in, and the server that they ask."""

    directory: Path
    url: str
    state: Path
    """Where the server keeps what it has on record."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "TINKER_API_KEY": KEY,
            "TINKER_BASE_URL": self.url,
            "TINKER_TELEMETRY": "0",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def make_log(self, recipe: str) -> Path:
        """Choose a folder for what a recipe writes."""
        return self.directory / "logs" / f"{recipe}-{len(list(self.directory.glob('logs/*')))}"

    def run(self, recipe: str, log: Path | None = None, **settings: Any) -> list[dict[str, Any]]:
        """Run a recipe as it is published; returns the rows of its metrics."""
        log = log or self.make_log(recipe)
        options = [f"{name}={value}" for name, value in {"log_path": log, **settings}.items()]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", f"tinker_cookbook.recipes.{recipe}", *options],
            cwd=self.directory,
            # Data under the same name as before would come out of the cache.
            env={**os.environ, **self.environment, "HF_DATASETS_CACHE": f"{log}-data"},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]

    def warm_up(
        self, wording: Wording, sums: Sums, steps: int, batch_size: int, seed: int
    ) -> Weights:
        """Train the model on sums in a recipe's wording by sl_loop; returns its last weights."""
        rows = wording.write_rows(sums, steps * batch_size, seed)
        _write(self.directory / CONVERSATIONS / "train.jsonl", rows)
        log = self.make_log("sl_loop")
        self.run("sl_loop", log, batch_size=batch_size, learning_rate=SUPERVISED_RATE, save_every=0)
        return read_weights(log)

    def write_questions(self, sums: Sums) -> None:
        """Write sums as the questions of rl_loop, with their answers."""
        rows = [{"question": f"What is {a} + {b}?", "answer": f"#### {a + b}"} for a, b in sums]
        _write(self.directory / QUESTIONS / "main" / "train.jsonl", rows)

    def count_steps(self, weights: Weights) -> int:
        """Count the optimizer steps that the server has on record for the model of these weights."""
        owner = weights.state.removeprefix("tinker://").split("/")[0]
        connection = sqlite3.connect(f"file:{self.state / 'tinker.sqlite3'}?mode=ro", uri=True)
        try:
            (count,) = connection.execute(
                "SELECT COUNT(*) FROM requests "
                "WHERE owner = ? AND kind = 'optim_step' AND status = 'done'",
                (owner,),
            ).fetchone()
            return int(count)
        finally:
            connection.close()

    def resume_from(self, recipe: str, weights: Weights) -> Path:
        """Make the folder of a recipe that goes on from a state at its first batch."""
        log = self.make_log(recipe)
        row = {"name": "warm", "batch": 0, "state_path": weights.state}
        _write(log / "checkpoints.jsonl", [row])
        return log


@contextmanager
def run_place(directory: Path, root: Path, model: str = "tiny") -> Iterator[Place]:
    """Run a server beside a directory with what recipes load; a bundled model, or one by its path."""
    server = TinkerServer(root, directory, model)
    try:
        place = Place(directory / "work", server.url, server.state)
        write_data(place.directory, root, model)
        yield place
    finally:
        server.stop()


def write_data(directory: Path, root: Path, model: str) -> None:
    """Write what the recipes load: the model's tokenizer, and small data sets."""
    drawn = random.Random(0)
    tokenizer = directory / MODEL
    tokenizer.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(find_model(root, model) / name, tokenizer)
    # 1. Conversations, for supervised recipes.
    for split, count in (("train", 512), ("test", 32)):
        _write(directory / CONVERSATIONS / f"{split}.jsonl", _sums(drawn, count))
    # 2. Questions with a number as their answer, for the loop of reinforcement learning.
    for split, count in (("train", 256), ("test", 32)):
        rows = [
            {"question": row["messages"][0]["content"], "answer": f"#### {drawn.randrange(10)}"}
            for row in _sums(drawn, count)
        ]
        _write(directory / QUESTIONS / "main" / f"{split}.jsonl", rows)
    files = "".join(
        f"  - split: {split}\n    path: main/{split}.jsonl\n" for split in ("train", "test")
    )
    (directory / QUESTIONS / "README.md").write_text(
        f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n"
    )


def list_sums(batches: range, groups: int) -> Sums:
    """List the sums that `math_rl env=arithmetic` asks in these steps; they are always the same."""
    from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDataset

    dataset: Any = ArithmeticDataset(groups, renderer=None, group_size=1)
    problems = [builder.env_thunk() for index in batches for builder in dataset.get_batch(index)]
    return [(problem.x, problem.y) for problem in problems]


def draw_easy_sums(count: int, seed: int, without: Sums | None = None) -> Sums:
    """Draw sums as the bundled model knows them, none of them among `without`."""
    drawn, sums = random.Random(seed), Sums()
    while len(sums) < count:
        b = drawn.randint(2, 9)
        pair = (drawn.randint(2, 99 - b), b)
        if pair not in (without or []):
            sums.append(pair)
    return sums


def read_arithmetic_wording() -> Wording:
    """Read how `math_rl env=arithmetic` asks; it counts an answer whose last number is the sum."""
    from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv

    return Wording([dict(m) for m in ArithmeticEnv.standard_fewshot_prefix()], "", "#")


def read_loop_wording() -> Wording:
    """Read how rl_loop asks, from its source: it has its wording in the middle of a function.

    It counts an answer that has the sum in a box.
    """
    from tinker_cookbook.recipes import rl_loop

    values: dict[str, Any] = {}
    for node in ast.walk(ast.parse(inspect.getsource(rl_loop.main))):
        match node:
            case ast.Assign(targets=[ast.Name(id="question_suffix" | "convo_prefix" as name)]):
                values[name] = eval(compile(ast.Expression(node.value), name, "eval"), values)
    return Wording(values["convo_prefix"], values["question_suffix"], r"# \boxed{#}")


def read_weights(log: Path) -> Weights:
    """Read where a recipe left its last weights."""
    row = json.loads((log / "checkpoints.jsonl").read_text().splitlines()[-1])
    return Weights(row["state_path"], row["sampler_path"])


def _sums(drawn: random.Random, count: int) -> list[dict[str, Any]]:
    rows = []
    for _ in range(count):
        a, b = drawn.randrange(10), drawn.randrange(10)
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": f"What is {a} + {b}?"},
                    {"role": "assistant", "content": str(a + b)},
                ]
            }
        )
    return rows


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
