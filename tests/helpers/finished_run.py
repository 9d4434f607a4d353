"""A small finished run with a really trained adapter of the bundled model, for tests that read it.

make_run   plays, trains and tests once; seconds, in the test's own process
"""

from pathlib import Path
from unittest import mock

from small_game import train_here
from trained_here import TrainerHere

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

CONFIG = Path(__file__).parents[2] / "deployments" / "configs" / "quickstart.yaml"
CHANGES = (
    "rl.num_iterations=1",
    "rl.rollouts_per_iteration=24",
    "agents.verifier.num_epochs=1",
    "agents._default.shared_model_group=both",
    "agents._default.lora_rank=8",
    "agents._default.lora_alpha=16",
    "dataset_options.max_test_size=4",
    "text_rl.test_scheme=last",
)


async def make_run(store: Path) -> RunStore:
    """The run `quickstart` in `store`."""
    with mock.patch("nip_lm_server.placement.SubprocessTrainer", TrainerHere):
        result = await train_here(CONFIG, [f"run_store={store}", *CHANGES])
    assert result["status"] == "finished"
    return RunStore(open_store(store), "quickstart")
