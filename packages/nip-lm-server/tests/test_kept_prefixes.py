"""What is kept of prompts: the longest beginning is found, by weights, within its bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from nip_lm_server.engines.embedded.decoding import kv_cache
from nip_lm_server.engines.embedded.decoding.kept_prefixes import KeptPrefixes
from nip_lm_server.engines.embedded.decoding.kv_cache import ScarceMemory, find_cache_room

TOKEN_BYTES = 2 * 2 * 1 * 1 * 8
SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def states_of(weights, tokens):
    """Keys and values that tell all that they were computed from."""
    sums = [hash((weights, *tokens[: i + 1])) % 1_000_003 for i in range(len(tokens))]
    return torch.tensor(sums, dtype=torch.float64)[None, None, None, :, None].expand(2, 2, 1, -1, 1)


def keep(kept, weights, tokens):
    states = states_of(weights, tokens)
    kept.keep(weights, tokens, lambda start, end: states[:, :, :, start:end].clone())


def shared(left, right):
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), SEQUENCES), max_size=12), SEQUENCES)
def test_the_longest_kept_beginning_is_found_with_the_states_of_its_own_weights(all_kept, asked):
    kept = KeptPrefixes(1 << 30)
    for weights, tokens in all_kept:
        keep(kept, weights, tokens)
    for weights in "ab":
        longest = max((shared(asked, t) for w, t in all_kept if w == weights), default=0)
        found = kept.find(weights, asked)
        assert found.length == longest == kept.measure(weights, asked)
        if longest:
            expected = states_of(weights, asked[:longest])
            assert torch.equal(torch.cat(found.parts, 3), expected)


@settings(deadline=None)
@given(st.lists(SEQUENCES, max_size=20), st.integers(0, 20))
def test_it_takes_no_more_bytes_than_it_may_and_counts_those_it_takes(all_kept, most):
    kept = KeptPrefixes(most * TOKEN_BYTES)
    for tokens in all_kept:
        keep(kept, "", tokens)
        assert kept.bytes <= kept.most_bytes
    endings = {tuple(t[: kept.measure("", t)]) for t in all_kept}
    prefixes = {end[:i] for end in endings for i in range(1, len(end) + 1)}
    assert kept.bytes == len(prefixes) * TOKEN_BYTES
    kept.make_room(0)
    assert kept.bytes == 0


def test_what_was_used_longest_ago_goes_first():
    kept = KeptPrefixes(10 * TOKEN_BYTES)
    keep(kept, "", [1, 1, 1, 1])
    keep(kept, "", [2, 2, 2, 2])
    kept.find("", [1, 1])
    keep(kept, "", [3, 3, 3, 3])
    assert [kept.measure("", [i] * 4) for i in (1, 2, 3)] == [4, 0, 4]


def test_what_weights_have_computed_is_forgotten_with_them():
    kept = KeptPrefixes(1 << 20)
    keep(kept, "a", [1, 2, 3])
    keep(kept, "b", [1, 2, 3, 4])
    kept.forget("a")
    kept.forget("nobody")
    assert (kept.measure("a", [1, 2]), kept.measure("b", [1, 2])) == (0, 2)
    assert kept.bytes == 4 * TOKEN_BYTES


def test_what_is_too_large_by_itself_is_not_kept():
    kept = KeptPrefixes(3 * TOKEN_BYTES)
    keep(kept, "", [1, 2, 3, 4])
    assert kept.bytes == 0


def test_nothing_is_dropped_for_what_has_no_room_at_all():
    kept = KeptPrefixes(3 * TOKEN_BYTES)
    keep(kept, "", [1, 2])
    for tokens in ([2, 3, 4, 5], [1, 2, 3, 4]):
        keep(kept, "", tokens)
        assert (kept.bytes, kept.measure("", [1, 2])) == (2 * TOKEN_BYTES, 2)


class Container:
    """A container of 800 bytes, of which a tenth of a second later others have more or less."""

    def __init__(self) -> None:
        self.now_s, self.others, self.kept = 0.0, 100, 0

    def scarce(self) -> ScarceMemory:
        return ScarceMemory(
            allowed=lambda: 800,
            free=lambda: 800 - self.others - self.kept,
            clock=lambda: self.now_s,
        )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=20))
def test_an_eighth_of_the_memory_stays_free_of_what_is_kept(changes):
    container = Container()
    scarce = container.scarce()
    for others, wanted in changes:
        container.now_s += 1
        container.others = others
        limit = scarce.limit(container.kept)
        # What is kept grows to the limit at most, and shrinks to it: then so much is free.
        container.kept = min(limit, max(container.kept, wanted))
        assert container.kept == 0 or container.others + container.kept <= 700


def test_between_two_looks_what_is_kept_grows_no_further_than_the_last_one_allowed():
    container = Container()
    scarce = container.scarce()
    assert scarce.limit(0) == 600
    container.kept = 500
    assert scarce.limit(500) == 600
    container.now_s, container.others = 1.0, 350
    assert scarce.limit(500) == 350


def test_keys_and_values_have_a_quarter_of_what_a_container_may_have(monkeypatch):
    monkeypatch.setattr(kv_cache, "allowed_bytes", lambda: 1_300_000_000)
    assert find_cache_room(None, "cpu") == 325_000_000
    assert find_cache_room(5, "cpu") == 5
    monkeypatch.setattr(kv_cache, "allowed_bytes", lambda: 1 << 40)
    assert find_cache_room(None, "cpu") == 4 << 30
