"""A whole run in a bucket, on an empty machine that knows nothing of it."""

from small_game import FEW, train_here, write_config


async def test_a_run_begins_in_a_bucket_and_goes_on_from_there_alone(s3, tmp_path, monkeypatch):
    settings = {"run_store": f"{s3}/whole", "rl": {**FEW, "num_iterations": 0}}
    config = write_config(tmp_path, **settings, dataset_options={"max_test_size": 4})
    for machine, changes in (("first", []), ("second", ["rl.num_iterations=1"])):
        monkeypatch.setenv("NIP_CACHE_DIR", str(tmp_path / machine))
        result = await train_here(config, changes)
        assert result["status"] == "finished"
    before, after = (entry["models"] for entry in result["iterations"])
    assert before != after
