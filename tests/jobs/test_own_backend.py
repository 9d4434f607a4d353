"""A user's back-end: its mistakes are named, and its words have no key."""

from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks

from nip_base.importing import import_object
from nip_core.errors import JobError
from nip_core.jobs.job import JobSpec, Refused
from nip_core.jobs.services import open_backend
from nip_core.rollouts.client.completions import Endpoint

SHOP = next(b.text for b in blocks(ROOT / "docs/services.md") if b.options.get("file") == "shop.py")
OTHERS = """

from dataclasses import replace


class Loud(ShopJobs):
    async def create_job(self, spec, file_id, validation_file_id=None):
        job = await super().create_job(spec, file_id)
        job = replace(job, status="failed", error=f"the quota of {self.key} is used up")
        JOBS[job.id] = replace(job, effective={"account": self.key})
        return job

    async def retrieve_job(self, job_id):
        if job_id in JOBS:
            return JOBS[job_id]
        try:
            raise OSError(f"GET /jobs?key={self.key}")
        except OSError:
            raise Refused(f"there is no {job_id} for {self.key}", status=404)

    async def upload(self, filename, data):
        raise RuntimeError(f"{self.key} can't upload")

    async def job_events(self, job_id):
        return [{"message": f"seen by {self.key}"}]


class Sloppy(ShopJobs):
    def __init__(self, address, key):
        self.mine = address

    async def create_job(self, spec, file_id, validation_file_id=None):
        return {"id": "job-7"}

    async def retrieve_job(self, job_id):
        return JobView(id=7, status="running")

    async def find_jobs(self, key):
        return [*JOBS.values()]

    async def upload(self, filename):
        return "file"


class LoudShop(Shop):
    training = TrainingService(backend=Loud)


class SloppyShop(Shop):
    training = TrainingService(backend=Sloppy)
"""
SPEC = JobSpec("run", 0, "prover", "d", "sim", "p", 1, 10)
AT = Endpoint("https://shop.example/v1", "sk-of-the-shop-4711")


def import_shop(folder: Path, name: str):
    (folder / "shop.py").write_text(SHOP + OTHERS)
    return import_object(f"{folder}/shop.py:{name}")


async def test_no_word_of_a_service_has_its_key(tmp_path):
    async with open_backend(import_shop(tmp_path, "LoudShop"), AT) as backend:
        job = await backend.create_job(SPEC, "file")
        assert job.error == "the quota of *** is used up"
        assert (await backend.retrieve_job(job.id)).effective == {"account": "***"}
        assert await backend.job_events(job.id) == [{"message": "seen by ***"}]
        with pytest.raises(Refused, match=r"there is no job-x for \*\*\*") as refused:
            await backend.retrieve_job("job-x")
        assert refused.value.status == 404
        assert AT.api_key not in repr(refused.value)
        assert refused.value.__suppress_context__  # so no traceback prints what it came from
        with pytest.raises(JobError, match=r"Loud.upload \(.*shop.py\) raised .*\*\*\*.*line \d+"):
            await backend.upload("name", b"")


async def test_a_mistake_in_a_back_end_is_named(tmp_path):
    async with open_backend(import_shop(tmp_path, "SloppyShop"), AT) as backend:
        assert backend.address == AT.base_url  # whatever the class does with it
        with pytest.raises(JobError, match=r"Sloppy.create_job .* has to return JobView; mend it"):
            await backend.create_job(SPEC, "file")
        with pytest.raises(JobError, match=r"Sloppy.upload .* raised TypeError"):
            await backend.upload("name", b"")
        with pytest.raises(JobError, match=r"Sloppy.retrieve_job .* whose words have to be"):
            await backend.retrieve_job("job-1")


async def test_a_job_of_another_key_is_not_adopted(tmp_path):
    shop = import_shop(tmp_path, "Shop")
    async with open_backend(shop, AT) as backend:
        await backend.create_job(SPEC, "file")
        assert [job.metadata["nip_key"] for job in await backend.find_jobs(SPEC.key)] == [SPEC.key]
    async with open_backend(import_shop(tmp_path, "SloppyShop"), AT) as backend:
        with pytest.raises(JobError, match=r"find_jobs .* returned job job-0, whose nip_key is"):
            await backend.find_jobs("another")
