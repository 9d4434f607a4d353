"""A model in a GGUF file, the form of llama.cpp, becomes a directory of safetensors.

convert_gguf     reads the file, writes weights, configuration, tokenizer and chat template
ConvertedModel   the model that was read, and the packages that read it

The weights are computed from the file's blocks in float32, and rounded once, to bfloat16. That
keeps 8 bits of each. The blocks of 4 or 8 bits differ by much more from the original weights,
which are not in the file. Nothing in the file is executed but its chat template, which Jinja's
sandbox renders.

The tokenizer is `gguf_tokenizer`'s. Not covered: files in parts.
"""

import contextlib
import importlib.metadata
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_lm_server.gguf.gguf_header import check_header
from nip_lm_server.gguf.gguf_tokenizer import (
    GgufError,
    GgufFields,
    prove_tokenizer,
    write_tokenizer,
)

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
_OF_NO_MODEL = ("transformers_version", "_name_or_path", "_model_name_or_path", "is_local")
"""Notes of transformers on itself and on a path, left out: equal models have equal files."""


@dataclass(frozen=True)
class ConvertedModel:
    """The facts of a converted file."""

    parameters: int
    context: int
    """Tokens."""
    weights: str
    """The type in which they are written."""
    blocks: Mapping[str, int]
    """Tensors of the file by their type."""
    made_by: Mapping[str, str]
    """Versions by package."""


def convert_gguf(file: Path, target: Path) -> ConvertedModel:
    """Write the model of a GGUF file to the directory `target`.

    Raises GgufError for a file that can't be read, ModuleNotFoundError for a missing package,
    OSError where the disk refuses.
    """
    import gguf
    import torch
    import transformers  # noqa: F401 (a missing package is an error before anything is read)

    with _silence():
        try:
            check_header(file)
            reader = gguf.GGUFReader(file)
            blocks = Counter(tensor.tensor_type.name for tensor in reader.tensors)
            fields = GgufFields(file.name, reader.fields)
            _check_sizes(fields, reader.tensors)
            model = _read_model(file)
            _prove_configuration(fields, model.config)
            context = int(model.config.max_position_embeddings)
            _save(model, target)
            write_tokenizer(fields, context, target)
            prove_tokenizer(fields, target)
        except (GgufError, OSError):
            raise
        except Exception as error:  # a foreign file may make the libraries raise anything
            reason = " ".join(str(error).split())
            raise GgufError(f"{file.name}: {type(error).__name__}: {reason}") from error
    return ConvertedModel(
        parameters=sum(weight.numel() for weight in model.parameters()),
        context=context,
        weights=str(torch.bfloat16).removeprefix("torch."),
        blocks=dict(sorted(blocks.items())),
        made_by={name: importlib.metadata.version(name) for name in _PACKAGES},
    )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the bars of the libraries off the screen."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)


def _read_model(file: Path) -> Any:
    """The file's weights in bfloat16, in a model without memory of the file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    original = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
    )
    settings = original.config.to_dict()
    # The setting says that the weights are quantized. They are not any more.
    settings.pop("quantization_config", None)
    config = AutoConfig.for_model(**settings)
    config.architectures = [type(original).__name__]
    # Without weights of its own: to draw them would take longer than all other steps.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    rounded = {name: weight.to(torch.bfloat16) for name, weight in original.state_dict().items()}
    model.load_state_dict(rounded, assign=True)
    model.tie_weights()
    return model


def _check_sizes(fields: GgufFields, tensors: Sequence[Any]) -> None:
    """Raise GgufError for a model larger by its fields than by its tensors."""
    kind = fields.require("general.architecture")
    sizes = {int(size) for tensor in tensors for size in tensor.shape}
    largest = max(sizes, default=0)
    limits = {
        "block_count": len(tensors), "embedding_length": largest, "feed_forward_length": largest,
        "attention.head_count": largest, "attention.head_count_kv": largest, "vocab_size": largest,
        "expert_count": largest, "attention.key_length": largest, "attention.value_length": largest,
    }  # fmt: skip
    for name, limit in limits.items():
        value = fields.get(f"{kind}.{name}")
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, int) and number > limit for number in numbers):
            raise GgufError(
                f"{fields.name}: {kind}.{name} is {value}, and its {len(tensors)} tensors have no "
                f"size above {largest}; it is damaged, or no model"
            )


def _prove_configuration(fields: GgufFields, config: Any) -> None:
    """Compare settings whose mistakes no reader of answers would see. Raises GgufError."""
    kind = fields.require("general.architecture")
    rope = getattr(config, "rope_parameters", None) or {}
    values = {
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "rope.freq_base": rope.get("rope_theta", getattr(config, "rope_theta", None)),
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "context_length": config.max_position_embeddings,
    }
    for name, value in values.items():
        expected = fields.get(f"{kind}.{name}")
        if expected is None or (value is not None and math.isclose(value, expected, rel_tol=1e-6)):
            continue
        raise GgufError(
            f"{fields.name}: {kind}.{name} is {expected:g}, and the packages here read {value}; "
            "another version of transformers may read it"
        )


def _save(model: Any, target: Path) -> None:
    """Write the model's files, as readable as this user's other files are. Raises OSError."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(target)
    except SafetensorError as error:
        raise _as_os_error(error) from error
    for path in target.glob("*config.json"):
        settings = json.loads(path.read_text(encoding="utf-8"))
        saved = {name: value for name, value in settings.items() if name not in _OF_NO_MODEL}
        path.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
        path.with_name("model.safetensors").chmod(path.stat().st_mode & 0o777)


def _as_os_error(error: Exception) -> OSError:
    """The error of the system behind a message of a library in Rust."""
    number = str(error).rpartition("(os error ")[2].partition(")")[0]
    return OSError(int(number), str(error)) if number.isdecimal() else OSError(str(error))
