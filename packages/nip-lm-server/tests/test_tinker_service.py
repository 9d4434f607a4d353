"""What Tinker's API has of earlier servers: bases that are gone, folders that are nobody's."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nip_base.api_errors import ApiError
from nip_base.spec import ServerSpec
from nip_lm_server.placement import make_slots
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.state.database import Database
from nip_lm_server.state.models import ModelStore
from nip_lm_server.tinker.service import TinkerService
from nip_lm_server.tinker.storage.records import CheckpointRow, LoraShape


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[TinkerService]:
    """A server of another base than that of what is on record; not started."""
    database = Database(tmp_path / "jobs.sqlite3")
    models = ModelStore(tmp_path / "models", database)
    slots = make_slots(ServerSpec("deterministic", "sim"), {}, tmp_path)
    service = TinkerService(tmp_path, EnginePool(slots, database, models), {})
    for id in ("open", "over"):
        service.store.add_session(id, {}, "")
        service.store.add_model(f"{id}:train:0", id, "gone", LoraShape(4), {})
    service.store.add_sampler("open:sample:0", "open", "gone", None, "gone")
    service.store.finish_session("over", "{}")
    yield service
    await service.stop()
    database.close()


async def test_a_base_that_is_not_served_any_more_is_named_with_the_way_out(
    service: TinkerService,
) -> None:
    model, sampler = "open:train:0", "open:sample:0"
    for owner in (model, sampler):
        service.store.add_request(owner, 1, "sample", "digest", b"")
    service.start()
    calls: list[Callable[[], Any]] = [
        lambda: service.submit(model, 2, "optim_step", "", b""),
        lambda: service.submit_sample(sampler, 2, "", b"", None),
        lambda: service.add_sampler("open", 1, "gone", None),
    ]
    for call in calls:
        with pytest.raises(ApiError, match="'gone'") as error:
            call()
        assert 400 <= error.value.status < 500 and "'sim'" in error.value.message
    for owner in (model, sampler):
        with pytest.raises(ApiError, match="start the server with it under this name") as error:
            await service.wait(f"{owner}:1")
        assert error.value.status == 404
        # Nothing is lost: with its base the request goes on.
        assert service.store.is_pending(owner, 1)


def put(service: TinkerService, model: str, what: str, seq: int, path: str | None = None) -> str:
    """A folder that a request has made; with a path its weights are on record."""
    folder = service.folders.path(model, what, seq)
    folder.mkdir()
    (folder / "file").write_text("content")
    relative = service.folders.relative(folder)
    if path is not None:
        kind: Any = what
        row = CheckpointRow(
            path, model, "open", "gone", kind, "n", relative, "", 1, LoraShape(4), 1.0, None, {},
            has_optimizer=True, deleted_at=None,
        )  # fmt: skip
        service.store.put_checkpoint(row)
    return relative


async def test_folders_that_are_nobodys_by_the_record_go_at_the_start(
    service: TinkerService,
) -> None:
    model = "open:train:0"
    service.store.note_durable(model, 6)
    service.store.add_request(model, 9, "save_weights", "", b"")
    kept = {
        put(service, model, "state", 6),
        put(service, model, "weights", 5, "tinker://named"),
        put(service, model, "sampler_weights", 7, "tinker://for a sampler"),
        put(service, model, "weights", 9),  # its request waits, and does it again
        put(service, "not on record", "weights", 1),
    }
    gone = {
        put(service, model, "state", 3),
        put(service, model, "weights", 4),  # was overwritten by request 5, then a kill
        put(service, model, "external_weights", 8, "tinker://deleted"),
        put(service, "over:train:0", "state", 2),
    }
    service.folders.path(model, "state", 12).with_name(".state-12.part").mkdir()
    service.store.mark_deleted("tinker://deleted")
    service.start()
    there = {service.folders.relative(path) for path in service.folders.root.glob("*/*")}
    assert there == kept and not gone & there
