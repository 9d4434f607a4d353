"""Every protocol on every scenario with every version of the prompts plays, or is refused by name.

Scenarios and protocols are enumerated; where there is little time, the first protocol that plays has
every version, another has one of them, on another scenario another one. Two episodes of each are played on problems of the
scenario's first dataset, against a server that answers by hash. A prover is never refused its
answer: where the problem names a function, each of its messages has one of that name.
"""

import re
from collections import Counter
from functools import cache
from importlib.util import find_spec
from typing import Any, get_args

import pytest
from hashed_play import Players, check
from playing import agent_of, play_at
from scripted_server import scripted_server
from thorough import THOROUGH

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.protocols import protocol_names
from nip_core.rollouts.plan import plan_episodes
from nip_core.scenarios import PROVER, VERIFIER, Problem, find_scenario, scenario_names
from nip_core.scenarios.base import PromptVersion
from nip_core.scenarios.datasets import load_problems

VERSIONS = get_args(PromptVersion)


def settings(scenario: str, protocol: str, version: str) -> HyperParameters:
    """The default settings of both. Raises SettingsError."""
    kind = find_scenario(scenario)
    parameters = load_parameters(
        {
            "run_name": "a",
            "scenario": scenario,
            "dataset": _dataset(scenario),
            "interaction_protocol": protocol,
            kind.settings_block: {"system_prompt_version": version},
            "rl": {"rollouts_per_iteration": None},
            "pure_text_ei": {"reward_threshold": -1000.0},
            "rollouts": {"failure_threshold": 1.0, "transport_retries": 0},
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "m",
                    "num_invalid_generation_retries": 2,
                }
            },
        }
    )
    Game(parameters)  # reads the prompts
    return parameters


def _dataset(scenario: str) -> str:
    kind = find_scenario(scenario)
    return [*kind.generated, *kind.bundled][0]


@cache
def two_problems(scenario: str) -> tuple[Problem, ...]:
    found = find_scenario(scenario)
    return tuple(
        load_problems(found(found.Settings()), _dataset(scenario), "train", max_size=2)
        if found.settings_block == "scenario_settings"
        else load_problems(
            Game(settings(scenario, "nip", "v1")).scenario,
            _dataset(scenario),
            "train",
            max_size=2,
        )
    )


@pytest.mark.parametrize(
    # Without the one whose package is an extra that is not here; `make test-judges` has it.
    "scenario",
    [name for name in scenario_names() if name != "reasoning_gym" or find_spec(name)],
)
async def test_every_protocol_with_every_prompt_plays_or_is_refused_by_name(scenario: str) -> None:
    problems = two_problems(scenario)
    assert len(problems) == 2
    code = "".join(
        f"\n```python\ndef {p.columns['entry_point']}(*_):\n    return 0\n```\n"
        for p in problems
        if "entry_point" in p.columns
    )
    players, count = Players(), 0

    def script(body: dict[str, Any]) -> Any:
        answer = players(body)
        if code and agent_of(body).startswith("prover") and answer["text"]:
            answer["text"] += code
        return answer

    async with scripted_server(script) as server:
        for place, protocol in enumerate(protocol_names(), scenario_names().index(scenario)):
            every = THOROUGH or count < len(VERSIONS)
            for version in VERSIONS if every else [VERSIONS[place % len(VERSIONS)]]:
                try:
                    parameters = settings(scenario, protocol, version)
                except SettingsError as error:
                    assert re.search(rf"\b{scenario}\b", str(error)), str(error)
                    continue
                players.parameters, players.seen = parameters, Counter()
                first = len(server.bodies)
                specs = plan_episodes(parameters, problems, "train", 0)
                played = await play_at(server.url, parameters, specs)
                check(played, server.bodies[first:])
                _check_prompts(played.game, specs, server.bodies[first:])
                count += 1
    assert count >= len(VERSIONS)


def _check_prompts(game: Game, specs: Any, bodies: list[dict[str, Any]]) -> None:
    """What a role sees stands in its prompts, and nowhere in them what is hidden from it."""
    seen = {role: {c.name for c in game.scenario.seen(role)} for role in (PROVER, VERIFIER)}
    for body in bodies:
        role = PROVER if game.protocol.is_prover(agent_of(body)) else VERIFIER
        prompt = body["messages"][0]["content"]
        assert not re.search(r"\$[a-z]", prompt), prompt
        about = [spec for spec in specs if spec.problem.question.strip() in prompt]
        assert about or "question" not in seen[role]
        for spec in about:
            texts = spec.problem.columns | game.scenario.draw(spec.problem.texts, spec.seed)
            for name, text in texts.items():
                if name in seen[role] or len(text) > 20:
                    assert (text.strip() in prompt) == (name in seen[role]), name
