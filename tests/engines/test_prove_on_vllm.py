"""`nip prove` at a real vLLM: what is right, and three ways of serving something else."""

import asyncio
import os
import shutil
import socket
import subprocess

import aiohttp
import pytest

from nip_lm_server.proving.request import ProofRequest, prove_served

KEY = "key-of-vllm"
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_API_KEY": KEY,
}  # fmt: skip
START_S = 600


async def load(url, name, path, again=False):
    body = {"lora_name": name, "lora_path": str(path), "load_inplace": again}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        async with session.post(f"{url}/v1/load_lora_adapter", json=body) as answer:
            assert answer.status == 200, await answer.text()


async def prove(url, name, directory, *among):
    request = ProofRequest(url, name, directory, key=KEY, among=among, base_name="tiny")
    (verdict,) = [verdict async for verdict in prove_served(request)]
    return verdict


@pytest.fixture
async def url(vllm_options, base_path, tmp_path):
    """A vLLM whose base model also answers as `forgotten`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [vllm_options["executable"], "serve", str(base_path), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "tiny", "forgotten"]
    command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "1024"]
    command += ["--max-num-seqs", "16", "--enable-lora", "--max-lora-rank", "8"]
    with (tmp_path / "vllm.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=tmp_path, env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
            while process.poll() is None:
                try:
                    async with session.get(f"{address}/health") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientError:
                    await asyncio.sleep(1)
        assert process.poll() is None, (tmp_path / "vllm.log").read_text()[-3000:]
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)


async def test_it_names_what_is_served_in_place_of_the_adapter(url, adapters, tmp_path):
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
