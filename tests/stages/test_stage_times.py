"""Seconds of stages over all processes that have worked on an iteration; by a simulated clock."""

import asyncio
from collections import Counter

import pytest
from server_here import servers_here
from small_game import FEW, write_config
from ticking import Ticking

from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.progress.board import Stage
from nip_core.progress.outlook import observe_run
from nip_core.records.stage_seconds import read_seconds_so_far
from nip_core.session.opening import open_session
from nip_core.stages import agenda, choosing, playing, stage_times
from nip_core.stages.stage_times import StageTimes
from nip_core.upkeep.verify import verify_run


class Stopped(Exception):
    pass


@pytest.mark.long
async def test_a_stage_took_what_all_processes_took_for_it_and_nothing_counts_twice(tmp_path):
    parameters = load_parameters(str(write_config(tmp_path, rl=FEW)))
    time, stops = Ticking(), True

    async def call(stage, *arguments):
        if stage is playing.commit_split:
            time.passes(30 if stops else 0)
        if stage is choosing.build_dataset:
            time.passes(7 if stops else 3)
            if stops:
                raise Stopped
        return await loop.directly(stage, *arguments)

    with servers_here():
        for _ in range(2):
            with pytest.raises(Stopped):
                async with open_session(parameters, progress=time.progress()) as session:
                    await loop.go_on(session, call)
        so_far = read_seconds_so_far(session.run, 0)
        assert verify_run(session.run).unknown == []
        assert so_far == {"prove": 0.0, "test": 60.0, "play": 60.0, "dataset": 28.0}  # two groups
        stops = False
        async with open_session(parameters, progress=time.progress()) as session:
            # What is over is known at once, and with it the share of the whole.
            agenda.expect(session)
            assert session.progress.took_s == {Stage(0, "test"): 60.0, Stage(0, "play"): 60.0}
            await loop.go_on(session, call)
            whole = observe_run(session.progress, parameters).whole
            assert whole is not None and whole.share == 1.0
    times = session.run.read_json("small/iterations/0000/times.json")
    spent = Counter()
    for phase, spent_s in times.items():  # on a busy machine a slow answer has a part of play
        spent[phase.partition("/")[0]] += spent_s
    assert +spent == pytest.approx({"test": 60.0, "play": 60.0, "dataset": 34.0})
    assert read_seconds_so_far(session.run, 0) == {}


async def test_a_kill_loses_no_more_than_what_is_not_yet_on_record(tmp_path, monkeypatch):
    monkeypatch.setattr(stage_times, "EVERY_S", 0.05)
    monkeypatch.setattr(stage_times, "_WORTH_IT_S", 0.01)
    parameters = load_parameters(str(write_config(tmp_path, rl=FEW)))
    with servers_here():
        async with open_session(parameters) as session:
            times = StageTimes(session, 0)
            async with times.during("play"):
                while (
                    read_seconds_so_far(session.run, 0).get("play", 0.0) < 0.2
                ):  # as a kill leaves it
                    await asyncio.sleep(0.01)
            again = StageTimes(session, 0)
            before = again.seconds["play"]
            path = tmp_path / "runs/small/iterations/0000/times-so-far.json"
            path.write_text(path.read_text()[:-3])
            assert read_seconds_so_far(session.run, 0) == {}  # damage stops no run
            async with again.during("play"):
                await asyncio.sleep(0.1)
            assert 0.2 + 0.1 <= before + 0.1 <= again.seconds["play"]


async def test_the_last_test_goes_on_as_an_iteration_and_a_run_that_is_over_keeps_its_times(
    tmp_path,
):
    config = str(write_config(tmp_path, rl=FEW))
    name = "small/iterations/0001/times{}.json"

    async def go_on(iterations, seconds):
        time = Ticking()

        async def call(stage, *arguments):
            time.passes(seconds if stage is playing.commit_split else 0)
            return await loop.directly(stage, *arguments)

        parameters = load_parameters(config, [f"rl.num_iterations={iterations}"])
        async with open_session(parameters, progress=time.progress()) as session:
            await loop.go_on(session, call)
        return session.run

    with servers_here():
        run = await go_on(1, 30)
        # 1. The last iteration is nothing but a test, and may be more later.
        assert run.read_json_or_none(name.format("")) is None
        so_far = run.read_json(name.format("-so-far"))
        assert so_far["test"] + so_far["test/slow"] == 30.0
        # 2. Looked at again, the run has nothing to do, and takes none of the time.
        await go_on(1, 500)
        assert run.read_json(name.format("-so-far")) == so_far
        # 3. What follows adds to it.
        run = await go_on(2, 7)
    times = run.read_json(name.format(""))
    assert times["test"] + times["test/slow"] == 37.0  # it was looked at once more
    assert times["play"] + times["play/slow"] == 7.0
    assert run.read_json_or_none(name.format("-so-far")) is None
    assert verify_run(run).problems == {}
