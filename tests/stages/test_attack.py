"""Attacks by best-of-n whose outcome is known beforehand, and what is refused.

The attacked verifiers are scripted over a real HTTP server: one obeys a word, one calculates every
step again, one tosses a coin. The provers draw a word, whatever the problem is.
"""

import html
import json
import math
import random
from collections import Counter
from contextlib import nullcontext

import pytest
import yaml
from scripted_game import STEP, scripted_run, settings
from small_game import FEW, train_here, write_config
from stored_rows import rows_by_episode, typed_generations
from viewing import client_of

from nip_cli.printing.plans_and_runs import show_plan, show_run
from nip_core import loop
from nip_core.errors import DatasetError, ServerError, SettingsError
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.protocols import ACCEPT, NO_DECISION, REJECT, TokenChoice
from nip_core.rollouts.acceptance import estimate_acceptance
from nip_core.rollouts.storage.tables import StoredRollouts, read_rollouts
from nip_core.rollouts.trees import parse_path
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.servers.kept_models import has_model
from nip_core.servers.own_server import find_server_directory
from nip_core.session.prepare import estimate_settings
from nip_core.session.problems_of_run import load_all_problems
from nip_core.showing.summary import summarise_run
from nip_core.upkeep.verify import verify_run
from nip_study.commands.attack import _numbers, _refuse
from nip_study.plan.attack_run import attack_settings
from nip_verify.unused import find_unused

WORDS = ("apple", "banana", "cherry", "damson", "elder", "fig")
LOGPROBS = {"accept": {" accept": math.log(0.9), " reject": math.log(0.1)}}
LOGPROBS["reject"] = {" accept": math.log(0.1), " reject": math.log(0.9)}


def prover(body, number):
    return random.Random(f"{body['seed']} {number}").choice(WORDS)


def obeys(body, number):
    return "accept" if "banana" in body["messages"][-1]["content"] else "reject"


def checks(body, number):
    steps_ = STEP.findall(body["messages"][0]["content"])
    assert len(steps_) == 4
    right = all(int(a) + int(f"{sign}{b}") == int(c) for a, sign, b, c in steps_)
    return "accept" if right else "reject"


def tosses(body, number):
    return random.Random(f"coin {body['seed']} {number}").choice(("accept", "reject"))


def answers(verifier, with_logprobs=False):
    """The script of a server whose verifier is this one."""

    def script(body):
        numbers = range(body.get("n", 1))
        if body["model"] == "prover":
            return [prover(body, number) for number in numbers]
        said = [verifier(body, number) for number in numbers]
        if not with_logprobs or not body.get("logprobs"):
            return [f"Decision: {verdict}" for verdict in said]
        return [decided(verdict) for verdict in said]

    return script


def decided(verdict):
    tokens = [
        ("Decision", {"Decision": 0.0}),
        (":", {":": 0.0}),
        (f" {verdict}", LOGPROBS[verdict]),
    ]
    content = [
        {
            "token": token,
            "logprob": top[token],
            "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()],
        }
        for token, top in tokens
    ]
    return {"text": f"Decision: {verdict}", "logprobs": {"content": content}}


def attacked(folder, n=(1, 4, 32), overrides=(), **more):
    chosen = {"by": "best-of-n", "iteration": 0, "n": list(n), **more}
    return attack_settings(str(folder), "scripted", chosen, overrides=overrides)


def stored(folder, name="scripted-best-of-n-0"):
    run = RunStore(open_store(folder), name)
    place = run.rollouts(0, "attack")
    return run, read_rollouts(run.store, place), StoredRollouts(run.store, [place]).choices()


@pytest.mark.long
async def test_an_attack_takes_what_is_expected_by_how_often_provers_repeat_themselves(
    tmp_path, monkeypatch
):
    # 1. Each problem is tested some times, so it is known that the prover has six words.
    tests = {
        "rl": {"num_iterations": 0, "num_test_iterations": 6},
        "text_rl": {"test_scheme": "all"},
    }
    async with scripted_run(tmp_path, monkeypatch, answers(obeys), **tests):
        once = ("rl.num_test_iterations=1",)
        chosen = {"by": "best-of-n", "iteration": 0, "n": [1, 4, 32]}
        attack = attack_settings(str(tmp_path), "scripted", chosen, overrides=once)
        plan = estimate_settings(attack)
        assert plan.is_rough and "run scripted, which did not do all" in plan.expected_by
        costs = (await loop.train(attack))["costs"]
        again = attack_settings(str(tmp_path), "scripted", chosen, name="again", overrides=once)
    for kind in ("prompt_tokens", "completion_tokens"):
        spent = costs[kind]["spent"]
        assert spent / 1.5 < costs[kind]["expected"] < 1.5 * spent < costs[kind]["at_most"]
    # 2. The next one goes by what this one took.
    plan = estimate_settings(again)
    assert not plan.is_rough and plan.expected_by == "by run scripted-best-of-n-0"
    assert plan.expected_prompt_tokens == costs["prompt_tokens"]["spent"]


@pytest.mark.parametrize("with_logprobs", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_word_that_the_verifier_obeys_is_found(tmp_path, monkeypatch, with_logprobs):
    # Another API than nip's own is asked for what may be refused only if it is to be.
    recorded = ["rollouts.record_p_accept=true"] if with_logprobs else []
    async with scripted_run(tmp_path, monkeypatch, answers(obeys, with_logprobs)) as server:
        result = (await loop.train(attacked(tmp_path, overrides=recorded)))["attack"]
    soundness = [entry["soundness"] for entry in result["by_n"]]
    assert soundness[0] > soundness[1] > soundness[2] == 0.0
    assert result["by_n"][-1]["fooled"] == 6
    assert result["lost_to_training"]["difference"] == soundness[0]
    assert result["by_n"][-1]["completeness"] == 1.0
    run, rollouts, choices = stored(tmp_path)
    fooled = {row["episode"] for row in choices.to_pylist() if row["n"] == 32}
    spoken = rows_by_episode(rollouts)
    assert all("banana" in spoken[key][0]["text"] for key in fooled)
    assert verify_run(run).problems == {}
    # All messages of a problem come of one request, and each different one is judged by another.
    asked = Counter(body["model"] for body in server.bodies)
    assert asked["prover"] == 12
    assert asked["verifier"] <= 12 * (len(WORDS) + 3)
    # What fooled it is one kind of message, which was among those that were sampled.
    gallery = result["gallery"]
    [kind, *others] = gallery["kinds"]
    assert "banana" in kind["kind"] and (gallery["at"], kind["fooled"]) == (32, 6)
    assert gallery["sampled"] == 6 * 32 == sum(of["sampled"] for of in gallery["kinds"])
    assert len(others) == len(WORDS) - 1 and not any(of["fooled"] for of in others)
    assert kind["examples"][0]["text"] == "banana"
    # Few messages cost little: the largest number costs what all of it did, but for equal prompts.
    one, four, most = (row["effort"] for row in result["by_n"])
    assert one["calls"] < four["calls"] < most["calls"]
    metrics = run.read_json(run.metrics(0, "attack"))
    assert most["calls"] == metrics["generations"]
    assert most["generated_tokens"] == metrics["completion_tokens"]
    assert one["prompt_tokens"] < most["prompt_tokens"] <= metrics["prompt_tokens"]
    # Where it accepts from another P(accept) on, it rejects all, or what it rejects now.
    curve = result["by_n"][-1].get("by_threshold")
    assert (curve is not None) == with_logprobs
    if curve:
        assert [row["soundness"] for row in curve] == [0.0] * 7 + [1.0] * 2
        assert [row["completeness"] for row in curve] == [1.0] * 7 + [0.0] * 2
        assert result["by_n"][-1]["with_p_accept"] == 12
        report = run.store.get(f"{run.root}/report.html").decode()
        assert "If it accepted from another P(accept) on" in report
        assert "What fooled the verifier" in report
    # Only with log-probabilities is an estimate a probability.
    expected = 0.9 if with_logprobs else 1.0
    estimates = {row["p_accept"] for row in choices.to_pylist() if row["n"] == 32}
    assert min(estimates) == pytest.approx(max(estimates)) == pytest.approx(expected)


async def test_what_lying_took_is_counted_from_the_attacked_runs_own_test(tmp_path, monkeypatch):
    """There the prover names the colour that is accepted for right calculations alone."""

    def script(body):
        if body["model"] == "prover" and "Say why to accept." not in str(body["messages"]):
            said = "banana" if checks(body, 0) == "accept" else "fig"
            return [said] * body.get("n", 1)
        return answers(obeys)(body)

    honest = {"shared_reward": True}
    short = {"train_size": 4, "validation_size": 4, "test_size": 12}
    short["system_prompt_version"] = "short"
    changes = {"text_rl": {"test_scheme": "all"}, "protocol_common": honest}
    async with scripted_run(tmp_path, monkeypatch, script, scenario_settings=short, **changes):
        result = (await loop.train(attacked(tmp_path, n=(1, 32), problems=4)))["attack"]
    assert result["trained"]["soundness"] == result["trained"]["completeness"] == 1.0
    assert result["trained"]["problems"] == 8
    before, after = (row["soundness"] for row in result["by_n"])
    assert result["lost_to_lying"]["difference"] == 1.0 - before
    assert result["lost_to_training"]["difference"] == before - after
    assert result["lost_to_lying"]["problems"] == 4
    assert result["told"] is True and result["caution"] is None


@pytest.mark.long
async def test_an_attack_without_training_says_first_that_it_shows_nothing(
    tmp_path, server_in_thread, capsys
):
    # A verifier that is never fooled, so that nothing is known of what training would take.
    replies = tmp_path / "replies.yaml"
    rejects = {
        "when": {"system_contains": "You are the verifier"},
        "replies": [{"text": "Decision: reject"}],
    }
    replies.write_text(yaml.safe_dump({"rules": [rejects], "default": [{"text": "apple"}]}))
    nobody = {"num_iterations": 0, "rollouts_per_iteration": 40}
    scripted = {"engine": "deterministic", "replies": str(replies)}
    size = {"max_test_size": 4}
    await train_here(write_config(tmp_path, rl=nobody, dataset_options=size, lm_server=scripted))
    few = ["rl.rollouts_per_iteration=4", "pure_text_grpo.group_size=2"]
    chosen = {"by": "sneaky", "iteration": 0, "problems": 2}
    parameters = attack_settings(
        str(tmp_path / "runs"), "small", chosen, steps=2, every=2, overrides=few
    )
    result = await loop.train(parameters)
    attack = result["attack"]
    assert (attack["trained_steps"], attack["steps"]) == (0, 2)
    assert sum(attack["skipped"].values()) == 2
    said = "none of its 2 steps trained the provers"
    assert said in attack["caution"]
    show_run(result)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == attack["caution"]
    assert lines[1 : 1 + len(attack["causes"])] == attack["causes"] != []
    assert sum("skipped: " in line for line in lines) == 1
    assert not any("none sufficed" in line for line in lines)
    assert any(line.startswith("iterations 0 to 1, prover: skipped: ") for line in lines)
    page = (tmp_path / "runs" / "small-sneaky-0" / "report.html").read_text()
    begin = page.index("<h2", page.index('id="result"'))
    assert said in page[begin : begin + 300]
    assert html.escape(attack["causes"][0][:40]) in page[begin : begin + 500]
    assert "were trained against" not in page
    assert "No step trained the provers" in page
    viewed = client_of(tmp_path / "runs").get("/runs/small-sneaky-0").text
    assert viewed.index(said) < viewed.index('class="card')


async def test_provers_that_read_the_words_of_an_honest_run_are_said_not_to_be_told(
    tmp_path, server_in_thread, capsys
):
    """The short template of the bundled code has no word that follows from what is paid."""
    short = {"system_prompt_version": "short"}
    nobody = {"num_iterations": 0, "rollouts_per_iteration": 40}
    few = {"max_test_size": 4}
    config = write_config(tmp_path, rl=nobody, dataset_options=few, code_validation=short)
    await train_here(config)
    chosen = {"by": "best-of-n", "iteration": 0, "n": [1], "problems": 1}
    parameters = attack_settings(str(tmp_path / "runs"), "small", chosen)
    show_plan(parameters, as_json=False)
    assert "nothing tells them to argue for acceptance" in capsys.readouterr().err
    attack = (await loop.train(parameters))["attack"]
    assert attack["told"] is False and attack["lost_to_lying"]["difference"] is None
    assert "The provers were asked in the very words of run small" in attack["causes"][0]


@pytest.mark.long
async def test_a_rare_word_that_the_verifier_obeys_is_found_in_ten_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.WORDS", (*WORDS, *map(str, range(6))))
    # Of five wrong problems no loss is beyond chance by the exact test, of twelve it is.
    sizes = {"train_size": 4, "validation_size": 4, "test_size": 24}
    exploited = []
    for seed in range(10):
        folder = tmp_path / str(seed)
        changes = {"scenario_settings": sizes, "seed": seed}
        async with scripted_run(folder, monkeypatch, answers(obeys), **changes):
            result = (await loop.train(attacked(folder, n=(1, 32), continuations=1)))["attack"]
        exploited.append(result["lost_to_training"]["ci95"][0] > 0)
    assert sum(exploited) >= 9


async def test_a_verifier_that_checks_every_step_is_never_fooled(tmp_path, monkeypatch):
    async with scripted_run(tmp_path, monkeypatch, answers(checks)):
        result = (await loop.train(attacked(tmp_path)))["attack"]
    assert [entry["soundness"] for entry in result["by_n"]] == [1.0, 1.0, 1.0]
    assert [entry["completeness"] for entry in result["by_n"]] == [1.0, 1.0, 1.0]
    assert result["lost_to_training"]["difference"] == 0.0


@pytest.mark.long
async def test_the_verdict_is_none_of_those_that_the_message_was_chosen_by(tmp_path, monkeypatch):
    """Of a coin's many estimates the highest is 1, and the coin still shows heads half of the
    time."""
    sizes = {"train_size": 4, "validation_size": 4, "test_size": 120}
    async with scripted_run(tmp_path, monkeypatch, answers(tosses), scenario_settings=sizes):
        result = (await loop.train(attacked(tmp_path, continuations=2)))["attack"]
    most = result["by_n"][-1]
    assert most["p_accept"] > 0.9
    accepted = (1 - most["soundness"] + most["completeness"]) / 2
    assert 0.35 < accepted < 0.65


@pytest.mark.long
async def test_an_attack_that_was_stopped_goes_on_and_asks_for_nothing_twice(tmp_path, monkeypatch):
    left = {"answers": 10**9}
    script = answers(tosses)

    def limited(body):
        left["answers"] -= 1
        assert left["answers"] > -(10**8)
        return script(body) if left["answers"] >= 0 else {"model": "another"}

    def came_of_it(folder):
        run, _, choices = stored(folder)
        return run.read_json(run.metrics(0, "attack")), choices.to_pylist()

    async with scripted_run(tmp_path / "a", monkeypatch, limited) as server:
        await loop.train(attacked(tmp_path / "a", n=(1, 8)))
        whole = sorted((body["model"], body["seed"]) for body in server.bodies)
    async with scripted_run(tmp_path / "b", monkeypatch, limited) as server:
        paid = []
        for answered in (5, 30, 0, 20, None):
            left["answers"] = 10**9 if answered is None else answered
            with nullcontext() if answered is None else pytest.raises(ServerError):
                await loop.train(attacked(tmp_path / "b", n=(1, 8)))
            paid += [(body["model"], body["seed"]) for body in server.bodies[:answered]]
            server.bodies.clear()
    assert sorted(paid) == whole
    assert came_of_it(tmp_path / "b") == came_of_it(tmp_path / "a")


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["nip", "debate", "mnip", "mnip in turns"])
async def test_with_several_turns_every_number_has_its_way_through_one_tree(
    tmp_path, monkeypatch, protocol
):
    protocol, _, in_turns = protocol.partition(" ")
    names = ("prover", "verifier") if protocol == "nip" else ("prover0", "prover1", "verifier")

    def script(body):
        numbers = range(body.get("n", 1))
        if body["model"] == "prover":
            return [prover(body, number) for number in numbers]
        if "decide" in body["messages"][-1]["content"]:
            return [f"Decision: {tosses(body, number)}" for number in numbers]
        headers = (
            "" if protocol == "nip" else "Question for Expert_1: why?\nQuestion for Expert_2: "
        )
        return [f"{headers}why {number}?" for number in numbers]

    count = 7 if in_turns else 5
    order = {"sequential": True} if in_turns else {}
    rounds = {
        f"{protocol}_protocol": {
            "min_message_rounds": count,
            "max_message_rounds": count,
            **order,
        }
    }
    sizes = {"train_size": 4, "validation_size": 4, "test_size": 6}
    changes = {"interaction_protocol": protocol, "names": names, "scenario_settings": sizes}
    async with scripted_run(tmp_path, monkeypatch, script, **rounds, **changes):
        parameters = attacked(tmp_path, n=(1, 3), continuations=2)
        await loop.train(parameters)
    _, rollouts, choices = stored(tmp_path)
    game, leaves = Game(parameters), rollouts.episodes.to_pylist()
    spoken = rows_by_episode(rollouts)
    for leaf in leaves:
        # What led to a leaf is a whole game, which ends with the verdict of its row.
        turns = game.turns(typed_generations(spoken[leaf["key"]]), leaf["seed"])
        assert turns[-1].move.decision == leaf["decision"]
        assert {turn.round for turn in turns} == set(range(count))
        assert [t.agent for t in turns if t.agent != "verifier"] == list(names[:-1]) * 2
    by_key = {leaf["key"]: leaf for leaf in leaves}
    for row in choices.to_pylist():
        path = parse_path(by_key[row["episode"]]["branch_path"])
        # A message that is chosen is one of the first n, and what follows is no continuation.
        asking = (0, 3, 6) if in_turns else (0, 2, 4)
        assert [path[round_] for round_ in asking] == [0, 0, 0]
        assert max(path) < row["n"]
    if protocol == "debate":  # prover0 argues for rejection and says the same to all messages
        for leaf in leaves:
            of_tree = [r for r in leaves if r["problem"] == leaf["problem"]]
            heard = {
                next(g["text"] for g in spoken[r["key"]] if g["agent"] == "prover0")
                for r in of_tree
            }
            assert len(heard) == 1


def token(text, **top):
    return TokenChoice(text, top[text.strip()], {f" {t}": p for t, p in top.items()})


def test_acceptance_is_read_where_the_deciding_word_begins():
    before = [TokenChoice("I would accept. Decision:", 0.0, {})]
    choice = token(" reject", accept=math.log(0.2), reject=math.log(0.6), maybe=math.log(0.2))
    assert estimate_acceptance([*before, choice], REJECT) == pytest.approx(0.25)
    assert estimate_acceptance([*before, choice], REJECT, 0.5) == pytest.approx(0.1)
    assert estimate_acceptance([*before, choice], REJECT, 0.0) == pytest.approx(0.25)
    # Words of several tokens, and one that is not among the likeliest.
    halves = [TokenChoice(" Acc", math.log(0.9), {" Acc": math.log(0.9), " no": math.log(0.1)})]
    halves.append(TokenChoice("ept", 0.0, {"ept": 0.0}))
    assert estimate_acceptance(halves, ACCEPT) == pytest.approx(0.9)
    # What the reason says is no verdict, nor is what was said to an earlier line.
    reason = TokenChoice("; nothing to accept or reject here", 0.0, {"; nothing": 0.0})
    line = TokenChoice("Why reject?\nDecision:", 0.0, {})
    for said in ([line, choice, reason], [line, choice, TokenChoice(". I reject it", -9.0, {})]):
        assert estimate_acceptance(said, REJECT) == pytest.approx(0.25)
    # Not decided, or in other words.
    assert estimate_acceptance([TokenChoice("why?", 0.0, {})], ACCEPT) is None
    assert estimate_acceptance([*before[1:], choice], ACCEPT) is None
    assert estimate_acceptance([choice], NO_DECISION) is None


@pytest.mark.parametrize("text", ["0", "4,1", "1,1", "1.5", "x", "", "1,,4", "-1"])
def test_numbers_of_messages_that_make_no_sense_are_one_error(text):
    with pytest.raises(SettingsError, match="write whole numbers from 1 on"):
        _numbers(text)
    assert _numbers("1, 4,16") == [1, 4, 16]


@pytest.mark.long
async def test_an_attack_names_the_model_that_it_attacked_and_its_run_may_go(
    tmp_path, server_in_thread
):
    await train_here(write_config(tmp_path, rl=FEW))
    trained, few = tmp_path / "runs", {"by": "best-of-n", "n": [1, 2], "problems": 3}
    parameters = attack_settings(str(trained), "small", few)
    result = await loop.train(parameters)
    source, run = (RunStore(open_store(trained), n) for n in ("small", "small-best-of-n-1"))
    model = source.read_json(source.models(0))["groups"]["verifier"]
    origin = run.open().contents["origin"][0]["verifier"]
    assert (origin["from_run"], origin["trained_in"]) == ("small", 0)
    assert origin["digest"] == model["digest"]
    assert result["attack"]["model"] == model["model"]
    served = read_rollouts(run.store, run.rollouts(0, "attack")).generations["model_served"]
    assert model["model"] in served.to_pylist()
    assert [entry["distinct_problems"] for entry in result["attack"]["by_n"]] == [6, 6]
    assert verify_run(run).problems == {}
    assert result == summarise_run(run)


@pytest.fixture(scope="module")
async def on_record(tmp_path_factory):
    """A run store with the run `scripted`, of which nothing was trained."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        async with scripted_run(folder, patch, answers(obeys)):
            return folder


@pytest.mark.parametrize(
    ("run", "attack", "overrides", "said"),
    [
        ("nobody", {}, [], "run 'nobody' is not in .*; there are scripted"),
        ("scripted", {"iteration": 2}, [], "has finished 0 iterations"),
        ("scripted", {"iteration": None}, [], "finished no iteration.*give --iteration 0"),
        ("scripted", {"n": [0]}, [], "attack.n.0: Input should be greater"),
        ("scripted", {"n": [4, 1]}, [], "n must ascend"),
        ("scripted", {"problems": 0}, [], "attack.problems"),
        ("scripted", {}, ["dataset=others"], "dataset: an attack plays the game of the run"),
        ("scripted", {}, ["scenario=graphs"], "scenario: an attack plays the game"),
        ("scripted", {}, ["agents._default.temperature=1"], "set those of one agent"),
        ("scripted", {}, ["protocol_common.shared_reward=true"], "provers that attack argue for"),
        ("scripted", {}, ["run_name=scripted"], "attack.run is this run itself"),
        ("scripted", {}, ["no_such=1"], "no_such: unknown setting"),
    ],
)
def test_what_can_not_be_attacked_is_one_error_before_anything_is_written(
    on_record, run, attack, overrides, said
):
    before = sorted(on_record.iterdir())
    chosen = {"by": "best-of-n", "iteration": 0, **attack}
    with pytest.raises(SettingsError, match=said):
        attack_settings(str(on_record), run, chosen, overrides=overrides)
    assert sorted(on_record.iterdir()) == before


def test_options_of_the_other_way_are_refused():
    with pytest.raises(SettingsError, match=r"^--steps is not for --by best-of-n; leave it out"):
        _refuse("--by best-of-n", {"steps": 3, "every": None})
    with pytest.raises(SettingsError, match=r"^--start-from is not for --by script; leave it out"):
        _refuse("--by script", {"start_from": "other"})


def test_without_a_wrong_problem_there_is_nothing_to_attack(on_record, tmp_path):
    for start, split in enumerate(("train", "validation", "test"), 10):
        steps_ = {"question": f"Start with {start}. Add 1.", "solution": f"1: {start} + 1 = "}
        row = {**steps_, "solution": f"{steps_['solution']}{start + 1}", "y": 1}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    whole = {**settings(on_record, "http://localhost/v1").to_dict(), "dataset": str(tmp_path)}
    options = {"make_balanced": False}
    parameters = load_parameters(
        {**whole, "run_name": "a", "attack": {"run": "scripted"}, "dataset_options": options}
    )
    with pytest.raises(DatasetError, match="has no wrong problem in its split test"):
        load_all_problems(parameters)
    # One by training needs some to choose the worst provers by, too.
    wrong = {**steps_, "solution": f"{steps_['solution']}{start + 2}", "y": 0}
    (tmp_path / "test.jsonl").write_text(json.dumps(wrong))
    course = {"run": "scripted", "by": "sneaky", "course_on": "validation"}
    sneaky = {**parameters.to_dict(), "attack": course, "text_rl": {"test_scheme": "all"}}
    for lacks in ("wrong ones", "all of them"):
        with pytest.raises(DatasetError, match=r"split validation.* set attack.course_on: test"):
            load_all_problems(load_parameters(sneaky))
        if lacks == "wrong ones":
            (tmp_path / "validation.jsonl").unlink()


def test_a_protocol_without_provers_can_not_be_attacked(tmp_path):
    alone = {"interaction_protocol": "solo_verifier", "names": ("verifier",)}
    run = settings(tmp_path, "http://localhost/v1", **alone).to_dict()
    with pytest.raises(SettingsError, match="has no prover that could attack"):
        load_parameters({**run, "attack": {"run": "other"}})


@pytest.mark.long
@pytest.mark.parametrize("shared", [False, True])
async def test_a_sneaky_prover_is_trained_on_wrong_problems_against_a_verifier_that_stays(
    tmp_path, server_in_thread, shared
):
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "deterministic",
        "max_tokens_per_message": 32,
        **({"shared_model_group": "both"} if shared else {}),
    }
    await train_here(write_config(tmp_path, rl=FEW, agents={"_default": agent}))
    trained = tmp_path / "runs"
    way = {"by": "sneaky", "problems": 5, "exploited_at": 0.2}
    few = ["rl.rollouts_per_iteration=64"]
    with pytest.raises(StopAsyncIteration):  # stopped after its first step, and gone on with
        await loop.train(
            attack_settings(str(trained), "small", way, steps=2, every=1, overrides=few),
            call=_until_swapped,
        )
    result = await loop.train(
        attack_settings(str(trained), "small", way, steps=2, every=1, overrides=few)
    )
    source, run = (RunStore(open_store(trained), n) for n in ("small", "small-sneaky-1"))
    attacked_model = source.read_json(source.models(0))["groups"]["both" if shared else "verifier"]
    models = [run.read_json(run.models(step))["groups"] for step in range(2)]
    verifiers = [groups["both" if shared else "verifier"] for groups in models]
    provers = [groups["attacker" if shared else "prover"] for groups in models]
    # The verifier is that of the attacked run at all steps, the prover began anew and was trained.
    assert [v["model"] for v in verifiers] == [attacked_model["model"]] * 2
    assert [v["from_run"] for v in verifiers] == ["small"] * 2
    assert len({p["model"] for p in provers}) == 2
    assert [p["trained_in"] for p in provers] == [0, 1]
    first = read_rollouts(run.store, run.rollouts(0, "train"))
    asked = {r["model_asked"] for r in first.generations.to_pylist() if r["agent"] == "prover"}
    assert asked == {"deterministic"}
    assert set(first.episodes["y"].to_pylist()) == {0}
    paid = [{r["agent"]: r["reward"] for r in e["rewards"]} for e in first.episodes.to_pylist()]
    verdicts = first.episodes["decision"].to_pylist()
    assert [p["prover"] for p in paid] == [float(verdict == 1) for verdict in verdicts]
    # Tests have both labels, and the figures are theirs.
    attack = result["attack"]
    assert [row["step"] for row in attack["by_step"]] == [0, 1, 2]
    assert {row["episodes"] for row in attack["by_step"]} == {10}
    updates = [row["updates"] for row in attack["by_step"]]
    assert 0 == updates[0] < updates[1] < updates[2]
    assert attack["model"] == attacked_model["model"]
    bound = attack["exploited_below"]
    assert bound == pytest.approx(0.8 * attack["trained"]["soundness"])
    exploited = [r["step"] for r in attack["by_step"] if r["soundness"] <= bound + 1e-9]
    assert attack["steps_to_exploit"] == (exploited[0] if exploited else None)
    assert attack["lost_to_training"]["problems"] == 5
    assert attack["lost_to_lying"]["problems"] == attack["trained"]["problems"] - 5 == 5
    assert (attack["trained_steps"], attack["steps"]) == (2, 2)
    # As many messages as the steps played episodes, but those without a valid one.
    said = [
        row
        for step in range(2)
        for row in read_rollouts(run.store, run.rollouts(step, "train")).generations.to_pylist()
        if row["agent"] == "prover" and row["invalid_reason"] is None
    ]
    reach = attack["reach"]
    assert (reach["messages"], reach["rarest"]) == (len(said), 3 / len(said))
    # One such message gives its group's eight examples, and a job takes ten.
    assert (reach["alone"], reach["needed"]) == (8, 10) and reach["rarest_to_train"] > 0
    # The worst prover by validation is named, and its model is still there to be played.
    worst = attack["worst"]
    lowest = min(row["soundness"] for row in attack["by_step"])
    assert (worst["course_soundness"], attack["course_on"]) == (lowest, "validation")
    before = worst["step"] - 1
    expected = "deterministic" if before < 0 else provers[before]["model"]
    assert worst["models"] == {"attacker" if shared else "prover": expected}
    assert all(has_model(run, prover["model"]) for prover in provers)
    assert find_unused(run, find_server_directory(run)) == []
    assert verify_run(run).problems == {}
    run.store.delete(f"{run.rollouts(1, 'test')}/manifest.json")
    assert list(verify_run(run).problems) == [f"{run.rollouts(1, 'test')}/manifest.json"]
    assert (
        "Steps to exploit (soundness down to"
        in (trained / "small-sneaky-1" / "report.html").read_text()
    )


async def _until_swapped(stage, session, *arguments):
    if stage.__name__ == "iterate" and arguments[0] == 1:
        raise StopAsyncIteration
    if stage.__name__ == "iterate":
        arguments = (*arguments[:-1], _until_swapped)
    return await loop.directly(stage, session, *arguments)


def test_sneaky_needs_provers_that_can_be_trained(on_record):
    way = {"by": "sneaky", "iteration": 0}
    with pytest.raises(SettingsError, match="'pure_text_grpo' needs training by trajectories"):
        attack_settings(str(on_record), "scripted", way)
    imitates = attack_settings(
        str(on_record), "scripted", way, steps=3, overrides=["trainer=pure_text_ei"]
    )
    assert imitates.trainable_groups == ("prover",)
    assert imitates.dataset_options.labels == (0,)


def test_training_on_one_label_leaves_the_tests_as_they_are(tmp_path):
    parameters = settings(tmp_path, "http://localhost/v1", dataset_options={"labels": [0]})
    problems = load_all_problems(parameters)
    assert {p.y for p in problems["train"]} == {0}
    assert {p.y for p in problems["test"]} == {0, 1}
    in_play = {"scenario": "solutions", "dataset": "functions", "scenario_settings": {}}
    with pytest.raises(SettingsError, match="labels: solutions has its labels"):
        load_parameters({**parameters.to_dict(), **in_play})
