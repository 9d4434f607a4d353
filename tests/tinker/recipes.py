"""The cookbook's recipes as a user runs them, offline: with data that lie in relative directories.

make_place   tokenizer and data sets under the names that recipes load them by
Place.run    a recipe as a process, to its end
"""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY = "tml-local"
MODEL = "Qwen/Qwen3.5-9B-Base"
"""The default of most recipes, whose renderer writes plain words: any tokenizer will do."""


@dataclass(frozen=True)
class Place:
    """A directory to run recipes in, and the server that they ask."""

    directory: Path
    url: str

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

    def run(self, recipe: str, **settings: Any) -> list[dict[str, Any]]:
        """Run a recipe as it is published; returns the rows of its metrics."""
        log = self.directory / "logs" / f"{recipe}-{len(list(self.directory.glob('logs/*')))}"
        options = [f"{name}={value}" for name, value in {"log_path": log, **settings}.items()]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", f"tinker_cookbook.recipes.{recipe}", *options],
            cwd=self.directory,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_place(directory: Path, url: str, root: Path) -> Place:
    """Write what the recipes load: the tiny model's tokenizer, and small data sets."""
    drawn = random.Random(0)
    tokenizer = directory / MODEL
    tokenizer.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(root / "nip_core" / "models" / "tiny" / name, tokenizer)
    # 1. Conversations, for supervised recipes.
    for split, count in (("train", 512), ("test", 32)):
        _write(directory / "HuggingFaceH4/no_robots" / f"{split}.jsonl", _sums(drawn, count))
    # 2. Questions with a number as their answer, for the loop of reinforcement learning.
    for split, count in (("train", 256), ("test", 32)):
        rows = [
            {"question": row["messages"][0]["content"], "answer": f"#### {drawn.randrange(10)}"}
            for row in _sums(drawn, count)
        ]
        _write(directory / "openai/gsm8k/main" / f"{split}.jsonl", rows)
    files = "".join(
        f"  - split: {split}\n    path: main/{split}.jsonl\n" for split in ("train", "test")
    )
    (directory / "openai/gsm8k/README.md").write_text(
        f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n"
    )
    return Place(directory, url)


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
