"""What a zero-knowledge variant makes of its protocol; whole games are in `tests/rollouts`."""

import pytest

from nip_core.parameters import load_parameters
from nip_core.protocols import make_protocol

V, A, S, P0, P1 = "verifier", "adversarial_verifier", "simulator", "prover0", "prover1"


def game(name, **more):
    more["protocol_common"] = {"zero_knowledge": True, **more.get("protocol_common", {})}
    return make_protocol(
        load_parameters({"run_name": "a", "dataset": "x", "interaction_protocol": name, **more})
    )


def test_channels_are_tripled_and_each_is_read_by_its_own():
    debate = game("debate")
    standard, adversarial, simulator = (
        tuple(f"prover{i}_channel_{kind}" for i in (0, 1))
        for kind in ("standard", "adversarial", "simulator")
    )
    assert debate.channels == standard + adversarial + simulator
    assert {agent: debate.visible_channels(agent) for agent in debate.agent_names} == {
        P0: standard + adversarial,
        P1: standard + adversarial,
        V: standard,
        A: adversarial,
        S: simulator,
    }
    mnip = game("mnip")
    assert mnip.visible_channels(P1) == ("prover1_channel_standard", "prover1_channel_adversarial")


@pytest.mark.parametrize("name", ["nip", "adp", "debate", "mnip", "merlin_arthur"])
def test_the_extra_agents_move_when_the_verifier_does(name):
    zk = game(name)
    for seed in range(4):
        for r in range(zk.max_message_rounds):
            active = zk.active(r, seed)
            assert (V in active) == (A in active) == (S in active)
            assert active.keys() - {A, S} == zk.base.active(r, seed).keys()


@pytest.mark.parametrize("name", ["nip", "merlin_arthur"])
@pytest.mark.parametrize("parity", [0, 1])
def test_neither_name_nor_place_nor_role_tells_a_prover_who_the_adversary_is(name, parity):
    """Also not which of merlin_arthur's provers speaks, which is the seed's parity."""
    zk = game(name)
    deals = set()
    for seed in range(parity, 40, 2):
        names = {zk.human_name(V, seed): "standard", zk.human_name(A, seed): "adversarial"}
        order = [names["Verifier_1"], names["Verifier_2"]]
        deals.add(tuple(order))
        channels = [f"main_{kind}" for kind in order]
        (prover,) = zk.active(0 if name == "merlin_arthur" else 1, seed)
        written = zk.active(0 if name == "merlin_arthur" else 1, seed)[prover]
        assert list(written) == list(zk.channel_order(prover, 0, seed)) == channels
        headers = zk.headers(prover, written, seed)
        assert list(headers.items()) == [
            (channels[0], "To Verifier_1:"),
            (channels[1], "To Verifier_2:"),
        ]
    assert len(deals) == 2


def test_what_the_extra_agents_and_the_provers_can_earn():
    zk = game(
        "nip",
        nip_protocol={"max_message_rounds": 5},
        zk_protocol={"simulator_reward_coefficient": 2.0, "aux_prover_reward_coefficient": 0.5},
    )
    bounds = {a: (zk.min_reward(a), zk.max_reward(a)) for a in zk.agent_names}
    assert bounds == {"prover": (0, 1 + 3), V: (-1, 1), A: (-6, 0), S: (0, 6)}
    assert zk.reward_mid_point(A) == zk.reward_mid_point(S) == 0


def test_a_drawn_stance_is_that_of_the_wrapped_protocol():
    assert game("nip", protocol_common={"randomize_prover_stance": True}).stance("prover", 0) == 0
