"""The scenario `solutions`: a prover writes what is judged, tests label it, and nobody sees them."""

import asyncio
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import playing
import pytest
from scripted_server import scripted_server
from small_game import train_here, write_config

from nip_core.errors import DatasetError, SettingsError, StageError
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.branching import Branching
from nip_core.rollouts.plan import episode_spec, plan_episodes
from nip_core.rollouts.storage.row_tables import canonical_digest
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios import NO_LABEL, Column, NoLabel, Problem, Scenario, Words
from nip_core.scenarios.class_checks import check_scenario
from nip_core.scenarios.datasets import load_problems
from nip_core.trainers.malt import choose_pairs
from nip_games.solutions import Solutions, SolutionsSettings
from nip_games.solutions.labelling import Task
from nip_problems import Isolation, SandboxError

MODEL = {"model_provider": "SelfHosted", "model_name": "m"}
RIGHT = "def plus(x):\n    return x + {n}"
SUBTLE = "def plus(x):\n    return x + {n} if x < 9 else x - 1"
TESTS = "assert plus(1) == {m}\nassert plus(20) == 20 + {n}\n"


def settings(protocol="adp", version="v1", **changes):
    return load_parameters(
        {
            "run_name": "legible",
            "scenario": "solutions",
            "dataset": "functions",
            "interaction_protocol": protocol,
            "scenario_settings": {"system_prompt_version": version, "workers": 1},
            "protocol_common": {"verifier_first": False, "randomize_prover_stance": True},
            "nip_protocol": {"min_message_rounds": 2, "max_message_rounds": 4},
            "agents": {"_default": MODEL},
            "rollouts": {"failure_threshold": 1.0},
            "rl": {"rollouts_per_iteration": 4},
            **changes,
        }
    )


def problems(count=1):
    return [
        Problem(
            f"p{n}",
            f"q{n}",
            f"Return x plus {n}.",
            "",
            NO_LABEL,
            columns={"entry_point": "plus", "tests": TESTS.format(n=n, m=n + 1)},
        )
        for n in range(count)
    ]


def block(code):
    return f"Here it is:\n\n```python\n{code}\n```\n\nIt adds."


async def play(parameters, script, *, on=None, stance=None, **more):
    specs = plan_episodes(parameters, on or problems(), "train", 0)
    specs = [replace(s, stance=s.stance if stance is None else stance) for s in specs]
    async with scripted_server(script) as server:
        played = await playing.play_at(server.url, parameters, specs[: len(on or [1])], **more)
    played.server = server
    return played


def told(played, agent):
    return [b["messages"] for b in played.server.bodies if playing.agent_of(b) == agent]


# What is played.


@pytest.mark.parametrize(
    ("code", "stance", "label", "kind", "paid"),
    [
        (RIGHT, 1, 1, None, 1.0),
        (SUBTLE, 1, 0, "wrong answer", 0.0),  # helpful, and accepted for what is wrong
        (SUBTLE, 0, 0, "wrong answer", 1.0),  # sneaky, and accepted
        (RIGHT, 0, 1, None, 0.0),
    ],
)
async def test_a_prover_writes_tests_label_and_who_did_its_task_is_paid(
    code, stance, label, kind, paid
):
    code = code.format(n=0)
    script = playing.saying(prover=[block(code)], verifier=["Decision: accept"])
    played = await play(settings(), script, stance=stance)
    [episode] = played.episodes
    assert (episode["outcome"], episode["y"], episode["mutation"]) == ("finished", label, kind)
    assert (episode["solution"], episode["prover_stance"]) == (code, stance)
    assert played.rewards()["prover"] == paid
    assert played.rewards()["verifier"] == (1.0 if label else -1.0)


@pytest.mark.parametrize("version", ["v1", "v2", "short"])
@pytest.mark.parametrize("protocol", ["adp", "nip"])
async def test_the_verifier_sees_the_solution_once_and_nobody_the_tests(protocol, version):
    code = RIGHT.format(n=0)
    script = playing.saying(
        prover=[f"Answer: {block(code)}", "Answer: because."],
        verifier=["Question: why?", "Decision: accept"]
        if protocol == "nip"
        else ["Decision: accept"],
    )
    played = await play(settings(protocol, version), script, stance=0)
    assert [e["outcome"] for e in played.episodes] == ["finished"]
    assert "assert plus" not in json.dumps([b["messages"] for b in played.server.bodies])
    # 1. Who writes the solution is told its task, and never the solution as if it were given.
    first, *later = told(played, "prover")
    assert "wrong" in first[0]["content"] and "$" not in first[0]["content"]
    assert all(chat[0] == first[0] for chat in later)
    assert code not in first[0]["content"]
    # 2. The verifier has it with the problem, in place of the message's; its task it isn't told.
    for chat in told(played, "verifier"):
        whole = json.dumps(chat)
        assert whole.count(json.dumps(code)[1:-1]) == 1 and code in chat[0]["content"]
        assert "Write a wrong" not in whole and "a solution that is wrong for some" not in whole
        assert any("(the solution)" in message["content"] for message in chat[1:])


async def test_the_verifier_is_told_the_same_of_helpful_and_of_sneaky_provers():
    script = playing.saying(prover=[block(RIGHT.format(n=0))], verifier=["Decision: accept"])
    chats = [told(await play(settings(), script, stance=s), "verifier") for s in (0, 1)]
    assert chats[0] == chats[1]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I would add them.", "no block of code; one that defines plus is the solution"),
        (block("def minus(x):\n    return x"), "no block of code defines plus"),
        (block("def plus(x):\n    return x" + " " * 20_000 + "+ 0"), "a solution of more than"),
    ],
)
async def test_an_answer_without_a_solution_is_invalid_and_asked_again(answer, reason):
    script = playing.saying(prover=[], verifier=["Decision: reject"])
    answers = iter([answer, block(RIGHT.format(n=0))])

    def reply(body):
        return next(answers) if playing.agent_of(body) == "prover" else script(body)

    retries = {"_default": {**MODEL, "num_invalid_generation_retries": 1}}
    played = await play(settings(agents=retries), reply)
    first, second, _ = played.generations()
    assert first["invalid_reason"].startswith(reason) and second["invalid_reason"] is None
    assert played.episodes[0]["y"] == 1


async def test_a_prover_that_never_writes_code_is_wrong_where_silence_has_a_price():
    common = {"verifier_first": False, "prover_invalid_response_penalty": -2.0}
    script = playing.saying(prover=["no code"] * 9, verifier=["Decision: reject"])
    script = _without_turns(script, "no code")
    played = await play(settings(protocol_common=common), script)
    [episode] = played.episodes
    assert (episode["y"], episode["mutation"], episode["solution"]) == (0, "no answer", "")
    assert played.rewards() == {"prover": -2.0, "verifier": 1.0}
    # Without a price the episode fails, without a label.
    played = await play(settings(), script)
    assert (played.episodes[0]["outcome"], played.episodes[0]["y"]) == ("failed", NO_LABEL)


def _without_turns(script, text):
    return lambda body: text if playing.agent_of(body) == "prover" else script(body)


def test_the_stance_is_drawn_for_each_episode_and_alike_in_a_group():
    [problem] = problems()
    plain = settings()
    drawn = [episode_spec(plain, "train", i, problem, 0).stance for i in range(30)]
    assert {*drawn} == {0, 1}
    grouped = settings(
        trainer="pure_text_grpo",
        pure_text_grpo={"group_size": 4},
        agents={"_default": {**MODEL, "fine_tune_from_scratch": False}},
    )
    members = [[episode_spec(grouped, "train", i, problem, m) for m in range(4)] for i in range(9)]
    assert all(len({spec.stance for spec in group}) == 1 for group in members)


async def test_a_label_that_the_journal_has_is_not_made_again(monkeypatch):
    script = playing.saying(prover=[block(RIGHT.format(n=0))], verifier=["Decision: accept"])
    parameters = settings()
    first = await play(parameters, script)
    generations = {r["generation"]["key"]: r for r in first.log.records if "generation" in r}
    labels = {r["label"]["key"]: r["label"] for r in first.log.records if "label" in r}
    assert [label["y"] for label in labels.values()] == [1]
    # 1. Killed before the verdict: the label is there, and no sandbox needed.
    monkeypatch.setattr(Solutions, "label_written", None)
    half = {k: r for k, r in generations.items() if r["generation"]["agent"] == "prover"}
    again = await play(parameters, script, recorded=half, labels=dict(labels))
    assert again.episodes == first.episodes
    # 2. Killed before the label: it is made, and the same.
    monkeypatch.undo()
    again = await play(parameters, script, recorded=half)
    assert again.episodes == first.episodes


async def test_each_branch_of_a_tree_has_the_solution_that_was_written_on_its_way():
    parameters = settings(
        trainer="pure_text_malt",
        protocol_common={"verifier_first": False},
        pure_text_malt={"num_responses_per_timestep": 2, "interval_threshold_proportion": 0.1},
    )
    game = Game(parameters)
    codes = iter([RIGHT, SUBTLE])

    def script(body):
        n = body.get("n", 1)
        if playing.agent_of(body) == "prover":
            return [block(next(codes).format(n=0)) for _ in range(n)]
        return ["Decision: accept", "Decision: reject"][:n]

    branch = Branching(parameters, game.protocol, 0)
    played = await play(parameters, script, branch=branch)
    leaves = sorted(played.episodes, key=lambda row: row["branch_path"])
    assert [(e["branch_path"], e["y"]) for e in leaves] == [
        *(("0.0", 1), ("0.1", 1), ("1.0", 0), ("1.1", 0))
    ]
    rollouts = SimpleNamespace(shards=lambda: [played.tables()])
    pairs = list(choose_pairs(game, "verifier", 0, rollouts, ["verifier"]).examples)
    by_label = {pair.y: pair for pair in pairs}
    assert by_label[1].chosen == "Decision: accept" and by_label[0].chosen == "Decision: reject"
    assert "else x - 1" in by_label[0].messages[0]["content"]
    assert "else x - 1" not in by_label[1].messages[0]["content"]


async def test_a_whole_run_has_its_labels_in_tables_metrics_and_report(tmp_path):
    rows = [
        {
            "question": f"Write `plus(x)` that returns x plus {n}.",
            "entry_point": "plus",
            "tests": TESTS.format(n=n, m=n + 1),
            "split": ("train", "validation", "test")[n % 3],
        }
        for n in range(12)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    replies = [{"text": block(RIGHT.format(n=n))} for n in range(12)]
    (tmp_path / "replies.yaml").write_text(
        json.dumps(
            {
                "seed": 0,
                "max_model_len": 8192,
                "rules": [
                    {
                        "when": {"system_contains": ["You are the verifier"]},
                        "replies": [{"text": "Decision: accept"}, {"text": "Decision: reject"}],
                    }
                ],
                "default": replies,
            }
        )
    )
    model = {
        "model_provider": "SelfHosted",
        "model_name": "deterministic",
        "max_tokens_per_message": 128,
    }
    config = write_config(
        tmp_path,
        scenario="solutions",
        interaction_protocol="adp",
        dataset=str(tmp_path / "data.jsonl"),
        dataset_options={},
        protocol_common={"randomize_prover_stance": True},
        lm_server={"engine": "deterministic", "replies": str(tmp_path / "replies.yaml")},
        agents={"_default": {**model, "freeze_agent": True}},
        rl={"num_iterations": 1, "rollouts_per_iteration": 12, "num_epochs": 1},
    )
    await train_here(config)
    run = RunStore(open_store(str(tmp_path / "runs")), "small")
    rows = read_rollouts(run.store, run.rollouts(0, "train")).episodes.to_pylist()
    assert {row["y"] for row in rows} <= {0, 1} and all(row["solution"] for row in rows)
    labels = run.read_json(run.metrics(0, "train"))["labels"]
    assert labels["solutions"] == 12 == sum(labels["kinds"].values())
    assert labels["kinds"].get("right", 0) == sum(row["y"] for row in rows)
    assert labels["seconds"] > 0 and labels["workers"] == 2
    report = run.store.get(f"{run.root}/report.html").decode()
    assert "Solutions labelled in play" in report and "wrong answer" in report


@pytest.mark.long
async def test_the_same_seeds_give_the_same_data_however_it_is_cut():
    def script(body):
        if playing.agent_of(body) == "verifier":
            return f"Decision: {('accept', 'reject')[body['seed'] % 2]}"
        return block((RIGHT, SUBTLE)[body["seed"] % 2].format(n=playing.number_of(body)))

    digests = set()
    for num_shards, workers in ((1, 1), (3, 2)):
        parameters = settings(scenario_settings={"workers": workers})
        played = await play(parameters, script, on=problems(4), num_shards=num_shards)
        tables = played.tables()
        digests.add(canonical_digest(tables.episodes, tables.generations))
        assert {row["y"] for row in played.episodes} == {0, 1}
    assert len(digests) == 1


# Labels.


def label(*tasks, **changes):
    scenario = Solutions(SolutionsSettings(**changes))

    async def all_of_them():
        work = (
            scenario.label_written(
                {"solution": t.solution, "entry_point": t.entry_point, "tests": t.tests}
            )
            for t in tasks
        )
        return await asyncio.gather(*work, return_exceptions=True)

    return asyncio.run(all_of_them())


SORTS = "def sort(items):\n    items.sort()\n    return {'n': len(items), 'seen': {*items}}\n"
TELLS = """
def check(candidate):
    items = [3, 1]
    assert candidate(items) == {'n': 2, 'seen': {1, 3}} and items == [1, 3]
    more = [len(items)] * candidate(items)['n']
    assert candidate(more)['seen'] == {2}
    try:
        candidate(None)
    except AttributeError:
        return
    assert False, 'no error'
"""


def test_tests_see_arguments_changed_errors_raised_and_calls_that_follow_from_answers():
    right, unsorted, raises = label(
        Task(SORTS, "sort", TELLS),
        Task(SORTS.replace("items.sort()", "sorted(items)"), "sort", TELLS),
        Task(SORTS.replace("len(items)", "1 // 0"), "sort", TELLS),
    )
    assert (right.y, right.mutation) == (1, None) and right.seconds > 0
    assert (unsorted.y, unsorted.mutation) == (0, "wrong answer")
    assert (raises.y, raises.mutation) == (0, "exception")


def test_how_a_solution_fails_is_its_kind_and_stops_no_other():
    ends = {
        "def plus(x):\n    while True:\n        pass": "timeout",
        "def plus(x):\n    return lambda: x": "no plain value",
        "def minus(x):\n    return x": "no function",
        "def plus(x) return x": "does not load",
        "def plus(x):\n    import os; os._exit(0)": "crash",
        "def plus(x):\n    return [0] * 10**9": "memory",
    }
    tasks = [Task(code, "plus", TESTS.format(n=0, m=1) + f"# {code!r}") for code in ends]
    *wrong, right = label(
        *tasks, Task(RIGHT.format(n=0), "plus", TESTS.format(n=0, m=1)), max_steps=20_000
    )
    kinds = dict(zip(ends, [one.mutation for one in wrong], strict=True))
    assert kinds == ends and all(one.y == 0 for one in wrong)
    assert right.y == 1


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("while True: pass\nplus(1)", "do not end before they meet a solution"),
        ("if 1 > 2: assert plus(1)", "never call it with plain values"),
        ("assert plus(lambda: 1)", "never call it with plain values"),
        ("import time\nassert plus(time.time())", "other calls each time"),
    ],
)
def test_tests_that_tell_nothing_give_no_label(tests, words):
    good = Task(RIGHT.format(n=0), "plus", TESTS.format(n=0, m=1))
    bad = Task(RIGHT.format(n=0), "plus", tests)
    none, right = label(bad, good, seconds_per_solution=0.5)
    assert isinstance(none, NoLabel) and words in str(none)
    assert right.y == 1


async def test_an_episode_whose_tests_tell_nothing_fails_and_says_so():
    [problem] = problems()
    bad = replace(problem, columns={"entry_point": "plus", "tests": "if 1 > 2: plus(1)"})
    script = playing.saying(prover=[block(RIGHT.format(n=0))], verifier=["Decision: accept"])
    played = await play(settings(), script, on=[bad])
    [episode] = played.episodes
    assert (episode["outcome"], episode["y"]) == ("failed", NO_LABEL)
    assert episode["error"].startswith("round 0: the tests of plus never call it")


async def test_a_sandbox_that_does_not_run_stops_the_stage(monkeypatch):
    def broken(*_, **__):
        raise SandboxError("no child")

    monkeypatch.setattr("nip_sandbox.grading.judge.run_python_batch", broken)
    script = playing.saying(prover=[block(RIGHT.format(n=0))], verifier=["Decision: accept"])
    with pytest.raises(StageError, match="solutions can't be labelled: no child"):
        await play(settings(), script)


def test_an_interrupt_waits_for_the_solution_that_runs_and_not_for_those_behind_it():
    scenario = Solutions(SolutionsSettings(seconds_per_solution=0.5, workers=1))
    sleeps = "import time\ntime.sleep(60)\ndef plus(x):\n    return x"
    work = [
        {"solution": sleeps, "entry_point": "plus", "tests": TESTS.format(n=n, m=n + 1)}
        for n in range(30)
    ]

    async def interrupted():
        labels = asyncio.gather(*map(scenario.label_written, work))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(labels, 1.0)

    started = time.monotonic()
    asyncio.run(interrupted())
    assert time.monotonic() - started < 10  # not the fifteen seconds of all
    # Others are labelled as before.
    work[0]["solution"] = RIGHT.format(n=0)
    assert asyncio.run(scenario.label_written(work[0])).y == 1


# What is refused.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interaction_protocol": "debate"}, "has 2 provers"),
        ({"interaction_protocol": "mnip"}, "has 2 provers"),
        ({"interaction_protocol": "merlin_arthur"}, "has 2 provers"),
        ({"interaction_protocol": "solo_verifier"}, "has no provers"),
        ({"interaction_protocol": "multi_channel_test"}, "provers, and exactly one must"),
        (
            {"interaction_protocol": "nip", "protocol_common": {}, "nip_protocol": {}},
            "does not begin with the prover",
        ),
        ({"protocol_common": {"zero_knowledge": True}}, "zero_knowledge"),
        ({"protocol_common": {"shared_reward": True}}, "shared_reward"),
        ({"dataset_options": {"shuffle_train_labels": True}}, "there are none to shuffle"),
        ({"scenario_settings": {"worker": 3}}, "scenario_settings.worker"),
        ({"scenario_settings": {"seconds_per_solution": 0}}, "seconds_per_solution"),
    ],
)
def test_what_makes_no_game_is_refused_by_name(changes, words):
    if changes.get("interaction_protocol", "adp") not in ("adp", "nip"):
        changes = {**changes, "protocol_common": {}, "nip_protocol": {}}
    with pytest.raises(SettingsError, match=words):
        settings(**{"protocol": changes.pop("interaction_protocol", "adp"), **changes})


def test_a_system_that_can_not_keep_solutions_in_is_refused_unless_the_settings_say_so(monkeypatch):
    def examined(landlock):
        isolation = Isolation(False, False, False, False, landlock, False)
        place = "nip_games.solutions.examine"
        monkeypatch.setattr(place, lambda: (isolation, "this system has no network of its own"))

    strict, lax = SolutionsSettings(), SolutionsSettings(allow_without_namespaces=True)
    examined(landlock=True)
    with pytest.raises(ValueError, match="allow_without_namespaces: true"):
        Solutions(strict).check_system()
    Solutions(lax).check_system()
    examined(landlock=False)
    with pytest.raises(ValueError, match="nothing else keeps"):
        Solutions(lax).check_system()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"entry_point": "a b", "tests": "plus(1)"}, "row|line 1: entry_point must be the name"),
        ({"entry_point": "plus", "tests": "assert minus(1)"}, "that calls plus"),
        ({"entry_point": "plus"}, "no column tests"),
        ({"solution": "x", "y": 1}, "no column entry_point and no column tests"),
    ],
)
def test_a_dataset_without_tests_to_run_is_refused(tmp_path, row, words):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"question": "Add.", "split": "train", **row}) + "\n")
    with pytest.raises(DatasetError, match=words):
        load_problems(Solutions(SolutionsSettings()), str(path), "train")


def test_every_bundled_problem_is_there_without_a_solution():
    scenario = Solutions(SolutionsSettings())
    counts = {}
    for split in ("train", "validation", "test"):
        loaded = load_problems(scenario, "functions", split)
        counts[split] = len(loaded)
        assert all(p.y == NO_LABEL and p.solution == "" for p in loaded)
        assert all(p.columns["entry_point"] in p.question for p in loaded)
    assert counts == {"train": 108, "validation": 14, "test": 33}


class _Hides(Scenario):
    name = "hides"
    words = Words("an expert", "thing", "a claim", "A doubt.", "it is right", "the text")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (Column("key", "Key", seen_by=()), "or say that it is hidden"),
        (Column("key", "Key", hidden=True), "is hidden, and seen by prover and verifier"),
    ],
)
def test_a_column_is_shown_to_somebody_or_said_to_be_hidden(column, words):
    kind = type("Hides", (_Hides,), {"columns": (*Scenario.columns, column)})
    with pytest.raises(ValueError, match=words):
        check_scenario(kind)


def test_with_labels_in_play_no_dataset_has_the_solution():
    kind = type("Hides", (_Hides,), {"labels_in_play": True})
    with pytest.raises(ValueError, match="must be drawn=True"):
        check_scenario(kind)
