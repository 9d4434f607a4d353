"""Base models that a group trains answer in turns where the server has room for one of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from served_here import KEY, Here, serve

from nip_base.spec import ServerSpec
from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE


def replies(folder: Path) -> str:
    """Trained once, the verifier is right; trained twice, it babbles."""
    rules = yaml.safe_load(DEFAULT_FILE.read_text())
    decides = rules["rules"][0]["when"]["system_contains"]
    trained = [
        {"when": {place: decides, **when}, "replies": [{"text": text}]}
        for place in ("system_contains", "last_contains")
        for when, text in (
            ({"min_generation": 2}, "gulp"),
            ({"min_generation": 1, "any_contains": "# right"}, "Decision: accept"),
            ({"min_generation": 1, "any_contains": "# wrong"}, "Decision: reject"),
        )
    ]
    path = folder / "replies.yaml"
    path.write_text(yaml.safe_dump(rules | {"rules": trained + rules["rules"]}))
    return str(path)


def problems(folder: Path) -> str:
    target = folder / "data"
    target.mkdir()
    for split, count in (("train", 20), ("validation", 6), ("test", 2)):
        rows = [
            {
                "id": f"{split}-{i}",
                "question": f"Return {i} ({split}).",
                "solution": f"return {i}  # {'right' if i % 2 else 'wrong'}",
                "y": i % 2,
            }
            for i in range(count)
        ]
        (target / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(target)


def settings(folder: Path, here: Here) -> dict[str, Any]:
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "sim",
        "shared_model_group": "both",
        "use_lora": False,
        "fine_tune_from_scratch": False,
        "max_tokens_per_message": 32,
        "num_invalid_generation_retries": 0,
    }
    return {
        "run_name": "turns",
        "run_store": str(folder / "runs"),
        "dataset": problems(folder),
        "lm_server": {"url": here.url},
        "agents": {"_default": agent},
        "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
        "rl": {"num_iterations": 2, "rollouts_per_iteration": 20, "num_epochs": 1},
        "rollouts": {"failure_threshold": 1.0, "concurrency": 8},
        "pure_text_ei": {"reward_threshold": -100.0},
        "promotion": {"enabled": True},
        "text_rl": {"test_scheme": "last"},
        "fine_tuning": {"poll_interval_s": 0.02, "settle_s": 0},
    }


async def test_old_and_new_base_models_play_for_the_gate_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIP_API_KEY", KEY)
    spec = ServerSpec("deterministic", "sim", replies=replies(tmp_path))
    assert spec.bases_at_once == 1
    async with serve(tmp_path / "server", spec=spec) as here:
        result = await loop.train(load_parameters(settings(tmp_path, here)))
        assert result["status"] == "finished"
        first, second = (entry["promotion"] for entry in result["iterations"][:2])
        # The new model of the first iteration is taken, that of the second is not.
        assert first["promoted"] and first["candidate"] == 1.0 > first["validation"]
        assert not second["promoted"]
        assert (second["validation"], second["candidate"]) == (1.0, 0.0)
        taken, refused = (p["candidates"]["both"]["model"] for p in (first, second))
        # What the last test has played is served, and nothing else.
        async with here.http.get("/v1/models") as answer:
            served = {m["id"]: m["nip"]["served"] for m in (await answer.json())["data"]}
        assert served == {"sim": False, taken: True, refused: False}
    run = RunStore(open_store(tmp_path / "runs"), "turns")
    for iteration, split, model in (
        *((0, "train", "sim"), (0, "validation", "sim"), (0, "candidate", taken)),
        *((1, "train", taken), (1, "validation", taken), (1, "candidate", refused)),
        (2, "test", taken),
    ):
        rows = read_rollouts(run.store, run.rollouts(iteration, split)).generations
        assert set(rows["model_served"].to_pylist()) == {model}, (iteration, split)
