"""Provers whose messages a script writes in a run of its own, and scripts met in a share of it."""

from collections import Counter

import pytest
from server_here import servers_here
from small_game import train_here, write_config

from nip_core import loop
from nip_core.errors import RunConflictError, SettingsError
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.records.models import read_models
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import plan_run
from nip_core.session.user_files import find_user_files
from nip_core.showing.asked_chats import Place, render_chat_to_come
from nip_core.upkeep.verify import verify_run
from nip_study.plan.attack_run import attack_settings

SAYS = """
def list_c(turn):
    return "Answer: 1: C, 2: C, 3: C"


def differ(turn):
    assert turn.texts["question"]
    return "Answer: They differ."


def nothing(turn):
    return ""
"""
MODEL = {"model_provider": "SelfHosted", "model_name": "deterministic", "freeze_agent": True}
MET = [
    {"script": "says.py:list_c", "share": 0.2, "on": "wrong"},
    {"script": "says.py:differ", "share": 0.2, "on": "wrong"},
    {"script": "no-answer", "share": 0.3},
]
GAME = {
    "run_name": "told",
    "scenario": "bags",
    "dataset": "lists",
    "interaction_protocol": "adp",
    "nip_protocol": {},
    "scenario_settings": {
        **{"length": 4, "repeated_digits": False, "challenges": 3, "coins": "private"},
        **{"train_size": 40, "validation_size": 12, "test_size": 12},
    },
    "dataset_options": {},
    "protocol_common": {"shared_reward": False},
    "agents": {
        "_default": MODEL,
        "prover": {"script": "tell-apart"},
        "verifier": {"freeze_agent": False},
    },
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 60, "num_epochs": 1},
    "text_rl": {"test_scheme": "last"},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "says.py").write_text(SAYS)
    return tmp_path


def plan(folder, *overrides, **changes):
    parameters = load_parameters(str(write_config(folder, **{**GAME, **changes})), overrides)
    return plan_run(parameters)[1]


def open_run(folder, name="told"):
    return RunStore(open_store(folder / "runs"), name)


def count_models(run, iteration, split):
    """Count by who wrote them the prover's messages in a split, and by opponent its episodes."""
    rollouts = read_rollouts(run.store, run.rollouts(iteration, split))
    rows = rollouts.generations.to_pylist()
    said = Counter(row["model_asked"] for row in rows if row["agent"] == "prover")
    return said, Counter(rollouts.episodes["opponent_run"].to_pylist())


async def test_scripts_write_for_the_prover_and_play_their_shares(folder, monkeypatch):
    monkeypatch.chdir(folder)
    config = write_config(folder, **GAME, opponents={"kind": "runs", "runs": MET})
    result = await train_here(config)
    # 1. Only the verifier has a model, and each other message is a script's, with its file.
    run = open_run(folder)
    record, groups = run.open(), read_models(run, 1)
    assert {*groups} == {"verifier"} and groups["verifier"].trained_in == 0
    said, met = count_models(run, 0, "train")
    listed, differing = "says.py:list_c", "says.py:differ"
    assert {*met} == {None, f"script:{listed}", f"script:{differing}", "script:no-answer"}
    assert {name.partition("@")[0]: n for name, n in said.items()} == {
        name or "script:tell-apart": n for name, n in met.items()
    }
    assert count_models(run, 1, "test") == ({"script:tell-apart": 12}, {None: 12})
    rows = {row["opponent_run"]: row for row in result["iterations"][0]["league"]}
    assert {name: row["episodes"] for name, row in rows.items()} == met
    assert rows[f"script:{listed}"]["completeness"] is None  # wrong problems alone
    assert rows[f"script:{listed}"]["opponent"] == "prover"
    # 2. What was played is checked as in any run, from elsewhere too, and a changed file is refused.
    monkeypatch.chdir(folder / "runs")
    assert verify_run(open_run(folder)).problems == {}
    await train_here(config)
    entries = record.parameters["opponents"]["runs"]
    assert [entry["found"]["asked"] for entry in entries] == [{"prover": {}}] * 3
    (folder / "says.py").write_text(SAYS + "# changed\n")
    with pytest.raises(SettingsError, match="is not what it was when this run began"):
        await train_here(config)
    # 3. Attackers are their own: the prover's model, a trained one, a script.
    few = {"by": "best-of-n", "n": [1, 2], "problems": 4, "score_by": "verdicts"}
    for attack, writers in (
        ({**few, "iteration": 1}, {"deterministic"}),
        ({"by": "script", "script": "guess", "iteration": 1}, {"script:guess"}),
    ):
        with servers_here():
            parameters = attack_settings(str(folder / "runs"), "told", attack)
            await loop.train(parameters)
        assert parameters.agents["prover"].script is None
        assert {*count_models(open_run(folder, parameters.run_name), 0, "attack")[0]} == writers
        assert verify_run(open_run(folder, parameters.run_name)).problems == {}


async def test_a_changed_script_of_the_prover_is_another_run(folder):
    config = write_config(folder, **{**GAME, "rl": {"num_iterations": 0}})
    own = ["agents.prover.script=says.py:differ"]
    await train_here(config, [f"agents.prover.script={folder}/says.py:differ"])
    contents = open_run(folder).open().contents
    assert contents["scripts"].keys() == {"prover"}
    # It may have begun elsewhere, also where its journals have answers.
    assert count_models(open_run(folder), 0, "test")[0] == {
        f"script:says.py:differ@{contents['scripts']['prover'][:12]}": 12
    }
    await train_here(config, own)
    (folder / "says.py").write_text(SAYS + "# changed\n")
    with pytest.raises(RunConflictError, match=r"says\.py, in which function differ stands"):
        await train_here(config, own)


def test_a_scripted_prover_costs_nothing_and_other_settings_keep_their_form(folder):
    scripted = plan(folder)
    modelled = plan(folder, "agents.prover.script=null")
    # Of 60 training and 12 test episodes, the verifier's calls alone.
    assert (scripted.calls, modelled.calls) == (72, 144)
    # Those that it meets are asked by settings that train nobody.
    replaced = {"verifier_guess_replacement_proportion": 0.5, "test_scheme": "last"}
    met = {"kind": "runs", "runs": MET}
    assert plan(folder, opponents=met, text_rl=replaced).calls == 72
    config = str(write_config(folder, **GAME, opponents=met))
    assert {*find_user_files(Game(load_parameters(config))).values()} == {folder / "says.py"}
    settings = load_parameters(str(write_config(folder, **GAME)), ["agents.prover.script=null"])
    assert "script" not in settings.to_dict()["agents"]["prover"]
    met = {"opponents": {"kind": "runs", "runs": [{"run": "a", "share": 0.5}]}}
    assert (
        "script" not in load_parameters(settings.to_dict() | met).to_dict()["opponents"]["runs"][0]
    )
    config = load_parameters(str(write_config(folder, **GAME)))
    with pytest.raises(SettingsError, match=r"agents\.prover: has a script"):
        render_chat_to_come(config, Place(agent="prover"))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "agents.verifier.script=guess",
            "agents.verifier.script: a script writes messages of prov",
        ),
        ("agents.prover.freeze_agent=false", "set agents.prover.freeze_agent: true"),
        ("agents.prover.script=gues", "agents.prover.script: scenario bags has no script 'gues'"),
        (
            "agents.prover.script=says.py:no",
            "agents.prover.script: 'FOLDER/says.py:no' can't be im",
        ),
        (
            "agents.prover.script=says.py:nothing",
            "agents.prover.script: FOLDER/says.py:nothing on q",
        ),
        ("RUNS=[{script: gues, share: 1}]", "opponents.runs: scenario bags has no script 'gues'"),
        ("RUNS=[{script: guess, share: 1, iteration: 0}]", "a script has no iterations (got 0)"),
        (
            "RUNS=[{script: guess, share: 1, run: a}]",
            "(got run 'a' and script 'guess'); set exactly",
        ),
        ("RUNS=[{share: 1}]", "(got run None and script None); set exactly one of them"),
        (
            "RUNS=[{script: 'FOLDER/says.py:nothing', share: 1}]",
            "opponents.runs: script:says.py:not",
        ),
    ],
)
def test_scripts_that_could_not_play_are_refused_at_the_start(folder, override, says):
    name, _, value = override.replace("FOLDER", str(folder)).partition("=")
    overrides = [f"{name}={value}"]
    if name == "RUNS":
        overrides = ["opponents.kind=runs", f"opponents.runs={value}"]
    with pytest.raises(SettingsError) as refused:
        plan(folder, *overrides)
    assert says.replace("FOLDER", str(folder)) in str(refused.value)


def test_an_attack_takes_no_script_of_an_agent(folder):
    block = {"attack": {"run": "other"}, "rl": {"num_iterations": 0}, "run_name": "attacks"}
    agents = {**GAME["agents"], "verifier": {}}
    with pytest.raises(SettingsError, match=r"agents\.prover\.script: the attack says"):
        load_parameters(str(write_config(folder, **{**GAME, **block, "agents": agents})))


@pytest.mark.long
async def test_models_of_an_attack_play_for_a_scripted_prover_in_their_share(folder):
    await train_here(write_config(folder, **GAME))
    attack = {"by": "sneaky", "iteration": 1, "problems": 4, "course_on": "test"}
    few = ["rl.rollouts_per_iteration=40"]
    with servers_here():
        sneaky = attack_settings(
            str(folder / "runs"), "told", attack, overrides=few, steps=1, every=1
        )
        await loop.train(sneaky)
    again = {
        **GAME,
        "run_name": "again",
        "base_run": {"base_run_type": "parameters", "run_id": "told"},
        "opponents": {
            "kind": "runs",
            "runs": [{"run": sneaky.run_name, "share": 0.5, "iteration": 1}],
        },
    }
    await train_here(write_config(folder, **again))
    run = open_run(folder, "again")
    [entry] = run.open().parameters["opponents"]["runs"]
    model = entry["found"]["models"]["prover"]["model"]
    said, met = count_models(run, 0, "train")
    assert model.startswith("ft:") and {*met} == {None, sneaky.run_name}
    assert said == {"script:tell-apart": met[None], model: met[sneaky.run_name]}
    assert count_models(run, 1, "test")[0] == {"script:tell-apart": 12}
    assert verify_run(run).problems == {}
