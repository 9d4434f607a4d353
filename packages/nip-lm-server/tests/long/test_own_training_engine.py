"""An engine in a file outside of the repository that loads adapters: a run trains over it."""

from unittest import mock

from finished_run import CHANGES, CONFIG
from small_game import train_here
from trained_here import TrainerHere

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

LOUD = """
from nip_lm_server.engines.base import Capabilities
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine


class Loud(EmbeddedEngine):
    name = "loud"
    capabilities = Capabilities(trains=True, runs_on_torch=True, max_lora_rank=64)
"""


async def test_a_run_trains_over_an_engine_that_says_that_it_loads_adapters(tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    engine = f"lm_server.engine={tmp_path / 'loud.py'}:Loud"
    with mock.patch("nip_lm_server.placement.SubprocessTrainer", TrainerHere):
        result = await train_here(CONFIG, [f"run_store={tmp_path}", engine, *CHANGES])
    run = RunStore(open_store(tmp_path), "quickstart")
    [model] = run.read_json(run.models(0))["groups"].values()
    assert model["model"].startswith("ft:tiny:") and model["proof"]["matches"]
    assert result["iterations"][1]["models"] == {"both": model["model"]}
