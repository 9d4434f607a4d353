"""A whole run in a bucket, on an empty machine that knows nothing of it."""

import asyncio

import pytest
from server_here import servers_here
from small_game import FEW, train_here, write_config

from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.run_store.store import list_files


async def test_a_run_begins_in_a_bucket_and_goes_on_from_there_alone(s3, tmp_path, monkeypatch):
    settings = {"run_store": f"{s3}/whole", "rl": {**FEW, "num_iterations": 0}}
    config = write_config(tmp_path, **settings, dataset_options={"max_test_size": 4})
    for machine, changes in (("first", []), ("second", ["rl.num_iterations=1"])):
        monkeypatch.setenv("NIP_CACHE_DIR", str(tmp_path / machine))
        result = await train_here(config, changes)
        assert result["status"] == "finished"
    before, after = (entry["models"] for entry in result["iterations"])
    assert before != after


@pytest.mark.long
async def test_a_run_that_stopped_amid_a_shard_goes_on_with_the_journal_in_the_bucket(s3, tmp_path):
    few = {**FEW, "num_iterations": 0}
    size = {"max_test_size": 8}
    config = write_config(tmp_path, run_store=f"{s3}/amid", rl=few, dataset_options=size)
    journals: list[str] = []

    async def stopping(stage, session, *arguments):  # amid the first shard
        if stage.__name__ in ("iterate", "play_shards"):
            arguments = (*arguments[:-1], stopping)
        if stage.__name__ != "play_shard":
            return await loop.directly(stage, session, *arguments)
        playing = asyncio.ensure_future(loop.directly(stage, session, *arguments))
        while not journals and not playing.done():
            await asyncio.sleep(0.01)
            journals.extend(list_files(session.run.store, f"{session.run.root}/journals"))
        playing.cancel()
        await asyncio.wait([playing])
        raise StopAsyncIteration

    with servers_here(), pytest.raises(StopAsyncIteration):
        await loop.train(load_parameters(str(config), []), call=stopping)
    assert any(".journal/" in path for path in journals)
    assert (await train_here(config))["status"] == "finished"
