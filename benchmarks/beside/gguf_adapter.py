"""Small models and adapters of them in the form that llama.cpp reads.

python benchmarks/beside/gguf_adapter.py GGUF WHOLE   writes a four-bit file in float32
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = dict(q="attn_q", k="attn_k", v="attn_v", o="attn_output", gate="ffn_gate", up="ffn_up")
OTHER_NAMES = dict(
    down="ffn_down", input_layernorm="attn_norm", post_attention_layernorm="ffn_norm"
)
HEADS = {"q": 9, "k": 3}
WORD, CONTROL, UNUSED = 1, 3, 5
"""Kinds of a token in such a file."""
FILE_TYPE = "general.file_type"


def heads_of(model: Path) -> dict[str, int]:
    """Give the heads of a model's two rotary projections."""
    config = json.loads((model / "config.json").read_text())
    return {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}


def _pair(array: Any, heads: int) -> Any:
    """Put the two numbers of a rotary pair side by side, as llama.cpp has them."""
    pairs = array.reshape(heads, 2, -1, array.shape[1])
    return pairs.swapaxes(1, 2).reshape(array.shape).copy()


def write_adapter(adapter: Path, place: Path, heads: Mapping[str, int] = HEADS) -> None:
    """Write a PEFT adapter of a Llama, SmolLM2 unless given, as llama.cpp reads it."""
    import gguf  # not in llama.cpp's environment, where this is imported, too
    from safetensors.numpy import load_file

    writer = gguf.GGUFWriter(place, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    config = json.loads((adapter / "adapter_config.json").read_text())
    writer.add_float32("adapter.lora.alpha", config["lora_alpha"])
    for key, array in load_file(adapter / "adapter_model.safetensors").items():
        layer, _, module, side = key.partition(".layers.")[2].split(".")[:4]
        name = module.removesuffix("_proj")
        if side == "lora_B" and name in heads:
            array = _pair(array, heads[name])
        named = f"blk.{layer}.{NAMES.get(name, 'ffn_down')}.weight.{side.lower()}"
        writer.add_tensor(named, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tiny(model: Path, place: Path) -> None:
    """Write the bundled model in float32 as llama.cpp reads it.

    Its tokenizer knows whole words and no merges, which llama.cpp does where it is told that the
    tokenizer is Llama 3's; that one cuts words as the model's own does, but digits otherwise.
    """
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((model / "config.json").read_text())
    heads = heads_of(model)
    writer = gguf.GGUFWriter(place, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads["q"])
    writer.add_head_count_kv(heads["k"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    words = json.loads((model / "tokenizer.json").read_text())
    tokens = [f"[unused {number}]" for number in range(config["vocab_size"])]
    kinds = [UNUSED] * len(tokens)
    for text, number in words["model"]["vocab"].items():
        tokens[number], kinds[number] = text, WORD
    for token in words["added_tokens"]:
        tokens[token["id"]], kinds[token["id"]] = token["content"], CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])  # none of its own, and the list may not be empty
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    template = (model / "chat_template.jinja").read_text()
    for mark in ("{%- generation -%}", "{%- endgeneration -%}"):
        template = template.replace(mark, "")
    writer.add_chat_template(template)
    for key, array in load_file(model / "model.safetensors").items():
        _, _, place_of = key.partition("layers.")
        if not place_of:
            name = {"model.embed_tokens.weight": "token_embd"}.get(key, "output_norm")
            writer.add_tensor(f"{name}.weight", array)
            continue
        layer, *_, module, _ = place_of.split(".")
        short = module.removesuffix("_proj")
        named = NAMES.get(short) or OTHER_NAMES[short]
        array = _pair(array, heads[short]) if short in heads else array
        writer.add_tensor(f"blk.{layer}.{named}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_whole(model: str, place: str) -> None:
    """Write a four-bit file's numbers in float32, rounded as `nip models add` rounds them."""
    import gguf
    import torch

    reader, writer = gguf.GGUFReader(model), gguf.GGUFWriter(place, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", FILE_TYPE):
            continue
        is_list = field.types[0] == gguf.GGUFValueType.ARRAY
        inner = field.types[-1] if is_list else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        numbers = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        writer.add_tensor(tensor.name, numbers.bfloat16().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_whole(*sys.argv[1:])
