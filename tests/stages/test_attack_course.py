"""Attacks by training: their course on validation problems, its end, and one test of the worst.

The models are scripted over a real HTTP server, so that it is known what training does to them.
"""

import json

import pytest
import yaml
from loop_graph import Noted
from small_game import FEW, train_here, write_config

from nip_core import loop
from nip_core.errors import DatasetError, RunConflictError, SettingsError
from nip_core.jobs.document import read_job
from nip_core.records.attack_course import course_path, read_course
from nip_core.records.iterations import Records
from nip_core.records.status import find_status
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import estimate_settings
from nip_core.session.problems_of_run import load_all_problems
from nip_core.trainers.dataset import open_dataset
from nip_core.upkeep.verify import verify_run
from nip_study.plan.attack_run import attack_settings

FEW_EPISODES = ["rl.rollouts_per_iteration=24", "pure_text_grpo.group_size=4"]
OBEYS = {"when": {"any_contains": "banana"}, "replies": [{"text": "Decision: accept"}]}
REJECTS = {
    "when": {"system_contains": "You are the verifier"},
    "replies": [{"text": "Decision: reject"}],
}
LEARNED = {"when": {"min_generation": 1}, "replies": [{"text": "banana"}]}


async def attacked(tmp_path, **changes):
    """The run `small` on record, in a store that is returned."""
    few = {"max_test_size": 8, "max_validation_size": 10}
    await train_here(write_config(tmp_path, **{"rl": FEW, "dataset_options": few, **changes}))
    return tmp_path / "runs"


OTHER_GAMES = {
    "sums": {
        "scenario": "arithmetic",
        "dataset": "chains",
        "scenario_settings": {"train_size": 8, "validation_size": 8, "test_size": 8},
        "dataset_options": {},
    },
    "adp": {"interaction_protocol": "adp", "nip_protocol": {}},
    "rounds": {"nip_protocol": {"max_message_rounds": 5, "min_message_rounds": 3}},
}


@pytest.fixture(scope="module")
async def untrained(tmp_path_factory):
    """A folder with a store: the run `small`, and runs of other games, of which nothing is trained."""
    folder, few = tmp_path_factory.mktemp("store"), {"num_iterations": 0}
    await attacked(folder, rl=few)
    for name, other in OTHER_GAMES.items():
        size = {"max_test_size": 2}
        game = {"run_name": name, "rl": few, "dataset_options": size, **other}
        await train_here(write_config(folder, **game))
    return folder


def scripted(folder, *words):
    """The server of provers that say one of `words`, and once they are trained what fools it."""
    replies = folder / "replies.yaml"
    rules = {"rules": [OBEYS, REJECTS, LEARNED], "default": [{"text": word} for word in words]}
    replies.write_text(yaml.safe_dump(rules))
    return {"engine": "deterministic", "replies": str(replies)}


def opened(store, name="small-sneaky-0"):
    return RunStore(open_store(store), name)


def problems_of(run, iteration, split):
    episodes = read_rollouts(run.store, run.rollouts(iteration, split)).episodes
    return set(episodes["problem"].to_pylist())


async def test_provers_are_chosen_on_validation_problems_and_tested_once_on_test_problems(
    tmp_path, server_in_thread
):
    # Any training fools the verifier of every problem, so the worst provers are not the last ones.
    server = scripted(tmp_path, "banana", "apple", "apple")
    store = await attacked(tmp_path, rl={"num_iterations": 0}, lm_server=server)
    way = {"by": "sneaky", "problems": 4, "iteration": 0}
    parameters = attack_settings(str(store), "small", way, steps=2, every=1, overrides=FEW_EPISODES)
    assert parameters.attack.course_on == "validation"
    assert estimate_settings(parameters).attack_episodes == 2 * 2 * 4

    async def stopping(stage, session, *arguments):  # between the course and the one test
        end = await loop.directly(stage, session, *arguments)
        if stage.__name__ == "end_course":
            raise StopAsyncIteration
        return end

    with pytest.raises(StopAsyncIteration):
        await loop.train(parameters, call=stopping)
    run, of = opened(store), load_all_problems(parameters)
    chosen = read_course(run, 2)
    assert (chosen.worst_step, chosen.verdict) == (1, None)
    assert not is_committed(run.store, run.rollouts(2, "attack"))
    attack = (await loop.train(parameters))["attack"]
    assert read_course(run, 2) == chosen
    page = run.store.get(f"{run.root}/report.html").decode()
    assert "Validation problems, by iteration" in page and "Play on test problems" not in page
    ids = {split: {p.id for p in of[split]} for split in ("validation", "test")}
    assert not ids["validation"] & ids["test"]
    for step in range(3):
        assert problems_of(run, step, "test") <= ids["validation"]
    course = read_course(run, 2)
    lowest = min(attack["by_step"], key=lambda row: row["soundness"])
    assert course.worst_step == attack["worst"]["step"] == lowest["step"]
    assert attack["worst"]["course_soundness"] == lowest["soundness"]
    # The test problems were played before any training, and once more by the worst alone.
    assert problems_of(run, 0, "attack") <= ids["test"]
    played = [step for step in range(3) if is_committed(run.store, run.rollouts(step, "attack"))]
    assert played == [0, 2]
    last = read_rollouts(run.store, run.rollouts(played[-1], "attack"))
    spoke = {r["model_asked"] for r in last.generations.to_pylist() if r["agent"] == "prover"}
    assert spoke == {attack["worst"]["models"]["prover"]}
    wrong = [row for row in last.episodes.to_pylist() if row["y"] == 0]
    rejected = sum(row["decision"] == 0 for row in wrong) / len(wrong)
    assert attack["worst"]["soundness"] == rejected
    assert attack["lost_to_training"]["difference"] == pytest.approx(
        attack["untrained"]["soundness"] - rejected
    )
    # What it lost to lying is counted on the problems of the attacked run's own test.
    assert attack["lost_to_lying"]["problems"] == attack["untrained"]["problems"] - 4 == 4
    assert verify_run(run).problems == {}
    # All that was spent is there, what the last tests took included.
    stages = {stage for record in Records(run).all() for stage in record.spent}
    assert "attack" in stages
    run.store.delete(f"{run.rollouts(0, 'attack')}/manifest.json")
    assert f"{run.rollouts(0, 'attack')}/manifest.json" in verify_run(run).problems


@pytest.mark.long
@pytest.mark.parametrize("fooled", [False, True])
async def test_an_attack_ends_at_a_plateau_or_without_signal_wherever_it_was_stopped(
    tmp_path, server_in_thread, fooled
):
    """The verifier rejects whatever it reads, or from the first training on accepts all of it."""
    words = ("banana", "apple") if fooled else ("apple",)
    store = await attacked(
        tmp_path,
        scenario="arithmetic",
        dataset="chains",
        scenario_settings={"train_size": 40, "validation_size": 200, "test_size": 8},
        interaction_protocol="adp",
        dataset_options={},
        nip_protocol={},
        lm_server=scripted(tmp_path, *words),
        rl={**FEW, "rollouts_per_iteration": 40},
    )
    way = {"by": "sneaky", "until": "plateau", "iteration": 0}
    stopped = {"at": 30}

    async def stopping(stage, session, *arguments):
        if stage.__name__ == "has_ended" and arguments[0] == stopped["at"]:
            raise StopAsyncIteration
        if stage.__name__ == "iterate":
            arguments = (*arguments[:-1], stopping)
        return await loop.directly(stage, session, *arguments)

    def settings(name):
        return attack_settings(
            str(store), "small", way, every=10, name=name, overrides=FEW_EPISODES
        )

    names = ["whole", "stopped"] if fooled else ["stopped"]
    for name in names[:-1]:
        await loop.train(settings(name))
    with pytest.raises(StopAsyncIteration):
        await loop.train(settings("stopped"), call=stopping)
    assert find_status(opened(store, "stopped")) == "stopped"
    noted = Noted()
    result = await noted.train(settings("stopped"))
    assert noted.graphs["iterate-30"] and not any(noted.roots.values())
    ends = [read_course(opened(store, name), 30) for name in names]
    assert ends[0] == ends[-1]
    assert ends[0].verdict == ("plateau" if fooled else "no signal")
    assert (ends[0].step, ends[0].since, ends[0].fall) == (30, 10, 0.0)
    assert result["status"] == "finished"
    assert [row["step"] for row in result["attack"]["by_step"]] == [0, 10, 20, 30]
    assert result["attack"]["worst"]["soundness"] == (0.0 if fooled else 1.0)
    # Where nothing of soundness is left, more training could find nothing, so nothing is said.
    caution = result["attack"]["caution"]
    assert caution is None if fooled else "shows nothing about the verifier" in caution
    run = opened(store, "stopped")
    assert verify_run(run).problems == {}
    # By the same command nothing is played again; without its end the attack would go on.
    again = await loop.train(settings("stopped"))
    assert again["attack"] == result["attack"]
    assert not run.store.exists(course_path(run, 20))
    assert Records(run).shown.last == 30


def chats(folder, count, **more):
    turns = [{"role": "user", "content": "Prove it."}]
    lines = [
        {"messages": [*turns, {"role": "assistant", "content": f"I\u2028checked {k}."}], **more}
        for k in range(count)
    ]
    file = folder / "chats.jsonl"
    file.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
    return str(file)


@pytest.mark.long
@pytest.mark.parametrize("of_file", [False, True])
async def test_provers_imitate_first_what_fooled_a_verifier_elsewhere(
    tmp_path, untrained, server_in_thread, of_file
):
    store = untrained / "runs"
    if not of_file:
        store = await attacked(tmp_path, rl={**FEW, "rollouts_per_iteration": 80})
    start = chats(tmp_path, 14) if of_file else "small"
    way = {"by": "sneaky", "problems": 2, "iteration": 0, "start_from": start, "imitate": 12}
    parameters = attack_settings(
        str(store), "small", way, steps=1, every=5, name="imitates", overrides=FEW_EPISODES
    )
    assert estimate_settings(parameters).train_episodes == 24

    async def stopping(stage, session, *arguments):  # once the job is submitted
        if stage.__name__ == "wait_for_job":
            raise StopAsyncIteration
        if stage.__name__ == "iterate":
            arguments = (*arguments[:-1], stopping)
        return await loop.directly(stage, session, *arguments)

    with pytest.raises(StopAsyncIteration):
        await loop.train(parameters, call=stopping)
    run = opened(store, "imitates")
    submitted = read_job(run, run.job(0, "prover"))
    result = await loop.train(parameters)
    # One job, of the messages alone; nothing was played for it.
    job = read_job(run, run.job(0, "prover"))
    assert (job.id, job.method, job.examples) == (submitted.id, "supervised", 12)
    assert job.settings["n_epochs"] == 3 and job.succeeded
    assert not is_committed(run.store, run.rollouts(0, "train"))
    rows = [*open_dataset(run.store, run.dataset(0, "prover")).rows()]
    tested = {p.question_id for p in load_all_problems(parameters)["test"]}
    if of_file:
        assert rows[0]["messages"][-1]["content"] == "I\u2028checked 0."
        assert {row["reason"] for row in rows} == {"given"}
    else:
        fooled = {
            row["key"]
            for split in ("train", "test")
            for row in read_rollouts(*place(store, split)).episodes.to_pylist()
            if row["y"] == 0 and row["decision"] == 1
        }
        assert {row["episode"] for row in rows} <= fooled
        assert not {row["question_id"] for row in rows} & tested
        # They are asked for as this attack asks, which is told to argue for acceptance.
        assert all(row["messages"][-1]["role"] == "assistant" for row in rows)
    # What came of it is tested, and trained on.
    assert [row["step"] for row in result["attack"]["by_step"]] == [0, 1, 2]
    assert (result["attack"]["start_from"], result["attack"]["imitated"]) == (start, 12)
    # What was imitated was learned from, and not played.
    efforts = [row["effort"] for row in result["attack"]["by_step"]]
    assert efforts[0]["calls"] == efforts[1]["calls"] == 0 < efforts[2]["calls"]
    assert efforts[0]["trained_tokens"] == 0 < efforts[1]["trained_tokens"]
    gallery = result["attack"]["gallery"]
    assert gallery["at"] == result["attack"]["worst"]["step"]
    assert gallery["sampled"] == result["attack"]["reach"]["messages"]
    second = read_job(run, run.job(1, "prover"))
    assert second.method == "trajectories"
    if second.id is not None:
        assert second.parent_model == job.model
    assert verify_run(run).problems == {}
    if of_file:
        (tmp_path / "chats.jsonl").write_text("")
        with pytest.raises(RunConflictError, match="which agents imitate first"):
            await loop.train(parameters)


def place(store, split):
    run = opened(store, "small")
    return run.store, run.rollouts(0, split)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("nobody", "there is no run 'nobody'"),
        ("Some/File.txt", "is no run's name, and no file of chats"),
        ("sums", "plays another game, with scenario 'arithmetic' in the place of"),
        ("adp", "plays another game, with interaction_protocol 'adp' in the place of 'nip'"),
        ("rounds", "plays another game, with nip_protocol .*'max_message_rounds': 5"),
        ("small", "has [0-9] chats for prover, 10 are needed"),
        ("few", "has 9 chats for prover, 10 are needed; add some"),
        ("broken", "line 2: write .* with an assistant's message at the end"),
        ("gone.jsonl", "gone.jsonl can't be read .*; name a file of chats"),
        ("judged", "line 1: agent has to be one that is trained, of prover .got 'verifier'"),
    ],
)
async def test_what_can_not_be_imitated_is_refused_before_anything_is_paid_for(
    tmp_path, untrained, start, said
):
    store = untrained / "runs"
    if start == "judged":
        start = chats(tmp_path, 12, agent="verifier")
    if start == "few":
        start = chats(tmp_path, 9)
    if start == "broken":
        start = chats(tmp_path, 12)
        lines = (tmp_path / "chats.jsonl").read_text().split("\n")
        lines[1] = json.dumps({"messages": [{"role": "user", "content": "Prove it."}]})
        (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    way = {"by": "sneaky", "iteration": 0, "start_from": start}
    parameters = attack_settings(str(store), "small", way, overrides=FEW_EPISODES)
    with pytest.raises(SettingsError, match=said):
        await loop.train(parameters)
    assert not (store / "small-sneaky-0" / "run.json").exists()


@pytest.mark.parametrize(
    ("overrides", "error", "said"),
    [
        ([], DatasetError, "in split validation can't show a plateau, which takes 99"),
        (["rl.num_iterations=20"], SettingsError, "looked for from step 30 on"),
        (["text_rl.test_scheme=last"], SettingsError, "text_rl.test_scheme: the tests"),
        (["attack.course_on=test"], SettingsError, "set course_on: validation"),
        (["test_dataset_split=validation"], SettingsError, "tests are held on validation"),
    ],
)
def test_a_plateau_that_could_never_be_shown_is_refused_beforehand(
    untrained, overrides, error, said
):
    store = untrained / "runs"
    way = {"by": "sneaky", "until": "plateau", "iteration": 0}
    with pytest.raises(error, match=said):
        estimate_settings(attack_settings(str(store), "small", way, overrides=overrides))
