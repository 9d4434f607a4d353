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
_HALF_ROWS = 48
"""With more rows, a processor multiplies for longer than it reads weights, and float16 only costs
their conversion."""
_HALF_ERROR = 2**-22
"""The largest error of a row of weights in float16, by its length: four times float32's own."""
_COPY_SHARE = 1 / 8
"""The largest share of the machine's memory for each copy, so 3/16 for both."""

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, queries [rows, tokens, heads, size], keys and values [rows, tokens, key heads, size])
-> [rows, tokens, heads * size]"""


@dataclass(frozen=True)
class Copies:
    """The copies of weights that a pass keeps: `packed` for many rows, `half` for few."""

    packed: bool = False
    half: bool = False


@dataclass(frozen=True)
class _Product:
    """Linear layers with one input: their joined weights, and the place of each one's output."""

    names: tuple[str, ...]
    ends: tuple[int, ...]
    weight: torch.Tensor
    bias: torch.Tensor | None
    packed: torch.Tensor | None  # the weight in oneDNN's fastest form
    half: Any  # weight and bias in FBGEMM's form, the weight in float16


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

    `copies` of the weights are kept for faster products; see `find_copies`.
    """

    def __init__(self, model: Any, lora: RowwiseLora, copies: Copies):
        config = model.config
        self._model, self._lora = model, lora
        self.layers = int(config.num_hidden_layers)
        self.heads = int(config.num_attention_heads)
        self.key_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self.size = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self._eps = float(config.rms_norm_eps)
        self.copies = copies
        self._layers = [
            _read_layer(layer, f"model.layers.{i}", copies)
            for i, layer in enumerate(model.model.layers)
        ]
        self._head = _join({"lm_head": model.lm_head}, copies)
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
            normed = self._norm(x, layer.input_norm)
            x = x + self._attention(number, layer, normed, cos, sin, attend)
            gate, up = self._apply(layer.gates, self._norm(x, layer.middle_norm)).chunk(2, -1)
            x = x + self._apply(layer.down, functional.silu(gate) * up)
        if last:
            x = x[:, -1:]
        return self._apply(self._head, self._norm(x, self._model.model.norm.weight))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return functional.rms_norm(x, weight.shape, weight, self._eps)
        # On a CPU, torch's own reads all of `x` two times more.
        factor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        factor.square_().div_(x.shape[-1]).add_(self._eps).rsqrt_()
        return (x * factor).mul_(weight)

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
            queries, keys = unrotated.split([self.heads, self.key_heads], 2)
            normed = (self._norm(queries, layer.query_norm), self._norm(keys, layer.key_norm))
            unrotated = torch.cat(normed, 2)
        rotated = (unrotated * cos).addcmul_(unrotated.roll(self.size // 2, -1), sin)
        queries, keys = rotated.split([self.heads, self.key_heads], 2)
        return self._apply(layer.out, attend(number, queries, keys, values))

    def _apply(self, product: _Product, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _multiply(product, x)
        if self._lora.adapting:
            start = 0
            for name, end in zip(product.names, product.ends, strict=True):
                self._lora.add(name, x, output[..., start:end])
                start = end
        return output

    def _rotations(
        self, positions: torch.Tensor, longest: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [rows, tokens, 1, size]; the sines of the first half are negative."""
        if longest > len(self._cos):
            weight = self._model.model.embed_tokens.weight
            places = torch.arange(-(-longest // _TABLE) * _TABLE, device=weight.device)
            cos, sin = self._model.model.rotary_emb(weight, places[None])
            self._cos, self._sin = cos[0], sin[0]
            self._sin[:, : self.size // 2] *= -1
        return self._cos[positions][:, :, None], self._sin[positions][:, :, None]


def _multiply(product: _Product, x: torch.Tensor) -> Any:
    rows = x.numel() // x.shape[-1]
    # The kernels compute in float32, and a row's result doesn't depend on the number of rows.
    if product.half is not None and (rows < _HALF_ROWS or product.packed is None):
        return torch.ops.quantized.linear_dynamic_fp16.default(x, product.half)
    if product.packed is None or rows < _PACKED_ROWS:
        return functional.linear(x, product.weight, product.bias)
    return torch.ops.mkldnn._linear_pointwise(x, product.packed, product.bias, "none", [], "")


def find_copies(model: Any, machine_bytes: int) -> Copies:
    """The copies that are possible, make products of `model` faster, and have room in memory."""
    weights = list(model.parameters())
    size = sum(weight.nbytes for weight in weights)
    is_possible = (
        all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
        and torch.backends.quantized.engine in ("x86", "fbgemm")  # measured there alone
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # no public names
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.quantized, "linear_prepack_fp16")
        and hasattr(torch.ops.quantized, "linear_dynamic_fp16")
        # Weights in the processor's own caches are as fast without, with less overhead.
        and size >= SMALL_BYTES
    )
    room = _COPY_SHARE * machine_bytes if is_possible else 0
    return Copies(packed=size <= room, half=size // 2 <= room)


def halve(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """The weight for products from float16; None where float32 would give other results.

    Most published models were saved in half precisions, so that all or nearly all of their weights
    are numbers of float16.
    """
    for rows in weight.split(256):  # pieces that fit into the processor's caches
        error = (rows - rows.half()).norm(dim=1)
        if not bool((error <= _HALF_ERROR * rows.norm(dim=1)).all()):
            return None
    return torch.ops.quantized.linear_prepack_fp16(weight, bias)


def read_plain_llama(model: Any, lora: RowwiseLora, copies: Copies) -> PlainLlama | None:
    """The pass over a model's parts; None if the model may compute anything else."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    is_plain = (
        type(model).__name__ in _CLASSES
        and getattr(config, "hidden_act", "") == "silu"
        and rope.get("rope_type", "default") in _ROPE_TYPES
        and not _has_sliding_attention(config)
    )
    return PlainLlama(model, lora, copies) if is_plain else None


def computes_the_same(plain: PlainLlama, model: Any, ids: Sequence[int]) -> bool:
    """Say whether the pass gives the logits of the model's own library, up to rounding."""
    device = model.device
    ids = [*ids] * -(-_HALF_ROWS // len(ids))
    tokens = torch.tensor([ids], device=device)
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


def _read_layer(layer: Any, name: str, copies: Copies) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        input_norm=layer.input_layernorm.weight,
        middle_norm=layer.post_attention_layernorm.weight,
        attention=_join(
            {f"{name}.self_attn.{it}_proj": getattr(attention, f"{it}_proj") for it in "qkv"},
            copies,
        ),
        query_norm=getattr(getattr(attention, "q_norm", None), "weight", None),
        key_norm=getattr(getattr(attention, "k_norm", None), "weight", None),
        out=_join({f"{name}.self_attn.o_proj": attention.o_proj}, copies),
        gates=_join(
            {f"{name}.mlp.{part}": getattr(mlp, part) for part in ("gate_proj", "up_proj")}, copies
        ),
        down=_join({f"{name}.mlp.down_proj": mlp.down_proj}, copies),
    )


def _join(modules: dict[str, Any], copies: Copies) -> _Product:
    """Lay the weights of some linear layers next to each other; their modules keep views."""
    lengths = [len(module.weight) for module in modules.values()]
    first = next(iter(modules.values()))
    joined: dict[str, Any] = {"weight": first.weight, "bias": first.bias}
    for kind, own in joined.items() if len(modules) > 1 else ():
        if own is not None:
            whole = torch.cat([getattr(module, kind).data for module in modules.values()])
            for module, part in zip(modules.values(), whole.split(lengths), strict=True):
                getattr(module, kind).data = part
            joined[kind] = whole
    weight, bias = joined["weight"], joined["bias"]
    packed = torch.ops.mkldnn._reorder_linear_weight(weight) if copies.packed else None
    half = halve(weight, bias) if copies.half else None
    ends = tuple(itertools.accumulate(lengths))
    return _Product(tuple(modules), ends, weight, bias, packed, half)
