"""What the tests on a GPU share."""

import os

import pytest


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> str:
    """A model that vLLM has kernels for: NIP_GPU_MODEL, or a small random Llama."""
    if given := os.environ.get("NIP_GPU_MODEL"):
        return given
    import torch
    from tiny_model import make_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("models") / "base"
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512,
        initializer_range=0.05, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # Logits as far apart as a trained model's: greedy answers are the same twice.
        model.lm_head.weight.mul_(4)
    model.to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def larger(tmp_path_factory):
    """About 0.4 billion parameters over the bundled tokenizer, built on the card."""
    import torch
    from tiny_model import make_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("models") / "larger"
    tokenizer = make_tokenizer(context=4096)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.device("cuda"):
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    torch.cuda.empty_cache()
    return directory
