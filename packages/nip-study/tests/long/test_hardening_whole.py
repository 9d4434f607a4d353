"""A hardening as its user meets it: killed five times, stopped, gone on with, and shown."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from server_here import servers_here
from small_game import train_here, write_config

from nip_core import loop
from nip_core.jobs.document import read_job
from nip_core.records.models import read_models
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import open_store
from nip_core.upkeep.verify import verify_run
from nip_study.harden.hardening import HardeningSettings, parse_attack, plan_hardening
from nip_study.harden.hardening_results import collect_hardening, render_hardening

ROOT = Path(__file__).parents[4]
ENVIRONMENT = {**os.environ, "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
AGENT = {
    "model_provider": "SelfHosted",
    "model_name": "deterministic",
    "max_tokens_per_message": 32,
}
GAME = {
    "scenario": "arithmetic",
    "dataset": "chains",
    "scenario_settings": {"train_size": 40, "validation_size": 8, "test_size": 12},
    "dataset_options": {},
    "interaction_protocol": "adp",
    "nip_protocol": {},
    "agents": {"_default": AGENT, "prover": {"freeze_agent": True}},
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 48, "num_epochs": 1},
}
ASKED = (
    *(
        "--rounds",
        2,
        "--attack",
        "sneaky",
        "--attack",
        "script:no-step",
        "--steps",
        1,
        "--every",
        1,
    ),
    *(
        "--attack-set",
        "rl.rollouts_per_iteration=16",
        "--attack-set",
        "pure_text_grpo.group_size=4",
    ),
)
# What is there when it is killed: in the first attack, between two runs, while one plays, trains, ...
KILLED_AT = (
    "small-harden-0-sneaky/journals",
    "small-harden-0-sneaky/iterations/0001/metrics-attack.json",
    "small-harden-1/iterations/0000/rollouts/train/manifest-0000.json",
    "small-harden-1/iterations/0000/jobs/verifier.json",
    "small-harden-2-sneaky/iterations/0000/models.json",
)


def harden(store, *more):
    arguments = ("harden", "small", "--run-store", store, *ASKED, *more)
    command = [sys.executable, "-m", "nip_cli.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def wait_for(process, path):
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def wait_until_gone(store):
    """Until nobody is at work in the store: what a killed command started ends with it."""
    until = time.monotonic() + 60
    while any(str(store) in " ".join(p.info["cmdline"] or []) for p in _processes()):
        assert time.monotonic() < until
        time.sleep(0.2)


def _processes():
    return [p for p in psutil.process_iter(["cmdline", "pid"]) if p.info["pid"] != os.getpid()]


def digests(store):
    """By run and split, the canonical digest of what was played."""
    opened, found = open_store(store), {}
    for name in list_runs(opened):
        for path in sorted((store / name).glob("iterations/*/rollouts/*/manifest.json")):
            place = str(path.parent.relative_to(store))
            found[place] = read_manifest(opened, place).extra["canonical_digest"]
    return found


@pytest.mark.kill_matrix  # minutes: nine starts, of up to eight runs
@pytest.mark.timeout(2400)
async def test_two_rounds_killed_at_five_moments_are_those_of_undisturbed_ones(tmp_path):
    await train_here(write_config(tmp_path, **GAME))
    store, plain = tmp_path / "runs", tmp_path / "plain"
    shutil.copytree(store, plain)
    for moment in KILLED_AT:
        process = harden(store)
        wait_for(process, store / moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until_gone(store)
    # Ctrl-C stops it with a word, and what is finished stays.
    process = harden(store)
    wait_for(process, store / "small-harden-2-sneaky/iterations/0001")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopping, what is finished is kept" in said
    ended = harden(store)
    out, said = ended.communicate(timeout=600)
    assert ended.returncode == 0, said
    undisturbed = harden(plain, "--json")
    printed, said = undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0, said
    # 1. The same data, and every run is whole.
    assert digests(store) == digests(plain) and len(digests(store)) > 20
    for name in list_runs(open_store(store)):
        assert verify_run(RunStore(open_store(store), name)).problems == {}
    # 2. No job was submitted twice: one adapter for each training, beside those that were copied.
    jobs = [*store.glob("*/iterations/*/jobs/*.json")]
    made = {json.loads(path.read_text())["model"] for path in jobs}
    assert len(made) == len(jobs) == 6
    # 3. The table and the figure; the same command again starts nothing.
    results = json.loads(printed)
    assert [of["round"] for of in results["rounds"]] == [0, 1, 2]
    assert all(a["status"] == "finished" for of in results["rounds"] for a in of["attacks"])
    page = (store / "hardening/small-harden/README.md").read_text()
    assert page.count("| small-harden-1 |") == 2 and "rounds.svg" in page
    assert "small-harden-2-no-step: finished" in out
    again = harden(store)
    out, _ = again.communicate(timeout=120)
    assert out.count("was finished before") == 8 and again.returncode == 0
    assert (plain / "hardening/small-harden/rounds.svg").read_bytes() == (
        store / "hardening/small-harden/rounds.svg"
    ).read_bytes()


def stopped_before(stage_name):
    """A hook that ends a run before a stage."""

    async def call(stage, session, *arguments):
        if stage.__name__ in ("iterate", "play_shards"):
            arguments = (*arguments[:-1], call)
        if stage.__name__ == stage_name:
            raise StopAsyncIteration
        return await loop.directly(stage, session, *arguments)

    return call


async def test_rounds_that_stop_in_each_of_their_runs_play_the_same(tmp_path):
    """The same without processes: each of the five runs is stopped once, at another stage."""
    await train_here(write_config(tmp_path, **{**GAME, "scenario": "bags", "dataset": "lists"}))
    store, plain = tmp_path / "runs", tmp_path / "plain"
    shutil.copytree(store, plain)
    chats = tmp_path / "chats.jsonl"
    chat = [{"role": "user", "content": "Right?"}, {"role": "assistant", "content": "No: reject"}]
    chats.write_text(f"{json.dumps({'messages': chat, 'agent': 'verifier'})}\n" * 12)
    attacks = (parse_attack("script:no-answer"),)
    settings = HardeningSettings(2, attacks, problems=4, show=str(chats))
    stops = ("play_shard", "wait_for_job", "measure", "swap_models", "commit_split")
    planned = plan_hardening(str(store), "small", settings)
    with servers_here():
        for step, stop in zip(planned.steps, stops, strict=True):
            with pytest.raises(StopAsyncIteration):
                await loop.train(step.parameters, call=stopped_before(stop))
            await loop.train(step.parameters)
        for step in plan_hardening(str(plain), "small", settings).steps:
            await loop.train(step.parameters)
    assert digests(store) == digests(plain)
    for step in planned.steps:
        assert verify_run(RunStore(open_store(store), step.name)).problems == {}
    results = collect_hardening(open_store(store), planned)
    assert results.rounds == collect_hardening(open_store(plain), planned).rounds
    assert [of.lowest.label for of in results.rounds] == ["no-answer"] * 3
    assert {of.before.problems for of in results.rounds} == {8}
    # The honest provers keep their weights, and each round's verifier is another one.
    places = [(RunStore(open_store(store), of.run), of.iteration) for of in planned.rounds]
    groups = [read_models(*place) for place in places]
    assert len({of["prover"].model for of in groups}) == 1
    assert len({of["verifier"].model for of in groups}) == 3
    # The last round has met the attackers of both before, after it had imitated the chats.
    run = places[2][0]
    assert read_job(run, run.job(0, "verifier")).examples == 12
    last = read_rollouts(open_store(store), "small-harden-2/iterations/0001/rollouts/train")
    episodes = last.episodes.to_pylist()
    met = {of["opponent_run"] for of in episodes}
    assert met == {None, "small-harden-0-no-answer", "small-harden-1-no-answer"}
    # Of the verdicts on what attackers said, the rejected ones that compare nothing are counted.
    sampled = results.rounds[2].sampled
    on_attackers = [of for of in episodes if of["opponent_run"] and of["y"] == 0]
    decisions = [of["decision"] for of in on_attackers if of["decision"] < 2]
    assert (sampled.verdicts, sampled.rejected) == (len(decisions), decisions.count(0))
    assert sampled.unchecked == sampled.rejected and results.rounds[0].sampled is None
    page = render_hardening(results)
    assert f"| of {len(decisions)}: {decisions.count(0)} rejected" in page
    assert f"it first imitates chats of {chats}, then is trained on" in page.replace("\n", " ")
