"""The forward pass of models built like Llama, without the overhead of a general library.

PlainLlama     the pass over a model's own weights; `read_plain_llama` gives it, or None
Attend         a caller's way to keep keys and values; it decides what a layer's queries see
attend_grouped attention in which the query heads of one key head are read together

In a library, half of a step at a million parameters is Python around small products. At 135
million, attention with fewer key heads than query heads copies all keys and values at each step,
once per query head, as soon as there is a mask. Neither is so here. Weights that are applied to the
same input lie next to each other and are one product. The model's modules keep views of them, so
the proved and the served weights are the same memory. A model that computes anything else is left
to its library: `computes_the_same` compares.
"""

import itertools
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from nip_base.machine.processors import SMALL_BYTES
from nip_lm_server.lora.rowwise_lora import RowwiseLora

_CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # tables that hold for any length
_TABLE = 512
"""Positions by which the table of rotations grows."""

_PACKED_ROWS = 4
"""With fewer rows, both forms read a weight once, and the packed one has more overhead."""
_PACKED_OPERATIONS = ("_reorder_linear_weight", "_linear_pointwise")
_PACKED_SHARE = 1 / 8
"""The largest share of the machine's memory for the second copy."""

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, queries [rows, tokens, heads, size], keys and values [rows, tokens, key heads, size])
-> [rows, tokens, heads * size]"""


@dataclass(frozen=True)
class _Product:
    """Linear layers with one input: their joined weights, and the place of each one's output."""

    names: tuple[str, ...]
    ends: tuple[int, ...]
    weight: torch.Tensor
    bias: torch.Tensor | None
    packed: torch.Tensor | None  # the weight in oneDNN's fastest form


@dataclass(frozen=True)
class _Layer:
    input_norm: torch.Tensor  # weights of the norms
    middle_norm: torch.Tensor
    attention: _Product
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: _Product
    gates: _Product
    down: _Product


class PlainLlama:
    """The pass over `model`. Make a new one after the model was moved to another device.

    `packs`: keep a second copy of the weights, for faster products; see `may_pack`.
    """

    def __init__(self, model: Any, lora: RowwiseLora, *, packs: bool = False):
        config = model.config
        self._model, self._lora = model, lora
        self.layers = int(config.num_hidden_layers)
        self.heads = int(config.num_attention_heads)
        self.key_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self.size = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self._eps = float(config.rms_norm_eps)
        self.packs = packs
        self._layers = [
            _read_layer(layer, f"model.layers.{i}", packs)
            for i, layer in enumerate(model.model.layers)
        ]
        self._head = _join({"lm_head": model.lm_head}, packs)
        self._cos = self._sin = torch.empty(0)

    def run(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        longest: int,
        attend: Attend,
        *,
        last: bool,
    ) -> torch.Tensor:
        """The logits after `ids` [rows, tokens]: after the `last` token alone, or after each.

        `positions` are all below `longest`.
        """
        cos, sin = self._rotations(positions, longest)
        x = self._model.model.embed_tokens(ids)
        for number, layer in enumerate(self._layers):
            normed = functional.rms_norm(x, (x.shape[-1],), layer.input_norm, self._eps)
            x = x + self._attention(number, layer, normed, cos, sin, attend)
            normed = functional.rms_norm(x, (x.shape[-1],), layer.middle_norm, self._eps)
            both = self._apply(layer.gates, normed)
            gate, up = both.chunk(2, -1)
            x = x + self._apply(layer.down, functional.silu(gate) * up)
        if last:
            x = x[:, -1:]
        norm = self._model.model.norm
        return self._apply(
            self._head, functional.rms_norm(x, (x.shape[-1],), norm.weight, self._eps)
        )

    def _attention(
        self,
        number: int,
        layer: _Layer,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        rows, tokens, _ = normed.shape
        heads = self._apply(layer.attention, normed).view(rows, tokens, -1, self.size)
        unrotated, values = heads.split([self.heads + self.key_heads, self.key_heads], 2)
        if layer.query_norm is not None and layer.key_norm is not None:
            parts = unrotated.split([self.heads, self.key_heads], 2)
            norms = (layer.query_norm, layer.key_norm)
            unrotated = torch.cat(
                [
                    functional.rms_norm(part, (self.size,), norm, self._eps)
                    for part, norm in zip(parts, norms, strict=True)
                ],
                2,
            )
        half = self.size // 2
        rotated = unrotated * cos
        rotated[..., :half].addcmul_(unrotated[..., half:], sin[..., :half], value=-1)
        rotated[..., half:].addcmul_(unrotated[..., :half], sin[..., half:])
        queries, keys = rotated.split([self.heads, self.key_heads], 2)
        return self._apply(layer.out, attend(number, queries, keys, values))

    def _apply(self, product: _Product, x: torch.Tensor) -> torch.Tensor:
        output = _multiply(product, x)
        if self._lora.adapting:
            start = 0
            for name, end in zip(product.names, product.ends, strict=True):
                self._lora.add(name, x, output[..., start:end])
                start = end
        return output

    def _rotations(
        self, positions: torch.Tensor, longest: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [rows, tokens, 1, size]."""
        if longest > len(self._cos):
            weight = self._model.model.embed_tokens.weight
            places = torch.arange(-(-longest // _TABLE) * _TABLE, device=weight.device)
            cos, sin = self._model.model.rotary_emb(weight, places[None])
            self._cos, self._sin = cos[0], sin[0]
        return self._cos[positions][:, :, None], self._sin[positions][:, :, None]


def _multiply(product: _Product, x: torch.Tensor) -> torch.Tensor:
    if product.packed is None or x.numel() < _PACKED_ROWS * x.shape[-1]:
        return functional.linear(x, product.weight, product.bias)
    return _multiply_packed(x, product.packed, product.bias)


def may_pack(model: Any, machine_bytes: int) -> bool:
    """Say whether packed weights of `model` are possible, are faster, and have room in memory."""
    weights = list(model.parameters())
    size = sum(weight.nbytes for weight in weights)
    return (
        all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
        and platform.machine() in ("x86_64", "AMD64")  # measured there alone
        and torch.backends.mkldnn.is_available()
        # No public names: another version of torch may lack them.
        and all(hasattr(torch.ops.mkldnn, name) for name in _PACKED_OPERATIONS)
        # Weights in the processor's own caches are as fast unpacked, with less overhead.
        and SMALL_BYTES <= size <= _PACKED_SHARE * machine_bytes
    )


def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def _multiply_packed(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return output


def read_plain_llama(model: Any, lora: RowwiseLora, *, packs: bool = False) -> PlainLlama | None:
    """The pass over a model's parts; None if the model may compute anything else."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    is_plain = (
        type(model).__name__ in _CLASSES
        and getattr(config, "hidden_act", "") == "silu"
        and rope.get("rope_type", "default") in _ROPE_TYPES
        and not _has_sliding_attention(config)
    )
    return PlainLlama(model, lora, packs=packs) if is_plain else None


def computes_the_same(plain: PlainLlama, model: Any, ids: Sequence[int]) -> bool:
    """Say whether the pass gives the logits of the model's own library, up to rounding."""
    device = model.device
    tokens = torch.tensor([[*ids]], device=device)
    expected = model(input_ids=tokens, use_cache=False).logits.float()
    # Float32 rounds in the sixth digit, and so do a library's norms in float64. A twentieth in half
    # precisions is a rule of thumb: a missing or wrong operation moves logits by more.
    is_wide = model.dtype in (torch.float32, torch.float64)
    allowed = (1e-3 if is_wide else 0.05) * float(expected.abs().max())
    # A few tokens as well: their products are others, see `_multiply`.
    for count in (len(ids), _PACKED_ROWS - 1):
        logits = score_causally(plain, [ids[:count]], device).float()
        difference = float((expected[:, :count] - logits).abs().max())
        if not difference <= allowed:  # so that a NaN is refused
            return False
    return True


def _has_sliding_attention(config: Any) -> bool:
    if any("sliding" in kind for kind in getattr(config, "layer_types", None) or ()):
        return True
    window = getattr(config, "sliding_window", None)
    return window is not None and bool(getattr(config, "use_sliding_window", True))


def attend_grouped(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Attention of queries [rows, tokens, heads, size] over keys [rows, key heads, length, size].

    `mask` [rows or 1, 1, tokens * heads per key head, length] is added; see `spread`.
    """
    rows, tokens, heads, size = queries.shape
    key_heads = keys.shape[1]
    group = heads // key_heads
    # The query heads of a key head are read as so many tokens: no keys are copied for each head.
    grouped = queries.view(rows, tokens, key_heads, group, size).transpose(1, 2)
    output = functional.scaled_dot_product_attention(
        grouped.reshape(rows, key_heads, tokens * group, size), keys, values, attn_mask=mask
    )
    output = output.view(rows, key_heads, tokens, group, size).transpose(1, 2)
    return output.reshape(rows, tokens, heads * size)


def spread(visible: torch.Tensor, group: int, dtype: torch.dtype) -> torch.Tensor:
    """The mask of `attend_grouped`; `visible` is bool [rows or 1, tokens, length]."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    mask.masked_fill_(~visible, -torch.inf)
    return mask.repeat_interleave(group, 1)[:, None] if group > 1 else mask[:, None]


def score_causally(plain: PlainLlama, sequences: Sequence[Sequence[int]], device: Any) -> Any:
    """Logits [sequences, longest, vocabulary] after each token; past a sequence they are void."""
    longest = max(map(len, sequences))
    rows = [[*each, *[each[-1]] * (longest - len(each))] for each in sequences]
    places = torch.arange(longest, device=device)
    visible = (places[None] <= places[:, None])[None]
    mask: torch.Tensor | None = None

    def attend(
        _layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        nonlocal mask
        if mask is None:
            mask = spread(visible, plain.heads // plain.key_heads, queries.dtype)
        return attend_grouped(queries, keys.transpose(1, 2), values.transpose(1, 2), mask)

    ids = torch.tensor(rows, device=device)
    return plain.run(ids, places[None].expand(len(rows), -1), longest, attend, last=False)


def _read_layer(layer: Any, name: str, packs: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        input_norm=layer.input_layernorm.weight,
        middle_norm=layer.post_attention_layernorm.weight,
        attention=_join(
            {
                f"{name}.self_attn.{part}": getattr(attention, part)
                for part in ("q_proj", "k_proj", "v_proj")
            },
            packs,
        ),
        query_norm=_find_weight(getattr(attention, "q_norm", None)),
        key_norm=_find_weight(getattr(attention, "k_norm", None)),
        out=_join({f"{name}.self_attn.o_proj": attention.o_proj}, packs),
        gates=_join(
            {f"{name}.mlp.{part}": getattr(mlp, part) for part in ("gate_proj", "up_proj")}, packs
        ),
        down=_join({f"{name}.mlp.down_proj": mlp.down_proj}, packs),
    )


def _find_weight(module: Any) -> torch.Tensor | None:
    return None if module is None else module.weight


def _join(modules: dict[str, Any], packs: bool) -> _Product:
    """Lay the weights of some linear layers next to each other; their modules keep views."""
    lengths = [len(module.weight) for module in modules.values()]
    ends = tuple(itertools.accumulate(lengths))
    first = next(iter(modules.values()))
    if len(modules) == 1:
        packed = _pack(first.weight) if packs else None
        return _Product(tuple(modules), ends, first.weight, first.bias, packed)
    joined: dict[str, torch.Tensor | None] = {"weight": None, "bias": None}
    for kind in joined if first.bias is not None else ("weight",):
        whole = torch.cat([getattr(module, kind).data for module in modules.values()])
        for module, part in zip(modules.values(), whole.split(lengths), strict=True):
            getattr(module, kind).data = part
        joined[kind] = whole
    weight = joined["weight"]
    assert weight is not None
    packed = _pack(weight) if packs else None
    return _Product(tuple(modules), ends, weight, joined["bias"], packed)
