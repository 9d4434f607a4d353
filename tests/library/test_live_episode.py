"""An episode that a loop goes through step by step is the one that `play` plays."""

import asyncio
import contextlib
import gc
import random
from collections import Counter
from contextlib import AsyncExitStack

import pyarrow as pa
import pytest

from nip_core.errors import SettingsError, StageError
from nip_core.library import (
    FinishedEpisode,
    LiveEpisode,
    ModelAnswer,
    PlayedEpisodes,
    RequestRefusedError,
    SeatError,
    make_attack_game,
    make_game,
    play,
)
from nip_core.protocols import protocol_names
from nip_core.rollouts.storage.row_tables import Tables


class Broken(Exception):
    """Of a caller's model."""


SMALL = (
    *(f"scenario_settings.{split}_size=4" for split in ("train", "validation", "test")),
    "rl.rollouts_per_iteration=4",
    "rollouts.failure_threshold=1.0",
    "agents._default.num_invalid_generation_retries=3",
)
SAID = {
    "verifier": (
        *("Decision: accept", "Decision: reject", "Why? Question: is it so?", ""),
        "Question for Expert_1: why?\nQuestion for Expert_2: why not?",
    ),
    "prover": ("Answer: it is so.", "Question: are you sure?\nAnswer: no", ""),
}


def game(protocol="adp", *settings):
    return make_game(protocol=protocol, scenario="arithmetic", settings=[*SMALL, *settings])


def answer(messages, seed):
    """What a model says, some of it invalid, drawn by chat and seed."""
    decides = "Decision: accept" in messages[0]["content"]
    text = random.Random(f"{messages} {seed}").choice(SAID["verifier" if decides else "prover"])
    return ModelAnswer(text, completion_tokens=len(text))


async def ask(messages, seed, **sampling):
    return answer(messages, seed)


async def take_seat(live, seat, asked=None):
    """Answer all requests of a seat, each after it was noted; what was invalid among the answers."""
    mistakes = []
    while (request := await live.next_request(seat)) is not None:
        mistakes.append(live.find_mistake(seat))
        if asked is not None:
            asked.append(sorted(request.items()))
        live.answer(seat, answer(request["messages"], request["seed"]))
    return [*mistakes, live.find_mistake(seat)][1:]


async def go_through(opened, spec, seats, models=ask, asked=None):
    async with LiveEpisode(opened, spec, seats, models) as live:
        await asyncio.gather(*(take_seat(live, seat, asked) for seat in seats))
        return await live.finish()


def join(opened, ended):
    """Many episodes as `play` gives them."""
    tables = (
        pa.concat_tables(getattr(end.tables, name) for end in ended)
        for name in ("episodes", "generations", "timings")
    )
    return PlayedEpisodes(opened.game, Tables(*tables))


def check_same(ours, theirs):
    assert ours.digest == theirs.digest
    for name in ("episodes", "generations"):
        assert getattr(ours, name).to_pylist() == getattr(theirs, name).to_pylist()


ZERO_KNOWLEDGE = ("protocol_common.zero_knowledge=true", "zk_protocol.similarity=text")


@pytest.mark.parametrize(
    ("protocol", "settings"), [*((name, ()) for name in protocol_names()), ("nip", ZERO_KNOWLEDGE)]
)
@pytest.mark.parametrize("split", ["test", "train"])
async def test_all_protocols_are_played_as_play_plays_them_whoever_has_a_seat(
    protocol, settings, split
):
    opened, asked_there = game(protocol, *settings), []

    async def note(messages, seed, **sampling):
        asked_there.append(sorted({"messages": messages, "seed": seed, **sampling}.items()))
        return answer(messages, seed)

    there = await play(opened, note, split)
    agents = [*opened.parameters.model_agents]
    assert {row["outcome"] for row in there.episodes.to_pylist()} != {"failed"}
    for seats in (agents, *([agent] for agent in agents), []):
        asked = []
        plays = (go_through(opened, spec, seats, ask, asked) for spec in opened.plan(split))
        ended = await asyncio.gather(*plays)  # many at a time
        check_same(join(opened, ended), there)
        for end in ended:
            [row] = end.episodes.to_pylist()
            assert isinstance(end, FinishedEpisode) and end.failed == (row["outcome"] == "failed")
            assert [*end.rewards.items()] == [(p["agent"], p["reward"]) for p in row["rewards"]]
        # Message by message, with the same sampling.
        assert {*map(repr, asked)} <= {*map(repr, asked_there)}
        if seats == agents:
            assert len(asked) == len(asked_there) == there.generations.num_rows


@pytest.mark.parametrize("protocol", ["adp", "debate", "multi_channel_test"])
async def test_the_mistakes_of_a_seat_are_those_of_its_rows(protocol):
    opened = game(protocol)
    counted = 0
    for spec in opened.plan("test"):
        agents = [*opened.parameters.model_agents]
        async with LiveEpisode(opened, spec, agents) as live:
            by_seat = await asyncio.gather(*(take_seat(live, agent) for agent in agents))
            rows = (await live.finish()).generations.to_pylist()
        for agent, mistakes in zip(agents, by_seat, strict=True):
            assert mistakes == [r["invalid_reason"] for r in rows if r["agent"] == agent]
            counted += sum(mistake is not None for mistake in mistakes)
    assert counted


@pytest.mark.parametrize("by", ["sneaky", "script"])
async def test_an_attacker_has_a_seat_against_a_frozen_verifier(by):
    options = {"script": "right-step"} if by == "script" else {}
    attacking = make_attack_game(game(), by, **options)
    split = "test" if by == "script" else "train"
    seats = ["verifier"] if by == "script" else ["prover"]
    there = await play(attacking, ask, split)
    models = {"verifier": ask} if by == "sneaky" else None  # a script needs no function
    ended = [await go_through(attacking, s, seats, models) for s in attacking.plan(split)]
    check_same(join(attacking, ended), there)
    if by == "sneaky":
        assert {end.rewards["prover"] for end in ended} == {0.0, 1.0}
        return
    with pytest.raises(SettingsError, match=r"'prover' is no seat; there are verif"):
        LiveEpisode(attacking, attacking.plan(split)[0], ["prover"])


async def test_episodes_in_which_messages_are_chosen_are_refused():
    attacking = make_attack_game(game(), "best-of-n", n=(1, 2))
    with pytest.raises(SettingsError, match=r"split attack: it is played by attack\(\.\.\.\); use"):
        LiveEpisode(attacking, attacking.plan("attack")[0], ["prover"], ask)


async def test_a_seat_that_is_never_asked_has_no_request():
    opened = game("nip")  # the verifier may decide before the prover speaks

    async def decide(messages, **sampling):
        return "Decision: accept"

    async with LiveEpisode(opened, opened.plan()[0], ["prover"], decide) as live:
        for _ in range(2):  # however often the loop asks
            assert await asyncio.wait_for(live.next_request("prover"), 10) is None
        assert (await live.finish()).rewards.keys() == {"prover", "verifier"}


async def test_an_error_of_a_frozen_agent_reaches_all_seats():
    opened, both_wait = game("debate"), asyncio.Event()

    async def fail(messages, **sampling):
        await both_wait.wait()
        raise Broken("of the caller's")

    live = LiveEpisode(opened, opened.plan()[0], ["prover0", "prover1"], {"verifier": fail})
    waiting = [asyncio.ensure_future(live.next_request(seat)) for seat in ("prover0", "prover1")]
    await asyncio.sleep(0.05)
    both_wait.set()
    for result in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10):
        assert isinstance(result, Broken)
    for late in (live.next_request("prover0"), live.finish()):
        with pytest.raises(Broken):
            await asyncio.wait_for(late, 10)


async def test_an_error_while_a_seat_owes_an_answer_is_raised_at_its_next_request():
    opened, owed = game("refereed"), asyncio.Event()

    async def fail(messages, **sampling):
        await owed.wait()
        raise Broken("of the caller's")

    live = LiveEpisode(opened, opened.plan()[0], ["prover0"], fail)
    assert (await live.next_request("prover0")) is not None
    owed.set()
    await asyncio.sleep(0.05)
    live.answer("prover0", "too late")
    with pytest.raises(Broken):
        await asyncio.wait_for(live.next_request("prover0"), 10)


@pytest.mark.parametrize("ends", ["error", "give_up", "at once"])
async def test_a_request_of_a_play_that_has_ended_is_handed_to_nobody(ends):
    opened, called = game("refereed"), asyncio.Event()

    async def fail(messages, **sampling):
        await called.wait()
        raise Broken("of the caller's")

    models = {"prover0": fail, "verifier": ask}
    live = LiveEpisode(opened, opened.plan()[0], ["prover1"], models)
    await asyncio.sleep(0.05)  # the request of prover1 is there
    asking = asyncio.ensure_future(live.next_request("prover1")) if ends == "at once" else None
    called.set() if ends == "error" else live.give_up()
    await asyncio.sleep(0.05)
    for _ in range(2):
        with pytest.raises(Broken if ends == "error" else SeatError):
            await asyncio.wait_for(asking or live.next_request("prover1"), 10)
        asking = None


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (5, StageError, "of prover returned a value of type int"),
        (
            ModelAnswer("It is right.", None),
            StageError,
            r"of prover .* \(finish_reason None; use one of stop, length, content_filter, tool_",
        ),
        (Broken("of the sampler"), Broken, "of the sampler"),  # as if a function raised it
    ],
)
async def test_an_answer_of_no_known_form_is_an_error_that_names_the_seat(said, error, words):
    opened = game()
    async with LiveEpisode(opened, opened.plan()[0], ["prover"], ask) as live:
        await live.next_request("prover")
        live.answer("prover", said)
        with pytest.raises(error, match=words):
            await live.next_request("prover")


@pytest.mark.parametrize("refusing", ["verifier", "prover"])
async def test_a_refused_request_fails_the_episode_and_no_loop(refusing):
    async def refuse(messages, **sampling):
        raise RequestRefusedError("too long for this model")

    opened, models = game(), {"verifier": refuse if refusing == "verifier" else ask}
    async with LiveEpisode(opened, opened.plan()[0], ["prover"], models) as live:
        await live.next_request("prover")
        refused = refusing == "prover"
        live.answer("prover", RequestRefusedError("too long") if refused else "It is right.")
        assert await live.next_request("prover") is None
        end = await live.finish()
    assert end.failed and end.rewards == {"prover": 0.0, "verifier": 0.0}


async def test_a_failed_game_says_which_agent_had_no_valid_answer_and_why():
    opened = make_game(protocol="debate", scenario="arithmetic")

    async def mumble(messages, **sampling):
        return ""

    models = {"verifier": mumble}
    end = await go_through(opened, opened.plan()[0], ["prover0", "prover1"], models)
    invalid = end.generations.to_pylist()
    assert end.failed and {row["agent"] for row in invalid} == {"verifier"}
    reason = invalid[-1]["invalid_reason"]
    said = f"verifier, round 0: {len(invalid)} invalid answers, the last because of {reason}"
    assert end.error == said == end.episodes["error"][0].as_py()
    opened = game()
    end = await go_through(opened, opened.plan()[0], ["verifier"])
    assert (end.failed, end.error) == (False, None)


@pytest.mark.parametrize("owes", ["taken", "queued", "later"])
async def test_the_end_is_not_waited_for_while_a_seat_owes_an_answer(owes):
    opened = game("nip")
    words = {
        "taken": r"verifier owes an answer, .* end; give answer\('verifier', \.\.\.\), or .* aclose",
        "queued": r"verifier owes an answer, .* end; take next_request\('verifier'\), then give ans",
        "later": r"verifier owes an answer, .* end; take next_request\('verifier'\), then give ans",
    }
    async with LiveEpisode(opened, opened.plan()[0], ["verifier"], ask_prover) as live:
        if owes == "queued":
            await asyncio.sleep(0.05)
        else:
            await live.next_request("verifier")
        if owes == "later":  # a question, after which the loop does not go on
            live.answer("verifier", "Is it so?")
        async with asyncio.timeout(10):
            with pytest.raises(SeatError, match=words[owes]):
                await live.finish()
        if owes != "taken":
            await live.next_request("verifier")
        live.answer("verifier", "Decision: accept")
        assert (await live.finish()).rewards.keys() == {"prover", "verifier"}


async def test_the_end_is_waited_for_while_other_tasks_go_on_with_their_seats():
    opened = game("nip")

    async def ponder(live):
        while await live.next_request("verifier") is not None:
            await asyncio.sleep(0.02)
            live.answer("verifier", "Is it so?")
            await asyncio.sleep(0.02)  # the next request is there before it is taken

    async with LiveEpisode(opened, opened.plan()[0], ["verifier"], ask_prover) as live:
        going_on = asyncio.create_task(ponder(live))
        end = await asyncio.wait_for(live.finish(), 10)
        await going_on
    assert end.generations.num_rows > 2


async def get_ready_first(live):
    await asyncio.sleep(0.02)  # the first request is there before it is taken
    while await live.next_request("verifier") is not None:
        await asyncio.sleep(0.01)
        live.answer("verifier", "Decision: accept")


async def take_requests_by_tasks(live):
    while await asyncio.create_task(live.next_request("verifier")) is not None:
        await asyncio.sleep(0.01)
        live.answer("verifier", "Decision: accept")


async def give_up_waiting(live):
    """Wait for each request again and again, each time in a task that is cancelled."""
    while True:
        with contextlib.suppress(TimeoutError):
            if await asyncio.wait_for(live.next_request("verifier"), 0.01) is None:
                return
            live.answer("verifier", "Decision: accept")


@pytest.mark.parametrize("work", [get_ready_first, take_requests_by_tasks, give_up_waiting])
async def test_the_end_is_waited_for_however_another_task_takes_its_requests(work):
    async def prover(messages, **sampling):
        await asyncio.sleep(0.05)
        return "Every step is right."

    opened = game("nip")
    async with LiveEpisode(opened, opened.plan()[0], ["verifier"], prover) as live:
        going_on = asyncio.create_task(work(live))
        await asyncio.wait_for(live.finish(), 10)
        await going_on


async def fail(live):
    await live.next_request("verifier")
    await asyncio.sleep(0.02)
    raise Broken("of the loop")


async def ask_and_stop(live):
    await live.next_request("verifier")
    live.answer("verifier", "Is it so?")


@pytest.mark.parametrize(("work", "begins_s"), [(fail, 0.0), (fail, 0.01), (ask_and_stop, 0.05)])
async def test_the_end_is_not_waited_for_where_who_had_the_seat_is_gone(work, begins_s):
    opened = game("nip")
    async with LiveEpisode(opened, opened.plan()[0], ["verifier"], ask_prover) as live:
        task = asyncio.create_task(work(live))
        await asyncio.sleep(begins_s)
        with pytest.raises(SeatError, match="verifier owes an answer"):
            await asyncio.wait_for(live.finish(), 10)
        await asyncio.wait({task})


async def ask_prover(messages, **sampling):
    return "Every step is right."


async def test_an_agent_has_a_seat_or_a_function_of_its_own():
    opened = game("debate")
    spec = opened.plan()[0]
    models = dict.fromkeys(opened.parameters.model_agents, ask)
    with pytest.raises(SettingsError, match="models: prover0 has a seat, so its function would"):
        LiveEpisode(opened, spec, ["prover0"], models)
    end = await go_through(opened, spec, ["prover0"], ask)  # one for all is for the others
    assert {*end.rewards} == {*models}


def reply(m, **s):
    return "Every step is right."


async def fail_by_itself(messages, **sampling):
    return len(5)


def fail_when_called(messages, **sampling):
    return len(5)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (
            lambda m, **s: ask_prover(m),
            StageError,
            r"of prover can't be called: .*'m'.* by name, function\(messages=\.\.\., seed=",
        ),
        (reply, StageError, r"of prover can't be called: .*'m'.* write `async def function\(mess"),
        (fail_by_itself, TypeError, "has no len"),  # of the caller's code, as it is
        (fail_when_called, TypeError, "has no len"),
    ],
)
async def test_a_function_that_takes_other_arguments_is_refused_by_its_agent(
    function, error, words
):
    models = {"prover": function, "verifier": ask}
    with pytest.raises(error, match=words):
        await play(game(), models, limit=1)


async def test_a_text_where_tokens_are_recorded_is_refused_by_its_agent():
    opened = game()
    async with LiveEpisode(opened, opened.plan()[0], ["prover"], ask, records_tokens=True) as live:
        await live.next_request("prover")
        live.answer("prover", "It is right.")
        with pytest.raises(StageError, match=r"^records_tokens: the answer of prover has no token"):
            await live.finish()


async def test_tokens_of_seats_are_kept_and_frozen_agents_may_have_none():
    opened = game("nip")
    tokens = [{"token": "a", "logprob": -0.5, "top": []}]
    said = ModelAnswer("Decision: accept", prompt_token_ids=[1, 2], token_ids=[3], tokens=tokens)
    for records_tokens, kept in ((True, ([1, 2], [3], [-0.5])), (False, (None, None, None))):
        spec = opened.plan()[0]
        async with LiveEpisode(
            opened, spec, ["verifier"], ask, records_tokens=records_tokens
        ) as live:
            request = await live.next_request("verifier")
            assert ("return_token_ids" in request) == records_tokens
            live.answer("verifier", said)
            [answer] = (await live.finish()).list_answers("verifier")
        assert (answer.prompt_token_ids, answer.token_ids, answer.logprobs) == kept


async def test_frozen_agents_of_all_episodes_have_as_many_calls_as_play_allows():
    opened, now, most = game("adp", "rollouts.concurrency=2"), 0, 0

    async def work(messages, **sampling):
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.01)
        now -= 1
        return "Decision: accept"

    async with AsyncExitStack() as stack:
        episodes = [LiveEpisode(opened, s, ["prover"], work) for s in opened.plan() * 2]
        live = [await stack.enter_async_context(episode) for episode in episodes]
        assert len(live) > 4
        for one in live:  # all wait for the loop at a time, and hold no place
            assert await asyncio.wait_for(one.next_request("prover"), 10)
        for one in live:
            one.answer("prover", "It is right.")
        for one in live:
            assert not (await asyncio.wait_for(one.finish(), 10)).failed
    assert most == 2


@pytest.mark.parametrize("protocol", ["nip", "debate"])
async def test_a_game_that_is_given_up_at_any_request_leaves_nothing_behind(protocol):
    opened = game(protocol)
    agents = [*opened.parameters.model_agents]
    calls = Counter((await play(opened, ask)).generations["episode"].to_pylist())
    spec = max(opened.plan(), key=lambda spec: calls[spec.key])
    most = calls[spec.key]
    assert most > 3
    for stop_after in range(most):
        left, tasks = stop_after, asyncio.all_tasks()

        async def some(live, seat):
            nonlocal left
            while (request := await live.next_request(seat)) is not None:
                if left == 0:
                    await live.aclose()  # while others wait, or owe an answer
                    live.answer(seat, "of no use any more")
                else:
                    left -= 1
                    live.answer(seat, answer(request["messages"], request["seed"]))

        live = LiveEpisode(opened, spec, agents)
        work = asyncio.gather(*(some(live, agent) for agent in agents), return_exceptions=True)
        results = await asyncio.wait_for(work, 10)
        assert all(isinstance(r, SeatError) and "was given up" in str(r) for r in results)
        for late in (live.finish(), live.next_request(agents[0])):
            with pytest.raises(SeatError, match="was given up; begin another one"):
                await late
        await live.aclose()  # again
        assert asyncio.all_tasks() == tasks


async def test_leaving_the_block_gives_up_and_cancels_the_frozen_agents():
    opened, cancelled = game(), []

    async def hang(messages, **sampling):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    with pytest.raises(Broken):
        async with LiveEpisode(opened, opened.plan()[0], ["prover"], hang) as live:
            live.answer("prover", await live.next_request("prover") and "It is right.")
            await asyncio.sleep(0.05)
            raise Broken("of the loop")
    assert cancelled == [1]


async def test_a_loop_that_is_cancelled_while_it_waits_may_ask_again():
    opened, let_go = game("nip"), asyncio.Event()

    async def slow(messages, **sampling):
        await let_go.wait()
        return "Is it so?"

    async with LiveEpisode(opened, opened.plan()[0], ["prover"], slow) as live:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(live.next_request("prover"), 0.05)
        let_go.set()
        assert (await live.next_request("prover"))["messages"]


async def test_a_second_answer_is_refused_while_the_seat_waits_for_others():
    opened = game("nip")

    async def hang(messages, **sampling):
        await asyncio.sleep(3600)

    async with LiveEpisode(opened, opened.plan()[0], ["verifier"], hang) as live:
        await live.next_request("verifier")
        live.answer("verifier", "Is it so?")
        later = asyncio.ensure_future(live.next_request("verifier"))
        await asyncio.sleep(0.05)
        with pytest.raises(SeatError, match="no answer is awaited"):
            live.answer("verifier", "Decision: accept")
        assert not later.done()
    with pytest.raises(SeatError, match="given up"):
        await later


async def test_what_is_out_of_turn_is_an_error_that_says_so():
    opened = game()
    spec = opened.plan()[0]
    async with LiveEpisode(opened, spec, ["prover", "verifier"]) as live:
        with pytest.raises(SeatError, match=r"take next_request\('prover'\) first"):
            live.answer("prover", "It is right.")
        await live.next_request("prover")
        with pytest.raises(SeatError, match="prover is asked already; give its answer"):
            await live.next_request("prover")
        early = asyncio.ensure_future(live.next_request("verifier"))
        await asyncio.sleep(0)
        with pytest.raises(SeatError, match="verifier is asked already"):
            await live.next_request("verifier")
        with pytest.raises(SettingsError, match="'provers' is no seat; did you mean 'prover'"):
            await live.next_request("provers")
        live.answer("prover", "It is right.")
        with pytest.raises(SeatError, match="no answer is awaited"):
            live.answer("prover", "It is right.")
        assert "It is right." in (await early)["messages"][-1]["content"]
    with pytest.raises(SettingsError, match="got the text 'prover'; give a list of names"):
        LiveEpisode(opened, spec, "prover", ask)
    with pytest.raises(SettingsError, match="'provers' is no seat; did you mean"):
        LiveEpisode(opened, spec, ["provers"], ask)
    with pytest.raises(SettingsError, match=r"models: verifier .* has no function \(got prover\)"):
        LiveEpisode(opened, spec, ["prover"])


@pytest.mark.filterwarnings("error")
def test_an_episode_without_a_running_loop_is_refused_and_leaves_no_coroutine():
    opened = game()
    with pytest.raises(SeatError, match="no running event loop; make it in an async function"):
        LiveEpisode(opened, opened.plan()[0], ["prover"], ask)
    gc.collect()
