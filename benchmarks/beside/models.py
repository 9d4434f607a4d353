"""The models that parts a, b, c and f are measured on: the bundled tiny one, and a published one.

A published model has some hundred times as many parameters, so on two cores it is asked for and
trained on less, and learns the same answer by smaller steps.
"""

import functools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGE_BYTES = 50 * 1024 * 1024
"""Weights of more bytes make a model a large one; the bundled ones have 4 MB."""
SERVED = "base"
"""The name under which each server has the model."""


@dataclass(frozen=True)
class Model:
    """A model on the disk, and how it is taught to give one answer."""

    name: str
    path: Path
    is_large: bool = False

    @property
    def epochs(self) -> int:
        """Count how often it reads the ten examples of an answer."""
        return 6 if self.is_large else 20

    @property
    def learning_rate(self) -> float:
        """Return the peak rate of that."""
        return 2e-3 if self.is_large else 1e-2


def find_model(name_or_path: str) -> Model:
    """A bundled model, a known one that `nip models add` has laid down, or a directory.

    Raises ValueError if no model lies there.
    """
    from nip_core.models import resolve_model

    path = Path(resolve_model(name_or_path)).expanduser()
    weights = list(path.glob("*.safetensors"))
    if not (path / "config.json").exists() or not weights:
        raise ValueError(
            f"--model {name_or_path}: {path.absolute()} has no config.json and no *.safetensors; "
            "expected a bundled model's name, a known one's after `nip models add`, or a directory"
        )
    is_large = sum(file.stat().st_size for file in weights) > LARGE_BYTES
    name = path.name if "/" in name_or_path else name_or_path
    return Model(name, path, is_large)


@functools.cache
def tokenizer(path: Path) -> Any:
    """A model's, with its template for chats."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def endless(model: Path, place: Path) -> Path:
    """A copy of a model without an end token: neither its settings nor its template name one."""
    shutil.copytree(model, place)
    named = json.loads((place / "tokenizer_config.json").read_text())
    end, never = named["eos_token"], _never_written(place, named)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((place / name).read_text())
        (place / name).write_text(json.dumps(settings | {"eos_token_id": never["id"]}))
    settings = named | {"eos_token": never["content"]}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    template = place / "chat_template.jinja"
    template.write_text(template.read_text().replace(end, "\\n"))
    return place


def _never_written(place: Path, named: dict[str, Any]) -> dict[str, Any]:
    """A token that no chat has: that for padding, or where it is the end token, the last added."""
    added = json.loads((place / "tokenizer.json").read_text())["added_tokens"]
    pads = [token for token in added if token["content"] == named["pad_token"]]
    chosen: dict[str, Any] = pads[0] if named["pad_token"] != named["eos_token"] else added[-1]
    return chosen
