"""`nip clean` deletes what nothing refers to, shows it first, and leaves a live run alone."""

from pathlib import Path

import pytest

from nip_base.proof import Proof
from nip_core.errors import CorruptionError, LeaseError, SettingsError
from nip_core.jobs.job import JobRecord
from nip_core.rollouts.storage.shard_manifests import shard_manifest, shards_of
from nip_core.run_store.lease import acquire
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.manifest import commit, verify
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import list_files
from nip_lm_server.state.database import Database, dump
from nip_lm_server.state.files import FileStore, StagedFile
from nip_lm_server.state.models import ModelStore, adapter_name
from nip_verify.clean import clean
from nip_verify.unused import find_unused

DIGESTS = {"served": "a" * 12, "parent": "b" * 12, "unnamed": "c" * 12}
NAMES = {which: adapter_name("base", "small", digest) for which, digest in DIGESTS.items()}


def write_job(run: RunStore, group: str, **changes: str) -> None:
    """The document of a group's job."""
    record = JobRecord(
        state="submitted",
        key="k",
        run=run.name,
        iteration=0,
        group=group,
        attempt=0,
        method="supervised",
        parent_model="base",
        parent_model_digest="0",
        dataset_digest="0",
        examples=10,
        seed=1,
        settings={},
        created_at=1.0,
        **changes,
    )
    run.write_json_once(run.job(0, group), record.model_dump(mode="json"))


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    """A run with one finished iteration, and one of everything that a kill can leave."""
    run = RunStore(LocalStore(tmp_path), "small")
    run.create_or_open(Identity({"a": 1}, "1", 1))
    rollouts = run.rollouts(0, "train")
    for shard in ("0000", "0001"):
        commit(
            run.store,
            rollouts,
            {f"episodes-{shard}.parquet": shard.encode()},
            name=shard_manifest(shard),
        )
    inputs = {"shard/0000": "0", "shard/0001": "1"}
    split = commit(run.store, rollouts, {}, inputs=inputs)
    assert shards_of(split) == ("0000", "0001")
    commit(run.store, run.dataset(0, "prover"), {"examples.parquet": b"x"})
    run.store.put(run.journal(0, "train", "0000"), b"committed since")
    run.store.put(run.journal(0, "train", "0002"), b"of a shard that nobody will play")
    run.store.put(run.journal(1, "train", "0000"), b"being played")
    run.store.put(f"{rollouts}/episodes-0000.0badf00d.parquet", b"half a shard")
    run.store.put(f"{rollouts}/.tmp-1234", b"torn")
    run.store.put("small/fences/.removed-1/.tmp-5", b"torn")
    make_server_state(tmp_path / "small" / "lm_server")
    write_job(run, "prover", model=NAMES["served"], file_id="file-named")
    run.write_json_once(run.models(0), {"groups": {"prover": {"model": NAMES["served"]}}})
    return run


def make_server_state(folder: Path) -> None:
    folder.mkdir(parents=True)
    database = Database(folder / "jobs.sqlite3")
    models = ModelStore(folder / "models", database)
    for which, digest in DIGESTS.items():
        trained = folder / "trained"
        trained.mkdir()
        (trained / "weights").write_bytes(which.encode() * 100)
        facts = {"name": NAMES[which], "job": f"ftjob-{which}", "base_model": "base"}
        manifest = models.commit(trained, digest, facts)
        database.insert(
            "jobs",
            id=facts["job"],
            payload_digest="",
            method="supervised",
            model="base",
            base_model="base",
            training_file="",
            settings="{}",
            seed=1,
            adapter_name=NAMES[which],
            adapter_digest=digest,
            status="succeeded",
            created_at=1.0,
            metadata=dump({"nip_key": which}),
        )
        parent = NAMES["parent"] if which == "served" else None
        models.record(manifest, parent, Proof(True, {}))
    files = FileStore(folder / "files", database, max_bytes=1000)
    for id in ("file-named", "file-unnamed"):
        part = folder / "files" / f"{id}.part"
        part.write_bytes(b"{}\n")
        files.admit(StagedFile(id, part, f"nip-{'0' * 40}.jsonl", 3, ""), "fine-tune")
    database.close()


GONE = {
    "small/journals/0000/train/0000.journal",
    "small/journals/0000/train/0002.journal",
    "small/iterations/0000/rollouts/train/episodes-0000.0badf00d.parquet",
    f"small/lm_server/models/{DIGESTS['unnamed']}/weights",
    f"small/lm_server/models/{DIGESTS['unnamed']}/manifest.json",
    "small/lm_server/files/file-unnamed",
}


def files_of(run: RunStore) -> set[str]:
    own = ("lm_server/jobs.sqlite3", "lm_server/lock", "/lease.json")
    return {
        path for path in list_files(run.store, "small") if not any(name in path for name in own)
    }


def test_what_nothing_refers_to_is_shown_and_then_deleted(
    run: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(run)
    clean("small", run_store=str(tmp_path), dry_run=True)
    shown = capsys.readouterr().out
    assert files_of(run) == before
    clean("small", run_store=str(tmp_path), dry_run=False)
    assert capsys.readouterr().out == shown.replace("would be deleted", "deleted")
    assert files_of(run) == before - GONE
    assert list(run.store.leftovers("small")) == []
    for said in (
        "its shard is committed",
        "its split is committed without it",
        "another version is committed",
        "left by a killed writer",
        NAMES["unnamed"].rpartition(":")[2],
        "file-unnamed",
        "7 things",
    ):
        assert said in shown
    verify(run.store, run.rollouts(0, "train"), shard_manifest("0000"))
    clean("small", run_store=str(tmp_path), dry_run=False)
    assert "0 things" in capsys.readouterr().out


def test_what_this_program_did_not_make_or_has_lost_the_record_of_is_never_deleted(
    run: RunStore, tmp_path: Path
) -> None:
    """Somebody's own files, models and uploads; data whose manifest is gone."""
    server = tmp_path / "small" / "lm_server"
    rollouts = run.rollouts(0, "train")
    clean("small", run_store=str(tmp_path), dry_run=False)
    database = Database(server / "jobs.sqlite3")
    database.execute("UPDATE jobs SET metadata = '{}'")
    database.execute("UPDATE files SET filename = 'mine.jsonl'")
    database.close()
    for path in (
        ".ipynb_checkpoints/notes.ipynb",
        ".tmp-notes",
        "iterations/0000/rollouts/train/.keep",
        "iterations/0000/rollouts/train/mine.0badf00d.parquet",
        "iterations/0000/rollouts/train/episodes-0002.0badf00d.parquet",
        "journals/readme.journal/x",
        "journals/0000/train/0001.journal",
        "journals/0000/validation/0000.journal",
        "adapters/mine/weights",
        f"adapters/{'a' * 12}/weights",
    ):
        run.store.put(f"small/{path}", b"mine")
    run.store.delete(f"{rollouts}/{shard_manifest('0001')}")
    run.write_json_once(run.models(1), {"groups": {"prover": {"model": NAMES["unnamed"]}}})
    before = {path for path in (tmp_path / "small").rglob("*") if path.is_file()}
    assert find_unused(run, server) == []
    clean("small", run_store=str(tmp_path), dry_run=False)
    after = {path for path in (tmp_path / "small").rglob("*") if path.is_file()}
    assert before - after == set()


def test_a_damaged_database_of_the_server_is_one_error(run: RunStore, tmp_path: Path) -> None:
    path = tmp_path / "small" / "lm_server" / "jobs.sqlite3"
    for content in (b"", b"no database" * 100):
        path.write_bytes(content)
        with pytest.raises(CorruptionError, match=r"jobs\.sqlite3"):
            clean("small", run_store=str(tmp_path), dry_run=False)
    assert len(list((tmp_path / "small" / "lm_server" / "files").iterdir())) == 2


def test_a_run_that_is_being_played_is_left_alone(run: RunStore, tmp_path: Path) -> None:
    before = files_of(run)
    with acquire(run.store, "small", ttl_s=1):
        for dry_run in (True, False):
            with pytest.raises(LeaseError, match="holds this run"):
                clean("small", run_store=str(tmp_path), dry_run=dry_run)
        assert files_of(run) == before
    with acquire(run.store, "small"):  # an earlier one's end is no obstacle
        pass


def test_nothing_is_deleted_where_what_is_needed_can_not_be_read(
    run: RunStore, tmp_path: Path
) -> None:
    run.store.put(run.job(0, "prover"), b"{}")
    with pytest.raises(CorruptionError, match=r"jobs/prover\.json"):
        clean("small", run_store=str(tmp_path), dry_run=False)
    run.store.put(run.job(0, "prover"), b"{torn")
    before = files_of(run)
    with pytest.raises(CorruptionError, match=r"jobs/prover\.json"):
        clean("small", run_store=str(tmp_path), dry_run=False)
    assert files_of(run) == before


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'other' is not in"):
        clean("other", run_store=str(tmp_path), dry_run=True)


def test_a_model_whose_job_has_ended_since_its_record_was_written_is_needed(run: RunStore) -> None:
    server = Path(str(run.store.local_path("small/lm_server")))
    unused = {one.name for one in find_unused(run, server)}
    assert NAMES["unnamed"] in unused
    write_job(run, "verifier", id="ftjob-unnamed")
    assert NAMES["unnamed"] not in {one.name for one in find_unused(run, server)}
