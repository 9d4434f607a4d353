"""vLLM on CUDA: bf16, sleep and wake around a training on the same card, quantization.

Needs a CUDA device, vLLM's CUDA build in an environment that NIP_VLLM names, and a base model that
vLLM has kernels for (head size 64 or more): NIP_GPU_MODEL, a directory or a hub name, by default a
small random Llama that is made here. Nothing skips: without them these tests fail.
"""

import json
import subprocess
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from tiny_model import make_adapter

from nip_lm_server.engines.vllm.vllm_engine import VllmEngine
from nip_lm_server.lora.prove_weights import probe_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),
    pytest.mark.asyncio(loop_scope="module"),
]

MESSAGES = ({"role": "user", "content": "Is this right? def add(a, b): return a + b"},)
OPTIONS = {"max_model_len": 512, "gpu_memory_utilization": 0.3, "enforce_eager": True}


def used_mib() -> int:
    """Memory in use on the first device, by every process."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)


def logprobs(base: str, adapter: Path | None, tokens: list[int]) -> list[float]:
    """Log-probability of each token but the first, by transformers and PEFT in bfloat16."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    with torch.inference_mode():
        logits = model.eval().to("cuda")(torch.tensor([tokens], device="cuda")).logits
    scores = logits[0, :-1].float().log_softmax(-1).cpu()
    del model, logits
    torch.cuda.empty_cache()
    return scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


@pytest.fixture(scope="module")
def adapters(base, tmp_path_factory) -> dict[str, Path]:
    """Two random adapters with probes."""
    from transformers import AutoTokenizer

    tokens = probe_tokens(AutoTokenizer.from_pretrained(base), OPTIONS["max_model_len"])
    paths = {}
    for seed in (1, 2):
        path = make_adapter(Path(base), tmp_path_factory.mktemp("adapters") / "a", seed=seed)
        probe = {
            "tokens": tokens,
            "logprobs": logprobs(base, path, tokens),
            "base_logprobs": logprobs(base, None, tokens),
            "dtype": "bfloat16",
            "quantization": "none",
        }
        (path / "probe.json").write_text(json.dumps(probe))
        paths[f"ft:{seed}"] = path
    return paths


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(base, adapters, tmp_path_factory):
    engine = VllmEngine(base, "base", state_dir=tmp_path_factory.mktemp("state"), **OPTIONS)
    await engine.start()
    for name, path in adapters.items():
        await engine.load_adapter(name, path)
    yield engine
    await engine.stop()


async def answers(engine: VllmEngine, names: list[str]) -> list[str]:
    """Greedy answers, one after the other: in a batch of another shape bfloat16 rounds otherwise."""
    upstream = engine.upstream
    async with openai.AsyncOpenAI(
        base_url=f"{upstream.url}/v1", api_key=upstream.api_key, max_retries=0
    ) as client:
        create = client.chat.completions.create
        results = [
            await create(model=name, messages=MESSAGES, max_tokens=16, temperature=0.0)
            for name in names
        ]
    assert [result.model for result in results] == names
    return [result.choices[0].message.content for result in results]


async def test_it_runs_on_cuda_in_bfloat16_and_proves_its_adapters(engine, adapters):
    status = engine.status()
    assert status["device"] == "cuda:0" and status["dtype"] == "bfloat16"
    assert status["torch_cuda"] and status["warnings"] == []
    assert engine.capabilities.sleep
    for name, path in adapters.items():
        proof = await engine.prove(name, path)
        print(name, proof.detail)
        assert proof.matches, proof.detail
    assert len(set(await answers(engine, ["base", *adapters]))) == 3


async def test_it_sleeps_for_a_training_on_the_same_card_and_wakes_with_its_adapters(
    engine, adapters
):
    import torch

    before, awake_mib = await answers(engine, ["base", *adapters]), used_mib()
    await engine.sleep()
    assert engine.state == "sleeping" and engine.upstream is None
    freed_mib = awake_mib - used_mib()
    total_mib = torch.cuda.get_device_properties(0).total_memory // 2**20
    assert freed_mib > 0.5 * OPTIONS["gpu_memory_utilization"] * total_mib
    # A training takes what the engine has left.
    weights = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    optimizer = torch.optim.AdamW([weights])
    for _ in range(10):
        optimizer.zero_grad()
        weights.square().sum().backward()
        optimizer.step()
    hog = torch.empty(int(0.8 * freed_mib) * 2**20, dtype=torch.uint8, device="cuda")
    del hog, weights, optimizer
    torch.cuda.empty_cache()
    await engine.wake()
    assert engine.state == "running"
    assert set(engine.loaded_adapters()) == set(adapters)
    assert await answers(engine, ["base", *adapters]) == before


async def test_a_quantized_base_proves_adapters_within_its_own_tolerance(
    engine, base, adapters, tmp_path
):
    await engine.stop()  # one engine on the card at a time
    quantized = VllmEngine(base, "base", state_dir=tmp_path, quantization="fp8", **OPTIONS)
    try:
        await quantized.start()
        for name, path in adapters.items():
            await quantized.load_adapter(name, path)
            proof = await quantized.prove(name, path)
            print(name, proof.detail)
            assert proof.matches, proof.detail
            assert proof.detail["quantization"] == "fp8"
    finally:
        await quantized.stop()
