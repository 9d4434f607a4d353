"""verifiers plays what `nip play` plays: the same verdicts, rewards and rows, by its own command."""

from collections.abc import Sequence

import pytest
import verifiers.v1 as vf
from played_elsewhere import SCENARIOS, play_here, scenario_settings
from stored_rows import typed_generations
from there import EPISODES, episodes_of, evaluate, write_config
from verifiers.v1.cli.eval.main import main as command

from nip_core.evaluation.metrics import evaluate as measured
from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Game, make_situation
from nip_core.parameters import load_parameters
from nip_core.protocols import protocol_names
from nip_core.rollouts.plan import TEST, plan_episodes
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.session.problems_of_run import load_all_problems
from nip_verifiers import load_environment

pytestmark = pytest.mark.timeout(3600)
TEXTS = ("question", "solution", "columns")
RATES = ("accuracy", "completeness", "soundness")


def check_same(episodes: Sequence[vf.WireEpisode], run: RunStore, count: int) -> None:
    """Every row of every episode, and the figures."""
    assert all(episode.ok and not episode.errors for episode in episodes)
    tables = read_rollouts(run.store, run.rollouts(0, TEST))
    ours = {row["key"]: row for row in tables.episodes.to_pylist()}
    theirs = {}
    for episode in episodes:
        rows = [trace.info["nip"]["episode"] for trace in episode.traces]
        assert all(row == rows[0] for row in rows)
        theirs[rows[0]["key"]] = rows[0]
    assert len(episodes) == len(ours) == len(theirs) == count
    assert theirs == {
        key: {name: value for name, value in row.items() if name not in TEXTS}
        for key, row in ours.items()
    }
    traces = [trace for episode in episodes for trace in episode.traces]
    asked = [row for trace in traces for row in trace.info["nip"]["generations"]]
    generations = {row["key"]: row for row in tables.generations.to_pylist()}
    assert {row["key"]: row for row in asked} == generations and len(asked) == len(generations)
    check_figures(traces, measured(tables.episodes, tables.generations).as_json())


def check_figures(traces: Sequence[vf.WireTrace], metrics: dict) -> None:
    """Means of verifiers' metrics and rewards are those of `nip show`."""

    def mean(values: Sequence[float]) -> float | None:
        return sum(values) / len(values) if values else None

    verifier = [trace for trace in traces if trace.agent.name == "verifier"]
    for name in RATES:
        values = [t.metrics[name] for t in verifier if t.metrics.get(name) is not None]
        assert mean(values) == pytest.approx(metrics[name], abs=1e-12)
    for agent, of_agent in metrics["agents"].items():
        paid = [trace.reward for trace in traces if trace.agent.name == agent]
        assert mean(paid) == pytest.approx(of_agent["mean_reward"], abs=1e-12)


@pytest.mark.parametrize("protocol", protocol_names())
def test_every_protocol_gives_the_verdicts_of_nip_play(protocol, server, tmp_path):
    config = write_config(tmp_path, server, interaction_protocol=protocol)
    done = evaluate(tmp_path, server, "--env.taskset.config", str(config))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    check_same(episodes_of(tmp_path), play_here(config), EPISODES)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_can_be_played(scenario, server, tmp_path):
    config = write_config(tmp_path, server, **scenario_settings(scenario))
    done = evaluate(tmp_path, server, "--env.taskset.config", str(config))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    episodes = episodes_of(tmp_path)
    check_same(episodes, play_here(config), len(episodes))


def test_repeated_plays_are_tasks_and_resume_redoes_what_is_missing(server, tmp_path):
    few = {"max_test_size": 4, "max_train_size": 40}
    config = write_config(
        tmp_path,
        server,
        rl={"num_iterations": 1, "rollouts_per_iteration": 20, "num_test_iterations": 3},
        dataset_options=few,
    )
    done = evaluate(tmp_path, server, "--env.taskset.config", str(config))
    assert done.returncode == 0, done.stderr[-2000:]
    run = play_here(config)
    check_same(episodes_of(tmp_path), run, 12)
    # 1. A kill in the middle of a line.
    file = tmp_path / "run" / "traces.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:5]) + lines[5][:100])
    # 2. verifiers' own means to go on.
    done = evaluate(tmp_path, server, "--env.taskset.config", str(config), "--resume")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    check_same(episodes_of(tmp_path), run, 12)
    again = file.read_bytes().splitlines(keepends=True)
    assert {*lines[:5]} <= {*again} and not {*lines[5:]} & {*again}


def test_a_trace_is_the_chat_of_nip(server, tmp_path):
    config = write_config(tmp_path, server, interaction_protocol="debate")
    done = evaluate(tmp_path, server, "--env.taskset.config", str(config), "-n", "2")
    assert done.returncode == 0, done.stderr[-2000:]
    parameters = load_parameters(config)
    game, problems = Game(parameters), load_all_problems(parameters)[TEST]
    specs = {s.key: s for s in plan_episodes(parameters, problems, TEST, 0)}
    for episode in episodes_of(tmp_path):
        spec = specs[episode.traces[0].info["nip"]["episode"]["key"]]
        rows = [row for trace in episode.traces for row in trace.info["nip"]["generations"]]
        assert {trace.agent.name for trace in episode.traces} == {*parameters.model_agents}
        for trace in episode.traces:
            own = trace.info["nip"]["generations"]
            assert len(trace.calls) == len(own) == trace.num_turns
            for call, row in zip(trace.calls, own, strict=True):
                round_ = row["round"]
                before = game.turns(
                    typed_generations(r for r in rows if r["round"] < round_), spec.seed
                )
                situation = make_situation(spec.problem, spec.stance, spec.seed)
                chat = game.render(trace.agent.name, situation, before, round_)
                path, number = [], call.node
                while number is not None:
                    path.append(trace.nodes[number].message)
                    number = trace.nodes[number].parent
                answer, *prompt = path
                assert answer.content == row["text"]
                assert [(m.role, m.content) for m in reversed(prompt)] == [
                    (m["role"], m["content"]) for m in chat
                ]
                assert call.sampling.max_tokens == 64 and call.sampling.temperature == 0.7
                place = AnswerPlace(round_, trace.agent.name, row["attempt"])
                seed = spec.generation_seed(parameters.seed, place)
                assert call.sampling.model_extra["seed"] == seed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--env.taskset.protocol", "nipp"], "interaction_protocol"),
        (["--env.taskset.scenario", "nowhere"], "scenario"),
        (["--env.taskset.dataset", "nothing"], "nothing"),
        (["--env.taskset.split", "tests"], "split 'tests': use one of train, validation, test"),
        (["--env.taskset.seed", "-1"], "seed"),
        (["--env.taskset.config", "no.yaml"], "no.yaml"),
        (["--env.taskset.settings", "agents.verifier.temperatur=1"], "temperature"),
        (["--env.taskset.settings", "agents._default.chat_format=named"], "carry no names"),
        (["--env.taskset.split", "train", "--env.taskset.plays", "2"], "leave it out"),
        (["--env.prover1.model", "other"], "no model plays an agent of that name"),
        (["--env.prover.harness.id", "bash"], "nip makes the calls of its agents itself"),
        (["--env.prover.runtime.type", "docker"], "nothing is run there"),
        (["--env.train-group", "provers"], "no model group that trains"),
    ],
)
def test_bad_input_is_an_error_before_anything_is_asked(options, words, tmp_path, capsys):
    nowhere = ["--client.base-url", "http://127.0.0.1:9/v1", "--no-push", "--no-rich"]
    with pytest.raises(SystemExit) as caught:
        command(["nip-verifiers", "-n", "1", *options, *nowhere, "-o", str(tmp_path)])
    shown = capsys.readouterr()
    text = " ".join(f"{shown.out} {shown.err} {caught.value}".replace("│", " ").split())
    assert words in text
    assert not [file for file in tmp_path.rglob("traces.jsonl") if file.read_bytes()]


def test_rollouts_that_would_be_the_same_are_refused():
    env = load_environment(protocol="adp")
    task = next(iter(env.taskset))
    with pytest.raises(ValueError, match=r"set env.taskset.plays 2"):
        env.slots(task, 2)
    assert len(load_environment(protocol="adp", send_seeds=False).slots(task, 2)) == 2
