"""A training that was killed goes on as if it had never been, bit for bit."""

import json
import resource
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")

import torch
from tiny_model import make_model
from training_jobs import (
    DEADLINE_S,
    make_job,
    messages,
    progress,
    read_events,
    result,
    run_here,
    start_process,
    wait_for,
    weights,
)

from nip_base import disk
from nip_lm_server.training.main import STOPPED, main
from nip_lm_server.training.methods import checkpoints

# Dropout makes the random generators matter; 5 epochs of 4 steps.
SETTINGS = {"n_epochs": 5, "lora_dropout": 0.25, "checkpoint_steps": 1}
FILES = {"manifest.json", "state.json", "state.safetensors", "trained.safetensors",
         "trainer_state.json"}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def unbroken(base, tmp_path_factory):
    """A job trained in one go, and all of its checkpoints."""
    job_dir = make_job(base, tmp_path_factory.mktemp("jobs") / "job", **SETTINGS)
    kept, checkpoints.KEPT = checkpoints.KEPT, 100
    try:
        run_here(job_dir)
    finally:
        checkpoints.KEPT = kept
    return job_dir


def with_checkpoints(base, unbroken, directory, *steps, **changes):
    """A job that has the checkpoints of `steps` and nothing else of its past."""
    job_dir = make_job(base, directory, **{**SETTINGS, **changes})
    for step in steps:
        name = f"step-{step:08d}"
        shutil.copytree(unbroken / "checkpoints" / name, job_dir / "checkpoints" / name)
    return job_dir


def names(job_dir):
    return sorted(path.name for path in (job_dir / "checkpoints").iterdir())


@pytest.mark.parametrize("step", [1, 4, 10, 19])
def test_a_training_continued_from_any_step_gives_the_same_bytes(base, unbroken, tmp_path, step):
    job_dir = with_checkpoints(base, unbroken, tmp_path / "job", step)
    run_here(job_dir)
    assert f"continues from step {step}" in messages(job_dir)
    assert progress(job_dir)[0]["step"] == step + 1
    assert weights(job_dir) == weights(unbroken)
    for name in ("final_loss", "mean_loss", "tokens", "steps"):
        assert result(job_dir)[name] == result(unbroken)[name], name
    metrics = (job_dir / "metrics.jsonl").read_text()
    assert metrics == (unbroken / "metrics.jsonl").read_text()
    assert len(metrics.splitlines()) == result(job_dir)["steps"]  # those before the kill too
    assert progress(job_dir)[-1]["tokens"] == progress(unbroken)[-1]["tokens"]


@pytest.mark.kill_matrix
def test_killed_and_stopped_processes_lose_nothing_that_was_saved(base, unbroken, tmp_path):
    job_dir = make_job(base, tmp_path / "job", **SETTINGS)

    def at_least(step):
        return lambda: any(
            (path / "manifest.json").exists() and int(path.name[5:]) >= step
            for path in (job_dir / "checkpoints").glob("step-*")
        )

    killed = start_process(job_dir)
    try:
        wait_for(at_least(3), "no checkpoint was written")
        killed.send_signal(signal.SIGKILL)
        killed.wait(DEADLINE_S)
        reached = int(names(job_dir)[-1][5:])
        stopped = start_process(job_dir)
        wait_for(at_least(reached + 2), "the training did not go on")
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(DEADLINE_S) == STOPPED
    finally:
        killed.kill()
        stopped.kill()
    assert f"continues from step {reached}" in messages(job_dir)
    last = int(names(job_dir)[-1][5:])
    assert messages(job_dir)[-1] == f"stopped after step {last}; a checkpoint was written"
    assert not (job_dir / "out" / "training_result.json").exists()
    run_here(job_dir)
    assert f"continues from step {last}" in messages(job_dir)
    assert weights(job_dir) == weights(unbroken)


def test_a_checkpoint_has_a_manifest_of_everything_and_no_pickle(unbroken):
    assert len(names(unbroken)) == 19  # the last step writes the result itself
    for path in (unbroken / "checkpoints").iterdir():
        assert {file.name for file in path.iterdir()} == FILES
        assert set(json.loads((path / "manifest.json").read_text())["files"]) == FILES - {
            "manifest.json"
        }
        assert disk.find_damage(path) is None


def test_the_last_two_are_kept(base, unbroken, tmp_path):
    job_dir = with_checkpoints(base, unbroken, tmp_path / "job", 1, 2)
    run_here(job_dir)
    assert names(job_dir) == ["step-00000018", "step-00000019"]


@pytest.mark.parametrize("file", sorted(FILES))
def test_a_damaged_checkpoint_counts_for_nothing(unbroken, tmp_path, file):
    path = tmp_path / "step-00000005"
    shutil.copytree(unbroken / "checkpoints" / path.name, path)
    data = bytearray((path / file).read_bytes())
    data[len(data) // 2] ^= 1
    (path / file).write_bytes(data)
    assert disk.find_damage(path) is not None
    (path / file).unlink()
    assert disk.find_damage(path) is not None


def test_with_the_newest_damaged_the_one_before_is_used(base, unbroken, tmp_path):
    job_dir = with_checkpoints(base, unbroken, tmp_path / "job", 6, 7)
    file = job_dir / "checkpoints" / "step-00000007" / "trained.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    # A write that was cut short, as a kill leaves it behind.
    shutil.copytree(file.parent, file.parent.parent / ".step-00000008.part")
    run_here(job_dir)
    warnings = [e["message"] for e in read_events(job_dir) if e.get("level") == "warn"]
    assert len(warnings) == 1
    assert "step-00000007 is damaged" in warnings[0]
    assert "continues from step 6" in messages(job_dir)
    assert weights(job_dir) == weights(unbroken)
    assert names(job_dir) == ["step-00000018", "step-00000019"]


def test_a_full_disk_fails_the_job_and_leaves_the_old_checkpoints(base, unbroken, tmp_path):
    job_dir = with_checkpoints(base, unbroken, tmp_path / "job", 6)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = (job_dir / "checkpoints" / "step-00000006" / "state.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1000, limits[1]))
    try:
        assert main(["--job-dir", str(job_dir)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = read_events(job_dir)[-1]
    assert (error["type"], error["code"]) == ("error", "disk_full"), error
    assert names(job_dir) == ["step-00000006"]
    run_here(job_dir)
    assert weights(job_dir) == weights(unbroken)


def test_checkpoints_of_another_job_are_refused(base, unbroken, tmp_path):
    job_dir = with_checkpoints(base, unbroken, tmp_path / "job", 6, lora_target_modules=["q_proj"])
    assert main(["--job-dir", str(job_dir)]) == 1
    assert read_events(job_dir)[-1]["code"] == "checkpoint_differs"


def test_by_default_a_tenth_of_the_steps_but_not_within_30_s():
    now = [0.0]
    callback = checkpoints.CheckpointCallback(None, clock=lambda: now[0])
    saved = []
    for step in range(1, 101):
        now[0] += 1.5
        control = SimpleNamespace(should_save=False, should_training_stop=False)
        state = SimpleNamespace(global_step=step, max_steps=100)
        callback.on_step_end(None, state, control)
        if control.should_save:
            saved.append(step)
            callback.on_save(None, state, control)
    assert saved == [20, 40, 60, 80]  # every 10 steps is 15 s; the last step writes the result


def test_checkpoints_that_take_long_are_20_times_as_far_apart():
    now, saved = [0.0], []
    callback = checkpoints.CheckpointCallback(None, clock=lambda: now[0])
    for step in range(1, 1000):
        now[0] += 1.0
        control = SimpleNamespace(should_save=False, should_training_stop=False)
        callback.on_step_end(None, SimpleNamespace(global_step=step, max_steps=1000), control)
        if control.should_save:
            saved.append(step)
            now[0] += 10.0  # it is written
            callback.on_save(None, None, control)
    assert saved == [100, 300, 500, 700, 900]


def test_a_state_comes_back_as_it_was(tmp_path):
    state = {
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "m": torch.ones(2, 3)}, 7: {}},
                      "groups": [{"betas": (0.9, 0.999), "lr": 1e-5, "fused": None}]},
        "shared": [torch.zeros(2)] * 2,
        "bfloat16": torch.full((2,), 0.1, dtype=torch.bfloat16),
    }  # fmt: skip
    fields = SimpleNamespace(save_to_json=lambda path: Path(path).write_text("{}"))
    checkpoints.write_checkpoint(tmp_path / "step-00000001", {"w": torch.ones(1)}, state, fields)
    back = checkpoints.read_checkpoint(tmp_path / "step-00000001")
    assert back["optimizer"]["groups"] == state["optimizer"]["groups"]
    assert list(back["optimizer"]["state"]) == [0, 7]
    assert torch.equal(back["optimizer"]["state"][0]["m"], torch.ones(2, 3))
    assert torch.equal(back["bfloat16"], state["bfloat16"])


def test_a_state_with_an_object_in_it_is_refused(tmp_path):
    fields = SimpleNamespace(save_to_json=lambda path: Path(path).write_text("{}"))
    with pytest.raises(TypeError, match="can't hold /a of type PosixPath"):
        checkpoints.write_checkpoint(tmp_path / "step-00000001", {}, {"a": Path("b")}, fields)
    assert list(tmp_path.iterdir()) == []
