"""The loads of a game's episodes, by earlier runs, and the keys of games that are the same.

Two runs play the same game if scenario, dataset, protocol and, agent by agent, model, prompts and
limits are the same. Temperatures, seeds, sizes and prices may differ. Trees of
responses, attacks and training are the same if their own settings are, too. `nip_core.costs.taken`
finds the runs on record.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nip_core.costs.loads import Load, Loads
from nip_core.hashing import digest

_OF_AN_AGENT = (
    *("is_random", "model_provider", "model_name", "use_dummy_api", "max_tokens_per_message"),
    *("max_response_words", "system_prompt_template_path", "use_supervisor_message"),
    *("reasoning_effort", "chat_format"),
)
_OF_TRAINING = ("freeze_agent", "shared_model_group", "update_schedule", "train_reasoning")
_OF_CHOICES = ("by", "n", "continuations", "score_by", "options")


@dataclass(frozen=True)
class Keys:
    """Digests of the settings that decide what something takes."""

    game: str  # an episode
    trees: str  # a tree of responses
    choices: str  # a problem on which messages are chosen
    training: str  # a training episode in a job

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Keys":
        """Return the keys of settings as `HyperParameters.to_dict` gives them."""
        agents = settings["agents"]
        common = settings["protocol_common"]
        scenario = (settings["scenario_settings"], settings["code_validation"])
        own = f"{settings['interaction_protocol']}_protocol"
        game = [
            *(settings[name] for name in ("scenario", "dataset", "interaction_protocol")),
            *(_without_sizes(block) for block in (*scenario, settings.get(own, {}))),
            *(common[n] for n in ("verifier_first", "verifier_decision_scale", "zero_knowledge")),
            {name: [agent.get(n) for n in _OF_AN_AGENT] for name, agent in agents.items()},
            settings["lm_server"]["engine"] == "deterministic",
            settings["lm_server"]["replies"],
        ]
        trees = [settings["trainer"], _plain(settings["pure_text_malt"])]
        choices = {n: v for n, v in _plain(settings["attack"]).items() if n in _OF_CHOICES}
        training = [
            *(settings["trainer"], settings["text_rl"]["fine_tune_on_all_previous_rollouts"]),
            *(_plain(settings[n]) for n in ("pure_text_ei", "pure_text_malt", "pure_text_grpo")),
            *(_plain(common), settings["curriculum"], settings["attack"]["run"] is not None),
            {name: [agent.get(n) for n in _OF_TRAINING] for name, agent in agents.items()},
        ]
        hinted = [name for name, agent in agents.items() if agent.get("train_hints") == "keep"]
        if hinted:  # all other runs keep the keys that they had before there was the setting
            training.append(hinted)
        heats = {name: agent.get("temperature") for name, agent in agents.items()}
        return cls(
            _digest(game),
            _digest([game, trees]),
            _digest([game, choices, heats]),
            _digest([game, training]),
        )


def _plain(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "_type"}


def _without_sizes(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block without how many problems there are of a split, as some scenarios have it."""
    return {name: value for name, value in _plain(block).items() if not name.endswith("_size")}


def _digest(value: Any) -> str:
    # As JSON reads it back, so that settings in memory and on record have one digest.
    return digest(json.loads(json.dumps(value)))[:16]


@dataclass(frozen=True)
class Experience:
    """The loads of earlier runs, by key."""

    episodes: Mapping[str, Loads] = field(default_factory=dict)
    """Of an episode, a tree or an attacked problem, on the mean."""
    trained: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By key of training and then by group: tokens for each training episode and pass over it."""
    source: str = ""
    """Whose it is, in words; "" where nothing is known."""
    repeated: float | None = None
    """How likely two messages of an attack are the same, see `repeats`; None: not known."""

    def facts(self) -> dict[str, Any]:
        """All of it but its source, to be encoded as JSON."""
        episodes = {
            key: {
                agent: [load.calls, load.prompt_tokens, load.completion_tokens]
                for agent, load in loads.items()
            }
            for key, loads in self.episodes.items()
        }
        return {"episodes": episodes, "trained": {k: dict(v) for k, v in self.trained.items()}}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], source: str) -> "Experience":
        """Return what `facts` were made of."""
        episodes = {
            key: {agent: Load(*numbers) for agent, numbers in loads.items()}
            for key, loads in facts["episodes"].items()
        }
        return cls(episodes, facts["trained"], source)


NOTHING = Experience()
"""No run of the game is known."""
