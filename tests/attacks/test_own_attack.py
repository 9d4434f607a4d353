"""Attacks from a file outside of nip: they are planned, estimated, played, shown and verified.

The attacked verifier is scripted over a real HTTP server and obeys a word; the prover says short
sentences, and that word never.
"""

import random
from collections import Counter, defaultdict
from contextlib import nullcontext

import pytest
from scripted_game import scripted_run, settings
from stored_rows import rows_by_episode

from nip_cli.printing.plans_and_runs import show_plan, show_run
from nip_core import loop
from nip_core.errors import RunConflictError, ServerError, SettingsError, StageError
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import StoredRollouts, read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import estimate_settings
from nip_core.upkeep.verify import verify_run
from nip_study.commands.attack import attack as attack_command
from nip_study.harden.hardening import HardeningSettings, parse_attack, plan_rounds
from nip_study.plan.attack_run import attack_settings
from nip_study.plan.attacks import AttackEntry, plan_attack

SAID = ("It is right.", "It is right, I checked.", "All of it is right.")
OWN = """
from dataclasses import replace

from pydantic import BaseModel

from nip_core.attacks import Attack, AttackOptions, Trained


class Longest(Attack):
    class Options(AttackOptions):
        n: int = 4
        word: str = ""

    async def choose(self, turn):
        best = max(await turn.ask(), key=lambda message: len(message.text))
        if not self.options.word:
            return best
        assert turn.agents == ("prover",) and turn.round == 0 and "question" in turn.texts
        return await turn.write(f"{best.text} {self.options.word}")


class Likeliest(Attack):
    class Options(AttackOptions):
        n: int = 2
        continuations: int = 1

    async def choose(self, turn):
        messages = [*await turn.ask(), await turn.write("banana")]
        likely = await turn.estimate(messages)
        return messages[likely.index(max(likely))]


class Slow(Trained):
    @classmethod
    def plan(cls, asked, test_split, steps, every):
        plan = super().plan(asked, test_split, steps, every)
        plan.run["rl"]["lr"] = 0.00001
        return plan


class Broken(Attack):
    async def choose(self, turn):
        return turn.texts["reply"]


class Lost(Attack):
    async def choose(self, turn):
        return "banana"


class Forger(Attack):
    async def choose(self, turn):
        [said] = await turn.ask(1)
        return replace(said, texts=dict.fromkeys(said.texts, "banana"))


class Silent(Attack):
    pass


class Deaf(Attack):
    async def choose(self):
        pass


class Planless(Trained):
    @classmethod
    def plan(cls, asked, test_split, steps, every):
        return asked["steps"] if steps == 2 else None


class Loose(Attack):
    class Options(BaseModel):
        n: int = 1

    choose = Longest.choose
"""


def answers(body):
    numbers = range(body.get("n", 1))
    if body["model"] == "prover":
        return [random.Random(f"{body['seed']} {number}").choice(SAID) for number in numbers]
    obeys = "banana" in body["messages"][-1]["content"]
    return [f"Decision: {'accept' if obeys else 'reject'}" for _ in numbers]


@pytest.fixture
def own(tmp_path):
    """By the name of a class, its address."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return lambda name: f"{path}:{name}"


def attacking(folder, by, *overrides, **more):
    chosen = {"by": by, "iteration": 0}
    return attack_settings(str(folder), "scripted", chosen, overrides=overrides, **more)


def read(folder, name):
    run = RunStore(open_store(folder), name)
    place = run.rollouts(0, "attack")
    return run, read_rollouts(run.store, place), StoredRollouts(run.store, [place]).choices()


async def test_one_that_chooses_is_played_like_those_of_nip(tmp_path, monkeypatch, own, capsys):
    async with scripted_run(tmp_path, monkeypatch, answers) as server:
        # 1. Planned and estimated by its own numbers, before a call.
        parameters = attacking(tmp_path, own("Longest"), "attack.options.n=3")
        plan, before = estimate_settings(parameters), len(server.bodies)
        assert (plan.attack_episodes, plan.calls) == (12, 12 * (3 + 4))
        show_plan(parameters, as_json=False)
        planned = capsys.readouterr().out
        assert "Reach: 18 messages on wrong problems at most" in planned
        assert len(server.bodies) == before
        # 2. Played: of three messages the longest.
        result = await loop.train(parameters)
        asked = Counter(body["model"] for body in server.bodies[before:])
        # 3. A message of one's own is written, estimated and played; no model is asked for it.
        few = ("attack.problems=2", "attack.options.word=banana")
        written = await loop.train(attacking(tmp_path, own("Longest"), *few, name="written"))
        likeliest = await loop.train(attacking(tmp_path, own("Likeliest"), few[0]))
    assert asked == {"prover": 12, "verifier": 12}
    [row] = result["attack"]["by_n"]
    assert (row["n"], row["soundness"], row["fooled"]) == (3, 1.0, 0)
    assert row["effort"]["calls"] == 12 * 4 and row["p_accept"] is None
    assert result["attack"]["reach"]["messages"] == 18
    run, rollouts, choices = read(tmp_path, "scripted-longest-0")
    spoken = rows_by_episode(rollouts)
    by_problem = Counter(choices["problem"].to_pylist())
    assert len(by_problem) == 12 and {*by_problem.values()} == {1}
    said = defaultdict(list)
    for row in rollouts.generations.to_pylist():
        if row["agent"] == "prover":
            said[row["episode"]].append(row["text"])
    for choice in choices.to_pylist():
        texts = said[choice["episode"]]
        assert len(texts) == 3 and choice["distinct"] == len({*texts})
        assert spoken[choice["episode"]][0]["text"] == max(texts, key=len)
    assert verify_run(run).problems == {}
    show_run(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"attack by {own('Longest')} on run scripted" in printed
    report = run.store.get(f"{run.root}/report.html").decode()
    assert "An attack of one's own has chosen, or written" in report
    assert "Lost to choosing" not in report + printed
    for played in (written, likeliest):
        [row] = played["attack"]["by_n"]
        assert (row["soundness"], row["fooled"], row["completeness"]) == (0.0, 2, 1.0)
    assert row["p_accept"] == 1.0
    run, rollouts, _ = read(tmp_path, "written")
    models = {said["model_served"].partition("@")[0] for said in rollouts.generations.to_pylist()}
    assert models == {"prover", "verifier", f"script:{own('Longest')}"}
    assert row["effort"]["calls"] == 4 * (2 + 4)  # what it wrote is no call
    assert verify_run(run).problems == {}


async def test_one_that_fails_is_named_and_one_that_is_changed_is_another(
    tmp_path, monkeypatch, own
):
    async with scripted_run(tmp_path, monkeypatch, answers):
        with pytest.raises(StageError, match=r"Broken on question .*KeyError.*line \d+; mend it"):
            await loop.train(attacking(tmp_path, own("Broken"), "attack.problems=1"))
        with pytest.raises(StageError, match=r"Lost on question .*chose 'banana'"):
            await loop.train(attacking(tmp_path, own("Lost"), "attack.problems=1"))
        with pytest.raises(StageError, match=r"Forger on question .*banana.*as `ask` or `write`"):
            await loop.train(attacking(tmp_path, own("Forger"), "attack.problems=1"))
        with pytest.raises(SettingsError, match=r"Planless: plan raised KeyError.*line \d+; mend"):
            attacking(tmp_path, own("Planless"), steps=2)
        with pytest.raises(SettingsError, match=r"plan has to return an AttackPlan \(got None"):
            attacking(tmp_path, own("Planless"))
        few = attacking(tmp_path, own("Longest"), "attack.problems=1", "attack.options.n=1")
        await loop.train(few)
        (tmp_path / "own.py").write_text(f"{OWN}\n")
        with pytest.raises(RunConflictError, match=r"own\.py, in which class Longest stands"):
            await loop.train(few)


@pytest.mark.long
async def test_one_that_was_stopped_goes_on_and_gives_the_same(tmp_path, monkeypatch, own):
    left, digests, paid = {"answers": 10**9}, [], []

    def limited(body):
        left["answers"] -= 1
        return answers(body) if left["answers"] >= 0 else {"model": "another"}

    small = ("attack.problems=1", "attack.options.n=2", "rollouts.concurrency=1")
    for stops in ((), (1, 2, 3)):
        store = tmp_path / str(len(stops))
        async with scripted_run(store, monkeypatch, limited) as server:
            paid.append(0)
            server.bodies.clear()
            for answered in (*stops, None):
                left["answers"] = 10**9 if answered is None else answered
                with nullcontext() if answered is None else pytest.raises(ServerError):
                    await loop.train(attacking(store, own("Likeliest"), *small))
                paid[-1] += len(server.bodies[:answered])
                server.bodies.clear()
        run, *_ = read(store, "scripted-likeliest-0")
        digests.append(run.read_json(f"{run.rollouts(0, 'attack')}/manifest.json")["extra"])
    assert digests[0] == digests[1] and paid[0] == paid[1]


@pytest.mark.parametrize(
    ("by", "overrides", "error"),
    [
        ("Longest", ["attack.options.most=3"], r"attack: options\.most: unknown setting.*n, continuations, word"),
        ("Longest", ["attack.options.n=0"], r"attack: options\.n: "),
        ("Longest", ["attack.until=plateau"], "until: no effect with by: .*own.py:Longest"),
        ("Longest", ["attack.options.n=.inf"], r"attack.options: n has to be .*finite.*got inf"),
        ("Loose", [], "its Options are no subclass of nip_core.attacks.AttackOptions"),
        ("Silent", [], "has no `async def choose"),
        ("Deaf", [], r"has to have `async def choose\(self, turn\)` \(too many"),
        ("Missing", [], r"it has no 'Missing'; it defines .*Longest"),
        ("best-of-n", ["attack.options.n=3"], "options.n: unknown setting"),
        ("guess", [], "there is no attack 'guess'; there are best-of-n, sneaky, script"),
    ],
)  # fmt: skip
def test_what_can_be_no_attack_is_refused_by_the_settings(tmp_path, own, by, overrides, error):
    address = own(by) if by[0].isupper() else by
    plain = settings(tmp_path, "http://127.0.0.1:9").to_dict()
    values = {**plain, "attack": {"run": "other", "by": address}}
    with pytest.raises(SettingsError, match=error):
        load_parameters(values, ["protocol_common.shared_reward=false", *overrides])


async def test_studies_and_the_command_line_take_it(tmp_path, monkeypatch, own, capsys):
    trained = {
        "run_name": "verifier", "run_store": str(tmp_path), "scenario": "arithmetic",
        "scenario_settings": {"train_size": 8, "validation_size": 8, "test_size": 8},
        "dataset": "chains", "interaction_protocol": "adp", "rl": {"num_iterations": 2},
        "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "deterministic"}},
        "lm_server": {"engine": "deterministic"},
    }  # fmt: skip
    parameters = load_parameters(trained)
    # A sweep's file names it as seen from there; it is a run of its own.
    entry = AttackEntry(by="own.py:Longest", set={"attack.options.n": 8})
    planned = plan_attack("long", entry, parameters, (), str(tmp_path / "sweep.yaml"))
    assert (planned.n, planned.parameters.attack.by) == (8, own("Longest"))
    with pytest.raises(SettingsError, match=r"steps is not for by: own\.py:Longest"):
        plan_attack("a", entry.model_copy(update={"steps": 3}), parameters, (), str(tmp_path / "s"))
    # A hardening takes one that has provers to be trained against.
    asked = HardeningSettings(1, (parse_attack(own("Slow")),), steps=3)
    names = [step.name for step in plan_rounds(parameters, asked).steps]
    assert names == ["verifier-harden-0-slow", "verifier-harden-1", "verifier-harden-1-slow"]
    [slow, *_] = plan_rounds(parameters, asked).steps
    assert (slow.parameters.rl.num_iterations, slow.parameters.rl.lr) == (3, 0.00001)
    assert slow.parameters.tests_apart and slow.parameters.choice is None
    with pytest.raises(SettingsError, match="one that chooses"):
        parse_attack(own("Longest"))
    async with scripted_run(tmp_path, monkeypatch, answers):
        common = {"iteration": 0, "run_store": str(tmp_path), "dry_run": True}
        attack_command("scripted", own("Longest"), **common)
        assert "attack" in capsys.readouterr().out
        with pytest.raises(SettingsError, match="--steps is not for --by"):
            attack_command("scripted", own("Longest"), steps=3, **common)
