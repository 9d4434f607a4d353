"""Arrays under nested keys keep to one batch size, whatever is indexed, joined or assigned."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_by_hand.agents.nested_array_dict import STRING, NestedArrayDict


def small() -> NestedArrayDict:
    """Batch size (2, 3)."""
    return NestedArrayDict(
        {
            "round": np.arange(6).reshape(2, 3),
            "agents": {"message": [[["a", None]] * 3, [["b", "long " * 9]] * 3]},
            ("agents", "reward"): np.linspace(0, 1, 12).reshape(2, 3, 2),
        },
        (2, 3),
    )


def test_nested_dicts_and_tuple_keys_are_the_same_keys():
    batch = small()
    assert batch.keys() == [("round",), ("agents", "message"), ("agents", "reward")]
    assert batch["agents"]["reward"] is batch["agents", "reward"]
    assert ("agents", "message") in batch and "agents" in batch and "reward" not in batch
    assert batch.get("reward", 7) == 7 and batch.get("round") is batch["round"]
    assert len(batch) == 2 and [part.batch_size for part in batch] == [(3,), (3,)]


def test_strings_of_every_kind_become_strings_with_none_for_a_missing_one():
    for texts in (["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], np.dtypes.StringDType())):
        assert NestedArrayDict({"s": texts}, (2,))["s"].dtype == STRING
    assert small()["agents", "message"].dtype == STRING
    assert small()["agents", "message"][0, 0].tolist() == ["a", None]
    objects = np.array([[1], None], dtype=object)
    assert NestedArrayDict({"o": objects}, (2,))["o"] is objects


INDEX = st.one_of(
    st.integers(-2, 1),
    st.slices(2),
    st.just(Ellipsis),
    st.just(None),
    st.lists(st.integers(-2, 1), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=2, max_size=2).map(np.array),
    st.lists(st.booleans(), min_size=6, max_size=6).map(lambda b: np.array(b).reshape(2, 3)),
    st.tuples(st.one_of(st.integers(-2, 1), st.slices(2)), st.one_of(st.integers(-3, 2))),
    st.tuples(st.just(Ellipsis), st.one_of(st.integers(-3, 2), st.slices(3))),
    st.tuples(st.lists(st.integers(-2, 1), min_size=2, max_size=2), st.just([0, 2])),
)


@given(INDEX)
def test_an_index_is_to_every_key_what_it_is_to_one_that_has_only_the_batch_dimensions(index):
    batch = small()
    part = batch[index]
    round_ = batch["round"][index]
    assert part.batch_size == np.shape(round_)
    assert part["round"].tolist() == np.asarray(round_).tolist()
    # Whatever place was chosen, all keys speak of that place.
    flat = np.asarray(round_).reshape(-1)
    size = (*part.batch_size, 2)
    rewards = batch["agents", "reward"].reshape(6, 2)[flat].reshape(size)
    messages = batch["agents", "message"].reshape(6, 2)[flat].reshape(size)
    assert np.array_equal(part["agents", "reward"], rewards)
    assert part["agents", "message"].tolist() == messages.tolist()


def test_a_single_place_has_arrays_that_give_their_value():
    place = small()[1, 2]
    assert place.batch_size == ()
    assert int(place["round"]) == 5 and place["agents", "message"][0] == "b"
    assert str(NestedArrayDict({"q": ["why?"]}, (1,))[0]["q"]) == "why?"


def test_an_index_beyond_the_batch_dimensions_is_refused():
    with pytest.raises(IndexError, match=r"\(0, 0, 0\) does not fit the batch size \(2, 3\)"):
        small()[0, 0, 0]
    with pytest.raises(IndexError, match=r"3 does not fit"):
        small()[3]
    with pytest.raises(IndexError, match="does not fit"):
        small()[np.zeros((2, 2), bool)]


def test_what_is_assigned_below_a_node_or_a_slice_is_assigned_here():
    batch = small()
    batch["agents"]["done"] = np.zeros((2, 3, 2), bool)
    assert batch["agents", "done"].shape == (2, 3, 2)
    batch["agents"] = {"done": np.ones((2, 3, 2), bool), "more": {"deep": np.zeros((2, 3))}}
    assert batch["agents", "done"].all() and ("agents", "more", "deep") in batch
    batch[1]["round"][:] = 9
    assert batch["round"].tolist() == [[0, 1, 2], [9, 9, 9]]


def test_errors_name_the_key_and_both_shapes():
    batch = small()
    with pytest.raises(ValueError, match=r"\('a', 'b'\): shape \(3, 2\).* batch size \(2, 3\)"):
        batch["a", "b"] = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"'x': shape \(\) "):
        NestedArrayDict({"x": 1}, (1,))
    with pytest.raises(ValueError, match="'agents': there are keys below it"):
        batch["agents"] = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"\('round', 'x'\): 'round' is an array already"):
        batch["round", "x"] = np.zeros((2, 3))
    with pytest.raises(KeyError, match=r"\('agents', 'massage'\) is not .*\('agents', 'message'\)"):
        batch["agents", "massage"]
    with pytest.raises(TypeError, match="only keys can be assigned to"):
        batch[0] = np.zeros(3)
    assert batch.equals(small())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_parts_of_a_cut_batch_joined_are_the_batch(dim):
    batch = small()
    places = range(batch.batch_size[dim])
    whole = [slice(None), slice(None)]

    def cut(place):
        index = list(whole)
        index[dim] = place
        return batch[tuple(index)]

    assert NestedArrayDict.stack([cut(i) for i in places], min(dim, 1)).equals(batch)
    assert NestedArrayDict.cat([cut(slice(i, i + 1)) for i in places], dim).equals(batch)


def test_batches_that_do_not_fit_are_not_joined():
    batch, other = small(), small()
    other["extra"] = np.zeros((2, 3))
    for join in (NestedArrayDict.stack, NestedArrayDict.cat):
        with pytest.raises(ValueError, match="not all batches have 'extra'"):
            join([batch, other])
        with pytest.raises(ValueError, match="there are no batches"):
            join([])
        with pytest.raises(ValueError, match="dim must be in"):
            join([batch], 3)
    with pytest.raises(ValueError, match=r"batch sizes \(2, 3\) and \(1, 3\) differ"):
        NestedArrayDict.stack([batch, batch[:1]])
    with pytest.raises(ValueError, match=r"batch sizes \(2, 3\) and \(2, 2\) differ"):
        NestedArrayDict.cat([batch, batch[:, :2]])
    wide = NestedArrayDict(
        {**dict(batch.items()), ("agents", "reward"): np.zeros((2, 3, 5))}, (2, 3)
    )
    with pytest.raises(ValueError, match=r"'reward'\): shapes \(2, 3, 2\), \(2, 3, 5\)"):
        NestedArrayDict.cat([batch, wide])


def test_equal_is_equal_in_everything():
    batch = small()
    assert batch.equals(pickle.loads(pickle.dumps(batch)))
    batch["nan"] = np.full((2, 3), np.nan)
    assert batch.equals(batch[:])
    assert not batch.equals(small())
    for key, value in (
        ("round", np.arange(6.0).reshape(2, 3)),
        ("round", np.zeros((2, 3), int)),
        (("agents", "message"), [[["a", "None"]] * 3, [["b", "long " * 9]] * 3]),
    ):
        changed = small()
        changed[key] = value
        assert not changed.equals(small())
    assert not NestedArrayDict({}, (2,)).equals(NestedArrayDict({}, (3,)))
