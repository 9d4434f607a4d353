"""What a run's state says: paces, times left and the share of the whole, by a simulated clock."""

import math

import pytest
from ticking import Ticking, small_parameters

from nip_core.progress.board import Stage
from nip_core.progress.outlook import observe_run
from nip_core.progress.words import count_words, format_clock, format_estimate, whole_words

PLAN = (
    Stage(0, "test", 40),
    Stage(0, "play", 100),
    Stage(0, "dataset"),
    Stage(0, "train"),
    Stage(0, "swap"),
    Stage(1, "test", 40),
)
PARAMETERS = small_parameters()
MODEL = {"model_provider": "SelfHosted", "model_name": "tiny"}


def test_time_left_counts_only_what_ended_since_the_stage_was_taken_up():
    time = Ticking()
    progress = time.progress()
    progress.start_episodes("train", 100, done=60)
    time.passes(5)
    [episodes] = observe_run(progress, PARAMETERS).doing
    assert (episodes.left_s, episodes.per_s) == (None, None)
    progress.episodes_done += 10
    time.passes(15)
    [episodes] = observe_run(progress, PARAMETERS).doing
    assert episodes.left_s == pytest.approx(20.0 / 10 * 30)
    assert episodes.per_s == pytest.approx(0.5)
    progress.start_episodes("test", 40)
    [episodes] = observe_run(progress, PARAMETERS).doing
    assert episodes.left_s is None


def play(progress, time, split, episodes, seconds):
    progress.start_episodes(split, episodes)
    time.passes(seconds)
    progress.episodes_done += episodes


def test_the_whole_is_unknown_until_everything_to_come_was_measured_and_then_as_it_was_measured():
    time = Ticking()
    progress = time.progress()
    progress.expect(PLAN, {}, {})
    assert whole_words(observe_run(progress, PARAMETERS).whole) == (
        "stage 1 of 6, time left not yet known"
    )
    with progress.during(0, "test"):
        play(progress, time, "test", 40, 20)  # 0.5 s for an episode
    with progress.during(0, "play"):
        play(progress, time, "train", 100, 50)
    with progress.during(0, "dataset"):
        time.passes(1)
    with progress.during(0, "train"):
        time.passes(4)
        assert (
            observe_run(progress, PARAMETERS).whole.left_s is None
        )  # nothing is known of the training
        progress.count_job()
        with progress.doing("training prover", job="ftjob-1", group="prover") as job:
            job.tell(time.s, status="running", done=1, total=11, tokens=100, left_s=30.0)
            whole = observe_run(progress, PARAMETERS).whole
            assert whole.left_s == pytest.approx(30 + 0 + 20)  # training, swap, the last test
            assert whole.share == pytest.approx(75 / 125)
            time.passes(10)  # between two looks at the job
            assert observe_run(progress, PARAMETERS).whole.left_s == pytest.approx(20 + 20)
            time.passes(20)
    with progress.during(0, "swap"):
        time.passes(1)
    whole = observe_run(progress, PARAMETERS).whole
    assert whole.left_s == pytest.approx(20)
    with progress.during(1, "test"):
        play(progress, time, "test", 40, 20)
    assert (
        whole_words(observe_run(progress, PARAMETERS).whole)
        == "whole run 100 %, all stages are over"
    )


def test_a_job_that_waits_for_its_turn_takes_its_tokens_at_the_pace_of_the_one_before():
    time = Ticking()
    progress = time.progress()
    progress.expect(PLAN, {}, {"test": [0.5], "play": [0.5]})
    with (
        progress.during(0, "train"),
        progress.doing("training a", job="1", tokens_total=1000) as first,
        progress.doing("training b", job="2", tokens_total=3000) as second,
    ):
        second.tell(time.s, status="queued")
        first.tell(time.s, status="running", done=1, total=10, tokens=100, left_s=9.0)
        assert observe_run(progress, PARAMETERS).whole.left_s is None
        time.passes(2)
        first.tell(time.s, status="running", done=3, total=10, tokens=300, left_s=7.0)
        progress.training_tokens_per_s = first.tokens_per_s
        state = observe_run(progress, PARAMETERS)
        assert [doing.left_s for doing in state.doing] == [7.0, pytest.approx(30.0)]
        assert state.doing[0].tokens_per_s == pytest.approx(100.0)
        assert state.whole.left_s == pytest.approx(37 + 20)  # one after the other, then a test


def test_what_is_reused_measures_nothing_and_what_is_on_record_does():
    time = Ticking()
    progress = time.progress()
    progress.expect(PLAN, {PLAN[0]: 20.0}, {"train": [60.0]})
    with progress.during(0, "test"):
        progress.start_episodes("test", 40, done=40)
        time.passes(0.1)
    with progress.during(0, "play"):
        progress.start_episodes("train", 100, done=80)
        time.passes(10)
        progress.episodes_done += 20
    with progress.during(0, "train"):  # its jobs have ended before
        time.passes(0.1)
    assert progress.paces == {"train": [60.0], "play": [pytest.approx(0.5)]}
    assert observe_run(progress, PARAMETERS).whole.left_s == pytest.approx(20)


def test_episodes_in_flight_are_half_played_so_the_first_to_end_do_not_speak_for_all():
    time = Ticking()
    progress = time.progress()
    progress.start_episodes("test", 400)
    progress.episodes_in_flight = 40
    time.passes(4)
    progress.episodes_done += 1  # 40 of them take 5 s or so
    [episodes] = observe_run(progress, PARAMETERS).doing
    assert episodes.left_s == pytest.approx(4 / 21 * 379)


def test_the_share_of_the_whole_never_goes_back_where_what_is_left_turns_out_to_take_longer():
    time = Ticking()
    progress = time.progress()
    progress.expect(PLAN, dict.fromkeys(PLAN[:-1], 20.0), {"test": [0.5], "train": [60.0]})
    before = observe_run(progress, PARAMETERS).whole
    shares = [before.share]
    with progress.during(1, "test"):
        progress.start_episodes("test", 40)
        for _ in range(40):
            time.passes(2)  # four times as long as those before
            progress.episodes_done += 1
            shares.append(observe_run(progress, PARAMETERS).whole.share)
    shares.append(observe_run(progress, PARAMETERS).whole.share)
    assert observe_run(progress, PARAMETERS).whole.left_s == 0.0
    assert shares == sorted(shares) and 0.8 < shares[0] < shares[-2] and shares[-1] == 1.0


def test_what_earlier_processes_spent_on_a_stage_counts():
    time = Ticking()
    progress = time.progress()
    progress.expect(PLAN, {}, {"test": [0.5], "train": [60.0]})
    with progress.during(0, "train", before_s=45.0):
        time.passes(5)
        state = observe_run(progress, PARAMETERS)
        assert state.stage_s == pytest.approx(50)
        assert state.whole.left_s == pytest.approx(10 + 20)
    assert progress.took_s[PLAN[3]] == progress.paces["train"][-1] == pytest.approx(50)


def test_looking_changes_nothing():
    time = Ticking()
    progress = time.progress()
    progress.expect(PLAN, {}, {"train": [60.0]})
    with progress.during(0, "test"):
        progress.start_episodes("test", 40)
        time.passes(3)
        progress.episodes_done += 4
        assert observe_run(progress, PARAMETERS) == observe_run(progress, PARAMETERS)


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
def test_a_time_that_is_no_number_is_called_unknown(seconds):
    assert format_estimate(seconds) == format_clock(seconds) == "an unknown time"


def test_before_an_episode_has_ended_the_answers_tell_how_long_the_rest_takes():
    time = Ticking()
    progress = time.progress()
    progress.turns_per_episode = 4.0
    progress.start_episodes("test", 40)
    progress.episodes_in_flight = 40
    time.passes(10)
    [episodes] = observe_run(progress, PARAMETERS).doing
    assert episodes.left_s is None
    for _ in range(30):
        progress.count_answer("prover", 100, 10)
    progress.invalid_answers += 10  # asked again, which takes its time as well
    [episodes] = observe_run(progress, PARAMETERS).doing
    assert episodes.left_s == pytest.approx(10 / 20 * (160 - 20))
    # With most of them ended, those that ended say more.
    progress.episodes_done, progress.episodes_in_flight = 30, 10
    time.passes(20)
    [episodes] = observe_run(progress, PARAMETERS).doing
    assert episodes.left_s == pytest.approx(30 / 35 * 5)


def test_what_was_not_measured_is_guessed_from_the_servers_speed_and_called_a_guess():
    time = Ticking()
    progress = time.progress()
    progress.guesses = {"test": 2.0, "play": 2.0, "gate": 2.0, "attack": 2.0, "train": 60.0}
    progress.expect(PLAN, {}, {})
    with progress.during(0, "test"):
        progress.start_episodes("test", 40)
        whole = observe_run(progress, PARAMETERS).whole
        assert (whole.left_s, whole.is_guess) == (pytest.approx(80 + 200 + 60 + 80), True)
        assert whole_words(whole) == (
            "whole run 0 %, about 7 min left (guessed from the server's speed)"
        )
        time.passes(20)
        progress.episodes_done += 40
    # What episodes took counts for all episodes, and the training is still guessed.
    whole = observe_run(progress, PARAMETERS).whole
    assert whole.left_s == pytest.approx(0.5 * 100 + 60 + 0.5 * 40) and whole.is_guess
    with progress.during(0, "play"):
        play(progress, time, "train", 100, 50)
    with progress.during(0, "dataset"):
        pass
    with progress.during(0, "train"):
        time.passes(30)
        progress.count_job()
    whole = observe_run(progress, PARAMETERS).whole
    assert whole.left_s == pytest.approx(20) and not whole.is_guess


def test_from_a_third_of_the_first_answers_on_the_line_names_what_holds_them_to_their_form():
    progress = Ticking().progress()

    def shown(parameters=PARAMETERS):
        return count_words(observe_run(progress, parameters).counts)

    for turn in range(8):
        progress.count_first("verifier", is_invalid=turn < 4)
        progress.invalid_answers += turn < 4
    assert shown() == "4 invalid answers"  # of so few nothing is known
    progress.count_first("verifier", is_invalid=False)
    proposed = "agents.verifier.guided_decoding: true helps"
    assert shown() == f"4 invalid answers (a third or more at first: {proposed})"
    guided = small_parameters(agents={"_default": {**MODEL, "guided_decoding": True}})
    assert shown(guided) == "4 invalid answers"
    for _ in range(9):
        progress.count_first("verifier", is_invalid=False)
    assert shown() == "4 invalid answers"
