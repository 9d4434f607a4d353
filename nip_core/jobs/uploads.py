"""The files of a job: each is uploaded once, under the name of its content."""

import asyncio
import hashlib
import logging

from nip_core.errors import JobError
from nip_core.jobs.job import Backend, NoAnswer, Payload
from nip_core.jobs.waiting import Waiting
from nip_core.run_store.manifest import measure_file

_log = logging.getLogger(__name__)

SENDS = 3
"""Uploads, or creates of a job, with unknown outcome before giving up."""


async def ensure_file(backend: Backend, waiting: Waiting, dataset: Payload) -> str:
    """Upload `dataset` under the name of its content, unless it is there."""
    size_bytes, sha256 = await asyncio.to_thread(_measure_payload, dataset)
    filename = f"nip-{sha256[:40]}.jsonl"

    async def find() -> str | None:
        return await backend.find_file(filename, size_bytes)

    async def upload() -> str:
        return await backend.upload(filename, dataset)

    file_id = await waiting.until_answered(find)
    for _ in range(SENDS):
        if file_id is not None:
            return file_id
        try:
            return await waiting.until_answered(upload, repeat_unknown=False)
        except NoAnswer as error:
            _log.warning("upload of %s: %s; looking whether it arrived", filename, error)
            file_id = await waiting.until_settled(find)
    if file_id is not None:
        return file_id
    raise JobError(
        f"{backend.address}: {SENDS} uploads of {filename} got no answer and did not "
        "arrive; run again when the server is well"
    )


def _measure_payload(payload: Payload) -> tuple[int, str]:
    """Compute size in bytes and SHA-256; a file is read piece by piece."""
    if isinstance(payload, bytes):
        return len(payload), hashlib.sha256(payload).hexdigest()
    return measure_file(payload)
