"""A small random Llama with a byte-level tokenizer, and random adapters over it, for tests."""

from pathlib import Path
from typing import Any

TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
TOOL_TEMPLATE = """\
{%- if tools %}
  {{- '<|system|># Tools\n' }}
  {%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}
  {{- '<|end|>' }}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'tool' %}
    {{- '<|user|><tool_response>\n' + message.content + '\n</tool_response><|end|>' }}
  {%- else %}
    {{- '<|' + message.role + '|>' + message.content }}
    {%- for call in message.tool_calls or [] %}
      {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
      {{- call.function.arguments | tojson + '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
"""The form of Hermes and Qwen, with the special tokens of the tiny model."""
SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def make_tokenizer(template: str | None = TEMPLATE, context: int = 512) -> Any:
    """One token per byte, and the special tokens of `template`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({t: i for i, t in enumerate([*SPECIAL, *letters])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(SPECIAL[2:]),
        model_max_length=context,
    )
    tokenizer.chat_template = template
    return tokenizer


def make_model(
    directory: Path, *, template: str | None = TEMPLATE, context: int = 512, seed: int = 0
) -> Path:
    """Write a random Llama of 0.2 million parameters and its tokenizer to `directory`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(template, context)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=context,
            initializer_range=0.2,  # so that random logits differ clearly
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def make_adapter(
    base: Path, directory: Path, *, seed: int, rank: int = 4, size: float = 0.1, **settings: Any
) -> Path:
    """Write an adapter by PEFT itself; its B are normal with deviation `size` (0: unchanged)."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    settings = {"target_modules": "all-linear", "lora_alpha": 8, **settings}
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=rank, task_type="CAUSAL_LM", **settings),
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=size) if size else torch.nn.init.zeros_(parameter)
    model.save_pretrained(directory)
    return directory


def peft_logprobs(base: Path, adapter: Path | None, ids: list[int]) -> list[float]:
    """Log-probability of each token but the first, by transformers and PEFT alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    with torch.inference_mode():
        scores = model.eval()(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
