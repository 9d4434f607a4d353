"""The tokens of an engine without a model: pieces of three UTF-8 bytes, stable and reversible.

count_pseudo_tokens  the number of a text's tokens
token_ids            text -> ids; the number of bytes is in the id, so that ids can be turned back
prompt_ids           a conversation -> ids, with overhead as a chat template has it
decode_ids           ids -> text; raises ValueError for an id that is no token
split_pieces         text -> its pieces, token by token, as a stream has them
"""

import codecs
import hashlib
from collections.abc import Iterator, Sequence

from nip_lm_server.chats.chat_types import ChatMessage

TOKEN_BYTES = 3
"""About the length of real tokens, so that limits mean the same as with a model. With their number
in the top byte, an id fits into 32 bits."""
MESSAGE_OVERHEAD = 3  # tokens that a chat template would add to a message, as `prompt_ids` does
_BEGIN, _END, _ROLES = 1, 2, 256  # a role is _ROLES plus a byte


def count_pseudo_tokens(text: str) -> int:
    """Number of tokens of a text."""
    size = len(text) if text.isascii() else len(_encode(text))
    return -(-size // TOKEN_BYTES)


def token_ids(text: str) -> tuple[int, ...]:
    """The tokens of a text."""
    raw = _encode(text)
    return tuple(
        (len(piece) << 24) | int.from_bytes(piece, "big")
        for piece in (raw[i : i + TOKEN_BYTES] for i in range(0, len(raw), TOKEN_BYTES))
    )


def prompt_ids(messages: Sequence[ChatMessage]) -> tuple[int, ...]:
    """The tokens of a conversation: begin, role, content, end of each message."""
    ids: list[int] = []
    for message in messages:
        role = hashlib.sha256(message["role"].encode()).digest()[0]
        ids += (_BEGIN, _ROLES + role, *token_ids(message["content"]), _END)
    return tuple(ids)


def decode_ids(ids: Sequence[int]) -> str:
    """The text of tokens. The tokens around a message in `prompt_ids` add none."""
    raw = bytearray()
    for token in ids:
        size, value = token >> 24, token & 0xFFFFFF
        if token in (_BEGIN, _END) or _ROLES <= token < 2 * _ROLES:
            continue
        if not 1 <= size <= TOKEN_BYTES or value >= 1 << (8 * size):
            raise ValueError(f"the token id {token} is not in the vocabulary")
        raw += value.to_bytes(size, "big")
    return raw.decode("utf-8", "replace")


def split_pieces(text: str) -> Iterator[str]:
    """Yield the text completed by each token; a character cut in two comes with its end."""
    raw = _encode(text)
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    for start in range(0, len(raw), TOKEN_BYTES):
        end = start + TOKEN_BYTES
        yield decoder.decode(raw[start:end], final=end >= len(raw))


def _encode(text: str) -> bytes:
    # JSON may carry half a surrogate pair, which plain UTF-8 refuses: it gets tokens as well.
    return text.encode("utf-8", "surrogatepass")
