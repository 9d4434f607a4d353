"""SmolLM2 and adapters of it in the form that llama.cpp reads.

python benchmarks/beside/gguf_adapter.py GGUF WHOLE   writes a four-bit file in float32
"""

import json
import sys
from pathlib import Path

NAMES = dict(q="attn_q", k="attn_k", v="attn_v", o="attn_output", gate="ffn_gate", up="ffn_up")
HEADS = {"q": 9, "k": 3}
FILE_TYPE = "general.file_type"


def write_adapter(adapter: Path, place: Path) -> None:
    """Write a PEFT adapter of SmolLM2 as llama.cpp reads it."""
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
        if side == "lora_B" and name in HEADS:  # the numbers of a rotary pair are neighbours there
            pairs = array.reshape(HEADS[name], 2, -1, array.shape[1])
            array = pairs.swapaxes(1, 2).reshape(array.shape).copy()
        named = f"blk.{layer}.{NAMES.get(name, 'ffn_down')}.weight.{side.lower()}"
        writer.add_tensor(named, array)
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
