"""A run name means one configuration; what may change is recorded; a fork copies what is done."""

import json
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nip_core.errors import CorruptionError, RunConflictError, SettingsError, StoreError
from nip_core.run_store.lease import acquire
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.manifest import commit, read_committed_file, verify
from nip_core.run_store.run import Identity, RunStore, check_run_name, list_runs
from nip_core.run_store.store import MissingFileError, Store

NEUTRAL = {"rl.num_iterations", "rollouts"}
PARAMETERS: dict[str, Any] = {
    "rl": {"num_iterations": 3, "lr": 1e-4},
    "rollouts": {"concurrency": 64, "request_timeout_s": 5.0},
    "agents": {"prover": {"model_name": "tiny"}},
}
SAME = Identity(PARAMETERS, "0.1.0", 7)
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def open_run(store: Store, parameters: dict[str, Any], **more: Any) -> Any:
    now = more.pop("now", NOW)
    options: dict[str, Any] = {"code_version": "0.1.0", "seed": 7, "data_neutral": NEUTRAL}
    return RunStore(store, "quick").create_or_open(
        Identity(parameters, **(options | more)), now=now
    )


def changed(**values: Any) -> dict[str, Any]:
    parameters = json.loads(json.dumps(PARAMETERS))
    for key, value in values.items():
        group, _, name = key.partition("__")
        parameters[group][name] = value
    return dict(parameters)


@pytest.mark.parametrize("name", ["a", "quick-start", "0", "a" * 41])
def test_names_that_artifacts_and_suffixes_can_carry(name: str) -> None:
    assert check_run_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a b", "a" * 42, "ä", "a/b", "a\n", ".."])
def test_names_that_they_can_not_carry_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(SettingsError, match="lower-case letters, digits and dashes"):
        RunStore(LocalStore, name)  # type: ignore[arg-type]


def test_a_run_is_created_once_and_opened_afterwards(store: Store) -> None:
    first = open_run(store, PARAMETERS)
    later = open_run(store, PARAMETERS, now=NOW + timedelta(days=1))
    assert (first.created, later.created) == (True, False)
    assert later.created_at == first.created_at == "2026-11-21T12:00:00.000+00:00"
    assert later.parameters == PARAMETERS
    document = json.loads(store.get("quick/run.json"))
    assert document["parameters"] == PARAMETERS
    assert (document["seed"], document["code_version"]) == (7, "0.1.0")
    assert store.list("quick/openings") == []


@pytest.mark.parametrize(
    ("parameters", "more", "shown"),
    [
        (changed(rl__lr=2e-4), {}, "rl.lr: 0.0001 -> 0.0002"),
        (changed(rl__new=1), {}, "rl.new: (absent) -> 1"),
        (changed(agents__prover={}), {}, 'agents.prover.model_name: "tiny" -> (absent)'),
        (PARAMETERS, {"seed": 8}, "seed (of the run): 7 -> 8"),
    ],
)
def test_settings_that_change_the_data_are_refused_with_the_difference(
    store: Store, parameters: dict[str, Any], more: dict[str, Any], shown: str
) -> None:
    open_run(store, PARAMETERS)
    with pytest.raises(RunConflictError, match=re.escape(shown)) as caught:
        open_run(store, parameters, **more)
    assert "--fork" in str(caught.value)


def test_another_seed_is_one_difference(store: Store) -> None:
    open_run(store, {**PARAMETERS, "seed": 7})
    with pytest.raises(RunConflictError, match=r"given\): seed: 7 -> 8; use these settings"):
        open_run(store, {**PARAMETERS, "seed": 8}, seed=8)


def test_of_many_differences_the_first_are_shown_and_where_all_are(store: Store) -> None:
    open_run(store, PARAMETERS)
    many = {**PARAMETERS, "templates": {f"t{i}": "word " * 400 for i in range(40)}}
    with pytest.raises(RunConflictError, match=r"templates\.t0: ") as caught:
        open_run(store, many)
    message = str(caught.value)
    assert "; and 35 more: " in message and "quick/run.json" in message and "--dry-run" in message
    assert len(message) < 1200 and "--fork" in message


def test_settings_that_do_not_are_allowed_and_recorded(store: Store) -> None:
    open_run(store, PARAMETERS)
    more = changed(rl__num_iterations=5, rollouts__concurrency=8)
    record = open_run(store, more, code_version="0.2.0")
    assert record.changed == {"rl.num_iterations": (3, 5), "rollouts.concurrency": (64, 8)}
    now = RunStore(store, "quick").open()
    assert (now.parameters, now.code_version) == (more, "0.2.0")
    opening = json.loads(store.get("quick/openings/0001.json"))
    assert opening["changed"] == {"rl.num_iterations": [3, 5], "rollouts.concurrency": [64, 8]}
    # Compared with what was given last, not with what was given first.
    assert open_run(store, more, code_version="0.2.0").changed == {}
    open_run(store, PARAMETERS)
    assert store.list("quick/openings") == ["0001.json", "0002.json"]


def test_paths_are_those_of_the_architecture(store: Store) -> None:
    run = RunStore(store, "quick")
    assert run.rollouts(3, "train") == "quick/iterations/0003/rollouts/train"
    assert run.dataset(3, "shared") == "quick/iterations/0003/datasets/shared"
    assert run.job(3, "shared") == "quick/iterations/0003/jobs/shared.json"
    assert run.models(3) == "quick/iterations/0003/models.json"
    assert run.metrics(3, "test") == "quick/iterations/0003/metrics-test.json"
    assert run.journal(3, "train", "0001") == "quick/journals/0003/train/0001.journal"
    with pytest.raises(SettingsError, match="can't be a file name"):
        run.job(3, "a/b")


def test_a_small_document_is_written_once(store: Store) -> None:
    run = RunStore(store, "quick")
    with acquire(store, run.root, renew=False) as lease:
        assert run.write_json_once(run.metrics(0, "test"), {"accuracy": 0.5}, lease=lease) == {
            "accuracy": 0.5
        }
        assert run.write_json_once(run.metrics(0, "test"), {"accuracy": 0.6}) == {"accuracy": 0.5}
    assert run.read_json(run.metrics(0, "test")) == {"accuracy": 0.5}
    assert run.read_json_or_none(run.metrics(1, "test")) is None
    store.put(run.metrics(2, "test"), b"{half")
    with pytest.raises(CorruptionError, match=r"0002/metrics-test\.json"):
        run.read_json(run.metrics(2, "test"))


def play(store: Store, iterations: int) -> RunStore:
    run = RunStore(store, "quick")
    open_run(store, PARAMETERS)
    for i in range(iterations):
        commit(store, run.rollouts(i, "train"), {"episodes-0.parquet": b"%d" % i})
        run.write_json_once(run.models(i), {"shared": f"m{i}"})
    # One more is under way: a shard is committed, the stage is not.
    commit(store, run.rollouts(iterations, "train"), {"e.parquet": b"x"}, name="manifest-0.json")
    return run


def test_a_fork_copies_finished_iterations_and_nothing_under_way(store: Store) -> None:
    run = play(store, 3)
    assert run.finished_iterations() == 3
    other = run.fork("branch", Identity(changed(rl__lr=1.0), "0.1.0", 7), iterations=2, now=NOW)
    assert other.finished_iterations() == 2
    manifest = verify(store, other.rollouts(1, "train"))
    assert read_committed_file(store, manifest, "episodes-0.parquet") == b"1"
    assert other.open().forked_from == "quick"
    assert not store.exists(other.models(2))
    with pytest.raises(RunConflictError, match="exists"):
        run.fork("branch", SAME)
    with pytest.raises(SettingsError, match="has finished 3"):
        run.fork("other", SAME, iterations=4)
    with pytest.raises(MissingFileError):
        RunStore(store, "nowhere").fork("third", SAME)


def test_what_a_killed_fork_left_is_no_run(store: Store) -> None:
    run = play(store, 2)
    left = RunStore(store, "branch")
    left.write_json_once(left.models(5), {})
    with pytest.raises(RunConflictError, match="killed fork"):
        left.create_or_open(SAME)
    assert list_runs(store) == ["quick"]
    with pytest.raises(RunConflictError, match=r"0005/models\.json: no copy of run 'quick'"):
        run.fork("branch", SAME)
    assert store.exists(left.models(5))
    store.delete(left.models(5))
    store.put(left.models(1), store.get(run.models(1)))
    run.fork("branch", SAME, iterations=1)
    assert not store.exists(left.models(1))
    assert list_runs(store) == ["branch", "quick"]


def test_a_run_that_may_not_be_looked_into_is_listed_beside_the_others() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("closed", "quick"):
            RunStore(LocalStore(root), name).create_or_open(SAME, now=NOW)
        root.chmod(0o755)
        (root / "closed").chmod(0)
        store = LocalStore(root, read_only=True)
        try:
            if user == 0:  # whom no permission stops
                os.seteuid(65534)
            assert list_runs(store) == ["closed", "quick"]
            with pytest.raises(StoreError, match=r"closed/run\.json: no permission to read it"):
                RunStore(store, "closed").open()
        finally:
            if user == 0:
                os.seteuid(user)
            (root / "closed").chmod(0o755)
