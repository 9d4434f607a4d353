"""The comparison says yes to the right weights, and no to any others that can be told apart."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_lm_server.lora.probes import Probe, ProbeError, Scores, judge_probe, read_probe

BASE = (-1.0, -2.0, -3.0)
OWN = (-1.5, -2.5, -2.0)
OTHER = (-0.5, -4.0, -3.5)
PROBE = Probe((1, 2, 3, 4), OWN, BASE, "float32")


def verdict(served=OWN, *, probe=PROBE, dtype="float32", base=Scores(BASE), quantization="none",
            **rivals):  # fmt: skip
    return judge_probe(
        probe, served, {"base": base, **rivals}, base="base", dtype=dtype, quantization=quantization
    )


def moved(values, by):
    return tuple(value + by for value in values)


def test_the_saved_weights_match():
    matches, detail = verdict(moved(OWN, 1e-5), other=Scores(OTHER, OTHER))
    assert matches
    assert detail["distance_max"] == pytest.approx(1e-5)
    assert detail["nearest_other"] == "base" and detail["indistinguishable"] == []


def test_the_weights_of_another_do_not_whatever_the_tolerance():
    near = moved(OWN, 0.14)  # within the tolerance of bfloat16
    matches, detail = verdict(near, dtype="bfloat16", near=Scores(near, near))
    assert not matches and detail["nearer_than_own"] == ["near"]
    assert detail["distance_max"] <= detail["tolerance"]


def test_another_that_answers_with_our_weights_is_noticed():
    matches, detail = verdict(moved(OWN, 0.1), dtype="bfloat16", thief=Scores(OWN, OTHER))
    assert not matches and detail["nearer_than_own"] == ["thief"]


def test_a_difference_beyond_the_tolerance_is_refused():
    assert verdict(moved(OWN, 0.9e-3))[0]
    assert not verdict(moved(OWN, 1.1e-3))[0]
    assert verdict(moved(OWN, 1.1e-3), quantization="fp8")[0]


def test_who_answers_with_our_weights_instead_of_us_is_named():
    matches, detail = verdict(OTHER, thief=Scores(moved(OWN, 1e-6)))
    assert not matches and "thief" in detail["nearer_than_own"]


def test_one_token_that_is_far_off_is_no_reason_but_many_are():
    """Kernels round otherwise in another batch; a wrong mapping of tokens is off everywhere."""
    own, base = (-1.0,) * 32, (-3.0,) * 32
    probe = Probe(tuple(range(33)), own, base, "bfloat16")
    for wrong, expected in ((1, True), (16, False)):
        served = [*moved(own[:wrong], -2.5), *own[wrong:]]
        matches, detail = verdict(served, probe=probe, dtype="bfloat16", base=Scores(base))
        assert matches is expected and detail["distance_max"] == pytest.approx(2.5)


def test_more_is_allowed_where_the_base_itself_is_noisy_but_not_any_amount():
    for of_base, of_own, expected in [
        (0.0, 0.2, False), (0.1, 0.2, True), (0.1, 0.31, False), (0.31, 0.0, False)
    ]:  # fmt: skip
        base = Scores(moved(BASE, of_base))
        matches, detail = verdict(moved(OWN, -of_own), dtype="bfloat16", base=base)
        assert matches is expected, (of_base, of_own, detail)


def test_half_of_what_was_trained_is_not_the_model():
    half = [(a + b) / 2 for a, b in zip(OWN, BASE, strict=True)]
    base = Scores(moved(BASE, 0.09))
    matches, detail = verdict(half, dtype="bfloat16", base=base)
    assert detail["distance"] > detail["tolerance"] and not matches
    wide = Probe(PROBE.tokens, moved(BASE, 0.5), BASE, "bfloat16")
    matches, detail = verdict(moved(BASE, 0.24), probe=wide, dtype="bfloat16", base=base)
    assert detail["distance"] < detail["tolerance"]
    assert not matches and detail["nearer_than_own"] == ["base"]
    wide = Probe(PROBE.tokens, moved(BASE, 0.58), BASE, "bfloat16")
    base = Scores(moved(BASE, 0.07))
    matches, detail = verdict(moved(BASE, 0.46), probe=wide, dtype="bfloat16", base=base)
    assert detail["distance"] < detail["tolerance"] and not detail["half_of_the_change"] and matches
    matches, detail = verdict(moved(BASE, 0.42), probe=wide, dtype="bfloat16", base=base)
    assert detail["distance"] < detail["tolerance"] and detail["nearer_than_own"] == []
    assert not matches and detail["half_of_the_change"]


def test_what_it_was_trained_from_is_a_rival_though_it_is_not_loaded():
    probe = Probe((1, 2, 3, 4), OWN, BASE, "bfloat16", parent_logprobs=moved(OWN, -0.14))
    assert verdict(probe=probe, dtype="bfloat16")[0]
    matches, detail = verdict(moved(OWN, -0.14), probe=probe, dtype="bfloat16")
    assert not matches and detail["nearer_than_own"] == ["(the adapter it continues)"]


def test_a_quantized_engine_is_compared_with_its_own_base():
    shift = (0.7, -0.6, 0.5)  # what quantizing the weights does to all models over them

    def quantized(values):
        return tuple(value + by for value, by in zip(values, shift, strict=True))

    kwargs = {"dtype": "bfloat16", "quantization": "fp8", "base": Scores(quantized(BASE))}
    matches, detail = verdict(quantized(OWN), **kwargs)
    assert matches and detail["distance"] == pytest.approx(0)
    assert detail["base_distance"] == pytest.approx(0.6)
    assert not verdict(quantized(BASE), **kwargs)[0]
    assert not verdict(quantized(OTHER), **kwargs, other=Scores(quantized(OTHER)))[0]
    wild = Scores(moved(BASE, 0.9))
    assert not verdict(moved(OWN, 0.9), **{**kwargs, "base": wild})[0]


def test_another_base_than_the_one_trained_over_is_refused():
    matches, detail = verdict(base=Scores(moved(BASE, 0.5)))
    assert not matches and detail["base_distance_max"] == 0.5


def test_an_adapter_that_changes_nothing_is_listed_as_the_base():
    matches, detail = verdict(BASE, probe=Probe((1, 2, 3, 4), BASE, BASE, "float32"))
    assert matches and detail["indistinguishable"] == ["base"]


def test_equal_weights_are_no_rivals():
    matches, detail = verdict(twin=Scores(OWN, OWN, same_weights=True))
    assert matches and detail["same_weights_as"] == ["twin"]


def test_a_base_has_to_be_nearer_than_what_it_was_trained_from():
    assert judge_probe(PROBE, OWN, {}, base=None, dtype="float32")[0]
    matches, detail = judge_probe(PROBE, BASE, {}, base=None, dtype="bfloat16")
    assert not matches and detail["nearer_than_own"] == ["(what it was trained from)"]


@given(st.integers(0, 2), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_not_a_number_proves_nothing(place, broken):
    served = (*OWN[:place], broken, *OWN[place + 1 :])
    assert not verdict(served)[0]
    assert not verdict(base=Scores(served))[0]


def written(path, **changes):
    value = {
        "tokens": [1, 2, 3, 4], "logprobs": list(OWN), "base_logprobs": list(BASE),
        "dtype": "float32", "quantization": "none",
    }  # fmt: skip
    (path / "probe.json").write_text(json.dumps({**value, **changes}))
    return path


def test_a_probe_is_read_back(tmp_path):
    assert read_probe(written(tmp_path)) == PROBE
    assert PROBE.at([0, 2]).logprobs == (OWN[0], OWN[2])
    (tmp_path / "new").mkdir()
    probe = read_probe(written(tmp_path / "new", parent_logprobs=list(OTHER)))
    assert probe.parent_logprobs == OTHER and probe.at([2]).parent_logprobs == OTHER[2:]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logprobs": [-1.0]}, "1 logprobs"),
        ({"tokens": [1], "logprobs": [], "base_logprobs": []}, "1 tokens"),
        ({"dtype": "int8"}, "int8"),
        ({"logprobs": [-1.0, math.nan, -1.0]}, "not finite"),
        ({"base_logprobs": None}, "can't be read"),
        ({"parent_logprobs": [-1.0]}, "1 parent_logprobs"),
    ],
)
def test_what_is_no_probe_is_refused_with_the_reason(tmp_path, changes, said):
    with pytest.raises(ProbeError, match=said):
        read_probe(written(tmp_path, **changes))


def test_a_missing_probe_is_named(tmp_path):
    with pytest.raises(ProbeError, match=r"probe\.json is missing"):
        read_probe(tmp_path)
