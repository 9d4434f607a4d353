"""The runs of a sweep are every combination of its axes, checked before anything starts."""

import json
from datetime import date
from pathlib import Path

import pytest
import yaml

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.parameters.attack_settings import derive_attack
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opponent_runs import find_opponents_there
from nip_study.declare.declared_digests import settings_digest
from nip_study.plan.planned import find_attack
from nip_study.plan.swept_runs import read_sweep

SMALL = {
    "name": "small",
    "config": "deterministic",
    "set": {"rl.num_iterations": 1},
    "axes": {
        "interaction_protocol": ["adp", "nip"],
        "prover": {"helpful": {}, "opposed": {"protocol_common.shared_reward": False}},
        "seed": [1, 2],
    },
}


def written(tmp_path, **changes):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}, sort_keys=False))
    return path


def test_every_combination_is_a_run_with_its_settings(tmp_path):
    sweep = read_sweep(written(tmp_path), ("rl.rollouts_per_iteration=12",))
    assert len(sweep.runs) == 8
    assert [*sweep.arms] == [
        (protocol, prover) for protocol in ("adp", "nip") for prover in ("helpful", "opposed")
    ]
    assert all(len(runs) == 2 for runs in sweep.arms.values())
    run = next(run for run in sweep.runs if run.name == "small-nip-opposed-2")
    settings = run.parameters
    assert (settings.interaction_protocol, settings.seed) == ("nip", 2)
    assert settings.protocol_common.shared_reward is False
    assert (settings.rl.num_iterations, settings.rl.rollouts_per_iteration) == (1, 12)
    assert load_parameters(sweep.config, run.overrides) == settings
    # As the run's process gets them.
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.settings))
    assert load_parameters(tmp_path / "run.yaml") == settings


def test_of_settings_that_overlap_the_later_one_holds(tmp_path):
    axes = {
        "long": {"no": {}, "yes": {"rl.num_iterations": 3}},
        "few": {"yes": {"rl": {"rollouts_per_iteration": 32}}},
        "seed": [1],
    }
    axes["long"].pop("no")
    for first in ({}, {"rl": {"num_iterations": 5}}, {"rl.lr": 0.5}):
        [run] = read_sweep(written(tmp_path, axes=axes, set=first)).runs
        assert run.parameters.rl.rollouts_per_iteration == 32
        assert run.parameters.rl.num_iterations not in (3, 5)
    axes = {"few": axes["few"], "long": axes["long"], "seed": [1]}
    [run] = read_sweep(written(tmp_path, axes=axes)).runs
    rl = run.parameters.rl
    assert (rl.rollouts_per_iteration, rl.num_iterations) == (32, 3)


def test_text_of_any_kind_is_a_value(tmp_path):
    [run] = read_sweep(written(tmp_path, axes={"seed": [1]}, run_store="no😀 'é\"ne")).runs
    assert run.parameters.run_store == "no😀 'é\"ne"


def test_combinations_are_left_out(tmp_path):
    left_out = [{"interaction_protocol": "adp", "prover": "opposed"}, {"seed": 2}]
    sweep = read_sweep(written(tmp_path, leave_out=left_out))
    assert [run.name for run in sweep.runs] == [
        "small-adp-helpful-1",
        "small-nip-helpful-1",
        "small-nip-opposed-1",
    ]


def test_every_run_is_attacked_but_for_those_that_are_left_out(tmp_path):
    chosen = {"by": "best-of-n", "n": [1, 4], "problems": 5, "set": {"attack.continuations": 2}}
    attacks = {"chosen": chosen, "sneaky": {"by": "sneaky", "leave_out": [{"seed": 1}]}}
    path = written(tmp_path, axes={"seed": [1, 2]}, attacks=attacks, set={"rl.num_iterations": 2})
    sweep = read_sweep(path)
    first, second = sweep.runs
    assert [attack.name for attack in first.attacks] == ["small-1-chosen"]
    assert [attack.name for attack in second.attacks] == ["small-2-chosen", "small-2-sneaky"]
    assert (find_attack(first, None), find_attack(first, "chosen")) == ("small-1", "small-1-chosen")
    assert find_attack(first, "sneaky") is None
    [attack] = first.attacks
    settings = attack.parameters
    assert (settings.attack.run, settings.attack.iteration) == ("small-1", 2)
    assert (settings.attack.problems, settings.attack.continuations, attack.n) == (5, 2, 4)
    assert settings.run_store == first.parameters.run_store and settings.seed == 1
    # As its process gets them.
    (tmp_path / "attack.yaml").write_text(yaml.safe_dump(attack.settings))
    assert load_parameters(tmp_path / "attack.yaml") == settings


def test_an_attack_to_a_plateau_has_more_steps_than_one_without(tmp_path):
    sneaky = {"by": "sneaky", "set": {"rl.lr": 0.5}}
    attacks = {"a": sneaky, "b": {**sneaky, "until": "plateau"}}
    [run] = read_sweep(written(tmp_path, axes={"seed": [1]}, attacks=attacks)).runs
    fixed, to_plateau = (attack.parameters for attack in run.attacks)
    assert (fixed.attack.until, fixed.rl.num_iterations) == ("steps", 20)
    assert (to_plateau.attack.until, to_plateau.rl.num_iterations) == ("plateau", 100)
    assert fixed.attack.course_on == to_plateau.attack.course_on == "validation"


SILENT = """
def list_c(turn):
    return f"Verdict: {turn.argues_for}, C."


def nothing(turn):
    return "Nothing."
"""
LIST_C = "silent.py:list_c"


def held_out(tmp_path, *entries, **changes):
    (tmp_path / "silent.py").write_text(SILENT)
    attacks = {"a": {"by": "best-of-n"}, "held_out": [*entries], "b": {"by": "sneaky"}}
    return written(tmp_path, **{"axes": {"seed": [1, 2]}, "attacks": attacks, **changes})


def test_scripts_that_are_held_out_are_attacks_by_their_own_names(tmp_path):
    nothing = {"script": "silent.py:nothing", "leave_out": [{"seed": 1}], "problems": 5}
    sweep = read_sweep(held_out(tmp_path, LIST_C, nothing))
    assert sweep.attacks == ("a", "list-c", "nothing", "b")
    first, second = sweep.runs
    assert [one.name for one in first.attacks] == ["small-1-a", "small-1-list-c", "small-1-b"]
    assert [one.is_held_out for one in second.attacks] == [False, True, True, False]
    assert second.attacks[1].parameters.attack.script == str(tmp_path / LIST_C)
    assert second.attacks[2].parameters.attack.problems == 5
    # It is an ordinary attack under another mark: the same run, to the digest.
    by_name = {"list-c": {"by": "script", "script": LIST_C}}
    [named] = read_sweep(written(tmp_path, axes={"seed": [1]}, attacks=by_name)).runs[0].attacks
    assert named.parameters == first.attacks[1].parameters and not named.is_held_out


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["silent.py:A"], "held_out: silent.py:A: there is another attack 'a'"),
        ([LIST_C, {"script": LIST_C}], "held_out: silent.py:list_c: there is another attack"),
        ([{"by": "sneaky"}], "held_out is a list of scripts: names, addresses"),
        ([LIST_C, 3], "held_out is a list of scripts: names, addresses, or attacks with"),
        ([{"script": LIST_C, "steps": 3}], "attacks.list-c: Value error, steps is not for by"),
        (["no-such"], "attacks.no-such: run 'small-1'"),
    ],
)
def test_what_can_not_be_held_out_is_refused(tmp_path, entries, message):
    with pytest.raises(SettingsError) as raised:
        read_sweep(held_out(tmp_path, *entries))
    assert message.replace("Value error, ", "") in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_attack_without_a_script_is_not_held_out(tmp_path):
    attacks = {"a": {"by": "sneaky", "held_out": True}}
    with pytest.raises(SettingsError, match=r"attacks\.a: held_out is for scripts"):
        read_sweep(written(tmp_path, attacks=attacks))
    with pytest.raises(SettingsError, match="held_out is a list of scripts"):
        read_sweep(written(tmp_path, attacks={"held_out": LIST_C}))


FOUND = {"iteration": None, "shared_reward": False, "asked": {"prover": {}}}


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"agents.prover.freeze_agent": True, "agents.prover.script": "COPY"}, "agents.prover"),
        ({"opponents": [{"script": "COPY", "share": 0.1}]}, "opponents.runs.0"),
        ({"opponents": [{"run": "x", "found": {**FOUND, "script": "COPY"}}]}, "opponents.runs.0"),
        ({"opponents": [{"run": "met"}]}, "opponents.runs.0"),
    ],
)
def test_a_run_that_met_a_script_in_training_is_not_attacked_by_it_as_held_out(
    tmp_path, settings, place
):
    """Also where another copy of the same file was met, or an attack of another run by it."""
    (tmp_path / "copies").mkdir()
    copy = str(tmp_path / "copies" / "the_same.py") + ":list_c"
    (tmp_path / "copies" / "the_same.py").write_text(SILENT)
    text = json.dumps(settings).replace("COPY", copy)
    met = json.loads(text)
    if "opponents" in met:
        runs = [{"share": 0.1, "on": "wrong"} | entry for entry in met["opponents"]]
        met["opponents"] = {"kind": "runs", "runs": runs}
    changes = {"set": {"rl.num_iterations": 1, **met}, "run_store": str(tmp_path / "runs")}
    if '"met"' in text:
        [attacked] = read_sweep(held_out(tmp_path, axes={"seed": [1]})).runs
        attack = {"by": "script", "script": copy, "run": "small-1", "iteration": 1}
        values = derive_attack(attacked.parameters, attack, steps=None, every=1, name="met")
        run = RunStore(open_store(changes["run_store"]), "met")
        run.create_or_open(Identity(values.to_dict(), "1", 1))
    path = held_out(tmp_path, LIST_C, "silent.py:nothing", **changes)
    with pytest.raises(SettingsError) as raised:
        read_sweep(path)
    assert f"held_out: the run is trained against {copy} ({place}" in str(raised.value)
    # Another function of the same file is another kind.
    read_sweep(held_out(tmp_path, "silent.py:nothing", **changes))


def test_the_key_on_is_a_word_and_no_truth_value(tmp_path):
    """YAML 1.1 reads it as true."""
    path = held_out(tmp_path, axes={"seed": [1]}, set={"rl.num_iterations": 1})
    entry = "{script: silent.py:nothing, share: 0.5, on: wrong}"
    opponents = f"set:\n  opponents: {{kind: runs, runs: [{entry}]}}"
    path.write_text(path.read_text().replace("set:", opponents, 1))
    [run] = read_sweep(path).runs
    [opponent] = run.parameters.opponents.runs
    assert opponent.on == "wrong" and opponent.script == str(tmp_path / "silent.py:nothing")
    # What nip finds of an opponent as the run begins is no other setting than the declared one.
    found = find_opponents_there(run.parameters, None, None)
    assert found.opponents.runs[0].found is not None
    assert settings_digest(found.to_dict()) == settings_digest(run.parameters.to_dict())


def test_the_last_models_of_any_run_can_be_attacked(tmp_path):
    attacks = {"a": {"by": "best-of-n", "iteration": "last"}}
    axes = {"rl.num_iterations": [0, 2]}
    sweep = read_sweep(written(tmp_path, set={}, axes=axes, attacks=attacks))
    assert [run.attacks[0].parameters.attack.iteration for run in sweep.runs] == [0, 2]
    # Of a verifier that is not trained those are the models it begins with.
    frozen = {"agents.verifier.freeze_agent": True}
    sweep = read_sweep(written(tmp_path, set=frozen, axes=axes, attacks=attacks))
    assert [run.attacks[0].parameters.attack.iteration for run in sweep.runs] == [0, 0]


SNEAKY = {"by": "sneaky", "steps": 4}
ON_OTHERS = {"by": "best-of-n", "n": [1, 4], "set": {"test_dataset_split": "validation"}}


def test_an_attack_comes_after_the_one_that_it_imitates(tmp_path):
    chain = {"last": {**SNEAKY, "start_from": "begun"}, "begun": {**SNEAKY, "start_from": "named"}}
    sweep = read_sweep(written(tmp_path, axes={"seed": [1]}, attacks={**chain, "named": ON_OTHERS}))
    [run] = sweep.runs
    assert [attack.label for attack in run.attacks] == ["last", "begun", "named"]
    in_order = run.attacks_in_order
    assert [attack.label for attack in in_order] == ["named", "begun", "last"]
    named, begun, last = (attack.parameters for attack in in_order)
    assert begun.attack.start_from == "small-1-named"
    # What an attack by training has played in its steps is on training problems.
    assert last.attack.start_from == "small-1-begun"
    assert begun.rl.num_iterations == 5 and named.test_dataset_split == "validation"
    assert run.tested_by == ("last", "begun")


def test_a_file_of_chats_is_looked_for_beside_the_sweep(tmp_path):
    chat = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "It is."}]
    lines = "".join(json.dumps({"messages": chat}) + "\n" for _ in range(10))
    (tmp_path / "chats.jsonl").write_text(lines)
    attacks = {"a": {**SNEAKY, "start_from": "chats.jsonl"}}
    path = written(tmp_path, axes={"seed": [1]}, attacks=attacks)
    [attack] = read_sweep(path).runs[0].attacks
    assert attack.parameters.attack.start_file == str(tmp_path / "chats.jsonl")
    (tmp_path / "chats.jsonl").write_text(lines.partition("\n")[0])
    with pytest.raises(SettingsError, match=r"chats\.jsonl has 1 chats for .*10 are needed; add"):
        read_sweep(path)


@pytest.mark.parametrize(
    ("attacks", "message"),
    [
        (
            {"a": {**SNEAKY, "start_from": "b"}, "c": ON_OTHERS},
            "attacks.a.start_from: 'b' is neither another attack of this sweep (there are c)",
        ),
        (
            {"a": {**SNEAKY, "start_from": "a"}},
            "attacks.a.start_from: a -> a: an attack can't begin",
        ),
        (
            {"a": {**SNEAKY, "start_from": "b"}, "b": {**SNEAKY, "start_from": "a"}},
            "attacks.a.start_from: a -> b -> a: an attack can't begin with what waits for it",
        ),
        ({"a": {**ON_OTHERS, "start_from": "b"}}, "start_from is not for by: best-of-n"),
        (
            {"a": {**SNEAKY, "start_from": "b"}, "b": {**ON_OTHERS, "set": {}}},
            "attacks.a.start_from: 'b' plays test problems alone, with which this attack is tested",
        ),
        (
            {
                "a": {**SNEAKY, "start_from": "b"},
                "b": {**ON_OTHERS, "leave_out": [{"prover": "helpful"}]},
            },
            "attacks.a.start_from: 'b' is not made on this run (leave_out)",
        ),
        ({"a": {**SNEAKY, "start_from": "no.jsonl"}}, "no.jsonl"),
    ],
)
def test_an_attack_that_could_never_imitate_is_refused(tmp_path, attacks, message):
    path = written(tmp_path, attacks=attacks)
    with pytest.raises(SettingsError) as raised:
        read_sweep(path)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert str(raised.value).startswith(str(path))


def test_the_configuration_is_looked_for_beside_the_file(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump(
            {
                "run_name": "mine",
                "dataset": "families",
                "interaction_protocol": "nip",
                "run_store": str(tmp_path / "runs"),
                "lm_server": {"engine": "deterministic"},
                "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "x"}},
            }
        )
    )
    sweep = read_sweep(written(tmp_path, config="mine.yaml", axes={"seed": [3]}))
    assert sweep.config == str(tmp_path / "mine.yaml")
    assert sweep.run_store == str(tmp_path / "runs")


@pytest.mark.parametrize("path", sorted(Path("deployments/sweeps").glob("*.yaml")), ids=str)
def test_sweeps_of_the_repository_can_be_read(path):
    sweep = read_sweep(path)
    assert len(sweep.runs) >= 2 * len(sweep.arms)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axis": {}}, "axis: unknown key"),
        ({"name": "My sweep"}, "name 'My sweep': use at most 41"),
        ({"config": "nowhere"}, "nowhere: neither a file here nor a bundled configuration"),
        ({"axes": {}}, "axes: "),
        ({"axes": {"seed": []}}, "axes.seed: "),
        ({"axes": {"seed": 1}}, "axes.seed: "),
        ({"axes": {"sed": [1, 2]}}, "sed 1: --set: sed: unknown setting; did you mean 'seed'?"),
        ({"axes": {"seed": ["x"]}}, "seed x: --set: seed: "),
        ({"axes": {"arm": {"a": {}, "b": {}}}}, "arm a and arm b have the same settings"),
        ({"axes": {"arm": {"a.b": {}, "a b": {"seed": 3}}}}, "would both be called 'small-a-b'"),
        ({"axes": {"arm": {"a" * 40: {}}}}, "name the values of the axes shortly"),
        ({"axes": {"run_store": ["a", "b"]}}, "need one run_store; take it off the axes"),
        ({"set": {"run_name": "x"}}, "run_name follows from the sweep's name"),
        ({"axes": {"seed": [[1]]}}, "axes.seed: give a list of plain values"),
        ({"axes": {"seed": [1, "1"]}}, "axes.seed: 1 stands twice"),
        ({"axes": {"scenario": ["", "graphs"]}}, "axes.scenario: give the empty value a name"),
        ({"axes": {a: [*range(50)] for a in ("seed", "rl.lr")}}, "axes: 2,500 combinations"),
        ({"set": {"dataset": date(2024, 1, 1)}}, "write it in quotes"),
        ({"leave_out": [{"sed": 1}]}, "leave_out[0]: sed: 1: there is no such axis"),
        ({"leave_out": [{"seed": 7}]}, "leave_out[0]: seed: 7: values are 1, 2"),
        ({"leave_out": [{}]}, "leave_out[0]: names no value"),
        ({"leave_out": [{"seed": 1}, {"seed": 2}]}, "leave_out leaves no run"),
        ({"attacks": {"a": {"by": "force"}}}, "attacks.a.by: "),
        ({"attacks": {"a": {"by": "sneaky", "n": [1]}}}, "n is not for by: sneaky"),
        ({"attacks": {"a": {"by": "best-of-n", "steps": 1}}}, "steps is not for by: best-of-n"),
        (
            {"attacks": {"a": {"by": "best-of-n", "until": "plateau"}}},
            "until is not for by: best-of-n",
        ),
        ({"attacks": {"a": {"by": "best-of-n", "n": [4, 1]}}}, "attacks.a: run 'small-adp-helpful"),
        ({"attacks": {"a": {"by": "best-of-n", "iteration": 9}}}, "iteration 9: the run has 1"),
        ({"attacks": {"A b": {"by": "best-of-n"}}}, "its run would be called"),
        (
            {"attacks": {"a": {"by": "best-of-n"}}, "set": {"rl.num_iterations": 0}},
            "the run trains no verifier; leave it out",
        ),
        (
            {"attacks": {"a": {"by": "best-of-n", "leave_out": [{"seed": 7}]}}},
            "attacks.a.leave_out[0]: seed: 7: values are 1, 2",
        ),
        (
            {"attacks": {"a": {"by": "best-of-n", "set": {"dataset": "problems"}}}},
            "dataset: an attack plays the game of the run that it attacks",
        ),
        (
            {
                "axes": {"who": {"x": {}, "x-a": {"rl.lr": 0.5}}},
                "attacks": {"a": {"by": "best-of-n"}},
            },
            "two runs would be called 'small-x-a'",
        ),
        (
            {
                "set": {"interaction_protocol": "solo_verifier", "rl.num_iterations": 1},
                "axes": {"seed": [1, 2]},
                "attacks": {"a": {"by": "best-of-n"}},
            },
            "'solo_verifier' has no prover that could attack",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value, default=str)[:30],
)
def test_what_is_wrong_in_a_sweep_is_named(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    with pytest.raises(SettingsError) as raised:
        read_sweep(path)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(path))


def test_runs_are_not_named_from_outside(tmp_path):
    with pytest.raises(SettingsError, match="run_name follows from"):
        read_sweep(written(tmp_path), ("run_name=mine",))


@pytest.mark.parametrize("text", ["axes: &a {d: *a}", "[" * 1000])
def test_what_is_no_tree_is_one_line(tmp_path, text):
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(SettingsError, match=r"sweep\.yaml: "):
        read_sweep(tmp_path / "sweep.yaml")


def test_a_key_that_stands_twice_is_an_error(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(f"{yaml.safe_dump(SMALL)}\nname: other\n")
    with pytest.raises(SettingsError, match="'name' stands twice"):
        read_sweep(path)
