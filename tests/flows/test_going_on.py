"""A run that was stopped says how far it is, and the command that goes on with it."""

import json
import shlex

from small_game import FEW, train_here, write_config
from typer.testing import CliRunner

from nip_cli.cli import app
from nip_cli.launching.going_on import command_for
from nip_core.loop import play
from nip_core.parameters import load_parameters
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session


def shown(*arguments):
    result = CliRunner().invoke(app, ["show", *arguments])
    assert result.exception is None, result.output
    return result.stdout


async def test_show_says_what_was_going_on_and_its_command_finishes_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, run_store="runs", rl=FEW)
    changes = ["run_name=stopped", "rl.lr=0.002", "rollouts.episodes_per_shard=40"]
    parameters = load_parameters("config.yaml", changes)
    async with open_session(parameters) as session:
        await play(session, 0, "test")
        await play(session, 0, "train")
        manifest = session.run.store.local_path(f"{session.run.rollouts(0, 'train')}/manifest.json")
    manifest.unlink()  # as a kill leaves it that comes before the shards are joined
    stopped = json.loads(shown("stopped", "--json"))["stopped"]
    assert (stopped["finished"], stopped["iterations"]) == (0, 1)
    assert stopped["doing"].startswith("40 of 40 train episodes are in finished shards")
    lines = shown("stopped").splitlines()
    assert lines[1].startswith("0 of 1 iterations finished; in iteration 0: 40 of 40 train")
    assert lines[2] == f"go on where it stopped: {stopped['go_on']}"
    nip, train, config, *settings = shlex.split(stopped["go_on"])
    assert (nip, train, config, settings[::2]) == ("nip", "train", "config.yaml", ["--set"] * 3)
    assert sorted(settings[1::2]) == sorted(changes)
    await train_here(config, settings[1::2])
    assert "stopped: finished" in shown("stopped") and "go on" not in shown("stopped")


def test_a_run_unlike_all_configurations_has_no_command(tmp_path):
    config = write_config(tmp_path)
    parameters = load_parameters(config)
    run = RunStore(open_store(tmp_path / "runs"), "small")
    run.create_or_open(Identity(parameters.to_dict(), "1", parameters.seed))
    assert command_for(run.open(), str(tmp_path / "runs"), tmp_path) == "nip train config.yaml"
    config.unlink()
    assert command_for(run.open(), str(tmp_path / "runs"), tmp_path) is None
