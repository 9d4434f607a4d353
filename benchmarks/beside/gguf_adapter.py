"""An adapter of SmolLM2 in the form that llama.cpp reads."""

import json
from pathlib import Path

NAMES = dict(q="attn_q", k="attn_k", v="attn_v", o="attn_output", gate="ffn_gate", up="ffn_up")
HEADS = {"q": 9, "k": 3}


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
