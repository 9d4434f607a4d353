"""A resident trainer in a process of its own gives the same bits, and its end is told."""

import asyncio
import json
import os
import signal

import numpy as np
import pytest

pytest.importorskip("peft")

from tiny_model import make_model

from nip_base.machine.processes import is_alive
from nip_lm_server.training.resident.resident_client import ResidentClient, ResidentDied
from nip_lm_server.training.resident.trainer import ResidentTrainer
from nip_lm_server.training.resident.types import AdamParams, Datum, LoraConfig, ResidentError

LORA = LoraConfig(rank=4, seed=1)
ADAM = AdamParams(learning_rate=0.01)
PLACE = {"device": "cpu", "dtype": "float32", "threads": 1}


def data(seed):
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 261, n + 1) for n in (5, 12, 30)]
    return [
        Datum(one[:-1], {"target_tokens": one[1:], "weights": np.ones(len(one) - 1)}) for one in ids
    ]


def written(folder):
    return json.loads((folder / "manifest.json").read_text())["files"]


async def start(base, tmp_path):
    return await ResidentClient.start(base, **PLACE, environment=os.environ, log=tmp_path / "log")


async def test_a_process_gives_the_same_bits_also_after_it_was_killed(tmp_path):
    base = make_model(tmp_path / "base", context=64)
    here = ResidentTrainer(base, **PLACE)
    here.create_model("a", LORA)
    for seed in range(3):
        here.forward_backward("a", data(seed), "cross_entropy", {}, forward_only=False)
        here.optim_step("a", ADAM)
    here.save("a", tmp_path / "here", optimizer=True)

    # 1. Two steps, and the process is killed with a gradient in it.
    client = await start(base, tmp_path)
    assert client.facts == here.facts
    await client.create_model("a", LORA)
    for seed in range(2):
        call = client.forward_backward("a", data(seed), "cross_entropy", {}, forward_only=False)
        # The next call is on its way before the answer is there, and is done after it.
        output, step = await asyncio.gather(call, client.optim_step("a", ADAM))
        assert [one.dtype for one in output.logprobs] == [np.float32] * 3 and step["grad_norm"] > 0
    await client.save("a", tmp_path / "half", optimizer=True)
    await client.forward_backward("a", data(2), "cross_entropy", {}, forward_only=False)
    os.kill(client.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ResidentDied, match="was ended by SIGKILL"):
            await client.optim_step("a", ADAM)
    await client.close()

    # 2. A new one goes on from what was saved. A call that nobody waits for is done all the same.
    client = await start(base, tmp_path)
    await client.load("a", tmp_path / "half", LORA, optimizer=True)
    call = client.forward_backward("a", data(2), "cross_entropy", {}, forward_only=False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, 0.0001)
    await client.optim_step("a", ADAM)
    await client.save("a", tmp_path / "there", optimizer=True)
    assert written(tmp_path / "there") == written(tmp_path / "here")

    # 3. An error is told as here, and ends nothing; the process ends when its parent is gone.
    with pytest.raises(ResidentError, match="no model 'b'") as error:
        await client.save("b", tmp_path / "b", optimizer=False)
    assert (error.value.category, error.value.code) == ("user", "model_not_found")
    with pytest.raises(ResidentError, match="in training already"):
        await client.create_model("a", LORA)
    assert is_alive(client.pid, client.identity)
    client._process.stdin.close()
    await client._process.wait()
    with pytest.raises(ResidentDied):
        await client.drop_model("a")
    assert not is_alive(client.pid, client.identity)
    await client.close()


async def test_a_base_that_can_not_be_loaded_is_an_error_of_the_start(tmp_path):
    with pytest.raises(ResidentError) as error:
        await start(tmp_path, tmp_path)
    assert error.value.code == "base_model_unusable"
