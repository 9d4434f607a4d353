"""What a run is expected to take goes by what runs of the same game took."""

import json
import shutil

import pytest
from small_game import FEW, train_here, write_config

from nip_cli.printing.plans_and_runs import show_plan
from nip_core.configurations import bundled_configs
from nip_core.costs.estimate import estimate_run
from nip_core.costs.experience import NOTHING, Experience, Keys
from nip_core.costs.loads import count_first_prompts
from nip_core.costs.taken import read_experience
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import estimate_settings
from nip_core.session.problems_of_run import load_all_problems

KINDS = ("prompt_tokens", "completion_tokens", "training_tokens")


@pytest.fixture(scope="module")
async def store(tmp_path_factory):
    """A store with a run of the small game, whole."""
    folder = tmp_path_factory.mktemp("first")
    await train_here(write_config(folder, rl=FEW))
    return folder / "runs"


def planned(folder, store, **changes):
    target = folder / "runs"
    if not target.exists():
        shutil.copytree(store, target)
    changes = {"run_name": "second", "seed": 5, **changes}
    return load_parameters(write_config(folder, **changes))


async def test_a_run_takes_what_one_of_the_same_game_lets_expect(tmp_path, store):
    rl = FEW | {"rollouts_per_iteration": 60, "num_epochs": 2}
    parameters = planned(tmp_path, store, rl=rl)
    plan = estimate_settings(parameters)
    assert (plan.expected_by, plan.is_rough) == ("by run small", False)
    result = await train_here(tmp_path / "config.yaml")
    for kind in KINDS:
        costs = result["costs"][kind]
        assert costs["spent"] / 1.5 < costs["expected"] < costs["spent"] * 1.5, kind
        assert costs["expected"] == getattr(plan, f"expected_{kind}") <= costs["at_most"]
    assert result["expected_by"] == "by run small"
    # Without that run it was rough, and said so.
    rough = estimate_run(Game(parameters), load_all_problems(parameters))
    assert rough.is_rough and rough.expected_by.startswith("roughly: ")


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"rollouts": {"concurrency": 2}, "dataset_options": {"max_test_size": 10}}, True),
        ({"nip_protocol": {"max_message_rounds": 5}}, False),
        ({"interaction_protocol": "adp"}, False),
        ({"dataset": "problems"}, False),
        ({"code_validation": {"system_prompt_version": "short"}}, False),
    ],
)
def test_a_run_of_another_game_tells_nothing(tmp_path, store, changes, is_same):
    small = Keys.of(RunStore(open_store(store), "small").open().parameters)
    other = Keys.of(planned(tmp_path, store, **changes).to_dict())
    assert (other.game == small.game) == is_same


def test_what_was_never_played_is_scaled_by_what_was_and_rough(tmp_path, store, capsys):
    parameters = planned(tmp_path, store, trainer="pure_text_malt")
    scaled, alone = (
        estimate_run(Game(parameters), load_all_problems(parameters), known)
        for known in (read_experience(RunStore(open_store(store), "small")), NOTHING)
    )
    assert scaled.is_rough and "run small, which did not do all of this" in scaled.expected_by
    ratio = scaled.expected_prompt_tokens / alone.expected_prompt_tokens
    assert ratio != 1
    # The plan says by what it expects, and that the bound is one.
    show_plan(parameters, as_json=False)
    said = capsys.readouterr().out
    assert f"expected: {scaled.expected_by}" in said and "at most: an upper bound" in said


def test_a_run_that_can_not_be_read_tells_nothing(tmp_path, store):
    parameters = planned(tmp_path, store)
    record = tmp_path / "runs" / "small" / "run.json"
    record.write_bytes(record.read_bytes()[:50])
    assert estimate_settings(parameters).is_rough


def test_answers_that_were_asked_for_again_raise_the_bound_as_well(tmp_path, store):
    parameters = planned(tmp_path, store)
    game, problems = Game(parameters), load_all_problems(parameters)
    known = read_experience(RunStore(open_store(store), "small"))
    many = Experience.from_facts(known.facts(), "")
    for load in many.episodes[Keys.of(parameters.to_dict()).game].values():
        load.prompt_tokens *= 100
    plan = estimate_run(game, problems, many)
    assert plan.prompt_tokens == plan.expected_prompt_tokens
    assert plan.prompt_tokens > 10 * estimate_run(game, problems, known).prompt_tokens


def test_prompts_are_counted_by_the_tokenizer_that_is_here():
    pytest.importorskip("tokenizers", reason="the extra local is not installed")
    parameters = load_parameters("quickstart")
    problems = load_all_problems(parameters)["test"]
    prompts, counted = count_first_prompts(Game(parameters), problems)
    assert counted == {"prover", "verifier"}
    # Those of the verifier's first calls in a test of these problems, by the tables of a run.
    assert prompts["verifier"] == pytest.approx(52.3, rel=0.05)
    # A model that is not here is not looked for elsewhere.
    elsewhere = load_parameters("quickstart", ["agents._default.model_name=nobody/nothing"])
    assert count_first_prompts(Game(elsewhere), problems)[1] == set()


def test_of_the_bundled_configurations_for_a_cpu_it_is_known_what_they_take(tmp_path):
    known = {"arithmetic-tiny", "arithmetic-chains-1", "deterministic", "quickstart"}
    assert known <= {*bundled_configs()}
    for name in known:
        plan = estimate_settings(load_parameters(name, [f"run_store={json.dumps(str(tmp_path))}"]))
        assert not plan.is_rough, name
        assert plan.expected_by == "by nip's own run of this game, bundled with it"
