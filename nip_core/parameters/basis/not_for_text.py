"""Settings of the ancestor of this system that mean nothing for language models.

A configuration may name them with their defaults, which change nothing; with another value they
are refused, so that no user believes in an effect that is not there. Names that are no field of a
model here are never written out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class UnusedSetting:
    """The only value that a setting may have, and why."""

    default: Any
    reason: str
    neutral: Mapping[str, Any] | None = None
    """A block that means the same as the default, as the ancestor writes it out."""

    def allows(self, value: Any) -> bool:
        """Return whether `value` is the default; for a block of settings, None or parts of it."""
        is_neutral = self.neutral is not None and _is_default(self.neutral, value)
        return is_neutral or _is_default(self.default, value)

    @property
    def advice(self) -> str:
        """Say what to do instead of setting it."""
        if isinstance(self.default, Mapping):
            return "leave it out"
        return f"leave it out, or at its default {self.default!r}"


def _is_default(default: Any, value: Any) -> bool:
    if not isinstance(default, Mapping):
        return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)
    if value is None:
        return True
    return isinstance(value, Mapping) and all(
        key == "_type" or (key in default and _is_default(default[key], inner))
        for key, inner in value.items()
    )


def _all(reason: str, **defaults: Any) -> dict[str, UnusedSetting]:
    return {name: UnusedSetting(default, reason) for name, default in defaults.items()}


def _factors(*names: str) -> dict[str, UnusedSetting]:
    """Factors of learning rates: none, or factors of 1."""
    return {name: UnusedSetting(None, _TENSORS, {"actor": 1.0, "critic": 1.0}) for name in names}


_TENSORS = "it belongs to agents that are networks trained on tensors; there are none here"
_OTHER_TRAINER = "it belongs to a trainer that is not available"
_OTHER_SCENARIO = "it belongs to a scenario that is not available"
_IN_THE_STORE = "other runs are found by name in run_store"

NOT_FOR_TEXT: Mapping[str, Mapping[str, UnusedSetting]] = {
    "HyperParameters": {
        **_all(
            _TENSORS,
            functionalize_modules=True,
            d_representation=16,
            message_size=1,
            include_linear_message_space=False,
            d_linear_message_space=2,
            pretrain_agents=False,
            message_regression={
                "enabled": False,
                "agents": None,
                "regression_method": "mlp",
                "test_size": 0.2,
                "reset_on_fit": True,
                "mlp_num_layers": 2,
                "mlp_hidden_size": 64,
                "mlp_activation": "relu",
                "mlp_num_epochs": 10,
                "mlp_batch_size": 512,
                "mlp_learning_rate": 0.001,
            },
        ),
        **_all("datasets of programs bring their own splits", test_size=0.2),
        **_all(
            _OTHER_TRAINER,
            ppo={},
            vanilla_ppo={},
            spg={},
            reinforce={},
            solo_agent={},
        ),
        **_all(_OTHER_SCENARIO, graph_isomorphism={}, image_classification={}),
    },
    "RlTrainerParameters": {
        **_all("an episode is always played to its end", steps_per_env_per_iteration=None),
        **_all("batches are set by per_device_train_batch_size of the agents", minibatch_size=64),
        **_all("how lr falls is set by fine_tuning.lr_scheduler", anneal_lr=False),
        **_all(
            _TENSORS,
            loss_critic_type="smooth_l1",
            clip_value=False,
            normalize_observations=True,
            num_normalization_steps=1000,
            gamma=0.9,
            lmbda=0.95,
            use_shared_body=True,
        ),
        **_factors("body_lr_factor"),
    },
    "CodeValidationParameters": _all(
        "datasets here have their solutions in rows of their own", apps_solution_number=0
    ),
    "DatasetParameters": _all(
        "it makes two classes out of many, and solutions are correct or buggy",
        binarification_method="merge",
        selected_classes=None,
        binarification_seed=None,
    ),
    "BaseRunParameters": {
        **_all(_IN_THE_STORE, wandb_project=None, wandb_entity=None),
        **_all(
            "with rerun_tests the tests are always played",
            rerun_tests_force_test_during_training_state=True,
        ),
    },
    "PureTextAgentParameters": {
        **_factors("agent_lr_factor", "body_lr_factor"),
        **_all(
            _TENSORS,
            use_manual_architecture=False,
            use_orthogonal_initialisation=True,
            orthogonal_initialisation_gain=1.0,
        ),
        **_all(
            "histories are texts; for strict chat templates set chat_format",
            normalize_message_history=False,
        ),
        **_all(_IN_THE_STORE, checkpoint_entity="", checkpoint_project=""),
    },
}
"""By class of settings and name."""

OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "PureTextAgentParameters": {
        "language_model_server_scheme_host": "lm_server.url, or base_url of the agent",
        "language_model_server_port": "lm_server.url, or base_url of the agent",
        "vllm_server_port": "lm_server.url: the server names its engine's address itself",
    },
    "RlTrainerParameters": {"frames_per_batch": "rl.rollouts_per_iteration"},
}
"""Settings that work as in the ancestor, and the settings in their place here."""


def is_for_ancestor(kind: str, name: str) -> bool:
    """Return whether a setting is kept for configurations of the ancestor alone."""
    return name in NOT_FOR_TEXT.get(kind, {}) or name in OTHERWISE.get(kind, {})


UNAVAILABLE: Mapping[str, Mapping[str, str]] = {
    "trainer": {
        **dict.fromkeys(
            ("vanilla_ppo", "spg", "reinforce", "solo_agent"),
            "it trains networks on tensors, and agents here are language models",
        ),
    },
    "scenario": dict.fromkeys(
        ("graph_isomorphism", "image_classification"),
        "its problems are tensors, and agents here are language models",
    ),
}
"""Values of a setting that the ancestor has and this system refuses, with the reason."""
