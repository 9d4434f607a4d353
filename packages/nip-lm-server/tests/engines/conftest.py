"""The real vLLM, from the environment that NIP_VLLM names (default: .vllm in the repository).

Nothing here skips: without vLLM these tests fail. `scripts/build_vllm_cpu.sh` builds it.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from own_vllm import OwnVllm
    from vllm_server import VllmServer

ROOT = Path(__file__).parents[4]

VLLM = os.environ.get("NIP_VLLM") or str(ROOT / ".vllm" / "bin" / "vllm")
FAST_START = {"enforce_eager": True, "max_num_seqs": 64, "executable": VLLM}
"""Options of an engine that starts as fast as it can on a CPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def vllm_options() -> dict[str, object]:
    assert shutil.which(VLLM), f"there is no {VLLM}: run scripts/build_vllm_cpu.sh"
    return dict(FAST_START)


@pytest.fixture(scope="session")
def base_path() -> Path:
    from nip_core.models import BUNDLED

    return BUNDLED["tiny"]


@pytest.fixture(scope="module")
def server(base_path, vllm_options, tmp_path_factory) -> Iterator["VllmServer"]:
    """nip's server over vLLM: one for each file, as tests may kill theirs."""
    from vllm_server import VllmServer

    server = VllmServer(base_path, vllm_options, tmp_path_factory.mktemp("server") / "state")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> Path:
    """What `nip export --to peft` writes of a finished run."""
    import asyncio

    from finished_run import make_run

    from nip_bridges.hub.adapter_of_run import choose_model, write_adapter

    path = tmp_path_factory.mktemp("exported")

    async def make() -> None:
        run = await make_run(path / "runs")
        write_adapter(choose_model(run, None, None), path / "plain", place="plain", probe=True)

    asyncio.run(make())
    return path


@pytest.fixture(scope="session")
def own_vllm(vllm_options, exported) -> Iterator["OwnVllm"]:
    """`vllm serve` as its manual says, with the exported adapter from the start."""
    from own_vllm import serve_with_vllm

    with serve_with_vllm(vllm_options["executable"], exported) as served:
        yield served


@pytest.fixture(scope="session")
def adapters(base_path, tmp_path_factory) -> Callable[..., Path]:
    """Random adapters over the base, made by PEFT, each with a probe by transformers and PEFT."""
    from tiny_model import make_adapter, peft_logprobs
    from transformers import AutoTokenizer

    from nip_lm_server.lora.prove_weights import probe_tokens

    tokens = probe_tokens(AutoTokenizer.from_pretrained(base_path), 1024)
    base_logprobs = peft_logprobs(base_path, None, tokens)
    made: dict[tuple[tuple[str, object], ...], Path] = {}

    def make(**settings: object) -> Path:
        key = tuple(sorted(settings.items()))
        if key not in made:
            path = make_adapter(
                base_path, tmp_path_factory.mktemp("adapters") / "adapter", **settings
            )
            probe = {
                "tokens": tokens,
                "logprobs": peft_logprobs(base_path, path, tokens),
                "base_logprobs": base_logprobs,
                "dtype": "float32",
                "quantization": "none",
            }
            (path / "probe.json").write_text(json.dumps(probe))
            made[key] = path
        return made[key]

    return make
