"""Models of a run in a bucket come back to an empty machine, whole or not at all."""

import uuid
from pathlib import Path

import pytest

from nip_core.errors import CorruptionError
from nip_core.run_store.lease import acquire
from nip_core.run_store.manifest import commit
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import list_files, open_store
from nip_core.servers.kept_models import bring_models, is_kept, keep_models, restore_models
from nip_core.servers.own_server import find_server_directory
from nip_lm_server.state.at_rest.import_models import find_model
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import ModelStore, adapter_name
from nip_verify.unused import find_unused, remove_unused

ONE, TWO = (adapter_name("base", "small", letter * 12) for letter in "ab")


@pytest.fixture
def run(s3: str) -> RunStore:
    run = RunStore(open_store(f"{s3}/{uuid.uuid4().hex}"), "small")
    run.create_or_open(Identity({}, "1", 1))
    return run


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """The state of a server that has trained two models."""
    folder = tmp_path / "first machine"
    folder.mkdir()
    database = Database(folder / "jobs.sqlite3")
    models = ModelStore(folder / "models", database)
    for name in (ONE, TWO):
        trained = folder / "trained"
        (trained / "inner").mkdir(parents=True)
        (trained / "weights").write_bytes(name.encode() * 100)
        (trained / "inner" / "config.json").write_text("{}")
        facts = {
            "name": name,
            "job": f"job-{name[-3:]}",
            "base_model": "base",
            "parent": None,
            "method": "supervised",
            "settings": {},
            "seed": 1,
            "created_at": 1.0,
            "training": {},
        }
        models.commit(trained, name.rpartition(":")[2], facts)
    database.close()
    return folder


def keep(run: RunStore, state_dir: Path, *names: str) -> None:
    with acquire(run.store, run.root, renew=False) as lease:
        keep_models(run, state_dir, names, lease)


def test_a_kept_model_is_the_same_on_another_machine(
    run: RunStore, state_dir: Path, tmp_path: Path
) -> None:
    keep(run, state_dir, ONE, "base")
    assert (is_kept(run, ONE), is_kept(run, TWO), is_kept(run, "base")) == (True, False, False)
    run.write_json_once(
        run.models(0), {"groups": {"a": {"model": ONE, "base_model": "base", "digest": None}}}
    )
    empty = tmp_path / "second machine"
    with acquire(run.store, run.root, renew=False) as lease:
        restore_models(run, empty, ["a"], lease)
        restore_models(run, empty, ["a"], lease)
    assert find_model(empty, TWO) is None
    there, here = find_model(empty, ONE), find_model(state_dir, ONE)
    assert there is not None and here is not None
    for file in here.rglob("*"):
        if file.is_file():
            assert (there / file.relative_to(here)).read_bytes() == file.read_bytes()
    assert {path.name for path in empty.iterdir()} <= {"jobs.sqlite3", "models"}


def test_a_damaged_kept_model_is_named_and_not_taken(
    run: RunStore, state_dir: Path, tmp_path: Path
) -> None:
    keep(run, state_dir, ONE)
    run.store.put(f"small/adapters/{'a' * 12}/weights", b"changed")
    with pytest.raises(CorruptionError, match="weights has SHA-256"):
        bring_models(run, tmp_path / "empty", {ONE: None})
    assert find_model(tmp_path / "empty", ONE) is None
    run.store.put(f"small/adapters/{'a' * 12}/manifest.json", b"{")
    with pytest.raises(CorruptionError, match=r"a/manifest\.json: damaged"):
        bring_models(run, tmp_path / "empty", {ONE: None})


def test_a_damaged_model_of_an_earlier_iteration_stops_nothing(
    run: RunStore, state_dir: Path, tmp_path: Path
) -> None:
    keep(run, state_dir, ONE, TWO)
    for iteration, name in enumerate((ONE, TWO)):
        group = {"model": name, "base_model": "base", "digest": None}
        run.write_json_once(run.models(iteration), {"groups": {"a": group}})
    run.store.put(f"small/adapters/{'a' * 12}/weights", b"changed")
    with acquire(run.store, run.root, renew=False) as lease:
        restore_models(run, tmp_path / "earlier", ["a"], lease)
        assert find_model(tmp_path / "earlier", ONE) is None
        assert find_model(tmp_path / "earlier", TWO) is not None
        run.store.put(f"small/adapters/{'b' * 12}/weights", b"changed")
        with pytest.raises(CorruptionError, match="weights has SHA-256"):
            restore_models(run, tmp_path / "playing", ["a"], lease)


def test_what_was_kept_in_part_or_is_named_nowhere_is_cleaned_away(
    run: RunStore, state_dir: Path, tmp_path: Path
) -> None:
    keep(run, state_dir, ONE, TWO)
    run.store.put(f"small/adapters/{'c' * 12}/weights", b"as a kill left it")
    run.store.put("small/.probe-1", b"1")
    run.store.put(f"{run.journal(0, 'train', '0000')}/000001-000001", b"x")
    commit(run.store, run.rollouts(0, "train"), {}, inputs={"shard/0001": "1"})
    run.write_json_once(
        run.models(0), {"groups": {"a": {"model": ONE, "base_model": "base", "digest": None}}}
    )
    unused = find_unused(run, tmp_path / "empty")
    assert sorted((one.kind, one.name.rpartition("/")[2], one.why) for one in unused) == [
        ("journal", "0000.journal", "its split is committed without it"),
        ("kept model", "b" * 12, "no job or models.json of the run names it"),
        ("kept model", "c" * 12, "it was not completed"),
        ("leftover", ".probe-1", "left by a killed writer"),
    ]
    remove_unused(run, tmp_path / "empty", unused)
    assert find_unused(run, tmp_path / "empty") == []
    assert is_kept(run, ONE)
    assert {path.split("/")[1] for path in list_files(run.store, "small")} == {
        "adapters",
        "iterations",
        "lease.json",
        "run.json",
    }


def test_the_state_of_a_server_has_a_place_of_its_own_for_each_run(
    run: RunStore, tmp_path: Path
) -> None:
    environment = {"NIP_CACHE_DIR": str(tmp_path)}
    here = find_server_directory(run, environment)
    assert here.is_relative_to(tmp_path)
    assert here == find_server_directory(RunStore(run.store, "small"), environment)
    assert here != find_server_directory(RunStore(run.store, "other"), environment)
    assert find_server_directory(run, {"XDG_CACHE_HOME": "/cache"}).is_relative_to(
        "/cache/nip/runs"
    )
