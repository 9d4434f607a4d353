"""Calls in flight follow the answers: as many as make them faster, fewer where they fail."""

import asyncio

import pytest

from nip_core.errors import StageError
from nip_core.rollouts.client.call_limit import SEARCH_EVERY, CallLimit, Places, start_with


class Server:
    """Answers at most `capacity` at once, each after a second; the time is simulated."""

    def __init__(self, capacity: int, most: int = 64, first: int | None = 8) -> None:
        self.s, self.capacity = 0.0, capacity
        self.limit = CallLimit(most, deadline_s=None, clock=lambda: self.s)
        if first:
            self.limit.start_with(first)

    def round(self):
        """As many answers as there may be calls in flight."""
        in_flight = self.limit.limit
        took_s = max(1.0, in_flight / self.capacity)
        for number in range(in_flight):
            self.s += took_s / in_flight
            self.limit.answered(took_s)
        return self.limit.limit


def test_more_are_in_flight_as_long_as_answers_come_faster_by_it():
    assert [Server(1000).round()] == [16]
    server = Server(1000)
    assert [server.round() for _ in range(4)] == [16, 32, 64, 64]


def test_no_more_are_in_flight_than_make_answers_come_faster():
    server = Server(16)
    for _ in range(6):
        server.round()
    assert server.limit.limit == 16


def test_a_server_that_becomes_faster_is_found_out():
    server = Server(8)
    for _ in range(6):
        server.round()
    assert server.limit.limit == 8
    server.capacity = 1000
    for _ in range(SEARCH_EVERY + 6):
        server.round()
    assert server.limit.limit == 64


def test_a_quick_server_begins_with_all_and_a_slow_one_with_few():
    assert [start_with(64, answer_s) for answer_s in (0.01, 2, 8, 1000)] == [64, 64, 16, 8]


def steps(speed_of, seconds=20):
    """How many are in flight after each look, at an engine that computes so fast with so many."""
    server, work = Server(1), 0.0
    found = []
    for _ in range(6):
        work += seconds * speed_of(server.limit.limit)
        server.s += seconds
        server.limit.advanced(0, int(work))
        found.append(server.limit.limit)
    return found


def test_before_any_answer_the_tokens_of_the_engine_tell_whether_more_is_faster():
    assert steps(lambda in_flight: 5 * in_flight) == [8, 16, 32, 64, 64, 64]
    assert steps(lambda in_flight: 100) == [8, 16, 16, 16, 16, 16]


def foreign(most=16, deadline_s=10.0):
    words = []
    return CallLimit(most, deadline_s=deadline_s, tell=words.append), words


def answer_all(limit):
    for _ in range(limit.limit):
        limit.answered(1.0)


def test_a_server_of_others_begins_with_all_and_is_cut_by_refusals_once_a_round():
    limit, _ = foreign()
    assert limit.limit == 16
    for _ in range(16):
        limit.refused()
    assert limit.limit == 11
    for _ in range(11):
        limit.answered(1.0)
    assert limit.limit == 12


def test_two_rounds_in_which_most_calls_run_out_of_time_cut_it():
    limit, words = foreign()
    answer_all(limit)
    for _ in range(31):
        limit.timed_out()
    assert limit.limit == 16 and words == []
    limit.timed_out()
    assert limit.limit == 8
    assert words[0].startswith("none of 32 calls was answered within")
    assert words[0].endswith("with 16 in flight: 8 from here on")


def test_a_server_that_never_answered_is_asked_one_at_a_time_and_given_up_after_two_of_these():
    limit, words = foreign()
    for _ in range(32):
        limit.timed_out()
    assert limit.limit == 1 and words[0].endswith(": 1 from here on")
    limit.timed_out()
    limit.refuse_silent("http://there", is_nips=False)
    limit.timed_out()
    said = r"there: none of 34 calls .* within 10 s \(rollouts.request_timeout_s\), nor .* last 2,"
    with pytest.raises(StageError, match=said):
        limit.refuse_silent("http://there", is_nips=False)


def test_a_server_that_has_answered_once_is_slow_and_waited_for():
    limit, _ = foreign(most=1)
    limit.timed_out()
    limit.answered(9.0)
    for _ in range(200):
        limit.timed_out()
    limit.refuse_silent("http://there", is_nips=False)


def test_a_server_that_answers_one_at_a_time_gets_as_many_as_it_answers_in_time():
    limit, words = foreign()
    for _ in range(2):
        for _ in range(3):
            limit.answered(5.0)
        for _ in range(13):
            limit.timed_out()
    assert limit.limit == 3
    assert words[0].startswith("only 6 of 32 calls were answered within")


def test_a_round_with_some_time_outs_is_no_reason_to_cut_it_twice():
    limit, words = foreign()
    for late in (16, 4, 16, 0):
        for _ in range(late):
            limit.timed_out()
        for _ in range(16 - late):
            limit.answered(0.1)
        assert words == []


def test_that_fewer_than_one_are_impossible_is_said_once():
    limit, words = foreign()
    answer_all(limit)
    for _ in range(200):
        limit.timed_out()
    assert limit.limit == 1 and len(words) == 5
    assert words[-1].endswith("which is the fewest")


def test_answers_that_take_more_than_half_of_the_deadline_cut_it():
    limit, _ = foreign(deadline_s=10.0)
    for _ in range(16):
        limit.answered(8.0)
    assert limit.limit == 10


async def test_places_are_given_in_order_and_none_is_lost_when_who_waits_leaves():
    size, order = 1, []
    places = Places(lambda: size)

    async def take(number, hold):
        async with places:
            order.append(number)
            await hold.wait()

    first, others = asyncio.Event(), asyncio.Event()
    others.set()
    tasks = [asyncio.create_task(take(i, others if i else first)) for i in range(5)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    first.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 2, 3, 4] and places.taken == 0
    # One whose turn comes while it is cancelled gives it on.
    first.clear()
    tasks = [asyncio.create_task(take(i, first)) for i in range(3)]
    await asyncio.sleep(0)
    size = 2
    places.give()
    tasks[1].cancel()
    first.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order[4:] == [0, 2] and places.taken == 0
