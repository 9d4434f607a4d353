"""The tokenizer of a GGUF file, built from the fields of the file.

write_tokenizer   writes tokenizer.json, tokenizer_config.json and chat_template.jinja
prove_tokenizer   reads them as a server does, and compares with the file

Transformers reads a tokenizer of GGUF as well, but its versions differ. 5.17 read SmolLM2's so that
an answer ended where a message begins, and a guide read its bytes wrongly. No version up to 5.23
reads how texts are cut. So nip reads the file itself, and equal files have equal tokenizers.

Covered: byte-level BPE, as llama.cpp's "gpt2" has it.
"""

import json
from pathlib import Path
from typing import Any

from nip_lm_server.errors import ModelError

_CUTS = ("smollm", "gpt-2", "default")
"""Ways to cut a text into words before its tokens, as llama.cpp names them."""
_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens in GGUF
_PROBE = "Is 1024 > 99?\n\n  Decision: accept\n\ttwo  spaces, naïve – Ω 漢字 🙂 'tis\n"
"""Spaces, digits, lines and letters of several bytes: tokenizers read these differently."""


class GgufError(ModelError):
    """A file that the packages here can't read as a model."""


class GgufFields:
    """The fields of a GGUF file, read once."""

    def __init__(self, name: str, fields: Any):
        self.name = name
        self._fields = fields

    def get(self, key: str, default: Any = None) -> Any:
        """Return the contents of a field, or the default where the file has none."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        """Return the contents of a field. Raises GgufError where the file has none."""
        if (value := self.get(key)) is None:
            raise GgufError(f"{self.name}: it has no field {key}")
        return value


def write_tokenizer(fields: GgufFields, context: int, target: Path) -> None:
    """Write the files of the tokenizer to a directory.

    Raises GgufError for a kind that is not covered, and for a file without a chat template.
    """
    if (template := fields.get("tokenizer.chat_template")) is None:
        raise GgufError(f"{fields.name}: it has no chat template")
    # In bytes: in text mode the ends of lines, and so the digests, would differ by system.
    (target / "tokenizer.json").write_bytes(_build(fields).to_str(pretty=True).encode())
    (target / "chat_template.jinja").write_bytes(template.encode())
    tokens = fields.require("tokenizer.ggml.tokens")
    # No token for the beginning of a text is put before a prompt: the template writes it.
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        **{
            f"{name}_token": tokens[number]
            for name, key in (
                ("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"),
            )
            if (number := fields.get(f"tokenizer.ggml.{key}_token_id")) is not None
        },
    }  # fmt: skip
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (target / "tokenizer_config.json").write_bytes(text.encode())


def prove_tokenizer(fields: GgufFields, target: Path) -> None:
    """Read the written tokenizer as a server does. Raises GgufError where it is not the file's.

    Compared are its tokens by their numbers, a text and back, and the token that ends an answer.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    tokens = fields.require("tokenizer.ggml.tokens")
    ids = tokenizer.encode(_PROBE, add_special_tokens=False)
    expected = Tokenizer.from_file(str(target / "tokenizer.json")).encode(_PROBE).ids
    checks = {
        "tokens": (tokenizer.convert_ids_to_tokens(range(len(tokens))), tokens),
        "tokens of a text": (ids, expected),
        "a text and back": (tokenizer.decode(ids, clean_up_tokenization_spaces=False), _PROBE),
        "the end of an answer": (tokenizer.eos_token_id, fields.get("tokenizer.ggml.eos_token_id")),
    }
    for subject, (value, original) in checks.items():
        if value != original:
            raise GgufError(
                f"{fields.name}: the packages here read its tokenizer otherwise: {subject} differ; "
                "another version of transformers may read it"
            )


def _build(fields: GgufFields) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, cut = fields.require("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise GgufError(f"{fields.name}: its tokenizer is of the kind {kind!r}; known is 'gpt2'")
    if cut not in _CUTS:
        raise GgufError(
            f"{fields.name}: its tokenizer cuts texts as {cut!r}; known are {', '.join(_CUTS)}"
        )
    tokens = fields.require("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ", 1)) for pair in fields.require("tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if cut == "smollm" else words
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields.require("tokenizer.ggml.token_type")
    extra_tokens = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in extra_tokens if token.special])
    tokenizer.add_tokens([token for token in extra_tokens if not token.special])
    return tokenizer
