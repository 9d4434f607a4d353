"""The removal of old things: rows of sessions that ended long ago, folders without a record.

drop_rows       in batches, beside the server's work
sweep_folders   at the start of a server, before anything is written
"""

import asyncio
import logging
import re

from nip_lm_server.tinker.storage.folders import Folders
from nip_lm_server.tinker.storage.store import TinkerStore

BATCH_ROWS = 500
"""Rows that are deleted at once: some milliseconds, in which the server answers no request."""
_FOLDER = re.compile(r"(state|weights|external_weights|sampler_weights|snapshot)-([0-9]{1,18})")

_log = logging.getLogger("nip.lm_server.tinker")


async def drop_rows(store: TinkerStore) -> int:
    """Delete the useless rows of sessions that are over; returns their number."""
    dropped = 0
    for drop in (store.drop_requests, store.drop_samplers, store.drop_snapshots):
        while count := drop(BATCH_ROWS):
            dropped += count
            await asyncio.sleep(0)
    return dropped


def sweep_folders(store: TinkerStore, folders: Folders) -> list[str]:
    """Remove the folders that no record needs; returns their names.

    Such are states of models that go on from another state or whose session is over, weights that
    were deleted or overwritten, and the remains of interrupted writes. Folders of no model on
    record stay, and the folder of a request that waits.
    """
    needed, removed = store.list_folders(), list[str]()
    is_open = {model.id for model in store.list_open_models()}
    for model in store.list_models(-1, 0):
        parent = folders.parent(model.id)
        for path in sorted(parent.iterdir()) if parent.is_dir() else ():
            is_part = path.name.startswith(".") and path.name.endswith(".part")
            name = path.name.removeprefix(".").removesuffix(".part") if is_part else path.name
            match = _FOLDER.fullmatch(name)
            if match is None:
                continue
            seq, relative = int(match[2]), folders.relative(path)
            if match[1] == "state":
                is_wanted = model.id in is_open and seq == model.durable_seq
            else:
                is_wanted = relative in needed or store.is_pending(model.id, seq)
            if is_part or not is_wanted:
                removed.append(relative)
    for relative in removed:
        _log.info("%s is nobody's: it is removed", relative)
        folders.remove(relative)
    return removed
