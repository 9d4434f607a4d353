"""The output of a training: an adapter or a whole model, its probe and its figures.

save_trained        take the trained weights out of the trainer's model, which can then be freed
base_in_memory      take the base model out of it, if the probe can be computed with it
write_output        adapter or base, ``probe.json``, ``training_result.json``
concatenate         join two adapters over one base to one adapter; their ranks add up

An adapter is ``adapter_model.safetensors`` and ``adapter_config.json``. An adapter that was trained
over a parent ("stack") is saved as one adapter over the base: with both A and both B on top of each
other, B A is the sum of both effects. A base is ``model.safetensors``, configuration and tokenizer
with its chat template, in the precision of the base that it was made from.

``probe.json`` has log-probabilities of some tokens of the training file, by the trained model, by
its base and by the parent adapter. They are computed from the written files, in the precision of
the training. ``unchanged`` in ``training_result.json`` is true if the saved weights are the weights
that the training started from.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_base.formats.bounds import parse_json
from nip_lm_server.chats.chat_template import load_model
from nip_lm_server.engines.base import EngineError
from nip_lm_server.training.job import TrainingError, TrainingJob
from nip_lm_server.training.model import loading
from nip_lm_server.training.model.device import choose_device, choose_precision
from nip_lm_server.training.model.probe_text import probe_text

if TYPE_CHECKING:
    from nip_lm_server.lora.rowwise_lora import LoraFiles

RESULT_FILE = "training_result.json"
PROBE_FILE = "probe.json"


def save_trained(job: TrainingJob, model: Any) -> dict[str, Any] | None:
    """Save a PeftModel's adapter to `_adapter_dir`, or return a plain model's weights.

    The weights are on the CPU, by name.
    """
    if not job.settings.use_lora:
        return {name: p.detach().cpu() for name, p in model.named_parameters()}
    directory = _adapter_dir(job)
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(
        directory, selected_adapters=["default"], save_embedding_layers=False,
        safe_serialization=True,
    )  # fmt: skip
    (directory / "README.md").unlink(missing_ok=True)  # an empty model card
    return None


def base_in_memory(job: TrainingJob, model: Any) -> Any:
    """Return the base model under a trained PeftModel; None if it is not the one on disk.

    Loading it once more takes seconds. A base differs from the one on disk if it is quantized, or
    if a parent is merged into it.
    """
    settings = job.settings
    if not settings.use_lora or settings.quantization != "none" or settings.result != "adapter":
        return None
    if _is_stack(job):
        return None
    base = model.unload()
    base.disable_input_require_grads()
    return base.requires_grad_(False).eval()


def write_output(
    job: TrainingJob,
    text: loading.Text,
    weights: Mapping[str, Any] | None,
    figures: Mapping[str, Any],
    base: Any = None,
) -> None:
    """Write all files into the output directory, ``training_result.json`` last.

    `weights` comes from `save_trained`, `base` from `base_in_memory`. Free the trainer first:
    without a `base`, this loads one.
    """
    job.output_dir.mkdir(parents=True, exist_ok=True)
    parent = loading.read_parent(job)
    # 1. Write the weights.
    if job.settings.result == "adapter":
        unchanged = _write_adapter(job, parent)
        _sort_config(job.output_dir)
    else:
        unchanged = _write_base(job, text, parent, weights)
    # 2. Write the probe, by the weights read back from disk: served answers are compared with it.
    _write_json(job.output_dir / PROBE_FILE, _probe(job, text, parent, base))
    # 3. Write the figures last: they stand for a whole output.
    _write_json(job.output_dir / RESULT_FILE, {**figures, "unchanged": unchanged})


def concatenate(parent: "LoraFiles", new: "LoraFiles") -> "LoraFiles":
    """Join two adapters to one with the sum of their effects.

    Its ranks are the ranks of both, one after the other; scales are folded into B, so its scale is
    1. Every module gets the same rank, filled up with zeros.
    """
    import torch

    parts = (parent, new)
    rank = sum(max(down.shape[0] for down, _ in part.pairs.values()) for part in parts)
    pairs = {}
    for name in sorted(parent.pairs.keys() | new.pairs.keys()):
        held = [part for part in parts if name in part.pairs]
        down = torch.cat([part.pairs[name][0].float() for part in held])
        up = torch.cat([part.pairs[name][1].float() * part.scale(name) for part in held], dim=1)
        padding = rank - down.shape[0]
        pairs[name] = (
            torch.nn.functional.pad(down, (0, 0, 0, padding)),
            torch.nn.functional.pad(up, (0, padding)),
        )
    return replace(new, pairs=pairs, alpha=float(rank), rank_stabilised=False, digest="")


def same_weights(first: "LoraFiles | None", second: "LoraFiles | None") -> bool:
    """Compare the effects of two adapters on the base; None means no effect."""
    import torch

    names = {name for files in (first, second) if files for name in files.pairs}
    for name in names:
        deltas = []
        for files in (first, second):
            if files is None or name not in files.pairs:
                deltas.append(torch.zeros(()))
            else:
                down, up = files.pairs[name]
                deltas.append(files.scale(name) * (up.float() @ down.float()))
        if not bool((deltas[0] == deltas[1]).all()):
            return False
    return True


def _sort_config(directory: Path) -> None:
    """Sort a configuration, so that equal ones have equal bytes: PEFT writes sets in any order."""
    from nip_lm_server.lora.rowwise_lora import CONFIG_FILE

    path = directory / CONFIG_FILE
    config = parse_json(path.read_text())
    for name in ("target_modules", "exclude_modules", "modules_to_save"):
        if isinstance(config.get(name), list):
            config[name] = sorted(config[name])
    _write_json(path, dict(sorted(config.items())))


def _adapter_dir(job: TrainingJob) -> Path:
    """Return the trained adapter's directory: the output, if it is the result as it is."""
    settings = job.settings
    plain = settings.result == "adapter" and not _is_stack(job)
    return job.output_dir if plain else job.checkpoints_dir.parent / "trained_adapter"


def _is_stack(job: TrainingJob) -> bool:
    return job.parent_adapter_path is not None and job.settings.start_from == "stack"


def _read_trained(job: TrainingJob) -> "LoraFiles":
    from nip_lm_server.lora.rowwise_lora import read_lora

    try:
        return read_lora(_adapter_dir(job))
    except EngineError as error:
        raise TrainingError("output_unreadable", str(error)) from error


def _write_adapter(job: TrainingJob, parent: "LoraFiles | None") -> bool:
    adapter = _read_trained(job)
    if not _is_stack(job):
        return same_weights(parent, adapter)
    if parent is None:
        raise TrainingError("parent_adapter_unreadable", "there is no parent adapter to stack on")
    from peft import LoraConfig
    from safetensors.torch import save_file

    # An engine answers a request with one adapter, so parent and new adapter are saved as one.
    both = concatenate(parent, adapter)
    names = sorted(both.pairs)
    config = LoraConfig.from_pretrained(str(_adapter_dir(job)))
    config.r = config.lora_alpha = int(both.alpha)
    config.target_modules = set(names)
    config.rank_pattern, config.alpha_pattern = {}, {}
    config.use_rslora = False
    config.save_pretrained(job.output_dir)
    tensors = {}
    for name in names:
        for half, tensor in zip(("lora_A", "lora_B"), both.pairs[name], strict=True):
            tensors[f"base_model.model.{name}.{half}.weight"] = tensor.contiguous()
    save_file(tensors, job.output_dir / "adapter_model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(_adapter_dir(job))
    return same_weights(None, adapter)


def _write_base(
    job: TrainingJob,
    text: loading.Text,
    parent: "LoraFiles | None",
    weights: Mapping[str, Any] | None,
) -> bool:
    import torch

    # The precision is the one of the base on disk, so that the new base is as large.
    model = load_model(job.base_model_path, loading.base_dtype(job)).eval()
    if weights is None:
        adapter = _read_trained(job)
        continued = job.settings.start_from == "continue" and parent is not None
        unchanged = same_weights(parent if continued else None, adapter)
        stacked = parent is not None and not continued
        loading.merge(model, concatenate(parent, adapter) if stacked and parent else adapter)
        shutil.rmtree(_adapter_dir(job))
    else:
        if parent is not None:
            loading.merge(model, parent)
        unchanged = True
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                value = weights[name].to(parameter.dtype)
                unchanged = unchanged and bool(torch.equal(parameter, value))
                parameter.copy_(value)
    model.save_pretrained(job.output_dir)
    text.tokenizer.save_pretrained(job.output_dir)
    return unchanged


def _probe(
    job: TrainingJob, text: loading.Text, parent: "LoraFiles | None", base: Any
) -> dict[str, Any]:
    """Compute the probe's log-probabilities by the saved files, the base and the parent.

    The files are read back from disk, and so is the base if it is not in memory.
    """
    import torch

    from nip_lm_server.lora.prove_weights import apply_adapter, token_logprobs
    from nip_lm_server.lora.rowwise_lora import read_lora

    device = choose_device(job)
    precision = choose_precision(job.settings, device)
    tokens = probe_text(job, text)
    parent_logprobs = None
    for place in (device, "cpu"):
        try:
            model = base
            if model is None:
                model = load_model(job.base_model_path, getattr(torch, precision)).to(place).eval()
            without = token_logprobs(model, tokens)
            if parent is not None:
                with apply_adapter(model, parent):
                    parent_logprobs = token_logprobs(model, tokens)
            if job.settings.result == "adapter":
                with apply_adapter(model, read_lora(job.output_dir)):
                    saved = token_logprobs(model, tokens)
            else:
                model = None
                model = load_model(job.output_dir, getattr(torch, precision)).to(place).eval()
                saved = token_logprobs(model, tokens)
            break
        except torch.OutOfMemoryError:  # the freed memory may still be in fragments
            model = base = None
            torch.cuda.empty_cache()
            if place == "cpu":
                raise
    return {
        "tokens": tokens,
        "logprobs": saved,
        "base_logprobs": without,
        **({} if parent_logprobs is None else {"parent_logprobs": parent_logprobs}),
        "dtype": precision,
        "quantization": "none",
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(part, path)
