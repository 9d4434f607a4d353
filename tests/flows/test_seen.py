"""What a person, a program and Prefect's page see of real runs on the deterministic engine."""

import asyncio
import json
import os
import re

import pytest
from prefect import flow
from prefect.artifacts import Artifact
from server_here import servers_here
from slow_game import slow_config
from small_game import FEW, write_config
from terminal import Terminal

from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import TRAIN
from nip_core.rollouts.storage.journal_segments import open_journal
from nip_core.session.opening import open_session
from nip_core.stages import agenda
from nip_core.stages.playing import plan_split, play_shards
from nip_core.stages.remote_shards import count_while
from nip_prefect.tasks.progress import show_progress

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def seen(prefect_server, tmp_path_factory):
    """A whole training in a terminal of 80 columns: everything that it wrote."""
    folder = tmp_path_factory.mktemp("seen")
    sizes = {"concurrency": 10, "episodes_per_shard": 20}
    config = slow_config(folder / "run", "small", training_s=1.5, rollouts=sizes)
    environment = {**os.environ, "PREFECT_API_URL": prefect_server, "DO_NOT_TRACK": "1"}
    with Terminal(["train", str(config)], {**environment, "COLUMNS": "80"}) as terminal:
        assert terminal.wait(180) == 0
        return terminal.text


def test_a_terminal_shows_what_starts_what_goes_on_and_what_came_of_it(seen):
    text = " ".join(CODES.sub("", seen).split())  # long lines are broken between words
    assert text.count("run small: plays") == 1 and "rollouts" not in text
    for shown in (
        "starting the model server (deterministic)",
        "ready after",
        "run small: plays 1 iteration of 40 episodes, trains prover and verifier; 2 tests of 20",
        "iteration 0/1: testing",
        "iteration 0/1: training",
        "stage 1 of 6, time left not yet known",
        "run small: finished, accuracy",
    ):
        assert shown in text, shown
    assert re.search(r"\d+/20, about \d+ s left", text)
    assert re.search(r"step \d+/\d+", text)
    assert re.search(r"ftjob-\w+", text)
    assert re.search(r"whole run +\S+ +\d+ %, about \d+ s left", text)
    assert re.search(r"accuracy [\d.]+ % \[[\d., ]+\] \(n=20\), before [\d.]+ %", text)


def test_the_terminal_is_left_as_it_was(seen):
    assert seen.rfind("\x1b[?25h") > seen.rfind("\x1b[?25l")  # the cursor is shown again
    after = seen[seen.rfind("\x1b[?25h") :]
    paths = ("report: ", "every episode, in a browser: ")  # which are not broken
    lines = [line for line in CODES.sub("", after).splitlines() if not line.startswith(paths)]
    assert max(map(len, lines)) <= 80, lines


def test_a_program_reads_what_happens_from_json_lines(nip, tmp_path):
    config = write_config(tmp_path, rl=FEW)
    command = [*("play", str(config), "--split", "test", "--out", str(tmp_path / "out"))]
    done = nip(*command, "--progress", "json")
    assert done.returncode == 0, done.stderr
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [document["event"] for document in documents]
    assert kinds[0] == "begin" and kinds[-1] == "result"
    assert {"ready", "play", "progress"} <= set(kinds)
    assert documents[-1]["result"]["rows"]["episodes"] == 20
    lines = nip(*command, "--json")
    assert lines.returncode == 0, lines.stderr
    assert json.loads(lines.stdout)["rows"]["episodes"] == 20
    assert "iteration 0: playing test problems, 20 episodes, 20 of them are there already" in (
        lines.stderr
    )


@pytest.mark.long
async def test_prefects_artifact_moves_while_the_run_goes_on(prefect_server, tmp_path):
    parameters = load_parameters(str(write_config(tmp_path, rl=FEW, run_name="moving")))
    shares: list[float] = []

    @flow(name="moving")
    async def moving():
        with servers_here():
            async with open_session(parameters) as session, show_progress(session, 0.05):

                async def watched(stage, *arguments):
                    await asyncio.sleep(0.1)
                    if (artifact := await Artifact.aget("nip-moving-progress")) is not None:
                        shares.append(artifact.data)
                    return await loop.directly(stage, *arguments)

                await loop.go_on(session, watched)

    await moving()
    last = await Artifact.aget("nip-moving-progress")
    assert last.data == 100.0 and last.description == "whole run 100 %, all stages are over"
    assert shares == sorted(shares) and len(set(shares)) > 2 and shares[0] == 0


@pytest.mark.long
async def test_a_run_that_goes_on_says_what_is_there(tmp_path):
    config = write_config(tmp_path, rl=FEW)
    with servers_here():
        async with open_session(load_parameters(str(config))) as session:
            await loop.play_and_measure(session, 0, "test")
            [first, *_] = plan_split(session, 0, TRAIN)
            await play_shards(session, 0, TRAIN, [first], loop.directly)
            assert agenda.describe_resumption(session) == (
                "of iteration 0 its test is held, 20 training episodes are played"
            )
            second = open_journal(session.run.store, session.run.journal(0, TRAIN, "0001"), 1)
            await second.append({"generation": {"key": "a"}, "timing": {}})
            await second.aclose()
            assert agenda.describe_resumption(session).endswith(
                "episodes are played, 1 answers are in journals and not asked for again"
            )
            second.remove()
        await loop.train(load_parameters(str(config)))
        async with open_session(load_parameters(str(config), ["rl.num_iterations=3"])) as session:
            assert agenda.describe_resumption(session).startswith(
                "1 of 3 iterations are finished; of iteration 1 its test is held"
            )
            agenda.expect(session)
            assert {"test", "play", "train", "swap"} <= set(session.progress.paces)


async def test_episodes_that_other_processes_play_are_counted_by_what_they_commit(tmp_path):
    with servers_here():
        async with open_session(load_parameters(str(write_config(tmp_path, rl=FEW)))) as session:
            left = plan_split(session, 0, TRAIN)

            async def elsewhere() -> int:
                await play_shards(session, 0, TRAIN, left[:1], loop.directly)
                session.progress.episodes_done = 0  # as in a process that plays nothing itself
                await asyncio.sleep(0.2)
                return session.progress.episodes_done

            assert await count_while(session, 0, TRAIN, elsewhere, every_s=0.02) == 20
