"""Words that differ are marked, whatever a model wrote, and at a cost that has an end."""

import pytest

from nip_view.parts.word_marks import MOST_STEPS, mark_words


def put_together(pieces):
    return "".join(piece.text for piece in pieces)


def marked(pieces):
    return [piece.text for piece in pieces if piece.differs]


@pytest.mark.parametrize(
    ("first", "second", "left", "right"),
    [
        (
            "15 code 11 wrong, they differ",
            "15 code 15 ok, they match",
            ["11 wrong", "differ"],
            None,
        ),
        ("they match", "they do not match", [], ["do not"]),
        ("f(7, 8)", "f(4, 5)", ["7, 8"], ["4, 5"]),
        ("a  b\n", "a b", [], []),
        ("", "<b>x</b>", [], ["<b>x</b>"]),
        ("été naïve", "été naive", ["naïve"], ["naive"]),
    ],
)
def test_words_that_differ_are_marked_and_no_letter_is_lost(first, second, left, right):
    found = mark_words(first, second)
    assert (put_together(found.first), put_together(found.second)) == (first, second)
    assert marked(found.first) == left
    assert right is None or marked(found.second) == right


@pytest.mark.parametrize("words", [["x", "y"], [f"w{k}" for k in range(100)]])
def test_marking_takes_no_longer_however_a_model_repeats_itself(words):
    first = " ".join(words[k % len(words)] for k in range(20_000))
    second = f"{first[:7]} but. {' '.join(words[-k % len(words)] for k in range(20_000))}. {first}"
    found = mark_words(first, second)
    assert found.steps <= MOST_STEPS
    assert (put_together(found.first), put_together(found.second)) == (first, second)
