"""A GGUF file that says it has more than its bytes have room for is refused at once."""

import struct

import pytest

pytest.importorskip("gguf")

import gguf
import numpy as np

from nip_lm_server.gguf.gguf_header import check_header
from nip_lm_server.gguf.gguf_tokenizer import GgufError

TOO_MANY = 2**40


@pytest.fixture
def whole(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "whole.gguf", "llama")
    writer.add_block_count(2)
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_types([1, 1, 3])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "whole.gguf"


def text(words):
    return struct.pack("<Q", len(words)) + words


def header(tensors, fields, rest=b"", order="<"):
    return b"GGUF" + struct.pack(f"{order}IQQ", 3, tensors, fields) + rest


def test_a_file_as_the_library_writes_it_passes(whole):
    check_header(whole)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\3\4", "does not begin as a GGUF file"),
        (b"GGUF\3\0\0", "ends within its header"),
        (header(TOO_MANY, 0), f"{TOO_MANY} tensors, and 0 bytes are left"),
        (header(0, TOO_MANY), f"{TOO_MANY} fields, and 0 bytes are left"),
        (header(0, TOO_MANY, order=">"), f"{TOO_MANY} fields"),
        (header(0, 1, struct.pack("<Q", TOO_MANY) + bytes(9)), "bytes in the name of a field"),
        (header(0, 1, text(b"k") + struct.pack("<IQ", 8, TOO_MANY)), "bytes in a text"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", 9, 8, TOO_MANY)), "texts in a list"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", 9, 4, TOO_MANY)), "bytes in a list"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", 9, 9, 1)), "lists in a list"),
        (header(0, 1, text(b"k") + struct.pack("<IQ", 99, 0)), "a value of the kind 99"),
        (header(1, 0, text(b"t") + struct.pack("<IQQQ", 99, 0, 0, 0)), "99 dimensions"),
        (header(1, 0, text(b"t") + struct.pack("<IQIQ", 1, TOO_MANY, 0, 0)), "tensor of"),
    ],
)
def test_a_number_that_the_file_has_no_room_for_is_named(tmp_path, content, reason):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=f"bad.gguf: .*{reason}.*no model"):
        check_header(path)


def test_a_model_larger_by_its_fields_than_by_its_tensors_is_refused_before_it_is_made(whole):
    pytest.importorskip("torch")
    from nip_lm_server.gguf.gguf_model import convert_gguf

    with pytest.raises(GgufError, match=r"llama\.block_count is 2, and its 1 tensors"):
        convert_gguf(whole, whole.parent / "target")
    assert not (whole.parent / "target").exists()
