"""Keys that are derived for many names or numbers at once are those of one at a time."""

from hypothesis import given
from hypothesis import strategies as st

from nip_core.hashing import derive_key, named_keys, numbered_keys

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(TEXTS), TEXTS, st.integers())
def test_keys_of_many_names_are_those_of_each(names, part, number):
    assert named_keys(names, part, number) == [derive_key(part, number, name) for name in names]


def test_keys_of_many_numbers_are_those_of_each():
    assert numbered_keys(12, "a", 1) == [derive_key("a", 1, number) for number in range(12)]
