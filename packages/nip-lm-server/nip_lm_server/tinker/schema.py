"""The schema of Tinker's three protobuf messages, and their classes.

parse         bytes -> a message of the schema, or a WireError
make          a message of the schema with these fields
check_known   refuses a message with fields that the schema does not have

Field numbers are those of the SDK's schema (package `tinker_public`, proto3). The descriptors are
made here and lie in a pool of their own: code that protoc generates works with two major versions
of the library, and meets the SDK's in the one pool of a process.

Two differences to the SDK's schema leave the bytes as they are. Maps are repeated entries, so that
the server sees a name that comes twice. A part that nip only has to notice is of the type `Unread`.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.message import DecodeError

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _FIELD.TYPE_STRING, "bytes": _FIELD.TYPE_BYTES, "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32, "uint32": _FIELD.TYPE_UINT32, "int64": _FIELD.TYPE_INT64,
    "double": _FIELD.TYPE_DOUBLE,
}  # fmt: skip
_SCHEMA: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ForwardBackwardRequest": {
        "model_id": (1, "string"), "seq_id": (2, "int64"), "data": (3, "repeated Datum"),
        "loss_fn": (4, "string"), "loss_fn_config": (5, "repeated NumberEntry"),
        "forward_only": (6, "bool"), "loss_fn_config_v2": (7, "repeated LossConfigEntry"),
    },
    "NumberEntry": {"key": (1, "string"), "value": (2, "double")},
    "LossConfigEntry": {"key": (1, "string"), "value": (2, "LossConfigValue")},
    "LossConfigValue": {"number": (1, "double"), "text": (2, "optional string")},
    "Datum": {
        "model_input": (1, "repeated Chunk"), "loss_fn_inputs": (2, "repeated TensorEntry"),
        "model_input_spans": (3, "Unread"), "loss_fn_input_spans": (4, "Unread"),
    },
    "Chunk": {
        "encoded_text": (1, "EncodedTextChunk"), "image": (2, "Unread"), "dmel": (3, "Unread"),
    },
    "EncodedTextChunk": {"tokens": (1, "bytes")},
    "TensorEntry": {"key": (1, "string"), "value": (2, "Tensor")},
    "Tensor": {
        "dense": (1, "bytes"), "sparse_csr": (2, "SparseCsr"), "dtype": (3, "int32"),
        "shape": (4, "repeated int64"),
    },
    "SparseCsr": {
        "values": (1, "bytes"), "crow_indices": (2, "bytes"), "col_indices": (3, "bytes"),
    },
    "Unread": {},
    "ForwardBackwardOutput": {
        "loss_fn_output_type": (1, "string"), "loss_fn_outputs": (2, "repeated ArrayRecord"),
        "metrics": (3, "repeated NumberEntry"),
    },
    "ArrayRecord": {
        "type_tag": (1, "string"), "fields": (2, "repeated BatchEntry"),
        "num_datums": (3, "int64"),
    },
    "BatchEntry": {"key": (1, "string"), "value": (2, "BatchedTensor")},
    "BatchedTensor": {
        "data": (1, "bytes"), "offsets": (2, "bytes"), "dtype": (3, "int32"),
        "trailing_shape": (4, "repeated int64"),
    },
    "SampleResponse": {
        "sequences": (1, "repeated SampledSequence"), "prompt_logprobs": (2, "optional bytes"),
        "topk_prompt_logprobs": (3, "TopkLogprobs"), "prompt_cache_hit_tokens": (4, "int32"),
    },
    "SampledSequence": {
        "stop_reason": (1, "int32"), "tokens": (2, "bytes"), "logprobs": (3, "optional bytes"),
        "topk_sampled_logprobs": (4, "TopkLogprobs"),
    },
    "TopkLogprobs": {
        "token_ids": (1, "bytes"), "logprobs": (2, "bytes"), "k": (3, "uint32"),
        "length": (4, "uint32"),
    },
}  # fmt: skip


class WireError(ValueError):
    """Bytes that are no message of the schema; the error names the fault and its place."""


def _make_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="nip.proto", package="nip", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field_name, (number, words) in fields.items():
            label, _, kind = words.rpartition(" ")
            field = message.field.add(name=field_name, number=number, label=_FIELD.LABEL_OPTIONAL)
            field.type = _TYPES.get(kind, _FIELD.TYPE_MESSAGE)
            if kind not in _TYPES:
                field.type_name = f".nip.{kind}"
            if label == "repeated":
                field.label = _FIELD.LABEL_REPEATED
            elif label == "optional":  # in proto3 that is a choice of one
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"nip.{name}"))
        for name in _SCHEMA
    }


_CLASSES = _make_classes()


def make(name: str, **fields: Any) -> Any:
    """Make a message of the schema with these fields."""
    return _CLASSES[name](**fields)


def parse(name: str, body: bytes) -> Any:
    """Read a message of the schema. Raises WireError for other bytes."""
    try:
        return _CLASSES[name].FromString(body)
    except DecodeError as error:
        raise WireError(f"the body is no {name}: {error}") from None


def check_known(message: Any, place: str) -> None:
    """Raise WireError for a field that the schema does not have, or of another kind.

    The field would otherwise be ignored. Messages within the message are not checked.
    """
    for field in unknown_fields.UnknownFieldSet(message):
        raise WireError(
            f"{place}: field {field.field_number} (wire type {field.wire_type}) is not known to "
            "this server"
        )
