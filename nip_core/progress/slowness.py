"""The slow part of a run, and the help against it, in a line."""

import os

from nip_core.progress.board import Progress

_WAITED_S = 30.0
"""Time from which calls tell something: before, the first answers are on their way."""
_SLOW_ANSWER_S = 20.0
"""An answer that takes longer, as seen from here, is slow."""
_BUSY = 1.5
"""Load for each processor from which others are in the way."""
_MANY_INVALID = 1 / 3


def describe_slowness(progress: Progress, load: float | None = None) -> str:
    """Say that answers are slow for the calls in flight, and name remedies; "" if they are not.

    `load` is the machine's load average; None reads it.
    """
    # 1. Whether it is slow.
    traffic = progress.traffic
    if not traffic.in_flight or traffic.began_s is None:
        return ""
    waited_s = traffic.clock() - traffic.began_s
    per_s = traffic.answers_per_s() or 0.0
    if waited_s < _WAITED_S or traffic.in_flight < _SLOW_ANSWER_S * per_s:
        return ""
    a_minute = 60 * per_s
    answers = f"{a_minute:.0f} answers" if a_minute >= 1.5 else f"{a_minute:.1f} answers"
    rate = f"{answers} a minute" if per_s else f"no answer in {waited_s / 60:.1f} min"
    line = f"{rate} with {traffic.in_flight} in flight"
    # 2. How fast the engine is.
    speed = traffic.tokens_per_s()
    if speed is not None:
        line += f", the engine reads {speed[0]:,.0f} and writes {speed[1]:,.1f} tokens a second"
    # 3. Helps, the most likely first.
    helps, processors = [], os.cpu_count() or 1
    load = os.getloadavg()[0] if load is None else load
    if progress.own_device is not None and load > _BUSY * processors:
        helps.append(
            f"less beside it (the machine has {processors} processors and a load of {load:.0f})"
        )
    if progress.calls and progress.invalid_answers > _MANY_INVALID * progress.calls:
        share = progress.invalid_answers / progress.calls
        helps.append(f"a model or prompts with fewer invalid answers ({100 * share:.0f} % now)")
    if progress.own_device == "cpu":
        helps.append("a GPU, a smaller model, or a lower max_tokens_per_message")
    elif progress.own_device is None:
        helps.append("another provider or tier, a lower max_tokens_per_message")
    else:
        helps.append("a smaller model, or a lower max_tokens_per_message")
    return f"slow: {line}; what helps: {'; '.join(helps)}"
