"""The clipped policy gradient: against numbers worked out by hand, and by finite differences."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch

from nip_base.formats.advantages import group_advantages
from nip_lm_server.training.methods.policy_gradient import (
    MAX_LOG_RATIO,
    clipped_loss,
    join_figures,
    token_logprobs,
)

CLIP = {"clip_low": 0.2, "clip_high": 0.3}

# Two episodes, three tokens each; the last token of the second one is context.
NEW = [[math.log(0.5), math.log(0.6), math.log(0.1)], [math.log(0.4), math.log(0.9), 123.0]]
OLD = [[math.log(0.5), math.log(0.3), math.log(0.2)], [math.log(0.5), math.log(0.6), -7.0]]
REF = [[math.log(0.25), math.log(0.6), math.log(0.1)], [math.log(0.4), math.log(0.9), 0.0]]
ADVANTAGES = [2.0, -1.0]
MASK = [[1, 1, 1], [1, 1, 0]]


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def loss_by_hand(new, old, advantages, mask, clip_low, clip_high, kl_penalty=0.0, reference=None):
    """The formula in plain Python, token by token."""
    total, tokens = 0.0, 0
    for i, advantage in enumerate(advantages):
        for t, counts in enumerate(mask[i]):
            if not counts:
                continue
            ratio = math.exp(new[i][t] - old[i][t])
            clipped = min(max(ratio, 1 - clip_low), 1 + clip_high)
            total -= min(ratio * advantage, clipped * advantage)
            if reference is not None:
                log_ratio = reference[i][t] - new[i][t]
                total += kl_penalty * (math.exp(log_ratio) - log_ratio - 1)
            tokens += 1
    return total / tokens


def test_the_loss_is_the_one_worked_out_by_hand():
    new, old, advantages, mask = tensors(NEW, OLD, ADVANTAGES, MASK)
    loss, figures = clipped_loss(new, old, advantages, mask, **CLIP)
    # Advantage 2:  ratio 1   -> 1 * 2;  ratio 2 -> clipped to 1.3 * 2;  ratio 0.5 -> 0.5 * 2
    # Advantage -1: ratio 0.8 -> 0.8 * -1; ratio 1.5 is not clipped, being worse: 1.5 * -1
    by_hand = -(2.0 + 2.6 + 1.0 - 0.8 - 1.5) / 5
    assert float(loss) == pytest.approx(by_hand, rel=1e-12)
    assert loss_by_hand(NEW, OLD, ADVANTAGES, MASK, 0.2, 0.3) == pytest.approx(by_hand, rel=1e-12)
    assert figures.ratio == pytest.approx((1 + 2 + 0.5 + 0.8 + 1.5) / 5)
    assert figures.clipped == pytest.approx(1 / 5)
    assert (figures.kl, figures.tokens) == (0.0, 5)


def test_the_penalty_is_the_k3_estimate_by_hand():
    new, old, advantages, mask, reference = tensors(NEW, OLD, ADVANTAGES, MASK, REF)
    plain, _ = clipped_loss(new, old, advantages, mask, **CLIP)
    loss, figures = clipped_loss(
        new, old, advantages, mask, **CLIP, kl_penalty=0.7, reference_logprobs=reference
    )
    k3 = (0.5 - math.log(0.5) - 1) / 5  # only the first token differs: 0.25 / 0.5
    assert figures.kl == pytest.approx(k3)
    assert float(loss - plain) == pytest.approx(0.7 * k3)


def test_a_penalty_without_a_reference_is_refused():
    new, old, advantages, mask = tensors(NEW, OLD, ADVANTAGES, MASK)
    with pytest.raises(ValueError, match=r"kl_penalty is 0\.1"):
        clipped_loss(new, old, advantages, mask, **CLIP, kl_penalty=0.1)


def test_every_token_counts_alike_however_long_its_episode():
    mask = [[1, 1, 1, 1], [1, 0, 0, 0]]
    zeros = [[0.0] * 4] * 2
    new, old, advantages, m = tensors(zeros, zeros, [1.0, -1.0], mask)
    new.requires_grad_()
    clipped_loss(new, old, advantages, m, **CLIP)[0].backward()
    assert new.grad.tolist() == [[-0.2] * 4, [0.2, 0, 0, 0]]


def test_the_divisor_adds_up_over_processes():
    new, old, advantages, mask = tensors(NEW, OLD, ADVANTAGES, MASK)
    whole, _ = clipped_loss(new, old, advantages, mask, **CLIP)
    parts = [
        clipped_loss(new[i : i + 1], old[i : i + 1], advantages[i : i + 1], mask[i : i + 1],
                     **CLIP, divisor=5.0)[0]
        for i in range(2)
    ]  # fmt: skip
    assert float(sum(parts)) == pytest.approx(float(whole))


def test_what_is_masked_out_has_no_gradient_even_if_it_is_nan():
    new, old, advantages, mask = tensors(NEW, OLD, ADVANTAGES, MASK)
    with torch.no_grad():
        new[1, 2] = old[1, 2] = math.nan
    new.requires_grad_()
    loss, _ = clipped_loss(new, old, advantages, mask, **CLIP)
    loss.backward()
    assert math.isfinite(loss.item())
    assert new.grad[1, 2] == 0
    assert new.grad[0, 1] == 0  # clipped: ratio 2 with a positive advantage
    assert new.grad[0, 2] == pytest.approx(-0.5 * 2 / 5)  # -ratio * advantage / tokens


def test_a_bad_token_loses_no_more_than_the_second_bound():
    ratios = [2.0, 3.5, 1000.0, 1000.0]
    new, old, mask = (torch.zeros(4, 1), -torch.tensor(ratios).log()[:, None], torch.ones(4, 1))
    new.requires_grad_()
    advantages = torch.tensor([-1.0, -2.0, -0.5, 1.0])
    loss, figures = clipped_loss(new, old, advantages, mask, **CLIP, dual_clip=3.0)
    # Ratio 2 is below the bound; 3 is in the place of 3.5 and 1000; what is good was bounded.
    assert loss.item() == pytest.approx((2 + 2 * 3 + 0.5 * 3 - 1.3) / 4)
    loss.backward()
    assert new.grad[:, 0].tolist() == pytest.approx([2.0 / 4, 0.0, 0.0, 0.0])
    assert figures.clipped == pytest.approx(3 / 4)
    assert figures.ratio_max == pytest.approx(1000)


def test_the_figures_of_passes_are_those_of_the_step():
    new, old, advantages, mask = tensors(NEW, OLD, ADVANTAGES, MASK)
    _, whole = clipped_loss(new, old, advantages, mask, **CLIP)
    parts = [
        clipped_loss(new[i : i + 1], old[i : i + 1], advantages[i : i + 1], mask[i : i + 1], **CLIP)
        for i in range(2)
    ]
    joined = join_figures([figures for _, figures in parts])
    for name in ("ratio", "clipped", "kl", "tokens", "ratio_max"):
        assert getattr(joined, name) == pytest.approx(getattr(whole, name)), name
    assert whole.ratio_max == pytest.approx(2)


def test_an_absurd_ratio_stays_finite():
    new, old, advantages, mask = tensors([[0.0]], [[-900.0]], [-1.0], [[1]])
    loss, _ = clipped_loss(new, old, advantages, mask, **CLIP)
    assert float(loss) == pytest.approx(math.exp(MAX_LOG_RATIO))


def test_an_empty_batch_has_loss_0():
    new, old, advantages, mask = tensors([[0.0]], [[0.0]], [1.0], [[0]])
    loss, figures = clipped_loss(new, old, advantages, mask, **CLIP)
    assert (float(loss), figures.tokens) == (0.0, 0)


numbers = st.floats(-3, -0.01)


@st.composite
def batches(draw):
    size, length = draw(st.integers(1, 3)), draw(st.integers(1, 4))

    def rows(values):
        return [[draw(values) for _ in range(length)] for _ in range(size)]

    mask = rows(st.booleans())
    mask[0][0] = True
    advantages = [draw(st.floats(-2, 2)) for _ in range(size)]
    return rows(numbers), rows(numbers), rows(numbers), advantages, mask


@given(batches(), st.floats(0, 0.5), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_loss_and_gradient_are_those_of_the_formula(batch, clip_low, clip_high, kl_penalty):
    new, old, reference, advantages, mask = batch
    arguments = (clip_low, clip_high, kl_penalty, reference)
    expected = loss_by_hand(new, old, advantages, mask, *arguments)
    tensor, *rest = tensors(new, old, advantages, mask)
    tensor.requires_grad_()
    loss, _ = clipped_loss(
        tensor,
        *rest,
        clip_low=clip_low,
        clip_high=clip_high,
        kl_penalty=kl_penalty,
        reference_logprobs=torch.tensor(reference, dtype=torch.float64),
    )
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    loss.backward()
    step = 1e-6
    for i, row in enumerate(new):
        for t, value in enumerate(row):
            ratio = math.exp(value - old[i][t])
            if min(abs(ratio - 1 + clip_low), abs(ratio - 1 - clip_high)) < 1e-4:
                continue  # the loss has a corner there
            above, below = [[*r] for r in new], [[*r] for r in new]
            above[i][t], below[i][t] = value + step, value - step
            slope = (
                loss_by_hand(above, old, advantages, mask, *arguments)
                - loss_by_hand(below, old, advantages, mask, *arguments)
            ) / (2 * step)
            assert float(tensor.grad[i, t]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_where_the_policy_has_not_moved_the_gradient_is_the_plain_policy_gradient():
    zeros = [[-1.0, -2.0]]
    new, old, advantages, mask = tensors(zeros, zeros, [3.0], [[1, 1]])
    new.requires_grad_()
    clipped_loss(new, old, advantages, mask, **CLIP)[0].backward()
    assert new.grad.tolist() == [[-1.5, -1.5]]


def test_token_logprobs_are_those_of_the_actions_and_pass_gradients():
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 5, requires_grad=True)
    ids = torch.tensor([[1, 2, 3, 4], [0, 1, 2, 3]])
    mask = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0]], dtype=torch.bool)
    found = token_logprobs(logits, ids, mask)
    scores = logits.log_softmax(-1)
    expected = torch.zeros(2, 4)
    for i, t in ((0, 1), (0, 3), (1, 2)):
        expected[i, t] = scores[i, t - 1, ids[i, t]]
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert logits.grad[0, 0].abs().sum() > 0
    assert logits.grad[1, 0].abs().sum() == 0


@pytest.mark.parametrize(
    ("rewards", "plain", "divided"),
    [
        ([1.0, 0.0], [0.5, -0.5], [math.sqrt(0.5), -math.sqrt(0.5)]),
        ([3.0, 0.0, 0.0], [2.0, -1.0, -1.0], [2 / math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3)]),
        ([0.1, 0.1, 0.1], None, None),
        ([0.0, 0.0], None, None),
        ([5.0], None, None),
    ],
)  # fmt: skip
def test_advantages_are_relative_to_the_group(rewards, plain, divided):
    assert group_advantages(rewards, divide_by=None) == (plain and pytest.approx(plain))
    assert group_advantages(rewards, divide_by="sample") == (divided and pytest.approx(divided))
