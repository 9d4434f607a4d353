"""The plan of a hardening, what is refused of it, and the table of its rounds."""

import json
import re
import shutil
from pathlib import Path

import pytest
from small_game import train_here, write_config

from nip_core.attack_figures.reach import reach_share
from nip_core.errors import NipError, SettingsError
from nip_core.parameters import load_parameters
from nip_core.run_store.store import open_store
from nip_study.commands.harden import harden
from nip_study.harden.hardening import (
    HardeningSettings,
    parse_attack,
    parse_mix,
    plan_hardening,
    plan_rounds,
)
from nip_study.harden.hardening_results import (
    AttackInRound,
    HardenedRound,
    HardeningResults,
    Rates,
    UntrainedUnderAttack,
    collect_hardening,
    render_hardening,
    write_hardening,
)
from nip_study.harden.sampled_verdicts import SampledVerdicts

MODEL = {"model_provider": "SelfHosted", "model_name": "deterministic"}
GAME = {
    "scenario": "arithmetic",
    "dataset": "chains",
    "scenario_settings": {"train_size": 16, "validation_size": 8, "test_size": 8},
    "dataset_options": {},
    "interaction_protocol": "adp",
    "nip_protocol": {},
    "agents": {
        "_default": {**MODEL, "max_tokens_per_message": 32, "shared_model_group": "both"},
        "verifier": {"fine_tune_from_scratch": True},
        "prover": {"fine_tune_from_scratch": True, "temperature": 0.3},
    },
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 40, "num_epochs": 1},
    "text_rl": {"test_scheme": "none"},
}


@pytest.fixture(scope="module")
async def store(tmp_path_factory):
    """A store with a finished run, and with others whose verifier can't be hardened."""
    folder = tmp_path_factory.mktemp("store")
    await train_here(write_config(folder, **GAME))
    untrained = {**GAME, "rl": {"num_iterations": 0}}
    alone = {"interaction_protocol": "solo_verifier", "agents": {"_default": MODEL}}
    frozen = {"agents": {"_default": {**MODEL, "freeze_agent": True}}}
    for name, other in (
        ("untrained", untrained),
        ("alone", {**untrained, **alone}),
        ("frozen", {**untrained, **frozen}),
    ):
        await train_here(write_config(folder, **{**other, "run_name": name}))
    return str(folder / "runs")


def asked(*attacks, rounds=2, **more):
    return HardeningSettings(rounds, tuple(parse_attack(a) for a in attacks), **more)


def test_each_round_trains_the_verifier_alone_against_all_attackers_so_far(store):
    planned = plan_hardening(store, "small", asked("sneaky", "script", attackers=0.8, honest=0.2))
    assert [step.name for step in planned.steps] == [
        *("small-harden-0-sneaky", "small-harden-0-right-step", "small-harden-1"),
        *("small-harden-1-sneaky", "small-harden-1-right-step", "small-harden-2"),
        *("small-harden-2-sneaky", "small-harden-2-right-step"),
    ]
    first, second = (of.training.parameters for of in planned.rounds[1:])
    assert [(of.run, of.share) for of in first.opponents.runs] == [
        ("small-harden-0-sneaky", 0.4),
        ("small-harden-0-right-step", 0.4),
    ]
    assert [of.share for of in second.opponents.runs] == [0.2] * 4
    assert (first.base_run.run_id, second.base_run.run_id) == ("small", "small-harden-1")
    # The prover keeps its weights, apart from the verifier's, which are trained on.
    assert first.groups == {"honest": ("prover",), "both": ("verifier",)}
    assert first.trainable_groups == ("both",)
    assert first.model_agents["prover"].temperature == 0.3
    assert not first.model_agents["verifier"].fine_tune_from_scratch
    # What no round tested could not be compared.
    assert first.text_rl.test_scheme == "last"
    # The attacks are those of `nip attack`, on what the round has come to.
    attacks = [step.parameters for of in planned.rounds for step in of.attacks]
    assert [(of.attack.run, of.attack.iteration, of.attack.by) for of in attacks] == [
        *(("small", 1, "sneaky"), ("small", 1, "script")),
        *(("small-harden-1", 1, "sneaky"), ("small-harden-1", 1, "script")),
        *(("small-harden-2", 1, "sneaky"), ("small-harden-2", 1, "script")),
    ]
    assert all(of.opponents.kind == "present" for of in attacks)
    # All play the same problems, in an order of the same seed.
    everybody = [step.parameters for step in planned.steps]
    for same in ("seed", "scenario_settings", "test_dataset_split"):
        assert len({json.dumps(of.to_dict()[same]) for of in everybody}) == 1
    assert {of.on for of in (*first.opponents.runs, *second.opponents.runs)} == {"all"}
    wrong_alone = plan_hardening(store, "small", asked("sneaky", played_problems="wrong", rounds=1))
    [opponent] = wrong_alone.rounds[1].training.parameters.opponents.runs
    assert (opponent.on, opponent.share) == ("wrong", 0.5)
    # With chats each round imitates first, in an iteration more, in which it plays nothing.
    shown = plan_hardening(store, "small", asked("script", show="chats.jsonl", iterations=3))
    begun = shown.rounds[1].training.parameters
    assert (begun.imitated, begun.rl.num_iterations) == ("chats.jsonl", 4)
    assert shown.rounds[1].iteration == 4
    assert not first.imitates(0) and not any(of.imitates(0) for of in attacks)
    # More rounds change nothing of those before.
    longer = plan_hardening(store, "small", asked("sneaky", "script", rounds=3, attackers=0.8))
    assert len(longer.steps) == 11


@pytest.mark.parametrize(
    ("run", "more", "says"),
    [
        ("gone", {}, "run 'gone' is not in"),
        ("untrained", {}, "'untrained' trains nobody"),
        ("alone", {}, "'solo_verifier' has no prover with a model that argues for acceptance"),
        ("frozen", {}, "trains no verifier"),
        ("small", {"name": "x" * 41}, "give a shorter --name"),
        ("small", {"overrides": ("dataset_options.max_test_size=2",)}, "on the problems of run"),
        ("small", {"overrides": ("nip_protocol.max_rounds=2",)}, "nip_protocol.max_rounds"),
        ("small", {"overrides": ("agents._default.temperature=1",)}, "set those of one agent"),
        ("small", {"attack_overrides": ("agents._default.temperature=1",)}, "of one agent"),
    ],
)
def test_a_run_that_cannot_be_hardened_is_refused_in_a_line(store, run, more, says):
    with pytest.raises(SettingsError) as refused:
        plan_hardening(store, run, asked("script:right-step", **more))
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_a_run_that_is_stopped_or_no_run_of_its_own_is_refused(store, tmp_path):
    shutil.copytree(store, tmp_path / "runs")
    (tmp_path / "runs/small/iterations/0000/models.json").unlink()
    with pytest.raises(SettingsError, match="'small' is stopped, not finished"):
        plan_hardening(str(tmp_path / "runs"), "small", asked("sneaky"))
    with pytest.raises(SettingsError, match="there is no such directory"):
        plan_hardening(str(tmp_path / "nowhere"), "small", asked("sneaky"))
    own = {**GAME, "run_name": "own"}
    frozen = {"_default": {**MODEL, "freeze_agent": True}}
    league = {"opponents": "league", "rl": {"num_iterations": 2}}
    stances = {"protocol_common": {"randomize_prover_stance": True}}
    runs = {"opponents": {"kind": "runs", "runs": [{"run": "a", "share": 0.5}]}}
    runs["agents"] = {"_default": MODEL, "prover": {"freeze_agent": True}}
    attack = {"attack": {"run": "small", "n": [1]}, "agents": frozen, "rl": {"num_iterations": 0}}
    for other, says in (
        (league, "'own' was trained in a league"),
        (stances, "'own' draws what its provers argue for"),
        (runs, "'own' was trained against other runs"),
        (attack, "'own' is an attack and has trained no verifier; harden 'small'"),
    ):
        with pytest.raises(SettingsError, match=says):
            plan_rounds(load_parameters({**own, **other}), asked("sneaky"))


def test_a_name_with_other_runs_is_refused_before_anything_is_started(store, tmp_path):
    """The first run that would be played is not there; a later one is, of another hardening."""
    runs = tmp_path / "runs"
    shutil.copytree(store, runs)
    asked_for = {"run": "small", "attack": ["script:no-step"], "run_store": str(runs)}
    shutil.copytree(runs / "small", runs / "small-harden-3")
    with pytest.raises(SettingsError, match=r"small-harden has more rounds .*give as many"):
        harden(rounds=2, **asked_for)
    with pytest.raises(NipError, match="small-harden-3: "):
        harden(rounds=3, **asked_for)
    assert {path.name for path in runs.glob("small-harden*")} == {"small-harden-3"}


@pytest.mark.parametrize(
    ("attacks", "more", "says"),
    [
        (("sneaky",), {"rounds": 0}, "--rounds 0"),
        ((), {}, "--attack is missing"),
        (("sneaky", "sneaky"), {}, "sneaky stands twice"),
        (("best-of-n",), {}, "--attack 'best-of-n': use sneaky, script"),
        (("sneaky:lie",), {}, "--attack 'sneaky:lie'"),
        (("script:no-step",), {"until": "plateau"}, "--until is for --attack sneaky alone"),
        (("script:no-step",), {"iterations": 0}, "--iterations 0"),
        (("sneaky",), {"played_problems": "right"}, "--on 'right'"),
        (("sneaky",), {"show": "200"}, "--show 200: name a file of chats, path/to/chats.jsonl"),
        (("sneaky",), {"overrides": ("imitation.chats=a.jsonl",)}, "--set imitation.chats: the"),
        (("sneaky",), {"overrides": ("opponents=league",)}, "--set opponents: the rounds set it"),
        (("sneaky",), {"overrides": ("base_run.run_id=a",)}, "--set base_run.run_id"),
        (("sneaky",), {"overrides": ("agents.prover.freeze_agent=false",)}, "and nobody else"),
        (("sneaky",), {"attack_overrides": ("run_name=a",)}, "--attack-set run_name"),
        (("sneaky",), {"attack_overrides": ("scenario_settings.seed=5",)}, "the game of"),
    ],
)
def test_rounds_that_make_no_sense_are_refused(attacks, more, says):
    with pytest.raises(SettingsError) as refused:
        asked(*attacks, **more)
    assert says in str(refused.value)


def test_gold_verdicts_of_a_judge_are_a_number():
    with pytest.raises(SettingsError, match=r"--show a.jsonl: with --judge it is a number of gold"):
        harden(rounds=1, judge=Path("judge.yaml"), show="a.jsonl")


def test_a_plan_says_what_its_attacks_will_reach(store, capsys):
    harden("small", rounds=1, attack=["sneaky", "script"], steps=5, run_store=store, dry_run=True)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    reaching = [name for name, line in lines.items() if "  reach " in line]
    assert reaching == ["small-harden-0-sneaky", "small-harden-1-sneaky"]
    [first, second] = (lines[name].partition("  reach ")[2] for name in reaching)
    sampled = reach_share(3 / (5 * 128))  # a message an episode
    assert first == second
    assert re.fullmatch(rf"{re.escape(sampled)} \(to train 1\.\d %\)", first)
    assert lines["reach:"].startswith("reach: kinds of message rarer than this")
    assert lines["to"].startswith("to train: sampled once in a step that rewards nothing else")


@pytest.mark.parametrize(
    "mix",
    [
        *("honest=0.5", "honest=0.5,attackers=0.6", "honest=-0.5,attackers=1.5", "half"),
        *("honest=0.5,attackers=x", "honest=1,attackers=0", "honest=0.5,liars=0.5", ""),
        "honest=0.2,honest=0.5,attackers=0.5",
    ],
)
def test_shares_that_are_no_mixture_are_refused(mix):
    with pytest.raises(SettingsError, match="--mix"):
        parse_mix(mix)
    assert parse_mix(" attackers=0.25, honest=0.75") == {"honest": 0.75, "attackers": 0.25}


def test_the_table_has_a_row_for_each_attack_and_the_figure_the_lowest_of_a_round(tmp_path, store):
    def attack(label, soundness, **more):
        after = Rates(soundness=soundness, soundness_ci95=(0.1, 0.6), completeness=0.9)
        named = {"run": f"r-{label}", "by": "script", "label": label, "status": "finished"}
        return AttackInRound(**named, after=after, **more)

    before = Rates(soundness=0.9, soundness_ci95=(0.8, 0.95), completeness=0.99)
    rounds = [
        HardenedRound(round=0, run="r", status="finished", before=before, attacks=(
            attack("no-step", 0.5), attack("sneaky", 0.2, steps=5, steps_to_exploit=5, verdict="plateau"),
        )),
        HardenedRound(round=1, run="r-1", status="not begun", attacks=(
            AttackInRound(run="r-1-sneaky", by="sneaky", label="sneaky", status="not begun"),
        )),
    ]  # fmt: skip
    results = HardeningResults(
        hardening="h", run="r", run_store="runs", honest=0.5, attackers=0.5, rounds=tuple(rounds),
        failures={"r-1": "no room | no disk"},
    )  # fmt: skip
    assert rounds[0].lowest.label == "sneaky" and rounds[1].lowest is None
    page = render_hardening(results)
    assert "reach" not in page.lower()  # of attacks by earlier versions
    assert "ntrained" not in page
    untrained = (
        UntrainedUnderAttack(label="no-step", run="r-no-step-0", after=before),
        UntrainedUnderAttack(label="sneaky"),
    )
    beside = render_hardening(results.model_copy(update={"untrained": untrained}))
    assert "| untrained | r | no-step | – | 90.0 [80.0, 95.0] | – | 99.0 |" in beside
    assert "\nNo untrained control: sneaky. The same attack on run r with --iteration 0" in beside
    no_step, sneaky = rounds[0].attacks
    sampled = rounds[0].model_copy(
        update={"attacks": (no_step, sneaky.model_copy(update={"rarest": 3 / 640}))}
    )
    reaching = render_hardening(results.model_copy(update={"rounds": (sampled, rounds[1])}))
    assert "| reach | ended |" in reaching and "| 5 | 0.47 % | plateau |" in reaching
    assert "| 90.0 | – | – | – |" in reaching and "\nReach: kinds of message" in reaching
    assert "| 0 | r | no-step | 90.0 [80.0, 95.0] | 50.0 [10.0, 60.0] | 99.0 | 90.0 | – |" in page
    assert "| 0 | r | sneaky | 90.0 [80.0, 95.0] | 20.0 [10.0, 60.0] | 99.0 | 90.0 | 5 |" in page
    assert "| 1 | r-1 | sneaky | – | not begun |" in page and "- r-1: no room | no disk" in page
    # Rounds that never sampled a kind of verdict are named.
    assert "sampled" not in page
    for sampled, says in (
        (SampledVerdicts(verdicts=40, rejected=3, unchecked=0), "no sampled verdict rejected without a comparison, so"),
        (SampledVerdicts(verdicts=40, rejected=0), "no sampled verdict rejected, so training on"),
        (SampledVerdicts(verdicts=40, rejected=3, unchecked=1), None),
    ):  # fmt: skip
        played = results.model_copy(
            update={"rounds": (rounds[0], rounds[1].model_copy(update={"sampled": sampled}))}
        )
        page = render_hardening(played)
        assert f"| {sampled.in_words} |" in page and "| – |" in page
        assert ("Round 1: " in page) == (says is not None) and (says or "") in page
        assert ("; `--show` gives some" in page) == (says is not None)
        shown = render_hardening(played.model_copy(update={"show": "chats.jsonl"}))
        assert "`--show`" not in shown and (says or "") in shown
        assert HardeningResults.model_validate(played.as_json()).rounds == played.rounds
    write_hardening(open_store(tmp_path), results)
    figure = (tmp_path / "hardening/h/rounds.svg").read_text()
    assert "soundness after the attack: 20.0% in round 0" in figure
    read = json.loads((tmp_path / "hardening/h/results.json").read_text())
    assert HardeningResults.model_validate(read) == results
    # Before anything is played there is a page as well.
    planned = plan_hardening(store, "small", asked("script"))
    page = render_hardening(collect_hardening(open_store(store), planned))
    assert "| 2 | small-harden-2 | right-step |" in page
    assert "No untrained control: right-step." in page
