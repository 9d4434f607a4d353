"""Tokens are drawn with the probabilities that they have, whatever the size of the vocabulary."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from nip_lm_server.engines.embedded.decoding.answers import may_begin  # noqa: E402
from nip_lm_server.engines.embedded.decoding.sampling import BatchSampler, Settings  # noqa: E402

NEVER = -float("inf")


class Given(random.Random):
    """A generator whose next number is known."""

    def __init__(self, number: float):
        super().__init__()
        self._number = number

    def random(self) -> float:
        return self._number


def draw(logits, numbers, settings=None):
    rows, size = logits.shape
    settings = settings or [Settings()] * rows
    generators = [Given(number) for number in numbers]
    sampler = BatchSampler(settings, generators, [[]] * rows, size, torch.device("cpu"))
    return sampler.choose(logits, logprobs=False).ids


@given(
    st.sampled_from([1, 2, 255, 256, 257, 496, 1000, 49152]),
    st.integers(0, 10**6),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 0.999),
)
def test_a_number_takes_the_token_that_it_falls_on(size, seed, number, left_out):
    torch.manual_seed(seed)
    logits = torch.randn(2, size) * 4
    logits[torch.rand(2, size) < left_out] = NEVER
    logits[:, seed % size] = 0.0  # one is left
    for row, token in enumerate(draw(logits, [number, number])):
        shares = logits[row].double().softmax(-1)
        ends = shares.cumsum(-1)
        assert shares[token] > 0
        # Sums of single precision: a number so close to an end may fall on the next one.
        assert ends[token] - shares[token] - 1e-5 <= number <= ends[token] + 1e-5


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("only", [0, 255, 256, 999])
def test_the_one_token_that_is_allowed_is_drawn(number, only):
    logits = torch.full((1, 1000), NEVER)
    logits[0, only] = -30.0
    assert draw(logits, [number]) == [only]


def test_rows_are_greedy_or_drawn_each_by_its_own_settings():
    logits = torch.zeros(3, 300)
    logits[:, 7] = 1.0
    settings = [Settings(0.0), Settings(1.0), Settings(0.5)]
    greedy, drawn, tempered = draw(logits, [0.9, 0.9, 0.9], settings)
    assert greedy == 7
    for token, temperature in ((drawn, 1.0), (tempered, 0.5)):
        ends = (logits[0].double() / temperature).softmax(-1).cumsum(-1)
        assert token == int(torch.searchsorted(ends, torch.tensor(0.9).double()))


def test_the_likeliest_tokens_are_the_same_however_many_another_row_asks_for():
    torch.manual_seed(0)
    logits = torch.randint(0, 9, (40, 60)).float()  # full of equal ones
    sampler = BatchSampler(
        [Settings(temperature=0.0)] * 40, [Given(0.5)] * 40, [[]] * 40, 60, torch.device("cpu")
    )
    many = sampler.choose(logits, logprobs=True, top=20).top
    for few in (1, 3, 6):
        assert sampler.choose(logits, logprobs=True, top=few).top == [row[:few] for row in many]


def test_the_likeliest_are_listed_only_where_a_row_wants_them():
    logits = torch.full((3, 50), -5.0)
    for row, token in enumerate((7, 8, 7)):
        logits[row, token] = 50.0

    def choose(top_at):
        generators = [Given(0.5)] * 3
        sampler = BatchSampler([Settings()] * 3, generators, [[]] * 3, 50, torch.device("cpu"))
        return sampler.choose(logits, logprobs=True, top=2, asking=[0, 1, 2], top_at=top_at)

    every = choose([None] * 3)
    assert choose([lambda token: token == 7, lambda token: False, None]).top == [
        every.top[0],
        [],
        every.top[2],
    ]
    assert choose([lambda token: False] * 3).top == [[], [], []]
    assert choose(()) == every


def test_rows_that_ask_are_answered_in_their_order():
    logits = torch.arange(12.0).reshape(3, 4).sin()
    sampler = BatchSampler([Settings()] * 3, [Given(0.5)] * 3, [[]] * 3, 4, torch.device("cpu"))
    every = sampler.choose(logits, logprobs=True, top=2)
    for asking in ([2, 0, 1], [1, 0], [2]):
        some = sampler.choose(logits, logprobs=True, top=2, asking=asking)
        assert some.ids == every.ids
        assert some.logprobs == [every.logprobs[row] for row in asking]
        assert some.top == [every.top[row] for row in asking]


@pytest.mark.parametrize(
    ("token", "begins"),
    [
        *((" Accept", True), (" a", True), ("REJECT", True), ("n: r", True), ("-accepted", True)),
        *(("bar", False), ("unacceptable", False), ("ccept", False), (" b", False), ("", False)),
    ],
)
def test_a_token_may_begin_a_word_of_any_case_but_not_within_another(token, begins):
    assert may_begin(token, ("accept", "reject")) is begins
