"""Whether a protocol makes a game, as its class and the settings have it.

Covered: a verifier that decides and has the last turn, an agent's turn in every round, one writer
per channel and round who also reads there, a header of its own for each part of an answer, rounds
in which a verdict can count. Not covered: whether the game is a good one.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nip_core.protocols.base import Protocol

_SEEDS = range(16)  # of episodes that are looked at
_MOST_ROUNDS = 64  # that the settings allow


def check_playable(protocol: "Protocol") -> None:
    """Raise ValueError, naming the setting and a value to use, if there is no game to play."""
    verifier = protocol.agents.get("verifier")
    if verifier is None or not verifier.decides:
        raise ValueError(f"protocol {protocol.name!r} has no agent 'verifier' that decides")
    for agent, channel in sorted(protocol.hidden):
        unknown = agent if agent not in protocol.agents else channel
        if agent not in protocol.agents or channel not in protocol.channels:
            names = ", ".join([*protocol.agents, *protocol.channels])
            raise ValueError(
                f"protocol {protocol.name!r}: hidden has {(agent, channel)!r}, and there is no "
                f"{unknown!r}; there are {names}"
            )
    if protocol.min_message_rounds > protocol.max_message_rounds:
        raise ValueError(
            f"{_place(protocol)}min_message_rounds: {protocol.min_message_rounds} is more than "
            f"max_message_rounds, {protocol.max_message_rounds}, so no verdict could count; use at "
            f"most {protocol.max_message_rounds}"
        )
    if protocol.common.randomize_prover_stance and not protocol.stance_can_be_randomized:
        reason = "each prover's verdict is fixed" if protocol.provers else "there is no prover"
        raise ValueError(
            f"protocol_common.randomize_prover_stance: in protocol {protocol.name!r} {reason}; set "
            "it to false"
        )
    for seed in _SEEDS:
        turns = []
        for round_ in range(protocol.max_message_rounds):
            active = protocol.active(round_, seed)
            _check_round(protocol, round_, seed, active)
            if "verifier" in active:
                turns.append(round_ + 1)
        _check_last_round(protocol, seed, turns)


def _place(protocol: "Protocol") -> str:
    return f"{protocol.rounds_setting}." if protocol.rounds_setting else f"{protocol.name}: "


def _check_round(
    protocol: "Protocol", round_: int, seed: int, active: Mapping[str, Sequence[str]]
) -> None:
    writers: dict[str, str] = {}
    place = f"protocol {protocol.name!r}, round {round_}"
    if not active:
        raise ValueError(f"{place}: it is nobody's turn")
    for agent, channels in active.items():
        if agent not in protocol.agents:
            raise ValueError(f"{place}: {agent} is not among its agents")
        visible = protocol.visible_channels(agent)
        for channel in channels:
            if channel not in visible:
                raise ValueError(f"{place}: {agent} writes to {channel}, which it can't see")
            if channel in writers:
                raise ValueError(f"{place}: {agent} and {writers[channel]} both write to {channel}")
            writers[channel] = agent
        if len(channels) < 2:
            continue
        try:
            headers = protocol.headers(agent, channels, seed)
        except KeyError:
            headers = {}
        if len(set(headers.values())) < len(channels):
            raise ValueError(
                f"{place}: {agent} writes to {', '.join(channels)} without a header of its own for "
                "each"
            )


def _check_last_round(protocol: "Protocol", seed: int, turns: Collection[int]) -> None:
    """Refuse a last round in which the verifier can't decide; `turns` count from 1."""
    rounds, min_rounds = protocol.max_message_rounds, protocol.min_message_rounds
    is_last = rounds in turns or not protocol.verifier_is_last
    if is_last and any(n >= min_rounds for n in turns):
        return
    # Rounds that are not played are looked at for a hint alone: it takes many times as long.
    possible = _MOST_ROUNDS if protocol.rounds_setting else rounds
    turns = [n for n in range(1, possible + 1) if "verifier" in protocol.active(n - 1, seed)]
    enough = [n for n in turns if n >= min_rounds]
    place = f"{_place(protocol)}max_message_rounds"
    if not enough or min(enough) > rounds:
        hint = f"use at least {min(enough)}" if enough else "give it one"
        raise ValueError(
            f"{place}: with {rounds} the verifier has no turn in which a verdict counts; {hint}"
        )
    if not is_last:
        last = next(iter(protocol.active(rounds - 1, seed)))
        nearest = sorted(enough, key=lambda n: abs(n - rounds))[:2]
        raise ValueError(
            f"{place}: {rounds} rounds give the last turn to {last} instead of the verifier, who "
            f"could not decide then; use {' or '.join(map(str, nearest))}"
        )
