"""The tiny model's tokenizer: whole words where it knows them, bytes for everything else.

A word keeps the space before it, and the one behind it where a number follows, so that a number
is the same token in ``x * 12`` and in ``xs[:12]``. There are no merges: a piece of text is one
token if it is in the vocabulary, and one token per byte if not. So any text has an encoding and
comes back as it was, and building it twice gives the same files.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL = (PAD, END, SYSTEM, USER, ASSISTANT)

# Number of at most two digits | word | line break with its indentation | blanks | other character.
_PIECES = r"\d{1,2}| ?[A-Za-z_]+(?: (?=\d))?|\n *| +(?=\d)| ?[^\sA-Za-z_\d](?: (?=\d))?|\s"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' -%}
    {{- '<|assistant|>' -}}
    {%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}
  {%- elif message['role'] in ('system', 'user') -%}
    {{- '<|' + message['role'] + '|>' -}}
    {%- if message['name'] -%}{{- message['name'] + '\\n' -}}{%- endif -%}
    {{- message['content'] + '<|end|>' -}}
  {%- else -%}
    {{- raise_exception('unknown role: ' + message['role']) -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def build_tokenizer(texts: Iterable[str], size: int, context: int, labels: str = "") -> Any:
    """A fast tokenizer with the `size` - 261 most frequent pieces of `texts` as words.

    Returns a `transformers` tokenizer with the chat template. `context` is the longest input;
    `labels` is a regular expression of texts that are one piece, ahead of any other rule.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = f"{labels}|{_PIECES}" if labels else _PIECES
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts = Counter(piece for text in texts for piece, _ in split.pre_tokenize_str(text))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
    words = [piece for piece in ranked if len(piece) > 1][: size - len(letters) - len(SPECIAL)]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *letters, *words])}
    core = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    core.pre_tokenizer = split
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def save_tokenizer(tokenizer: Any, directory: Path) -> None:
    """Write the tokenizer's files, the chat template among them."""
    tokenizer.save_pretrained(directory)
    # The class by the name that older releases of transformers know as well.
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.pop("backend", None)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
