"""Generated tokens per second of the embedded engine, with a closed loop of requests in flight.

    python benchmarks/embedded_engine.py [--model PATH] [--in-flight 64] [--prompt-tokens 200]
        [--max-tokens 64] [--adapters 3] [--requests 512] [--threads 2] [--json FILE]

Without --model, a random Llama of 1.1 million parameters (hidden 128, 4 layers, vocabulary 1,000)
with random LoRA adapters of rank 8 on all linear layers. Request i names adapter i modulo the
number of adapters. A random model rarely ends an answer by itself, so nearly all have
--max-tokens tokens.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from nip_core.lm_server.engines.base import GenerationRequest
from nip_core.lm_server.engines.embedded import EmbeddedEngine

TEMPLATE = (
    "{%- for m in messages -%}{{- '<|' + m['role'] + '|>' + m['content'] + '<|end|>' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def make_model(directory: Path) -> Path:
    """A random Llama whose tokenizer knows the words w0 to w994."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|unk|>"]
    words = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(995))])}
    core = Tokenizer(models.WordLevel(words, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", model_max_length=1024
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            eos_token_id=0,
        )
    ).save_pretrained(directory)
    return directory


def make_adapter(base: str, directory: Path) -> Path:
    """A random LoRA adapter, saved by PEFT."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False),
    )
    model.save_pretrained(directory)
    del model
    torch.manual_seed(torch.initial_seed() + 1)
    return directory


async def run(options: argparse.Namespace, model: str, adapters: list[Path]) -> dict[str, object]:
    """Start the engine and keep `in_flight` requests running until all are answered."""
    engine = EmbeddedEngine(model, threads=options.threads, max_batch=options.in_flight)
    started = time.perf_counter()
    await engine.start()
    start_s = time.perf_counter() - started
    names = [f"adapter-{i}" for i in range(len(adapters))] or [engine.base_model]
    load_s = 0.0
    for name, path in zip(names, adapters, strict=False):
        began = time.perf_counter()
        await engine.load_adapter(name, path)
        load_s = max(load_s, time.perf_counter() - began)

    async def ask(number: int) -> int:
        words = " ".join(f"w{(number * 31 + i * 7) % 995}" for i in range(options.prompt_tokens))
        request = GenerationRequest(
            model=names[number % len(names)],
            messages=({"role": "user", "content": words},),
            max_tokens=options.max_tokens,
            seed=number,
        )
        return (await engine.generate(request)).choices[0].completion_tokens

    async def worker(numbers: list[int]) -> int:
        return sum([await ask(number) for number in numbers])

    async def flight(count: int) -> tuple[float, int]:
        began = time.perf_counter()
        shares = [list(range(i, count, options.in_flight)) for i in range(options.in_flight)]
        tokens = sum(await asyncio.gather(*map(worker, shares)))
        return time.perf_counter() - began, tokens

    await flight(options.in_flight)  # warms up
    wall_s, tokens = await flight(options.requests)
    await engine.stop()
    return {
        "generated_tokens_per_s": round(tokens / wall_s, 1),
        "requests_per_s": round(options.requests / wall_s, 2),
        "wall_s": round(wall_s, 2),
        "generated_tokens": tokens,
        "start_s": round(start_s, 2),
        "adapter_load_s": round(load_s, 4),
        **{key: value for key, value in vars(options).items() if key != "json"},
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--adapters", type=int, default=3)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = options.model or str(make_model(Path(scratch) / "model"))
        adapters = [
            make_adapter(model, Path(scratch) / f"adapter-{i}") for i in range(options.adapters)
        ]
        result = asyncio.run(run(options, model, adapters))
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
