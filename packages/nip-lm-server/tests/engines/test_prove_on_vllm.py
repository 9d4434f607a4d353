"""`nip prove` at a real vLLM: what is right, and three ways of serving something else."""

import shutil

import aiohttp
from own_vllm import KEY

from nip_lm_server.proving.request import ProofRequest, prove_served


async def load(url, name, path, again=False):
    body = {"lora_name": name, "lora_path": str(path), "load_inplace": again}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        async with session.post(f"{url}/v1/load_lora_adapter", json=body) as answer:
            assert answer.status == 200, await answer.text()


async def prove(url, name, directory, *among):
    request = ProofRequest(url, name, directory, key=KEY, among=among, base_name="tiny")
    (verdict,) = [verdict async for verdict in prove_served(request)]
    return verdict


async def test_it_names_what_is_served_in_place_of_the_adapter(own_vllm, adapters, tmp_path):
    """The base of this vLLM has two names, `tiny` and `forgotten`."""
    url = own_vllm.url
    first, second = (adapters(seed=seed, size=0.3) for seed in (1, 2))
    await load(url, "right", first)
    verdict = await prove(url, "right", first, second)
    assert (verdict.kind, verdict.way, verdict.agreeing) == ("adapter", "token_ids", 12), verdict
    # The base model has its name.
    assert (await prove(url, "forgotten", first, second)).kind == "base"
    # Another one was loaded from where it lies.
    await load(url, "slot", second)
    verdict = await prove(url, "slot", first, second)
    assert verdict.kind == "another" and str(second) in verdict.who[-1], verdict
    # It was loaded again in place, and the cache has what the last one left.
    place = shutil.copytree(first, tmp_path / "place")
    await load(url, "reloaded", place)
    assert (await prove(url, "reloaded", first)).kind == "adapter"
    shutil.copytree(second, place, dirs_exist_ok=True)
    await load(url, "reloaded", place, again=True)
    assert (await prove(url, "reloaded", second)).kind == "stale_cache"
