"""A reward function from a file: it pays, trains, is on record, and is checked before a run."""

import re
import shutil
from pathlib import Path

import pytest
from scripted_game import scripted_run

from nip_by_hand.agents.batch import rollouts_to_nested
from nip_core import loop
from nip_core.errors import RunConflictError, SettingsError, StageError
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.parameters import load_parameters
from nip_core.protocols import make_protocol
from nip_core.protocols.reward_function import bound_reward, halve_reward
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opponent_runs import find_opponents_there
from nip_core.session.prepare import estimate_settings, prepare
from nip_core.session.user_files import find_user_files
from nip_core.trainers.expert_iteration import find_never_chosen
from nip_core.upkeep.verify import verify_run
from nip_study.plan.attack_run import attack_settings

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "rewards" / "rewards.py"
SETTING = "protocol_common.reward_function"
WRONG = """
import itertools

counter = itertools.count()

def few(episode):
    return {"verifier": 1.0}

def many(episode):
    return {**episode.rewards, "judge": 0}

def whole(episode):
    return 1.0

def endless(episode):
    return {**episode.rewards, "prover": float("inf")}

def wordy(episode):
    return {**episode.rewards, "prover": "1"}

def yes(episode):
    return {**episode.rewards, "prover": True}

def drawn(episode):
    return {**episode.rewards, "prover": next(counter) % 2}

def broken(episode):
    return {**episode.rewards, "prover": len(episode.texts["reply"])}

def silent(episode):
    return {**episode.rewards, "prover": episode.value / 2}

def large(episode):
    return {**episode.rewards, "prover": 3}

def none():
    return {}

async def later(episode):
    return {}

class Kind:
    pass

def popped(episode):
    episode.rewards.pop("prover")
    return episode.rewards
"""


def settings(folder, *overrides, function=f"{EXAMPLE}:short_and_right"):
    return load_parameters(
        EXAMPLE.parent / "config.yaml", [f"run_store={folder}", f"{SETTING}={function}", *overrides]
    )


def test_the_page_shows_the_files_as_they_are():
    page = (ROOT / "docs" / "howto" / "rewards.md").read_text()
    assert f"\n```python\n{EXAMPLE.read_text()}```\n" in page
    [shown] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert f"\n{shown}" in (EXAMPLE.parent / "config.yaml").read_text()


async def test_what_it_returns_is_paid_trained_on_and_on_record(tmp_path):
    file = Path(shutil.copy(EXAMPLE, tmp_path / "rewards.py"))
    address = f"{file}:short_and_right"
    parameters = settings(tmp_path, "rollouts.episodes_per_shard=7", function=address)
    await loop.train(parameters)
    run, game = RunStore(open_store(tmp_path), "short-and-right"), Game(parameters)
    rollouts = read_rollouts(run.store, run.rollouts(0, "train"))
    # 1. Every episode is paid as the function says, in its last round.
    words = {
        row["episode"]: len(row["text"].split())
        for row in rollouts.generations.to_pylist()
        if row["agent"] == "prover" and row["invalid_reason"] is None
    }
    earned = {}
    for row in rollouts.episodes.to_pylist():
        verdict = 1.0 if row["decision"] == row["y"] else -1.0
        price = min(0.1 * max(words[row["key"]] - 18, 0), 1.0)
        paid = {reward["agent"]: reward["reward"] for reward in row["rewards"]}
        assert paid == pytest.approx({"verifier": verdict, "prover": verdict - price})
        assert {reward["round"] for reward in row["round_rewards"]} <= {row["rounds"] - 1}
        earned[row["key"]] = paid["prover"]
    # 2. Datasets are chosen by it: of winning provers those with few words alone reach 0.9.
    dataset = f"{run.root}/iterations/0000/datasets/prover"
    counts = run.read_json(f"{dataset}/manifest.json")["extra"]["counts"]
    reached = sum(reward >= 0.9 for reward in earned.values())
    assert 0 < reached < sum(reward > 0 for reward in earned.values())
    assert counts["candidates"] - counts["below_threshold"] == reached
    # 3. Played again from the tables it pays the same; one that pays otherwise is refused there.
    again = rollouts_to_nested(game, rollouts.episodes, rollouts.generations, prompts=False)
    prover = game.protocol.agent_names.index("prover")
    sums = again["next", "agents", "reward"].sum(axis=1)[:, prover]
    assert sums.tolist() == pytest.approx([*earned.values()])
    plain = Game(load_parameters({**parameters.to_dict(), "protocol_common": {}}))
    with pytest.raises(SettingsError, match="recorded the rewards"):
        rollouts_to_nested(plain, rollouts.episodes, rollouts.generations, prompts=False)
    # 4. It is on record by its source; other concurrency and shards give the same data.
    assert run.open().contents["reward_function"] == digest(file.read_text())
    assert find_user_files(game)[str(file)] == file
    assert verify_run(run).problems == {}
    few = ("rollouts.concurrency=3", "text_rl.test_scheme=none")
    other = settings(tmp_path / "other", *few, function=address)
    await loop.train(other)
    digests = [_read_digest(store) for store in (tmp_path, tmp_path / "other")]
    assert digests[0] == digests[1]
    # 5. An attack pays for acceptance alone. A run that is paid otherwise is no other game: its
    #    provers may be met.
    attacking = attack_settings(str(tmp_path), "short-and-right", {"by": "sneaky", "iteration": 1})
    assert attacking.protocol_common.reward_function is None
    with pytest.raises(SettingsError, match="reward_function: provers that attack"):
        load_parameters(attacking.to_dict(), [f"{SETTING}={address}"])
    plain_pay = (f"{SETTING}=null", "protocol_common.reward_range=null")
    await loop.train(settings(tmp_path, "run_name=plain", few[1], *plain_pay))
    meeting = ("run_name=meeting", "agents.prover.freeze_agent=true", "opponents.kind=runs")
    met = settings(
        tmp_path, *meeting, "opponents.runs=[{run: plain, share: 0.5}]", function=address
    )
    [entry] = find_opponents_there(met, open_store(tmp_path), None).opponents.runs
    assert entry.found is not None and entry.found.models
    # 6. A changed one is another run.
    file.write_text(f"{file.read_text()}\n")
    with pytest.raises(RunConflictError, match=r"rewards\.py, in which function short_and_right"):
        prepare(parameters)


def _read_digest(store):
    run = RunStore(open_store(store), "short-and-right")
    return run.read_json(f"{run.rollouts(0, 'train')}/manifest.json")["extra"]["canonical_digest"]


@pytest.fixture
def wrong(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    return lambda name: f"{tmp_path / 'wrong.py'}:{name}"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("few", r"return a reward for each of prover, verifier \(got \['verifier'\], .*wrong\.py\); mend"),
        ("popped", r"return a reward for each of prover, verifier \(got \['verifier'\]"),
        ("many", r"return a reward for each of .*'judge'"),
        ("whole", r"return a reward for each of prover, verifier \(got 1\.0"),
        ("endless", r"a finite number for prover \(got inf"),
        ("wordy", r"a finite number for prover \(got '1'"),
        ("yes", r"a finite number for prover \(got True"),
        ("drawn", r"returned \d+ for prover, and \d+ for the same episode .*its argument alone"),
        ("broken", r"raised KeyError: 'reply' \(.*wrong\.py, line 28\); an episode has texts, .*its texts are question, solution"),
        ("silent", r"raised TypeError: .*line 31"),
        ("large", r"returned 3 for prover, and protocol_common.reward_range is from -2 to 1"),
    ],
)  # fmt: skip
def test_one_that_pays_wrongly_is_refused_before_a_run(tmp_path, wrong, name, error):
    parameters = settings(tmp_path, function=wrong(name))
    with pytest.raises(SettingsError, match=rf"{SETTING}.*:{name} on problem .*{error}"):
        estimate_settings(parameters)
    with pytest.raises(SettingsError, match=error):
        prepare(parameters)
    assert not (tmp_path / "short-and-right").exists()


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ([f"{SETTING}=absent.py:pay"], r"reward_function: there is no 'absent\.py'"),
        ([f"{SETTING}={{}}:absent"], r"it has no 'absent'; it defines few, .*name a function"),
        ([f"{SETTING}={{}}:Kind"], "is no function.*takes an ended episode"),
        ([f"{SETTING}={{}}:none"], r"has to take one episode \(too many positional arguments\)"),
        ([f"{SETTING}={{}}:later"], "is async; write it as a plain function"),
        ([f"{SETTING}=null"], "reward_range: no effect without reward_function"),
        (["protocol_common.reward_range=[1, 0]"], "the least comes first, then the most"),
        (["protocol_common.reward_range=null", "trainer=pure_text_malt"], "set the least and the most"),
    ],
)  # fmt: skip
def test_what_can_be_no_reward_function_is_refused_by_the_settings(
    tmp_path, wrong, overrides, error
):
    file = wrong("").rstrip(":")
    with pytest.raises(SettingsError, match=error):
        settings(tmp_path, *(override.replace("{}", file) for override in overrides))


async def test_what_it_does_wrong_in_play_stops_the_run_and_names_it(tmp_path, monkeypatch):
    picky = tmp_path / "picky.py"
    picky.write_text(
        "def pay(episode):\n"
        "    return {**episode.rewards, 'prover': 1 / (0 if 'banana' in episode.said('prover') else 1)}\n"
    )
    common = {"reward_function": f"{picky}:pay"}
    answers = {"prover": "banana", "verifier": "Decision: accept"}
    with pytest.raises(
        StageError,
        match=r"picky\.py:pay on problem .*ZeroDivisionError.*line 2\); mend it, and start",
    ):
        async with scripted_run(
            tmp_path,
            monkeypatch,
            lambda body: [answers[body["model"]]] * body.get("n", 1),
            protocol_common=common,
            rl={"num_iterations": 1},
        ):
            pass


def test_its_range_says_how_good_an_episode_can_be(tmp_path):
    parameters = settings(tmp_path)
    protocol = make_protocol(parameters)
    assert bound_reward(protocol, "prover") == (-2.0, 1.0)
    assert halve_reward(protocol, "prover") == -0.5
    assert find_never_chosen(parameters) == {}
    low = settings(tmp_path, "protocol_common.reward_range=[-2, 0.5]")
    assert find_never_chosen(low) == {"prover": 0.5, "verifier": 0.5}
    unknown = settings(tmp_path, "protocol_common.reward_range=null")
    assert find_never_chosen(unknown) == {}


def test_settings_without_one_say_nothing_of_it(tmp_path):
    plain = load_parameters("deterministic").to_dict()["protocol_common"]
    assert not [name for name in plain if name in ("reward_function", "reward_range")]
    assert settings(tmp_path).to_dict()["protocol_common"]["reward_range"] == [-2.0, 1.0]
