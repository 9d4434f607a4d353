"""vLLM holds an agent's answers to the form of their turn, and tells how likely each verdict was."""

import pytest
from playing import MemoryLog, make_context

from nip_core.evaluation.invalid import invalid_answers
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.scenarios.datasets import load_problems

EPISODES = 6


# With reasoning more rounds are longer than the model's context.
@pytest.mark.parametrize(("version", "rounds"), [("v1", 3), ("v2", 1)])
async def test_a_model_that_knows_no_form_keeps_it(server, version, rounds):
    """The bundled tiny model was made for other prompts, and knows no reasoning."""
    overrides = (
        "run_name=a",
        f"code_validation.system_prompt_version={version}",
        f"nip_protocol.min_message_rounds={rounds}",
        f"nip_protocol.max_message_rounds={rounds}",
        "agents._default.guided_decoding=true",
        "agents._default.max_tokens_per_message=80",
        "agents._default.temperature=1.0",
    )
    parameters = load_parameters("quickstart", overrides)
    game = Game(parameters)
    problems = load_problems(game.scenario, "families", "train")
    specs = plan_episodes(parameters, problems, "train", 0)[:EPISODES]
    async with ChatClient(concurrency=EPISODES, timeout_s=120, retries=0) as client:
        context = make_context(
            game,
            f"{server.handle.url}/v1",
            client,
            MemoryLog(),
            model="tiny",
            key=server.handle.api_key,
            of_players={"record_p_accept": True},
        )
        shard = await play_episodes(specs, context)
    generations = build_tables(shard.episodes, shard.generations).generations
    assert invalid_answers(generations) is None
    assert {row.outcome for row in shard.episodes} == {"finished"}
    decided = [row for row in shard.generations if row.decision in (0, 1)]
    assert len(decided) == EPISODES
    assert all(row.p_accept is not None and 0 < row.p_accept < 1 for row in decided)
