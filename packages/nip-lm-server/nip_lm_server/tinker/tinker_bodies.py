"""The JSON bodies of Tinker's API, and the checks of their fields.

A body with an unknown field is refused, as everywhere in this server: the field would be ignored.
`Refused` is for requests that the server understands and does not do. It becomes the request's
result, so that the client gets the reason with its category and goes on.
"""

import hashlib
import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from nip_base.api_errors import ApiError, wrong_value

MOST_NAME = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")
_LARGEST = 2**31 - 1
# A number is no text and no truth value: a client's mistake is an error, never a guess.
Integer = Annotated[int, Strict()]
Real = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Number = Annotated[Integer, Field(ge=0, le=_LARGEST)]
Seconds = Annotated[Integer, Field(ge=1, le=10 * 366 * 24 * 3600)]
Text = Annotated[str, Field(max_length=4096)]
Metadata = Annotated[dict[str, Any], Field(max_length=256)]


class Refused(Exception):
    """The request is understood and not done here; the message names another way."""


class Body(BaseModel):
    """A body with these fields and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    type: str | None = None


class ClientConfig(Body):
    sdk_version: Text


class CreateSession(Body):
    tags: Annotated[list[Text], Field(max_length=256)] = []
    user_metadata: Metadata | None = None
    sdk_version: Text = ""
    project_id: Text | None = None
    display_name: Text | None = None


class Heartbeat(Body):
    session_id: Text


class FinishReason(Body):
    type: Literal["success", "errored", "interrupted"]


class Finish(Body):
    reason: FinishReason | Text | None = None
    detail: Any = None


class Lora(Body):
    rank: Annotated[Integer, Field(ge=1, le=_LARGEST)]
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    train_unembed: Flag = True
    train_mlp: Flag = True
    train_attn: Flag = True


class Optimizer(BaseModel):
    """The optimizer of a model; only AdamW is here."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Text = "adamw"


class CreateModel(Body):
    session_id: Text
    model_seq_id: Number
    base_model: Text
    lora_config: Lora | None = None
    optimizer_config: Optimizer = Optimizer()
    user_metadata: Metadata | None = None


class GetInfo(Body):
    model_id: Text


class Adam(Body):
    learning_rate: Real = 1e-4
    beta1: Real = 0.9
    beta2: Real = 0.95
    eps: Real = 1e-12
    weight_decay: Real = 0.0
    grad_clip_norm: Real = 0.0


class OptimStep(Body):
    model_id: Text
    seq_id: Number
    adam_params: Adam | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(Body):
    model_id: Text
    seq_id: Number
    path: Text | None = None
    ttl_seconds: Seconds | None = None
    overwrite: Flag = False
    user_metadata: Metadata | None = None


class SaveForSampler(Body):
    model_id: Text
    seq_id: Number
    path: Text | None = None
    sampling_session_seq_id: Number | None = None
    kind: Text = "snapshot"
    ttl_seconds: Seconds | None = None
    user_metadata: Metadata | None = None


class SaveExternal(Body):
    model_id: Text
    seq_id: Number
    path: Text
    ttl_seconds: Seconds | None = None
    age_encryption_recipients: list[Text] | None = None


class LoadWeights(Body):
    """0.38 makes a model of a session; older SDKs make it first, and load as its first request."""

    path: Text
    optimizer: Flag
    session_id: Text | None = None
    model_seq_id: Number | None = None
    model_id: Text | None = None
    seq_id: Number | None = None
    base_model: Text | None = None
    user_metadata: Metadata | None = None
    optimizer_config: Optimizer | None = None
    weights_access_token: Text | None = None


class CreateSampler(Body):
    session_id: Text
    sampling_session_seq_id: Number
    base_model: Text | None = None
    model_path: Text | None = None


class Chunk(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    type: Text = "encoded_text"
    tokens: list[Integer] | None = None


class Prompt(Body):
    chunks: list[Chunk]


class SamplingParams(Body):
    max_tokens: Annotated[Integer, Field(ge=1, le=_LARGEST)] | None = None
    seed: Integer | None = None
    stop: Text | list[Text] | list[Integer] | None = None
    temperature: Annotated[Real, Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    top_k: Integer = -1
    top_p: Annotated[Real, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0


class Sample(Body):
    prompt: Prompt
    sampling_params: SamplingParams
    num_samples: Annotated[Integer, Field(ge=1, le=4096)] = 1
    sampling_session_id: Text | None = None
    seq_id: Annotated[Integer, Field(ge=0, le=2**62)] | None = None
    base_model: Text | None = None
    model_path: Text | None = None
    prompt_logprobs: Flag | None = None
    topk_prompt_logprobs: Number = 0
    topk_sample_logprobs: Number = 0
    target_prompt_logprobs: dict[str, Any] | None = None
    prompt_alt_tokens_k: Number = 0
    prompt_logprobs_last_n: Integer | None = None
    record_stability_info: Flag | None = None


class RetrieveFuture(Body):
    request_id: Text
    allow_metadata_only: Flag = False


class SetExpiry(Body):
    ttl_seconds: Seconds | None = None


class WeightsInfo(Body):
    tinker_path: Text


B = TypeVar("B", bound=Body)


def read_body(kind: type[B], value: dict[str, Any]) -> B:
    """Check a body. Raises ApiError 400 that names the first wrong field."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise wrong_value(place or None, f"Invalid '{place}': {first['msg'][:300]}") from None


def digest(kind: str, value: dict[str, Any]) -> str:
    """Digest a body's fields: their order and the spaces between them don't count."""
    text = json.dumps([kind, value], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def check_name(name: str) -> str:
    """Return a checkpoint's name. Raises Refused for one that can't stand in a path."""
    if not NAME.fullmatch(name) or len(name) > MOST_NAME:
        raise Refused(
            f"the name {name[:80]!r} can't stand in a path: letters, digits and ._=+- are taken, "
            f"{MOST_NAME} at most, the first a letter or digit"
        )
    return name


def check_optimizer(optimizer: Optimizer | None) -> None:
    """Raise Refused for another optimizer than AdamW."""
    if optimizer is not None and optimizer.type != "adamw":
        raise Refused(
            f"the optimizer {optimizer.type[:40]!r} is not here: leave optimizer_config out, or "
            'set its type to "adamw"'
        )


LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo")


def refuse_loss(name: str) -> str | None:
    """Name another way for a loss that is not here; None: it is here."""
    if name in LOSSES:
        return None
    names = ", ".join(LOSSES)
    if name == "stable_reinforce":
        return (
            "the loss 'stable_reinforce' is not published and is not here: set "
            "loss_fn=importance_sampling (a recipe takes it on its command line); known: " + names
        )
    if name == "custom":
        return (
            "custom losses are not computed by this server: call forward_backward_custom, which "
            "computes them in the client; known: " + names
        )
    return f"there is no loss {name[:60]!r}; known: {names}"


def not_found(thing: str, id: str) -> ApiError:
    """Build the 404 for a session, model, sampler or request that does not exist."""
    message = f"There is no {thing} {id[:120]!r}"
    return ApiError(404, message, code="not_found", param=f"{thing}_id")
