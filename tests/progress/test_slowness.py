"""The line on what is slow: when it is there, what it counts, and what it says would help."""

from ticking import Ticking

from nip_core.progress.slowness import describe_slowness
from nip_core.progress.traffic import Traffic


def asked(in_flight=64, answers=0, seconds=180.0, device="cpu"):
    """A run with so many calls in flight, of which some were answered."""
    time = Ticking()
    progress = time.progress()
    progress.traffic = Traffic(clock=lambda: time.s)
    progress.own_device = device
    for _ in range(in_flight):
        progress.traffic.note_flight(1, in_flight)
    progress.traffic.note_work("http://a", "embedded", 1000, 100)
    time.passes(seconds)
    for _ in range(answers):
        progress.traffic.note_answer()
        progress.count_answer("prover", 400, 50)
    progress.traffic.note_work("http://a", "embedded", 1000 + int(20 * seconds), 100 + int(seconds))
    return progress


def test_few_answers_are_said_with_what_the_engine_does_and_what_helps():
    words = describe_slowness(asked(answers=12), load=0.5)
    assert words == (
        "slow: 4 answers a minute with 64 in flight, the engine reads 20 and writes 1.0 tokens a "
        "second; what helps: a GPU, a smaller model, or a lower max_tokens_per_message"
    )
    assert describe_slowness(asked(), load=0.5).startswith(
        "slow: no answer in 3.0 min with 64 in flight"
    )


def test_nothing_is_said_where_answers_come_or_nothing_was_waited_for():
    assert describe_slowness(asked(in_flight=16, answers=600), load=0.5) == ""
    assert describe_slowness(asked(seconds=10.0), load=0.5) == ""
    assert describe_slowness(asked(in_flight=0), load=0.5) == ""


def test_others_on_the_machine_and_invalid_answers_are_named():
    progress = asked(answers=12)
    progress.invalid_answers = 6
    words = describe_slowness(progress, load=1000.0)
    assert "what helps: less beside it (the machine has" in words and "a load of 1000)" in words
    assert "fewer invalid answers (50 % now)" in words


def test_a_providers_slowness_is_not_put_down_to_this_machine():
    words = describe_slowness(asked(device=None), load=1000.0)
    assert "less beside it" not in words and "another provider" in words
