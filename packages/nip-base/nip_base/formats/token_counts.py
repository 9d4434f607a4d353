"""Counting the tokens of texts, by the tokenizer of a model on this machine."""

from collections.abc import Sequence
from pathlib import Path

_FILE = "tokenizer.json"


def count_tokens(model: str, texts: Sequence[str]) -> list[int] | None:
    """Count the tokens of each text, with nothing around it; None if it can't be done here.

    `model` is a directory, or a name on the Hub of which the tokenizer has been downloaded
    already; nothing is downloaded, and no weights are loaded.
    """
    try:
        from huggingface_hub import try_to_load_from_cache
        from tokenizers import Tokenizer
    except ImportError:  # without the extra `local`
        return None
    file: object = Path(model).expanduser() / _FILE
    try:
        if not Path(str(file)).is_file():
            file = try_to_load_from_cache(model, _FILE)
        if not isinstance(file, str | Path):
            return None
        encoded = Tokenizer.from_file(str(file)).encode_batch([*texts], add_special_tokens=False)
    except Exception:  # any error of the library on a foreign file: then it can't be counted
        return None
    return [len(each.ids) for each in encoded]
