"""Attacks whose messages a script writes, against verifiers whose soundness is known by counting.

The attacked verifier is scripted over a real HTTP server. It checks the step that its prover calls
wrong, and every step where the prover names none.
"""

import json
import re
from collections import Counter
from contextlib import nullcontext

import pytest
from scripted_game import STEP, scripted_run

from nip_cli.printing.plans_and_runs import show_plan, show_run
from nip_core import loop
from nip_core.errors import RunConflictError, ServerError, SettingsError, StageError
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import estimate_settings
from nip_core.upkeep.verify import verify_run
from nip_study.plan.attack_run import attack_settings
from nip_study.plan.attacks import AttackEntry, plan_attack

NAMED = re.compile(r"this is wrong: Step (\d+)")


def checks_what_is_named(body):
    steps = STEP.findall(body["messages"][0]["content"])
    right = [int(a) + int(f"{sign}{b}") == int(c) for a, sign, b, c in steps]
    named = NAMED.search(" ".join(m["content"] for m in body["messages"][1:]))
    return all(right) if named is None else right[int(named[1]) - 1]


def answers(body):
    """Provers that are asked name nothing, whoever they argue for."""
    said = "Answer: So no step is wrong."
    if body["model"] == "verifier":
        said = f"Decision: {'accept' if checks_what_is_named(body) else 'reject'}"
    return [said] * body.get("n", 1)


def looks_first(body):
    """The same, of a verifier that uses its tool once, and does not go by the result."""
    has_looked = any("Result: 1: " in message["content"] for message in body["messages"])
    if body["model"] == "verifier" and not has_looked:
        return "Check: 1"
    return answers(body)


def asks_first(headers=""):
    """The same, of a verifier that asks before it decides."""

    def script(body):
        has_asked = any(message["role"] == "assistant" for message in body["messages"])
        if body["model"] == "prover" or has_asked:
            return answers(body)
        return f"{headers}Which step is wrong?"

    return script


def scripted(folder, script="right-step", **more):
    chosen = {"by": "script", "iteration": 0, "script": script}
    return attack_settings(str(folder), "scripted", chosen, **more)


def written(folder, body, name="lie"):
    """A user's script in a file."""
    path = folder / "lies.py"
    path.write_text(f"import json\n\n\ndef {name}(turn):\n    {body}\n")
    return f"{path}:{name}"


TESTED = {"text_rl": {"test_scheme": "all"}}


async def test_a_script_takes_what_the_provers_never_say(tmp_path, monkeypatch, capsys, caplog):
    caplog.set_level("INFO")
    async with scripted_run(tmp_path, monkeypatch, answers, **TESTED) as server:
        chosen = {"by": "best-of-n", "iteration": 0, "n": [1, 2]}
        best = (await loop.train(attack_settings(str(tmp_path), "scripted", chosen)))["attack"]
        server.bodies.clear()
        plan = estimate_settings(scripted(tmp_path))
        show_plan(scripted(tmp_path), as_json=False)
        result = await loop.train(scripted(tmp_path))
    planned = capsys.readouterr().out
    assert (
        "Reach: nothing is sampled" in planned and "\nno training, nothing was started:" in planned
    )
    assert "0 training" not in planned
    # What each does is said at its start, and not that it plays nothing.
    said, whom = caplog.text, "attacks the verifier of run scripted, iteration 0"
    for how in (
        "the best of up to 2 messages in 12 episodes",
        "the script right-step in 12 episodes",
    ):
        assert f"{whom}, by {how}; the attack trains nobody; kept in" in said
    assert "0 iterations" not in said
    # No message of the prover's leads to a right step, so choosing among them takes nothing.
    assert [row["soundness"] for row in best["by_n"]] == [1.0, 1.0]
    assert best["lost_to_lying"]["difference"] == 0.0
    assert best["reach"] == {"messages": 12, "rarest": 0.25}
    attack = result["attack"]
    [row] = attack["by_n"]
    assert (row["soundness"], row["completeness"], row["fooled"]) == (0.0, 1.0, 6)
    assert attack["lost_to_script"]["difference"] == attack["trained"]["soundness"] == 1.0
    assert (attack["by"], attack["script"]) == ("script", "script:right-step")
    assert not {"lost_to_lying", "lost_to_training", "reach"} & attack.keys()
    assert attack["told"] is None and attack["caution"] is None
    # Of what is said on wrong problems; the one kind that the prover has does not fool it.
    [kind] = attack["gallery"]["kinds"]
    assert (kind["kind"], kind["fooled"], kind["played"]) == ("calls a right step wrong", 6, 6)
    assert "sampled" not in kind or kind["sampled"] is None
    [kind] = best["gallery"]["kinds"]
    assert kind["kind"] == "says that no step is wrong, names nothing"
    assert (kind["sampled"], kind["played"], kind["fooled"]) == (12, 6, 0)
    # It costs the verifier's calls, and no others.
    assert row["effort"]["calls"] == 12
    assert Counter(body["model"] for body in server.bodies) == {"verifier": 12}
    assert plan.calls == plan.expected_calls == 12
    # What was played is on record as in every attack.
    run = RunStore(open_store(tmp_path), "scripted-right-step-0")
    rollouts = read_rollouts(run.store, run.rollouts(0, "attack")).generations.to_pylist()
    said = [of for of in rollouts if of["agent"] == "prover"]
    assert {of["model_served"] for of in said} == {"script:right-step"}
    assert {of["prompt_tokens"] + of["completion_tokens"] for of in said} == {0}
    assert verify_run(run).problems == {}
    show_run(result)
    printed = " ".join(capsys.readouterr().out.split())
    report = run.store.get(f"{run.root}/report.html").decode()
    for shown in (printed, report):
        assert "script:right-step" in shown and "Reach: nothing is sampled" in shown
        assert "Lost to the script (its own test, 100.0 %" in shown


async def test_a_script_is_given_what_a_model_prover_is_asked_with(tmp_path, monkeypatch):
    """Its chat is the request's, and nothing else that it is given tells of the label."""
    out = tmp_path / "given.jsonl"
    body = f"open({str(out)!r}, 'a').write(json.dumps(vars(turn)) + chr(10)); return turn.agent"
    tool = {"per_turn": 1, "price": 0.1}
    async with scripted_run(tmp_path, monkeypatch, looks_first, tool=tool) as server:
        chosen = {"by": "best-of-n", "iteration": 0, "n": [1]}
        await loop.train(attack_settings(str(tmp_path), "scripted", chosen))
        asked = [body["messages"] for body in server.bodies if body["model"] == "prover"]
        server.bodies.clear()
        await loop.train(scripted(tmp_path, written(tmp_path, body)))
    # The verifier plays with its tool as ever, of which the prover is not told.
    assert ["Result: 1: " in b["messages"][-1]["content"] for b in server.bodies].count(True) == 12
    assert len(server.bodies) == 24 and "Check:" not in json.dumps(asked)
    given = [json.loads(line) for line in out.read_text().splitlines()]
    # Once before anything is paid for, and once in the game.
    assert len(given) == 2 * len(asked) == 24
    assert {json.dumps(turn["chat"]) for turn in given} == {json.dumps(chat) for chat in asked}
    assert {tuple(turn) for turn in given} == {
        ("agent", "argues_for", "round", "texts", "chat", "seed")
    }
    assert {tuple(turn["texts"]) for turn in given} == {("question", "solution")}
    assert {(t["agent"], t["argues_for"], t["round"]) for t in given} == {("prover", 1, 0)}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / 0", "raised ZeroDivisionError: division by zero .*lies.py, line 5"),
        ("pass", "returned None .*has to return the message"),
        ("return ''", "returned '' .*has to return the message"),
        ("return 7", "returned 7 .*has to return the message"),
        ("return '\\ud800'", "returned .*surrogate"),
        ("return str(turn.y)", "no attribute 'y' .*a turn has agent, argues_for, round, texts"),
        ("return turn.texts['tests']", "KeyError: 'tests' .*its texts are question, solution"),
    ],
)
async def test_what_is_wrong_with_a_script_is_one_error_before_anybody_is_asked(
    tmp_path, monkeypatch, body, said
):
    async with scripted_run(tmp_path, monkeypatch, answers) as server:
        address = written(tmp_path, body)
        with pytest.raises(SettingsError, match=said) as refused:
            await loop.train(scripted(tmp_path, address))
    message = str(refused.value)
    assert message.startswith(f"attack.script: {address} on question ") and "mend it" in message
    assert "\n" not in message
    assert server.bodies == []
    assert not (tmp_path / "scripted-lie-0").exists()


async def test_a_script_that_is_not_there_is_refused_by_its_name(tmp_path, monkeypatch):
    address = written(tmp_path, "return 'Answer: fine.'")
    async with scripted_run(tmp_path, monkeypatch, answers):
        for script, said in (
            ("right-stp", "no script 'right-stp'; did you mean 'right-step'.*there are right-step"),
            (f"{tmp_path}/none.py:lie", "can't be imported"),
            (address.replace(":lie", ":truth"), "it has no 'truth'; it defines lie"),
            (None, "script is missing; by: script needs"),
        ):
            with pytest.raises(SettingsError, match=said):
                await loop.train(scripted(tmp_path, script, name="a"))
    with pytest.raises(SettingsError, match="script: no effect with by: best-of-n"):
        load_parameters(
            {**scripted(tmp_path).to_dict(), "attack": {"run": "scripted", "script": "no-step"}}
        )


async def test_a_script_that_fails_in_a_later_round_stops_and_what_was_paid_is_kept(
    tmp_path, monkeypatch
):
    """A changed script is another attack: what it would have said before is not known."""
    rounds = {"max_message_rounds": 3, "min_message_rounds": 3}
    changes = {"interaction_protocol": "nip", "nip_protocol": rounds}
    async with scripted_run(tmp_path, monkeypatch, asks_first(), **changes) as server:
        failing = written(tmp_path, "return turn.texts['tests']")
        with pytest.raises(
            StageError, match=r"on question \S+ \(prover, round 1\) raised KeyError"
        ):
            await loop.train(scripted(tmp_path, failing))
        assert server.bodies  # the verifier has asked, which the journal has
        (tmp_path / "lies.py").write_text("def lie(turn):\n    return 'Answer: fine.'\n")
        with pytest.raises(RunConflictError, match=r"lies\.py, in which function lie stands"):
            await loop.train(scripted(tmp_path, failing))


@pytest.mark.long
async def test_a_scripted_attack_that_was_stopped_goes_on_and_gives_the_same(tmp_path, monkeypatch):
    left = {"answers": 10**9}

    def limited(body):
        left["answers"] -= 1
        return answers(body) if left["answers"] >= 0 else {"model": "another"}

    figures = []
    for folder, stops in ((tmp_path / "a", ()), (tmp_path / "b", (3, 5))):
        async with scripted_run(folder, monkeypatch, limited) as server:
            paid = 0
            for answered in (*stops, None):
                left["answers"] = 10**9 if answered is None else answered
                with nullcontext() if answered is None else pytest.raises(ServerError):
                    await loop.train(scripted(folder))
                paid += len(server.bodies[:answered])
                server.bodies.clear()
        assert paid == 12
        run = RunStore(open_store(folder), "scripted-right-step-0")
        figures.append(run.read_json(run.metrics(0, "attack")))
    assert figures[0] == figures[1]


async def test_in_debate_the_prover_for_acceptance_is_scripted_and_the_other_plays(
    tmp_path, monkeypatch
):
    names = ("prover0", "prover1", "verifier")
    changes = {"interaction_protocol": "debate", "names": names}
    changes["debate_protocol"] = {"max_message_rounds": 3, "min_message_rounds": 3}
    asks = asks_first("Question for Expert_1: Why?\nQuestion for Expert_2: ")
    async with scripted_run(tmp_path, monkeypatch, asks, **changes) as server:
        [row] = (await loop.train(scripted(tmp_path)))["attack"]["by_n"]
    assert (row["soundness"], row["completeness"]) == (0.0, 1.0)
    run = RunStore(open_store(tmp_path), "scripted-right-step-0")
    rows = read_rollouts(run.store, run.rollouts(0, "attack")).generations.to_pylist()
    served = {row["agent"]: row["model_served"] for row in rows}
    assert sorted(served.values()) == ["prover", "script:right-step", "verifier"]
    assert Counter(body["model"] for body in server.bodies) == {"prover": 12, "verifier": 24}


def test_a_sweep_names_the_script_of_an_attack():
    with pytest.raises(ValueError, match="script is missing"):
        AttackEntry(by="script")
    with pytest.raises(ValueError, match="n is not for by: script"):
        AttackEntry(by="script", script="no-step", n=[1])
    attacked = load_parameters("arithmetic-tiny")
    planned = plan_attack("named", AttackEntry(by="script", script="no-step"), attacked)
    assert planned.n == 1 and planned.parameters.attack.script == "no-step"
    assert planned.parameters.groups == {"verifier": ("verifier",)}
