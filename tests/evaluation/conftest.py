"""Builders of small `episodes` and `generations` tables: what a test doesn't say has a default."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS

Builder = Callable[..., pa.Table]


@pytest.fixture(scope="session")
def episodes_of() -> Builder:
    def build(*rows: dict[str, Any]) -> pa.Table:
        def fill(index: int, row: dict[str, Any]) -> dict[str, Any]:
            rewards = row.get("rewards", {})
            defaults = {
                "key": f"e{index}", "run": "run", "split": "test", "iteration": 0,
                "problem": f"p{index}", "question_id": f"q{index}", "sample": 0,
                "branch_path": "", "protocol": "nip", "question": "Add one to x.",
                "solution": "def f(x):\n    return x + 1\n", "y": 1, "difficulty": None,
                "mutation": None, "seed": index, "decision_value": None, "prover_stance": None, "rounds": 3,
                "decision": 1, "outcome": "finished", "error": None,
            }  # fmt: skip
            paid = [{"agent": agent, "reward": reward} for agent, reward in rewards.items()]
            return {**defaults, **row, "rewards": paid}

        return pa.Table.from_pylist([fill(i, row) for i, row in enumerate(rows)], EPISODES)

    return build


@pytest.fixture(scope="session")
def generations_of() -> Builder:
    def build(*rows: dict[str, Any]) -> pa.Table:
        def fill(index: int, row: dict[str, Any]) -> dict[str, Any]:
            defaults = {
                "key": f"g{index}", "parent_key": None, "episode": "e0", "branch_path": "",
                "round": index, "agent": "prover", "exchange": 0, "attempt": 0, "model_asked": "tiny",
                "model_served": "tiny-1", "text": "they match", "decision": 2,
                "finish_reason": "stop", "invalid_reason": None, "prompt_tokens": 10,
                "completion_tokens": 3,
            }  # fmt: skip
            return {**defaults, **row}

        return pa.Table.from_pylist([fill(i, row) for i, row in enumerate(rows)], GENERATIONS)

    return build
