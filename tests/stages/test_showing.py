"""A run is shown whatever version wrote it; what is damaged is named, and nothing is written."""

import json
from pathlib import Path

import pytest
from job_documents import job_document

from nip_core.errors import CorruptionError
from nip_core.parameters import load_parameters
from nip_core.records.status import find_newest_run
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import prepare
from nip_core.showing.finished import find_finished_run
from nip_core.showing.summary import summarise_run

JOB = job_document(outcome="skipped", status="validating_files", reason="3 examples")


def make_run(folder: Path, name: str = "a", **settings) -> RunStore:
    run = RunStore(open_store(folder), name)
    parameters = load_parameters({"run_name": name, "dataset": "families"}).to_dict()
    run.create_or_open(Identity({**parameters, **settings}, "1", 1))
    run.store.put(run.job(0, "verifier"), json.dumps(JOB).encode())
    return run


def reread(folder: Path, name: str = "a") -> RunStore:
    return RunStore(open_store(folder, read_only=True), name)


def test_a_run_with_nothing_to_play_is_not_finished_before_it_begins(tmp_path):
    parameters = load_parameters(
        "deterministic",
        [f"run_store={tmp_path}", "rl.num_iterations=0", "text_rl.test_scheme=none"],
    )
    assert find_finished_run(prepare(parameters)) is None


def test_a_skipped_job_is_shown_with_its_reason(tmp_path):
    make_run(tmp_path)
    assert summarise_run(reread(tmp_path))["iterations"][0]["jobs"] == {
        "verifier": {"id": None, "status": "skipped", "reason": "3 examples"}
    }


def test_a_run_of_a_version_with_other_settings_is_shown(tmp_path):
    make_run(
        tmp_path,
        agents={"verifier": {"model_name": "m", "charm": 3}, "judge": {}},
        rl={"num_iterations": 1, "momentum": "high"},
        text_rl={},
        scenario="chess",
        dataset=None,
    )
    shown = summarise_run(reread(tmp_path))
    assert shown["status"] == "stopped"
    assert shown["iterations"][0]["models"] == {"verifier": "m", "judge": "gpt-4o-mini-2024-07-18"}


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("run.json", "{"),
        ("run.json", "[]"),
        ("run.json", "{}"),
        ("iterations/0000/jobs/verifier.json", "{"),
        ("iterations/0000/jobs/verifier.json", "null"),
        ("iterations/0000/jobs/verifier.json", '{"id": "x"}'),
        ("iterations/0000/models.json", '{"groups": {"verifier": 1}}'),
        ("lease.json", "\u0000"),
        ("lease.json", '{"state": "held", "owner": {"host": "h"}}'),
        ("lease.json", '{"state": "held", "owner": null}'),
    ],
)
def test_a_damaged_file_is_named(tmp_path, path, content):
    run = make_run(tmp_path)
    run.store.put("a/iterations/0001/metrics-test.json", b"{}")
    run.store.put(f"a/{path}", content.encode())
    with pytest.raises(CorruptionError, match=f"a/{path}"):
        summarise_run(reread(tmp_path))


def test_the_newest_run_that_can_be_read_is_chosen(tmp_path):
    make_run(tmp_path, "good")
    for name, content in (("bad", b"{"), ("future", b'{"format_version": 99}')):
        make_run(tmp_path, name).store.put(f"{name}/run.json", content)
    left_out: list[str] = []
    assert find_newest_run(open_store(tmp_path, read_only=True), left_out.append) == "good"
    assert [reason.partition(":")[0] for reason in left_out] == ["bad/run.json", "future/run.json"]
