"""Rows of the tables of `store`, as the code hands them around. JSON is parsed."""

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["pending", "done", "failed"]
Category = Literal["user", "server", "unknown"]
CheckpointKind = Literal["weights", "sampler_weights", "external_weights", "snapshot"]
"""A ``snapshot`` has no name by its client: only its sampler uses it."""


@dataclass(frozen=True)
class SessionRow:
    """A client's session. Times are seconds since 1970."""

    id: str
    finished_at: float | None
    user_metadata: dict[str, object]


@dataclass(frozen=True)
class LoraShape:
    """The LoRA of a model by its client's request; alpha is not on the wire."""

    rank: int
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(frozen=True)
class TinkerModelRow:
    """A model in training. Its state after request `durable_seq` is in a folder of its own."""

    id: str
    session_id: str
    base_model: str
    lora: LoraShape
    created_at: float
    durable_seq: int
    user_metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestRow:
    """A numbered request of a model or a sampler. `payload` is dropped after its last use."""

    owner: str
    seq: int
    kind: str
    digest: str
    payload: bytes | None
    status: Status
    created_at: float
    result: bytes | None
    is_protobuf: bool
    error: str | None
    category: Category | None


@dataclass(frozen=True)
class SamplerRow:
    """A sampler: a base model, or an adapter by its served name."""

    id: str
    session_id: str
    base_model: str
    model_path: str | None
    served_name: str
    created_at: float


@dataclass(frozen=True)
class CheckpointRow:
    """Weights on disk: `path` is ``tinker://MODEL/KIND/NAME``, of a snapshot its sampler's id."""

    path: str
    model_id: str
    session_id: str
    base_model: str
    kind: CheckpointKind
    name: str
    folder: str
    content_digest: str
    bytes: int
    lora: LoraShape
    created_at: float
    expires_at: float | None
    user_metadata: dict[str, str]
    has_optimizer: bool
    deleted_at: float | None
