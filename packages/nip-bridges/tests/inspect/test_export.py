"""A run as logs of Inspect: read by its own reader, with the run's figures to the last digit."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from both_ways import EPISODES, play_here, write_config
from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample_summaries
from inspect_ai.scorer import SampleScore, accuracy

from nip_core.errors import SettingsError
from nip_core.records.iterations import Records
from nip_core.rollouts.plan import TEST, TRAIN
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_inspect.export import export_run
from nip_inspect.scoring import RATES

pytestmark = pytest.mark.timeout(3600)
NIP = str(Path(sys.executable).parent / "nip")


@pytest.fixture(scope="module")
def run(server, tmp_path_factory) -> RunStore:
    """400 test episodes: 200 problems, each played twice. All tests of this file share it."""
    folder = tmp_path_factory.mktemp("run")
    rl = {"num_iterations": 1, "rollouts_per_iteration": 20, "num_test_iterations": 2}
    return play_here(write_config(folder, server, interaction_protocol="mnip", rl=rl))


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    started = time.process_time()
    files = export_run(run, tmp_path_factory.mktemp("logs"))
    return files, time.process_time() - started


def test_400_episodes_take_less_than_4_s(exported):
    files, took_s = exported
    assert len(files) == 1 and took_s < 4


def test_inspects_own_reader_has_the_runs_figures(run, exported):
    [info] = list_eval_logs(str(exported[0][0].parent))
    log = read_eval_log(info)
    metrics = Records(run).of(0).metrics(TEST).as_json()
    assert log.status == "success" and log.samples and len(log.samples) == 2 * EPISODES
    assert log.eval.task == "both-test-0000" == info.task
    assert log.eval.config.epochs == 2
    verdict, *agents = log.results.scores
    for name in RATES:
        assert verdict.metrics[name].value == metrics[name]
        assert verdict.metrics[name].metadata["ci95"] == metrics[f"{name}_ci95"]
    for score in agents:
        of_agent = metrics["agents"][score.name]
        assert score.metrics["mean_reward"].value == of_agent["mean_reward"]
        assert log.stats.role_usage[score.name].input_tokens == of_agent["prompt_tokens"]
        assert log.stats.role_usage[score.name].output_tokens == of_agent["completion_tokens"]
    assert {s.name for s in agents} == {*metrics["agents"]} == {*log.eval.model_roles}
    # Inspect's own metric of the samples' scores says the same.
    scores = [SampleScore(score=s.scores["verdict"], sample_id=s.id) for s in log.samples]
    assert accuracy()(scores) == metrics["accuracy"]


def test_every_reward_and_verdict_is_there(run, exported):
    log = read_eval_log(str(exported[0][0]))
    rows = {
        row["key"]: row
        for row in read_rollouts(run.store, run.rollouts(0, TEST)).episodes.to_pylist()
    }
    for sample in log.samples:
        row = rows.pop(sample.uuid)
        assert (sample.id, sample.epoch) == (row["problem"], row["sample"] + 1)
        right = row["outcome"] != "failed" and row["decision"] == row["y"]
        assert sample.scores["verdict"].value == ("C" if right else "I")
        assert sample.scores["rewards"].value == {
            entry["agent"]: entry["reward"] for entry in row["rewards"]
        }
    assert not rows


def test_a_score_is_explained_by_the_deciding_answer_and_the_last_of_the_others(run, exported):
    log = read_eval_log(str(exported[0][0]))
    rows = read_rollouts(run.store, run.rollouts(0, TEST)).generations.to_pylist()
    for sample in log.samples:
        valid = [r for r in rows if r["episode"] == sample.uuid and r["invalid_reason"] is None]
        last = {r["agent"]: r for r in sorted(valid, key=lambda r: r["round"])}
        decided = last.pop("verifier")
        verdict, *said = sample.scores["verdict"].explanation.split("\n\n**")
        assert verdict == f"{sample.scores['verdict'].answer}"
        head, _, text = said[0].partition("\n\n")
        decision = sample.scores["verdict"].answer
        assert head == f"verifier** (round {decided['round']}, decides: {decision})"
        assert text == decided["text"]
        assert said[1:] == [
            f"{agent}** (round {row['round']}, last message)\n\n{row['text']}"
            for agent, row in last.items()
        ]


def test_the_transcript_has_every_call_with_its_chat(run, exported):
    log = read_eval_log(str(exported[0][0]), resolve_attachments=True)
    generations = read_rollouts(run.store, run.rollouts(0, TEST)).generations.to_pylist()
    texts = {row["key"]: row["text"] for row in generations}
    calls = [e for s in log.samples for e in s.events if e.event == "model"]
    assert {e.uuid: e.output.completion for e in calls} == texts
    for event in calls:
        assert event.input[0].role == "system" and event.input[-1].role == "user"
        assert event.role and event.config.max_tokens == 64
    [sample] = [s for s in log.samples if s.uuid == log.samples[0].uuid]
    channels = [e.name for e in sample.events if e.event == "span_begin" and e.type == "channel"]
    assert channels


def test_the_leaves_of_trees_are_samples_that_count_their_share(server, tmp_path):
    rl = {"num_iterations": 1, "rollouts_per_iteration": 4}
    short = {"max_message_rounds": 3, "min_message_rounds": 3}
    trees = {"trainer": "pure_text_malt", "nip_protocol": short}
    run = play_here(write_config(tmp_path, server, rl=rl, **trees), TRAIN)
    metrics = Records(run).of(0).metrics(TRAIN).as_json()
    [file] = export_run(run, tmp_path / "logs", [TRAIN])
    log = read_eval_log(str(file))
    assert len(log.samples) == metrics["episodes"] > 4
    assert log.results.scores[0].metrics["accuracy"].value == metrics["accuracy"]
    assert sum(s.metadata["weight"] for s in log.samples) == pytest.approx(4)
    assert len({(s.id, s.epoch) for s in log.samples}) == len(log.samples)
    for sample in log.samples:  # what it shares with other leaves is in its transcript, too
        asked = [e for e in sample.events if e.event == "model"]
        assert len(asked) >= sample.metadata["rounds"] == len(sample.messages) - 1
    [usage] = log.stats.model_usage.values()
    assert usage.input_tokens == metrics["prompt_tokens"]
    assert usage.output_tokens == metrics["completion_tokens"]


def test_the_lineage_is_in_the_header(run, exported):
    log = read_eval_log(str(exported[0][0]), header_only=True)
    lineage = log.eval.metadata
    assert lineage["run"] == "both" and lineage["iteration"] == 0 and lineage["split"] == TEST
    manifest = run.read_json(f"{run.rollouts(0, TEST)}/manifest.json")
    assert lineage["canonical_digest"] == manifest["extra"]["canonical_digest"]
    assert lineage["seed"] == 6198 and lineage["settings"]["interaction_protocol"] == "mnip"
    assert lineage["models"] == {"verifier": "deterministic", **lineage["models"]}


def test_again_gives_the_same_files(run, exported, tmp_path):
    again = export_run(run, tmp_path, [TEST], [0])
    assert [f.name for f in again] == [f.name for f in exported[0]]
    assert export_run(run, tmp_path) == again and len(list(tmp_path.iterdir())) == 1
    first, second = (read_eval_log_sample_summaries(str(f)) for f in (exported[0][0], again[0]))
    assert first == second


def test_the_command_and_inspects_dump(run, tmp_path):
    store = run.store.url.removeprefix("file://")
    command = [NIP, "export", "both", "--to", "inspect", str(tmp_path), "--run-store", store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    [file] = done.stdout.split()
    inspect = str(Path(sys.executable).parent / "inspect")
    dump = subprocess.run(
        [inspect, "log", "dump", "--header-only", file], capture_output=True, text=True, timeout=600
    )
    assert dump.returncode == 0 and yaml.safe_load(dump.stdout)["eval"]["task"] == "both-test-0000"


@pytest.mark.parametrize(
    ("splits", "iterations", "said"),
    [
        (["tests"], [], "--split 'tests': use one of test, train"),
        (["train"], [], "has no train episodes to export; it has test: iterations 0"),
        ([], [4], "no test episodes of iteration 4 to export; it has test: iterations 0"),
    ],
)
def test_what_is_not_there_is_one_error(run, tmp_path, splits, iterations, said):
    with pytest.raises(SettingsError) as caught:
        export_run(run, tmp_path / "none", splits, iterations)
    assert said in str(caught.value) and not (tmp_path / "none").exists()
