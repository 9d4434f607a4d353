"""A run that begins with the imitation of a file of chats: what it trains, tests, plays and keeps."""

import json

import pytest
from small_game import FEW, train_here, write_config

from nip_cli.printing.plans_and_runs import show_plan
from nip_core.costs.loads import _count_lines, count_imitated
from nip_core.errors import NipError, RunConflictError, SettingsError
from nip_core.jobs.document import read_job
from nip_core.parameters import load_parameters
from nip_core.parameters.attack_settings import derive_attack
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import estimate_settings
from nip_core.trainers.dataset import open_dataset
from nip_core.upkeep.verify import verify_run

MODEL = {
    "model_provider": "SelfHosted",
    "model_name": "deterministic",
    "max_tokens_per_message": 32,
    "fine_tune_from_scratch": False,
}
AGENTS = {"_default": MODEL, "prover": {"freeze_agent": True}}


def write_chats(folder, count, **more):
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"Is claim {i} right?", "name": "Expert"},
                {"role": "assistant", "content": "Decision: reject"},
            ],
            **more,
        }
        for i in range(count)
    ]
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))


def configure(folder, **changes):
    rl = {**FEW, "num_iterations": 2}
    text_rl = {"fine_tune_on_all_previous_rollouts": True}
    settings = {"agents": AGENTS, "rl": rl, "text_rl": text_rl}
    return write_config(folder, **{**settings, "imitation": {"chats": "chats.jsonl"}, **changes})


async def test_a_run_imitates_first_and_is_trained_on_from_there(tmp_path):
    write_chats(tmp_path, 14)
    config = configure(tmp_path, imitation={"chats": "chats.jsonl", "most": 12, "epochs": 2})
    parameters = load_parameters(str(config))
    assert parameters.imitation.chats == str(tmp_path / "chats.jsonl")
    assert estimate_settings(parameters).train_episodes == 40  # of iteration 1 alone
    result = await train_here(config)
    run = RunStore(open_store(str(tmp_path / "runs")), "small")
    first, second = (read_job(run, run.job(i, "verifier")) for i in (0, 1))
    assert (first.method, first.examples, first.settings["n_epochs"]) == ("supervised", 12, 2)
    assert first.succeeded and second.parent_model == first.model
    assert [is_committed(run.store, run.rollouts(i, "train")) for i in (0, 1)] == [False, True]
    rows = [*open_dataset(run.store, run.dataset(0, "verifier")).rows()]
    assert {row["reason"] for row in rows} == {"given"}
    assert [message["name"] for message in rows[0]["messages"]] == ["Expert", None]
    assert all(entry["test"] for entry in result["iterations"]) and len(result["iterations"]) == 3
    assert verify_run(run).problems == {}
    # An attack on it begins with nothing.
    attack = {"by": "sneaky", "run": "small", "iteration": 2}
    assert not derive_attack(parameters, attack, steps=1, every=1, name="a").imitates(0)
    # Another file is another run.
    write_chats(tmp_path, 15)
    with pytest.raises(RunConflictError, match=r"chats.jsonl, which agents imitate first"):
        await train_here(config)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"imitation": {"most": 20}}, "most: no effect without chats"),
        ({"imitation": {"chats": "gone.jsonl"}}, "imitation.chats: there is no 'gone.jsonl'"),
        ({"rl": {"num_iterations": 0}}, "imitation.chats: it is one of rl.num_iterations"),
        (
            {"agents": {"_default": {**MODEL, "freeze_agent": True}}},
            "imitation.chats: no agent is trained in iteration 0",
        ),
        (
            {"base_run": {"base_run_type": "rerun_tests", "run_id": "a"}},
            "rerun_tests trains nobody",
        ),
        ({"attack": {"run": "a", "by": "sneaky"}}, "an attack begins with attack.start_from"),
        ({"few": 9}, "chats.jsonl has 9 chats for verifier, 10 are needed; add some"),
        ({"agent": "prover"}, "line 1: agent has to be one that is trained, of verifier"),
        ({"messages": [{"role": "assistant", "content": ["no"]}]}, "each content and name a text"),
    ],
)
async def test_chats_that_can_not_be_imitated_are_refused_in_a_plan(tmp_path, changes, says):
    changes = dict(changes)
    more = {key: changes.pop(key) for key in ("agent", "messages") if key in changes}
    write_chats(tmp_path, changes.pop("few", 12), **more)
    with pytest.raises((NipError, ValueError)) as refused:
        estimate_settings(load_parameters(str(configure(tmp_path, **changes))))
    assert says in str(refused.value) and isinstance(refused.value, SettingsError)


def test_only_iterations_that_play_are_warned_of_few_rollouts(tmp_path, capsys):
    write_chats(tmp_path, 14)
    for iterations, rollouts, warned in ((1, 5, False), (2, 14, False), (2, 5, True)):
        rl = {**FEW, "num_iterations": iterations, "rollouts_per_iteration": rollouts}
        show_plan(load_parameters(str(configure(tmp_path, rl=rl))), False)
        assert ("few training examples" in "".join(capsys.readouterr())) is warned


def test_a_file_with_few_chats_is_estimated_by_its_lines(tmp_path):
    # Where `most` is a bound for other files, the time left was said to be days.
    write_chats(tmp_path, 14)
    few, many = (
        estimate_settings(
            load_parameters(
                str(configure(tmp_path, imitation={"chats": "chats.jsonl", "most": most}))
            )
        )
        for most in (14, 100_000)
    )
    assert many.training_tokens == few.training_tokens
    assert many.read_examples == few.read_examples


def test_an_estimate_reads_a_file_of_chats_once_and_one_that_can_not_be_read_not_at_all(tmp_path):
    write_chats(tmp_path, 14)
    path = tmp_path / "chats.jsonl"
    settings = load_parameters(str(configure(tmp_path, imitation={"chats": "chats.jsonl"})))
    earlier = _count_lines.cache_info().misses
    estimate_settings(settings)
    assert _count_lines.cache_info().misses == earlier + 1
    path.write_text(path.read_text() * 2)
    assert count_imitated(settings) == 28
    hidden = settings.model_copy(
        update={"imitation": settings.imitation.model_copy(update={"chats": "a" * 300})}
    )
    assert count_imitated(hidden) == hidden.most_imitated
