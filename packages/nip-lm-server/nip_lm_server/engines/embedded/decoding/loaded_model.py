"""Loading a model to be served in batches.

EmbeddedOptions    settings of the embedded engine
LoadedModel        the model, its tokenizer and facts about them
load_engine_model  loads it
check_batching     refuses a model that can't be batched; measures the size of its cache
is_fatal           whether an error ends a model's use
"""

import gc
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nip_base.machine.processors import Threads, most_threads, usual_threads
from nip_lm_server.chats import chat_template
from nip_lm_server.chats.tool_calls import ToolForm
from nip_lm_server.engines.base import EngineError
from nip_lm_server.engines.embedded.decoding.batching import Decoder, Row
from nip_lm_server.engines.embedded.decoding.sampling import Settings, row_random
from nip_lm_server.vllm_keys.nip_control_tokens import template_facts

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class EmbeddedOptions:
    """Settings of the embedded engine.

    `device` is "auto", "cpu" or "cuda"; `dtype` "auto" (float32 on CPU, bfloat16 on CUDA),
    "float32", "bfloat16", "float16", or "float64". With "float64" the answers of models built like
    Llama don't depend on the other rows of a batch. `max_batch` rows run at once, within
    `cache_bytes` of keys and values (None: 4 GiB on CPU or a quarter of the memory that a container
    allows, 60 % of the memory that the model leaves free on CUDA). The rest of these bytes keeps
    the beginnings of prompts, which are not read twice, and on a CPU fewer of them while memory is
    short. An idle engine waits `max_wait_s` for others after a first request. `threads` None means
    OMP_NUM_THREADS, or all processors, half of them for a small model, and fewer while other
    programs want them (`processors`). Adapters of a higher rank than `max_lora_rank` are refused.
    `chat_template_kwargs` are variables of the model's chat template, the same in training.
    """

    device: str = "auto"
    dtype: str = "auto"
    max_batch: int = 64
    max_wait_s: float = 0.002
    max_model_len: int | None = None
    max_lora_rank: int = 512
    cache_bytes: int | None = None
    threads: int | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class LoadedModel:
    """A model on its device."""

    model: Any
    tokenizer: Any
    device: str
    dtype: str
    threads: Threads
    max_model_len: int
    vocabulary: int  # token ids are below this
    stop_tokens: frozenset[int]
    template_shapes: dict[str, bool]
    tool_form: ToolForm | None = None  # how the chat template writes calls of tools
    template_facts: Mapping[str, Any] = field(default_factory=dict)
    base_logprobs: list[float] = field(default_factory=list)  # for proofs, see `prove_weights`


def load_engine_model(path: str, options: EmbeddedOptions) -> LoadedModel:
    """Load a model and its tokenizer. Raises EngineError with the reason if it can't be served."""
    from transformers.utils import logging

    # 1. The process and the device.
    gc.freeze()  # modules stay: to search them for garbage again and again delays requests
    logging.disable_progress_bar()  # the output is a log
    device, dtype = options.device, options.dtype
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # On a CPU the precision in which proofs have hardly any noise (`probes.LIMITS`), on CUDA the
    # precision that takes half of the memory.
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    # 2. Tokenizer and model, from safetensors and without code of theirs.
    try:
        # The template first: the weights take the longest to load.
        tokenizer = chat_template.load_tokenizer(path, options.chat_template_kwargs)
        shapes = chat_template.check_shapes(tokenizer)
        # Without this shape hardly any chat is possible; other shapes fail with their requests.
        if not shapes["user"]:
            raise chat_template.ChatTemplateError(
                f"the chat template of {path!r} refuses a single user message"
            )
        model = chat_template.load_model(path, getattr(torch, dtype))
    # These errors name the fault and the remedy themselves.
    except (chat_template.ModelPathError, chat_template.ChatTemplateError) as error:
        raise EngineError(str(error)) from error
    # Transformers raises these for missing and wrong files. The worker handles all others.
    except (OSError, ValueError) as error:
        raise EngineError(f"can't load the model {path!r}: {error}") from error
    model.to(device).eval().requires_grad_(False)
    # 3. Its context.
    limit = options.max_model_len or chat_template.context_length(tokenizer, model.config)
    # Not guessed: beyond their context many models answer nonsense without an error.
    if limit is None:
        raise EngineError(
            f"neither the configuration nor the tokenizer of {path!r} says how long its context "
            "is: set max_model_len"
        )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        threads=_choose_threads(model, options),
        max_model_len=limit,
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        stop_tokens=chat_template.stop_token_ids(
            tokenizer, getattr(model, "generation_config", None)
        ),
        template_shapes=shapes,
        tool_form=chat_template.tool_form(tokenizer),
        template_facts=template_facts(tokenizer),
    )


def check_batching(decoder: Decoder, loaded: LoadedModel, path: str) -> int:
    """Refuse a model with other answers in a padded batch.

    Returns the bytes that the keys and values of one token take.
    """
    user = ({"role": "user", "content": "Is the code right?"},)
    long_prompt = chat_template.encode_prompt(loaded.tokenizer, user)
    short_prompt = long_prompt[-max(2, len(long_prompt) // 2) :]

    def first_logits(rows: list[list[int]]) -> tuple[torch.Tensor, int]:
        greedy = Settings(temperature=0.0)
        cache, logits = decoder.prefill([Row(i, None, 1, greedy, row_random(0)) for i in rows])
        cache_bytes = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
        return logits[-1].float(), cache_bytes // (len(rows) * max(map(len, rows)))

    single_logits, token_bytes = first_logits([short_prompt])
    padded_logits, _ = first_logits([long_prompt, short_prompt])
    difference = float((single_logits - padded_logits).abs().max())
    # Rounding makes some difference in another batch. A twentieth is a rule of thumb: far less
    # would refuse models for the rounding of half precisions, far more would pass a model that
    # ignores masks or positions. With `not`, so that a NaN is refused as well.
    if not difference <= 0.05 * float(single_logits.abs().max()):
        raise EngineError(
            f"{path!r} can't be served in batches: the logits of a padded prompt differ by "
            f"{difference:.3g} from those of the prompt alone"
        )
    return max(1, token_bytes)  # a divisor


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether the device's memory, or this machine's, was too small."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # torch's allocator for CPUs has no exception class of its own.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def is_fatal(error: BaseException) -> bool:
    """Say whether a model can't be trusted to go on after this error."""
    # After a failed assertion on a CUDA device, every later call in the process fails.
    return is_out_of_memory(error) or isinstance(error, torch.AcceleratorError)


def _choose_threads(model: Any, options: EmbeddedOptions) -> Threads:
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return Threads(
        most_threads(weights),
        torch.set_num_threads,
        fixed=options.threads or usual_threads(os.environ),
    )
