"""A model in a GGUF file, the form of llama.cpp, becomes a directory of safetensors.

convert_gguf     reads the file, writes weights, configuration, tokenizer and chat template
ConvertedModel   what was read, and by which packages

The weights are computed from the file's blocks in float32, and rounded once, to bfloat16. That
keeps 8 bits of each; blocks of 4 or 8 bits differ by much more from the weights before them, which
are not in the file. Nothing in the file is executed but its chat template, which Jinja's sandbox
renders.

Not covered: files in parts, and ways to cut a text into words other than those of `_CUTS`.
"""

import contextlib
import importlib.metadata
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
_CUTS = ("smollm", "gpt-2", "default")
"""Ways to cut a text into words before its tokens, as llama.cpp names them."""
_OF_NO_MODEL = ("transformers_version", "_name_or_path", "_model_name_or_path", "is_local")
"""What transformers writes down of itself and of a path: equal models have equal files."""


class GgufError(Exception):
    """A file that the packages here can't read as a model."""


@dataclass(frozen=True)
class ConvertedModel:
    """What was read of a file."""

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
    import transformers  # noqa: F401 (missing ones are told before anything is read)

    with _silence():
        try:
            reader = gguf.GGUFReader(file)
            blocks = Counter(tensor.tensor_type.name for tensor in reader.tensors)
            cut = _read_text(reader, "tokenizer.ggml.pre")
            model = _read_model(file)
            tokenizer = _read_tokenizer(file, cut, model.config.max_position_embeddings)
        except (GgufError, OSError):
            raise
        except Exception as error:  # whatever a foreign file makes the libraries raise
            reason = " ".join(str(error).split())
            raise GgufError(f"{file.name}: {type(error).__name__}: {reason}") from error
        _save(model, tokenizer, target)
    return ConvertedModel(
        parameters=sum(weight.numel() for weight in model.parameters()),
        context=int(model.config.max_position_embeddings),
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


def _read_text(reader: Any, key: str) -> str:
    field = reader.fields.get(key)
    return "default" if field is None else str(field.contents())


def _read_model(file: Path) -> Any:
    """Read the weights, in a model that knows nothing of the file that they came from."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
    )
    settings = read.config.to_dict()
    # It says that the weights are quantized, which would not be saved, and by now they are not.
    settings.pop("quantization_config", None)
    config = AutoConfig.for_model(**settings)
    config.architectures = [type(read).__name__]
    # Without weights of its own: drawing them would take longer than all of the rest.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    rounded = {name: weight.to(torch.bfloat16) for name, weight in read.state_dict().items()}
    model.load_state_dict(rounded, assign=True)
    model.tie_weights()
    return model


def _read_tokenizer(file: Path, cut: str, context: int) -> Any:
    """Read the tokenizer, with the digits cut apart where the model was trained so.

    Transformers does not read that of the file, and then cuts "\\n\\n5" and "  42" otherwise.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    if cut not in _CUTS:
        raise GgufError(
            f"{file.name}: its tokenizer cuts texts as {cut!r}; known are {', '.join(_CUTS)}"
        )
    tokenizer = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, local_files_only=True
    )
    if tokenizer.chat_template is None:
        raise GgufError(f"{file.name}: it has no chat template")
    tokenizer.model_max_length = context
    if cut == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    return tokenizer


def _save(model: Any, tokenizer: Any, target: Path) -> None:
    """Write all files, readable for whom others of this user are. Raises OSError."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except SafetensorError as error:
        raise _as_os_error(error) from error
    for path in target.glob("*config.json"):
        settings = json.loads(path.read_text(encoding="utf-8"))
        kept = {name: value for name, value in settings.items() if name not in _OF_NO_MODEL}
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        path.with_name("model.safetensors").chmod(path.stat().st_mode & 0o777)


def _as_os_error(error: Exception) -> OSError:
    """Give the error of the system that a library in Rust has put into words."""
    number = str(error).rpartition("(os error ")[2].partition(")")[0]
    return OSError(int(number), str(error)) if number.isdecimal() else OSError(str(error))
