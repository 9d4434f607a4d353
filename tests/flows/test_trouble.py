"""What goes wrong in the middle is a clean stop; running again continues, and the data are the same."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from small_disk import mounted as mounted
from small_disk import needs_mount
from small_game import FEW, train_here, write_config

from nip_base.disk import want_of_space
from nip_base.spec import ServerSpec
from nip_core.errors import JobError, LeaseError, StageError, StoreError
from nip_core.loop import play
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.prepare import prepare
from nip_lm_server.client import OwnerError, start_or_attach
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE

pytestmark = pytest.mark.usefixtures("server_in_thread")
NO_TESTS = {"test_scheme": "none"}


def replies(folder: Path, **changes) -> dict:
    """Settings for an own server whose replies file differs from the bundled one."""
    content = {**yaml.safe_load(DEFAULT_FILE.read_text()), **changes}
    path = folder / "replies.yaml"
    path.write_text(yaml.safe_dump(content))
    return {"engine": "deterministic", "replies": str(path)}


def run_in(folder: Path) -> RunStore:
    return RunStore(open_store(folder / "runs"), "small")


async def played_digest(config: Path) -> str:
    async with open_session(load_parameters(config)) as session:
        return (await play(session, 0, "train")).canonical_digest


async def test_a_troubled_transport_changes_nothing_in_the_data(tmp_path):
    calm, troubled = tmp_path / "calm", tmp_path / "troubled"
    calm.mkdir(), troubled.mkdir()
    faults = {"server_error": 0.1, "rate_limited": 0.1, "retry_after_s": 0.01, "dropped": 0.1}
    first = await played_digest(write_config(calm, rl=FEW))
    second = await played_digest(
        write_config(troubled, rl=FEW, lm_server=replies(troubled, faults=faults))
    )
    assert first == second


async def test_a_conversation_that_outgrows_the_context_stops_cleanly_and_can_go_on(tmp_path):
    # The first prompts fit; the longest conversations do not.
    config = write_config(
        tmp_path,
        rl=FEW,
        nip_protocol={"max_message_rounds": 9, "min_message_rounds": 9},
        lm_server=replies(tmp_path, max_model_len=620),
    )
    with pytest.raises(StageError, match=r"episodes failed.*rollouts\.failure_threshold") as caught:
        await played_digest(config)
    assert "context" in str(caught.value)
    parameters = load_parameters(config, ["rollouts.failure_threshold=1.0"])
    async with open_session(parameters) as session:
        await play(session, 0, "train")
        assert session.progress.calls_reused > 0
    run = run_in(tmp_path)
    episodes = read_rollouts(run.store, run.rollouts(0, "train")).episodes.to_pylist()
    failed = [e for e in episodes if e["outcome"] == "failed"]
    assert failed and all("context" in e["error"] for e in failed)


async def test_a_failed_job_stops_the_run_and_can_be_tried_again(tmp_path):
    config = write_config(
        tmp_path,
        rl=FEW,
        text_rl=NO_TESTS,
        lm_server=replies(tmp_path, training={"fail_rate": 0.5}),
    )
    stops = 0
    for attempt in range(20):
        try:
            result = await train_here(config, retry_failed_jobs=attempt > 0)
            break
        except JobError as error:
            assert "injected_failure" in str(error) and "--retry-failed-jobs" in str(error)
            stops += 1
    assert stops > 0, "with this seed the first attempts fail"
    assert {j["status"] for j in result["iterations"][0]["jobs"].values()} == {"succeeded"}
    run = run_in(tmp_path)
    records = [run.read_json(run.job(0, group)) for group in ("prover", "verifier")]
    assert sum(record["attempt"] for record in records) >= stops
    assert all(p["outcome"] == "failed" for record in records for p in record["previous"])


async def test_running_again_without_being_told_to_submits_no_second_job(tmp_path):
    config = write_config(
        tmp_path,
        rl=FEW,
        text_rl=NO_TESTS,
        lm_server=replies(tmp_path, training={"fail_rate": 1.0}),
    )
    for _ in range(2):
        with pytest.raises(JobError):
            await train_here(config)
    run = run_in(tmp_path)
    assert run.read_json(run.job(0, "verifier"))["attempt"] == 0


async def test_an_adapter_that_does_not_answer_is_never_swapped_in(tmp_path):
    config = write_config(
        tmp_path,
        rl=FEW,
        text_rl=NO_TESTS,
        lm_server=replies(tmp_path, training={"unproved_rate": 1.0}),
    )
    with pytest.raises(JobError, match="failed"):
        await train_here(config)
    run = run_in(tmp_path)
    assert not run.store.exists(run.models(0))


@pytest.mark.long
async def test_a_second_runner_is_refused_with_the_name_of_the_first(tmp_path):
    config = write_config(tmp_path)
    async with open_session(load_parameters(config)):
        other = subprocess.run(
            [
                sys.executable,
                "-m",
                "nip_cli.cli",
                "play",
                str(config),
                "--out",
                str(tmp_path / "o"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert other.returncode == 4, other.stderr
    assert str(os.getpid()) in other.stderr


async def test_the_lease_is_given_back(tmp_path):
    config = write_config(tmp_path)
    for _ in range(2):
        try:
            async with open_session(load_parameters(config)):
                pass
        except LeaseError:
            pytest.fail("the first session kept the lease")


@needs_mount
@pytest.mark.long
async def test_a_disk_that_fills_in_the_middle_can_be_resumed(tmp_path, mounted):
    straight, small = tmp_path / "straight", tmp_path / "small"
    straight.mkdir(), small.mkdir()
    first = await played_digest(write_config(straight, rl=FEW))
    config = write_config(small, rl=FEW)
    disk = small / "runs"
    mounted(disk, "256m")
    filler = disk / "filler"
    async with open_session(load_parameters(config)) as session:
        free = shutil.disk_usage(disk).free
        filler.write_bytes(bytes(free - 16_000))  # somebody else takes the space
        with pytest.raises(StoreError, match=r"disk full.*run again"):
            await play(session, 0, "train")
        filler.unlink()  # before the lease is given back
    async with open_session(load_parameters(config)) as session:
        again = await play(session, 0, "train")
        rows = read_manifest(session.run.store, session.run.rollouts(0, "train")).rows
    assert again.canonical_digest == first
    assert rows["episodes"] == 40


@needs_mount
def test_too_little_space_is_found_before_anything_is_started(tmp_path, mounted):
    config = write_config(tmp_path, rl={"num_iterations": 9, "rollouts_per_iteration": 200})
    mounted(tmp_path / "runs", "200k")
    with pytest.raises(StoreError, match="MB are free; free space or choose another run_store"):
        prepare(load_parameters(config))


@needs_mount
def test_a_disk_without_room_for_the_model_server_is_named_before_it_is_started(tmp_path, mounted):
    config = write_config(tmp_path, rl=FEW)
    mounted(tmp_path / "runs", "40m")
    begun = time.monotonic()
    with pytest.raises(StoreError) as caught:
        prepare(load_parameters(config))
    needed, free = map(float, re.findall(r"([0-9]+\.[0-9]) MB", str(caught.value)))
    assert (needed > 67.1, 41 < free < 42) == (True, True)
    assert str(tmp_path / "runs" / "small") in str(caught.value)
    assert "what the run writes and its model server's state" in str(caught.value)
    assert time.monotonic() - begun < 20


@needs_mount
@pytest.mark.parametrize(
    ("size", "read_only", "reason"),
    [("40m", False, "only 41.9 MB are free; free space there"), ("80m", True, "Read-only file")],
)
def test_a_server_is_not_waited_for_on_a_disk_that_it_can_not_use(
    tmp_path, mounted, size, read_only, reason
):
    mounted(tmp_path / "disk", size, read_only)
    begun = time.monotonic()
    with pytest.raises(OwnerError) as caught:
        start_or_attach(ServerSpec("deterministic", "sim"), tmp_path / "disk" / "s", timeout_s=15)
    assert time.monotonic() - begun < 10
    assert reason in (caught.value.reason or "")
    assert str(tmp_path / "disk" / "s") in (caught.value.reason or "")


def test_what_is_too_little_never_looks_like_enough(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    problem = want_of_space(tmp_path / "not" / "there", free + 2_000_000)
    needed, left = map(float, re.findall(r"([0-9]+\.[0-9]) MB", problem))
    assert needed > left
    assert want_of_space(tmp_path, 1) is None


@needs_mount
def test_a_store_that_may_not_be_written_is_named(tmp_path, mounted):
    mounted(tmp_path / "runs", "1m", read_only=True)
    with pytest.raises(StoreError, match=r"runs.*no permission"):
        prepare(load_parameters(write_config(tmp_path)))
