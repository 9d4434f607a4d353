"""A run's state in words, for lines of a terminal and of logs.

stage_words    where the run is
between_words  the same outside of stages
doing_words    the present work, how far it is, and how long it takes still
place_words    the same, with the stage
whole_words    the share of the whole run, and its time left
count_words    the failures so far, and the cost
state_line     all of it in a line, for a log
format_estimate, format_clock   a time left, a time gone
"""

import math

from nip_core.progress.board import STAGES
from nip_core.progress.outlook import EPISODES, Counts, Doing, State, Whole

_STAGE_WORDS = dict(
    zip(
        STAGES,
        (
            "testing",
            "playing for training",
            "choosing examples",
            "training",
            "comparing new models with old",
            "proving and swapping models",
            "attacking",
        ),
        strict=True,
    )
)
_ONE_SPLIT = ("test", "play", "attack")
"""Stages whose name says which problems are played."""
_UNKNOWN = "an unknown time"
_MINUTE, _HOUR = 60, 3600
_IN_SECONDS, _IN_MINUTES = 90, 90 * 60
_NOT_ALL = 0.99  # the share of work that is not done
_PACE = 10.0  # per second, from which no decimals are shown


def format_estimate(seconds: float) -> str:
    """Write an estimated time as "about 40 s", "about 3 min", "about 2 h 10 min"."""
    if not math.isfinite(seconds):
        return _UNKNOWN
    if seconds < _IN_SECONDS:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / _MINUTE)
    if seconds < _IN_MINUTES:
        return f"about {minutes} min"
    return f"about {minutes // _MINUTE} h {minutes % _MINUTE:02d} min"


def format_clock(seconds: float) -> str:
    """Write a time gone by, as "0:01:12"."""
    if not math.isfinite(seconds):
        return _UNKNOWN
    whole = int(seconds)
    return f"{whole // _HOUR}:{whole % _HOUR // _MINUTE:02d}:{whole % _MINUTE:02d}"


def stage_words(state: State) -> str:
    """Return "iteration 1/3: training", or "" outside of iterations."""
    if state.stage is None:
        return ""
    return f"iteration {state.iteration}/{state.iterations}: {_STAGE_WORDS[state.stage]}"


def between_words(state: State) -> str:
    """Say whether a run that is in no stage is getting ready, between stages or finishing."""
    whole = state.whole
    if whole is None or not whole.stages_done:
        return "getting ready"
    return "between stages" if whole.stages_done < whole.stages else "finishing"


def doing_words(doing: Doing) -> str:
    """Return what is being done and how far it is, as "training verifier: step 12/90 (13 %), ..."""
    parts = []
    if doing.unit == EPISODES:
        parts.append(f"{doing.done:,}/{doing.total:,} episodes ({format_share(doing)})")
    elif doing.total:
        parts.append(f"step {doing.done:,}/{doing.total:,} ({format_share(doing)})")
    if status := status_words(doing):
        parts.append(status)
    if doing.loss is not None:
        parts.append(f"loss {doing.loss:.3g}")
    if doing.per_s is not None:
        parts.append(f"{format_pace(doing.per_s)}/s")
    if doing.tokens_per_s:
        parts.append(f"{format_pace(doing.tokens_per_s)} tokens/s")
    parts.append(left_words(doing))
    if doing.left_s:
        parts.append(f"{format_clock(doing.elapsed_s)} so far")
    job = f" ({doing.job})" if doing.job else ""
    return f"{doing.what}{job}: {', '.join(parts)}"


def place_words(state: State, doing: Doing) -> str:
    """Add the stage, as "iteration 1/3: training verifier (ftjob-...): step 12/90"."""
    place, words = stage_words(state), doing_words(doing)
    if doing.job is not None:  # which says itself that it trains
        place = place.partition(":")[0]
    elif doing.unit == EPISODES and state.stage in _ONE_SPLIT:
        words = words.partition(": ")[2]
    return f"{place}: {words}" if place else doing_words(doing)


def status_words(doing: Doing) -> str:
    """Say the last word of who does it, where its counts do not say it."""
    if doing.status == "running":
        return "" if doing.total else "starting up"
    return doing.status


def left_words(doing: Doing) -> str:
    """Say the time left, or the time taken so far where it is not known."""
    if doing.total and doing.done >= doing.total:
        action = "being measured" if doing.unit == EPISODES else "finishing"
        return f"{action}, {format_clock(doing.elapsed_s)} so far"
    if doing.left_s:
        return f"{format_estimate(doing.left_s)} left"
    return f"{format_clock(doing.elapsed_s)} so far"


def whole_words(whole: Whole) -> str:
    """Return "whole run 43 %, about 3 min left"."""
    if whole.left_s is None or whole.share is None:
        stage = min(whole.stages_done + 1, whole.stages)
        return f"stage {stage} of {whole.stages}, time left not yet known"
    words = share_words(whole.share, whole.left_s, whole.stages_done == whole.stages)
    return f"whole run {words}{guess_words(whole)}"


def guess_words(whole: Whole) -> str:
    """Say that a time left is guessed; "" where it is measured."""
    return " (guessed from the server's speed)" if whole.is_guess else ""


def share_words(part: float, left_s: float, is_done: bool) -> str:
    """Say "43 %, about 3 min left". More than 99 % is shown only once all stages are over."""
    if is_done:
        return "100 %, all stages are over"
    percent = 100 * min(part, _NOT_ALL)
    return f"{percent:.0f} %, {f'{format_estimate(left_s)} left' if left_s >= 1 else 'almost done'}"


def count_words(counts: Counts) -> str:
    """Return what was kept, went wrong and was spent; "" where there is nothing to tell."""
    parts = []
    if counts.calls_reused:
        answers = "answer" if counts.calls_reused == 1 else "answers"
        parts.append(f"{counts.calls_reused:,} {answers} taken from the journal")
    if counts.retries:
        parts.append(f"{counts.retries} retries, the last after {counts.last_trouble}")
    if counts.failed:
        parts.append(f"{counts.failed} failed episodes")
    if counts.invalid_answers:
        proposal = (
            f" (a third or more at first: {counts.proposal} helps)" if counts.proposal else ""
        )
        parts.append(f"{counts.invalid_answers} invalid answers{proposal}")
    if counts.usd is not None:
        parts.append(f"${counts.usd:.4f}")
    return ", ".join(parts)


def state_line(state: State) -> str:
    """Name the present work, the failures, and how far the whole run is, in a line."""
    parts = [place_words(state, doing) for doing in state.doing] or [stage_words(state)]
    parts.append(count_words(state.counts))
    parts += [] if state.whole is None else [whole_words(state.whole)]
    parts.append(state.slow)
    return "; ".join(part for part in parts if part)


def format_pace(per_s: float) -> str:
    """Write a number per second as "3.4" or "1,240"."""
    return f"{per_s:.1f}" if per_s < _PACE else f"{per_s:,.0f}"


def format_share(doing: Doing) -> str:
    """Write the share done, as "31 %"."""
    return f"{100 * doing.done / doing.total:.0f} %" if doing.total else "-"
