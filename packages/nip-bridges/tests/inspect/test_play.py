"""Inspect's models play what `nip play` plays: the same requests, verdicts, rewards and figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from both_ways import EPISODES, MODEL, play_here, play_there, write_config
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
from played_elsewhere import SCENARIOS, scenario_settings
from stored_rows import typed_generations

from nip_core.evaluation.metrics import evaluate
from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Game, make_situation
from nip_core.parameters import load_parameters
from nip_core.protocols import protocol_names
from nip_core.rollouts.model_call import request_body
from nip_core.rollouts.plan import TEST, plan_episodes
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.session.problems_of_run import load_all_problems
from nip_inspect.registry import play
from nip_inspect.scoring import EPISODE, GENERATIONS, RATES

pytestmark = pytest.mark.timeout(3600)
TEXTS = ("question", "solution", "columns")


def check_same(log: EvalLog, run: RunStore, episodes: int) -> None:
    """Every row of every episode but the name under which a model is asked for."""
    assert log.status == "success" and log.samples, log.error
    tables = read_rollouts(run.store, run.rollouts(0, TEST))
    ours = {row["key"]: row for row in tables.episodes.to_pylist()}
    theirs = {s.store[EPISODE]["key"]: s.store[EPISODE] for s in log.samples}
    assert len(ours) == len(theirs) == episodes
    assert theirs == {
        key: {name: value for name, value in row.items() if name not in TEXTS}
        for key, row in ours.items()
    }
    generations = {row["key"]: row for row in tables.generations.to_pylist()}
    asked = [row for sample in log.samples for row in sample.store[GENERATIONS]]
    assert len(asked) == len(generations)
    for row in asked:
        assert row == {**generations[row["key"]], "model_asked": MODEL}
    check_figures(log, evaluate(tables.episodes, tables.generations).as_json())


def check_figures(log: EvalLog, metrics: dict) -> None:
    assert log.results
    verdict, *agents = log.results.scores
    for name in RATES:
        found = verdict.metrics.get(name)
        assert (None if found is None else found.value) == metrics[name]
    assert {s.name: s.metrics["mean_reward"].value for s in agents} == {
        agent: of_agent["mean_reward"] for agent, of_agent in metrics["agents"].items()
    }


@pytest.mark.parametrize("protocol", protocol_names())
def test_every_protocol_gives_the_verdicts_of_nip_play(protocol, server, tmp_path):
    config = write_config(tmp_path, server, interaction_protocol=protocol)
    log = play_there(tmp_path / "logs", config=str(config))
    check_same(log, play_here(config), EPISODES)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_can_be_played(scenario, server, tmp_path):
    config = write_config(tmp_path, server, **scenario_settings(scenario))
    log = play_there(tmp_path / "logs", config=str(config))
    assert log.samples
    check_same(log, play_here(config), len(log.samples))


def test_repeated_plays_are_epochs(server, tmp_path):
    config = write_config(
        tmp_path,
        server,
        rl={"num_iterations": 1, "rollouts_per_iteration": 20, "num_test_iterations": 3},
        dataset_options={"max_test_size": 6, "max_train_size": 40},
    )
    log = play_there(tmp_path / "logs", config=str(config))
    assert log.eval.config.epochs == 3
    check_same(log, play_here(config), 18)


def test_the_request_is_that_of_nip_play(server, tmp_path):
    config = write_config(tmp_path, server, interaction_protocol="debate")
    played = play_there(tmp_path / "logs", limit=1, requests=True, config=str(config))
    log = read_eval_log(played.location, resolve_attachments="full")
    parameters = load_parameters(config)
    game = Game(parameters)
    problems = load_all_problems(parameters)[TEST]
    assert log.samples
    [sample] = log.samples
    spec = next(
        s for s in plan_episodes(parameters, problems, TEST, 0) if s.problem.id == sample.id
    )
    rows = sample.store[GENERATIONS]
    calls = {e.call.request["seed"]: e for e in sample.events if e.event == "model"}
    assert len(rows) == len(calls) > 1
    for row in rows:
        agent, round_ = row["agent"], row["round"]
        before = game.turns(typed_generations(r for r in rows if r["round"] < round_), spec.seed)
        chat = game.render(
            agent, make_situation(spec.problem, spec.stance, spec.seed), before, round_
        )
        body = request_body(
            "deterministic",
            parameters.model_agents[agent],
            chat,
            spec.generation_seed(parameters.seed, AnswerPlace(round_, agent, row["attempt"])),
            parameters.max_tokens(agent),
        )
        sent = calls[body["seed"]].call.request
        assert {name: sent[name] for name in body} == body
        assert {*sent} - {*body} <= {"extra_headers", "tools", "tool_choice"}


def test_agents_are_roles_and_channels_are_spans(server, tmp_path):
    config = write_config(tmp_path, server, interaction_protocol="multi_channel_test")
    log = play_there(tmp_path / "logs", limit=2, config=str(config))
    assert log.samples
    for sample in log.samples:
        spans = [(e.type, e.name) for e in sample.events if e.event == "span_begin"]
        agents = {row["agent"] for row in sample.store[GENERATIONS]}
        assert {("agent", agent) for agent in agents} <= {*spans}
        assert any(kind == "channel" for kind, _ in spans)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"protocol": "nipp"}, "interaction_protocol"),
        ({"scenario": "nowhere"}, "scenario"),
        ({"dataset": "nothing"}, "nothing"),
        ({"split": "tests"}, "split 'tests': use one of train, validation, test"),
        ({"seed": -1}, "seed"),
        ({"config": "no.yaml"}, "no.yaml"),
        ({"settings": "agents.verifier.temperatur=1"}, "temperature"),
        ({"settings": ["agents._default.chat_format=named"]}, "carry no names"),
        (
            {
                "settings": [
                    "agents._default.model_provider=OpenAI",
                    "agents._default.use_dummy_api=false",
                    "agents._default.model_name=m",
                    "agents._default.reasoning_effort=low",
                ]
            },
            "use --reasoning-effort",
        ),
    ],
)
def test_bad_parameters_are_one_error(parameters, said):
    with pytest.raises(PrerequisiteError) as caught:
        play(**parameters)
    assert said in str(caught.value.message) and "\n" not in str(caught.value.message)


def test_the_command_finds_the_task(server, tmp_path):
    command = [
        *(str(Path(sys.executable).parent / "inspect"), "eval", "nip_inspect/play"),
        *("-T", "protocol=adp", "-T", "dataset=families", "-T", "seed=7"),
        *("-T", "settings=agents._default.max_tokens_per_message=64"),
        *("--model", MODEL, "--model-role", f"prover={MODEL}", "--limit", "3"),
        *("--log-dir", str(tmp_path), "--display", "none"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    [info] = list_eval_logs(str(tmp_path))
    log = read_eval_log(info)
    assert log.status == "success" and log.samples and len(log.samples) == 3
    assert log.eval.task == "nip_inspect/play" and log.eval.task_args["seed"] == 7
    assert {"prover"} <= {*(log.eval.model_roles or ())}
    assert {*log.stats.role_usage} == {"prover"}
    json.dumps(log.plan.steps[0].params)  # all settings
