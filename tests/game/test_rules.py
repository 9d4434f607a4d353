"""What is asked once for all episodes of a protocol really is the same in all of them."""

from itertools import product

import pytest

from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.protocols import protocol_names
from nip_core.protocols.nip import NipProtocol

FIXED = {f"{name}_protocol": {"randomize_channel_order": False} for name in ("debate", "mnip")}
SEEDS = (0, 1, 2, 3, 17, 2**31 - 1)


def game(name, **more):
    settings = {"run_name": "a", "dataset": "x", "interaction_protocol": name, **more}
    return Game(load_parameters(settings))


def kept(table, seed):
    """All that is asked of the rules, for one seed."""
    rules, protocol = table._rules, table.protocol
    found = [rules.names(seed)]
    for agent, stance in product(protocol.agent_names, (None, 0, 1)):
        found.append(
            rules.system_prompt(agent, stance, seed).fill({"question": "q", "solution": "s"})
        )
        found.append(rules.rounds(agent, protocol.max_message_rounds - 1, stance, seed, {}))
    for round_ in range(protocol.max_message_rounds):
        movers = protocol.movers(round_, seed, [])
        found += [rules.form(agent, round_, seed, []) for agent in movers]
    return found


@pytest.mark.parametrize("version", ["v1", "v2", "short"])
@pytest.mark.parametrize("name", protocol_names())
def test_protocols_that_are_taken_to_ignore_the_seed_do(name, version):
    more = {"code_validation": {"system_prompt_version": version}, **FIXED}
    first = game(name, **more)
    if not first.protocol.uses_seed:
        usual = kept(first, SEEDS[0])
        for seed in SEEDS[1:]:
            assert kept(game(name, **more), seed) == usual


def test_every_protocol_that_is_taken_to_ignore_the_seed_is_among_those_tried():
    protocols = [game(name, **FIXED).protocol for name in protocol_names()]
    tried = {protocol.name for protocol in protocols if not protocol.uses_seed}
    assert tried == {
        "adp",
        "debate",
        "mnip",
        "multi_channel_test",
        "nip",
        "refereed",
        "solo_verifier",
    }


def test_a_protocol_made_of_another_uses_the_seed_unless_it_says_otherwise():
    class Derived(NipProtocol):
        name = "derived"

    class Steady(Derived):
        uses_seed = False

    assert (NipProtocol.uses_seed, Derived.uses_seed, Steady.uses_seed) == (False, True, False)


def test_an_order_that_is_drawn_is_kept_for_its_seed_alone():
    more = {"mnip_protocol": {"randomize_channel_order": True}}
    table = game("mnip", **more)
    assert table.protocol.uses_seed
    found = [kept(table, seed) for seed in SEEDS]
    assert found == [kept(game("mnip", **more), seed) for seed in SEEDS]
    assert any(answers != found[0] for answers in found)
