"""What runs make, on record: a change of the code alone must leave every digest as it is.

Each run is small, plays without Prefect on one deterministic server in this process, and is
recorded by iteration in `runs.json`: rollouts and their metrics, datasets, the bytes that went to
the server, what each job was created with, and the models that came of it.

Where a change is meant to change them: ``NIP_RECORD=1 python -m pytest -n 0 tests/frozen``, and
look at the difference before it is committed.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import Steady, check
from served_here import KEY, ChosenEngine, Here, serve
from small_game import write_config

from nip_core.loop import directly, go_on
from nip_core.parameters import load_parameters
from nip_core.protocols import protocol_names
from nip_core.session.opening import open_session
from nip_core.session.session import Session
from nip_core.stages import measuring
from nip_core.stages.publishing import publish

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "runs.json"


def rl(rollouts: int, iterations: int = 1) -> dict[str, Any]:
    """How much is played."""
    return {
        "num_iterations": iterations,
        "rollouts_per_iteration": rollouts,
        "num_epochs": 1,
    }


ALL: dict[str, Any] = {"pure_text_ei": {"reward_threshold": -100.0}}
"""No rollout is too bad for the dataset, so that there are enough for a job."""
ONWARDS = {"fine_tune_from_scratch": False}
EI: dict[str, dict[str, Any]] = {
    "threshold": {"rl": rl(24, 2), "text_rl": {"test_scheme": "all"}},
    "weighted": {
        "rl": rl(24),
        "pure_text_ei": {"rollout_selection_method": "weighted_sampling"},
    },
    "balanced": {
        "rl": rl(24),
        "pure_text_ei": {
            **{"reward_threshold": -100.0, "deduplicate": True},
            **{"balance_decisions": True, "balance_labels": True},
        },
    },
    "curriculum": {
        **ALL,
        "rl": rl(12, 2),
        "curriculum": {"enabled": True, "initial_percentile": 0.5, "expansion_interval": 1},
    },
    "gate": {**ALL, "promotion": {"enabled": True}},
    "all-rollouts": {
        "rl": rl(10, 2),
        "text_rl": {"test_scheme": "none", "fine_tune_on_all_previous_rollouts": True},
    },
    "continued": {**ALL, "agents": ONWARDS, "rl": rl(10, 2)},
    "stacked": {**ALL, "agents": {**ONWARDS, "stack_lora_adapters": True}, "rl": rl(10, 2)},
    "held-out": {**ALL, "rl": rl(16), "fine_tuning": {"validation_fraction": 0.25}},
    "too-few": {"rl": rl(4)},
}
MALT = {"trainer": "pure_text_malt", "rl": rl(6)}
GRPO = {
    "trainer": "pure_text_grpo",
    "agents": ONWARDS,
    "pure_text_grpo": {"group_size": 4},
    "protocol_common": {"shared_reward": False},
}
RUNS: dict[str, dict[str, Any]] = {
    **{f"ei-{name}": changes for name, changes in EI.items()},
    "malt-interval": {**MALT, "pure_text_malt": {"num_responses_per_timestep": 3}, "rl": rl(4)},
    "malt-positive-negative": {
        **MALT,
        "pure_text_malt": {"pair_selection_method": "positive_negative"},
        "rl": rl(12),
    },
    "malt-after-ei": {**MALT, "pure_text_malt": {"num_initial_ei_iterations": 1}, "rl": rl(10, 2)},
    "malt-debate": {**MALT, "interaction_protocol": "debate", "rl": rl(4)},
    "grpo-group": {**GRPO, "rl": rl(20, 2)},
    "grpo-scaled": {
        **GRPO,
        "rl": rl(16),
        "pure_text_grpo": {"group_size": 8, "baseline": "leave_one_out", "scale_by_std": True},
    },
    "grpo-mnip": {**GRPO, "interaction_protocol": "mnip", "rl": rl(16)},
    "shared-model": {"agents": {"shared_model_group": "both"}},
    "random-stance": {**ALL, "protocol_common": {"randomize_prover_stance": True}},
    **{
        f"protocol-{name.replace('_', '-')}": {**ALL, "interaction_protocol": name}
        for name in protocol_names()
    },
    **{
        f"zero-knowledge-{name}": {
            **ALL,
            "interaction_protocol": name,
            "protocol_common": {"zero_knowledge": True},
            "rl": rl(rollouts),
        }
        for name, rollouts in (("nip", 8), ("adp", 6))
    },
}


class ScriptedEngine(ChosenEngine):
    """Also has a log-probability for each token, as policy gradient needs them."""

    @property
    def capabilities(self) -> Any:
        return replace(super().capabilities, logprobs=True)

    async def generate(self, request: Any) -> Any:
        result = await super().generate(request)
        self.asked.clear()
        if not request.logprobs:
            return result
        scored = [
            replace(choice, logprobs=tuple(-(id % 16) / 8 for id in choice.token_ids))
            for choice in result.choices
        ]
        return replace(result, choices=tuple(scored))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for the server and all runs."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def here(loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """The server of all runs."""
    stack, state = AsyncExitStack(), tmp_path_factory.mktemp("server") / "state"
    yield loop.run(stack.enter_async_context(serve(state, ScriptedEngine())))
    loop.run(stack.aclose())


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few problems with a right and a wrong solution each."""
    folder = tmp_path_factory.mktemp("problems")
    for split, count in (("train", 8), ("validation", 3), ("test", 2)):
        rows = [
            {
                "question_id": f"{split}-{n}",
                "question": f"Return x plus {n} ({split}).",
                "solution": f"def f(x): return x {'+-'[y]} {n}",
                "y": 1 - y,
                "mutation": "other_sign" if y else None,
            }
            for n in range(count)
            for y in (0, 1)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_a_small_run_makes_what_it_always_made(
    name: str,
    tmp_path: Path,
    loop: asyncio.Runner,
    here: Here,
    problems: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = dict(RUNS[name])
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "sim",
        "max_tokens_per_message": 32,
        "retry_hint": False,
    }
    rounds = {"min_message_rounds": 3, "max_message_rounds": 3}
    settings: dict[str, Any] = {
        "run_name": name,
        "lm_server": {"url": here.url},
        "dataset": str(problems),
        "rl": rl(10),
        "rollouts": {"episodes_per_shard": 6, "concurrency": 8, "failure_threshold": 1.0},
        "debate_protocol": rounds,
        "mnip_protocol": rounds,
        "dataset_options": {},
        "text_rl": {"test_scheme": "none"},
        "pure_text_ei": {"reward_threshold": 0.5},
        **changes,
    }
    settings["agents"] = {"_default": {**agent, **changes.get("agents", {})}}
    settings["fine_tuning"] = {"poll_interval_s": 0.01, **changes.get("fine_tuning", {})}
    config = write_config(tmp_path, **settings)
    monkeypatch.setenv("NIP_API_KEY", KEY)
    check(RECORD, name, loop.run(made(config, [], tmp_path / "runs" / name, here)))


def test_the_deterministic_configuration_makes_what_it_always_made(
    tmp_path: Path, loop: asyncio.Runner, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIP_API_KEY", KEY)
    config = ROOT / "deployments" / "configs" / "deterministic.yaml"
    smaller = [
        f"run_store={tmp_path / 'runs'}",
        f"lm_server={{url: '{here.url}'}}",
        "agents._default.model_name=sim",
        "rl.rollouts_per_iteration=24",
        "dataset_options.max_test_size=4",
        "fine_tuning.poll_interval_s=0.01",
    ]
    run = tmp_path / "runs" / "deterministic"
    check(RECORD, "deterministic.yaml", loop.run(made(config, smaller, run, here)))


async def made(config: Path, overrides: list[str], run: Path, here: Here) -> dict[str, Any]:
    """Train, and tell what came of it, by iteration."""
    async with open_session(load_parameters(config, overrides)) as session:
        await go_on(session, call)
    return {
        place.name: await made_in(place, here) for place in sorted((run / "iterations").iterdir())
    }


async def call(stage: Callable[..., Any], session: Session, *arguments: Any) -> Any:
    """Run a part of the loop; the report, and metrics where nothing is tested, take their time."""
    tests = session.parameters.text_rl.test_scheme != "none"
    if stage is not publish and (tests or stage is not measuring.measure):
        return await directly(stage, session, *arguments)
    return {}


async def made_in(iteration: Path, here: Here) -> dict[str, Any]:
    """What is on disk and at the server of one iteration."""
    steady = Steady()

    def read(path: Path) -> Any:
        return json.loads(path.read_text())

    rows = {f.parent.name: read(f) for f in sorted(iteration.glob("rollouts/*/manifest.json"))}
    jobs = {file.stem: read(file) for file in sorted(iteration.glob("jobs/*.json"))}
    return {
        "rollouts": {
            split: [manifest["extra"]["canonical_digest"], manifest["rows"]]
            for split, manifest in rows.items()
        },
        "metrics": {
            file.stem: read(file)["sha256"] for file in sorted(iteration.glob("metrics-*.json"))
        },
        "datasets": {
            file.parent.name: read(file)["extra"]
            for file in sorted(iteration.glob("datasets/*/manifest.json"))
        },
        "jobs": {group: steady(await created(record, here)) for group, record in jobs.items()},
        "models": {
            group: [model["model"], model["digest"], model["kind"]]
            for file in iteration.glob("models.json")
            for group, model in read(file)["groups"].items()
        },
    }


async def created(record: dict[str, Any], here: Here) -> Any:
    """What a job was created with, as the server shows it, and digests of the files it was sent."""
    if record["id"] is None:
        return {"outcome": record["outcome"], "reason": record["reason"]}
    async with here.http.get(f"/v1/fine_tuning/jobs/{record['id']}") as answer:
        job = await answer.json()
    files = {}
    for name in ("training_file", "validation_file"):
        if job[name] is not None:
            async with here.http.get(f"/v1/files/{job[name]}/content") as answer:
                files[name] = hashlib.sha256(await answer.read()).hexdigest()
    shown = ("model", "method", "seed", "metadata", "trained_tokens", "fine_tuned_model")
    left_out = ("progress", "result", "paused", "attempts")
    return {
        **{name: job[name] for name in shown},
        **files,
        "nip": {name: value for name, value in job["nip"].items() if name not in left_out},
    }
