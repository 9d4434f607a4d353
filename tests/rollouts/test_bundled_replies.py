"""The deterministic engine's bundled replies can play every protocol to a verdict."""

import itertools
from random import Random

import pytest

from nip_core.game.answers.parsing import InvalidResponse
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Turn, protocol_names
from nip_lm_server.engines.scripted.reply_rules import Template, load_replies

ROUNDS = {"max_message_rounds": 3}
TRIES = 5  # an early verdict on another scale is asked for again, as in a game


def game(protocol, zero_knowledge, scale, version, chat_format, supervisor):
    return Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "x",
                "interaction_protocol": protocol,
                **dict.fromkeys(("nip_protocol", "debate_protocol", "mnip_protocol"), ROUNDS),
                "protocol_common": {
                    "zero_knowledge": zero_knowledge,
                    "verifier_decision_scale": scale,
                },
                "code_validation": {"system_prompt_version": version},
                "agents": {
                    "_default": {"chat_format": chat_format, "use_supervisor_message": supervisor}
                },
            }
        )
    )


def reply(replies, chat, random):
    rule = next((r for r in replies.rules if r.when.holds("model", chat, 0)), None)
    choices = rule.replies if rule else replies.default
    (chosen,) = random.choices(choices, [choice.weight_at(0) for choice in choices])
    return Template(chosen.text).render(random, 0)


WITHOUT_ZK = ("solo_verifier", "multi_channel_test", "refereed")


@pytest.mark.parametrize("protocol", protocol_names())
def test_every_game_comes_to_a_verdict(protocol):
    replies, random = load_replies(None), Random(1)
    variants = itertools.product(
        [False, True] if protocol not in WITHOUT_ZK else [False],
        ["accept_reject", "likert_scale_4", "out_of_100"],
        ["v1", "v2", "short"],
        [("named", "none"), ("alternating", "all"), ("alternating_no_system", "none")],
    )
    for *variant, told in variants:
        played = game(protocol, *variant, *told)
        assert finishes(played, replies, random), (variant, told)


def finishes(played, replies, random):
    turns = []
    for round_ in range(played.protocol.max_message_rounds):
        now = []
        for agent in played.protocol.movers(round_, 0, turns):
            chat = played.render(agent, Situation("Q", "S", None, 0), turns, round_)
            for _ in range(TRIES):
                text = reply(replies, chat, random)
                try:
                    move = played.parse(agent, round_, 0, text, turns)
                except InvalidResponse:
                    continue
                now.append(Turn(round_, agent, text, move))
                break
            else:
                return False
        turns += now
        if played.protocol.judge(round_, 0, 1, None, turns).done:
            return True
    return False
