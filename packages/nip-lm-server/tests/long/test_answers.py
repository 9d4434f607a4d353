"""Text told piece by piece is the text told at once, for every tokenizer and every stop string."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from tiny_model import make_tokenizer

from nip_lm_server.engines.embedded.decoding.answers import AnswerText


def byte_level() -> Any:
    return make_tokenizer().backend_tokenizer


def llama_like() -> Any:
    """Words with a space before them, single bytes for what has no word, one space dropped."""
    from tokenizers import Tokenizer, decoders, models

    words = ["<unk>", "▁the", "▁ab", "ab", "a", "▁", "b", "é", "ing"]
    vocabulary = {w: i for i, w in enumerate([*words, *(f"<0x{b:02X}>" for b in range(256))])}
    core = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    return core


BYTES, LLAMA = byte_level(), llama_like()


def ids_of(text: str) -> list[int]:
    return list(BYTES.encode(text, add_special_tokens=False).ids)


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def told(tokenizer: Any, ids: Sequence[int], stops: Sequence[str], takes: Sequence[bool]) -> Any:
    """The pieces, what came of them, and whether a stop string ended it."""
    text = AnswerText(lambda tokens: decode(tokenizer, tokens), stops)
    pieces = []
    for index, token in enumerate(ids):
        text.push(token)
        if takes[index % len(takes)]:
            pieces.append(text.take())
    text.finish()
    pieces.append(text.take())
    return pieces, "".join(pieces), text.stopped


def expected(ids: Sequence[int], stops: Sequence[str]) -> tuple[str, bool]:
    """By the whole text after each token, once its last character is whole."""
    for count in range(1, len(ids) + 1):
        text = decode(BYTES, ids[:count])
        if text.endswith("\ufffd") and count < len(ids):
            continue
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], True
    return decode(BYTES, ids), False


# Texts of few letters, so that stop strings are often met, and often only begun.
LETTERS = "ab é🙂"
texts = st.text(LETTERS, max_size=30)
stop_lists = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3)
any_bytes = st.lists(st.integers(5, 5 + 255), max_size=60)
take_patterns = st.lists(st.booleans(), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(texts, stop_lists, take_patterns)
def test_characters_of_several_tokens_and_stop_strings_are_told_right(text, stops, takes):
    ids = ids_of(text)
    _, joined, stopped = told(BYTES, ids, stops, takes)
    assert (joined, stopped) == expected(ids, stops)


@settings(max_examples=100, deadline=None)
@given(any_bytes, stop_lists, take_patterns)
def test_broken_characters_are_told_as_the_whole_text_has_them(ids, stops, takes):
    _, joined, stopped = told(BYTES, ids, stops, takes)
    assert (joined, stopped) == expected(ids, stops)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=30), stop_lists, take_patterns)
def test_a_space_that_is_dropped_at_the_beginning_is_kept_in_between(ids, stops, takes):
    _, joined, stopped = told(LLAMA, ids, stops, takes)
    assert joined == decode(LLAMA, ids)[: len(joined)]
    if not stopped:
        assert joined == decode(LLAMA, ids)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 264), max_size=60), stop_lists, take_patterns)
def test_the_text_does_not_depend_on_when_it_is_taken(ids, stops, takes):
    assert told(LLAMA, ids, stops, takes)[1:] == told(LLAMA, ids, stops, [False])[1:]


def test_what_may_begin_a_stop_string_is_held_back_and_no_more():
    pieces, joined, stopped = told(BYTES, ids_of("xabaabcy"), ["abc"], [True])
    assert pieces == ["x", "", "", "ab", "a", "", "", "", ""]
    assert (joined, stopped) == ("xaba", True)


def test_a_character_is_told_once_it_is_whole():
    pieces, joined, _ = told(BYTES, ids_of("a🙂b"), [], [True])
    assert pieces == ["a", "", "", "", "🙂", "b", ""]
    assert joined == "a🙂b"


def test_endless_garbage_costs_no_more_per_token():
    sizes = []

    def counting(tokens):
        sizes.append(len(tokens))
        return decode(BYTES, tokens)

    text = AnswerText(counting)
    garbage = [token for token in range(5, 261) if decode(BYTES, [token]) == "\ufffd"]
    for _ in range(30):
        for token in garbage:
            text.push(token)
    assert len(garbage) > 100
    assert max(sizes) <= 512
