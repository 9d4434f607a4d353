"""A small run on the deterministic engine, for tests of the whole loop."""

from pathlib import Path
from typing import Any

import yaml


def write_config(folder: Path, **changes: Any) -> Path:
    """A configuration whose run lives in `folder`; `changes` replace top-level settings."""
    settings: dict[str, Any] = {
        "run_name": "small",
        "run_store": str(folder / "runs"),
        "dataset": "families",
        "seed": 11,
        "agents": {
            "_default": {
                "model_provider": "SelfHosted",
                "model_name": "deterministic",
                "max_tokens_per_message": 32,
            }
        },
        "lm_server": {"engine": "deterministic"},
        "protocol_common": {"shared_reward": True},
        "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
        "rl": {"num_iterations": 2, "rollouts_per_iteration": 50, "num_epochs": 1},
        "rollouts": {"episodes_per_shard": 20},
        "dataset_options": {"max_test_size": 20, "max_train_size": 200},
        "fine_tuning": {"poll_interval_s": 0.05},
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path
