"""The timeline of an episode says of each message who sent it, where to, and who reads it."""

from nip_core.evaluation.episode_transcripts import Message
from nip_core.parameters import load_parameters
from nip_core.protocols import ACCEPT, NO_DECISION, make_protocol
from nip_view.timeline import lay_out_messages


def play(name, *spoken, **settings):
    """The timeline of messages: round, agent, channels; the last two may be others."""
    model = {"model_provider": "SelfHosted", "model_name": "deterministic"}
    asked = {
        "run_name": "shown",
        "dataset": "families",
        "interaction_protocol": name,
        "protocol_common": settings,
        "agents": {"_default": model},
        "lm_server": {"engine": "deterministic"},
    }
    protocol = make_protocol(load_parameters(asked))
    messages = [
        Message(round_, agent, "text", "model", decision, 0, invalid, channels=channels)
        for round_, agent, channels, decision, invalid in spoken
    ]
    return lay_out_messages(messages, protocol)


def words_of(timeline):
    return [
        (round_, [(cell.kind, cell.words) for cell in row.cells])
        for round_, rows in timeline.rounds
        for row in rows
    ]


def test_each_message_has_its_sender_and_its_readers_alone():
    spoken = (
        (0, "prover0", ("prover_chat",), NO_DECISION, None),
        (1, "prover0", ("prover0_verifier",), NO_DECISION, None),
        (2, "verifier", ("main", "prover0_verifier"), NO_DECISION, None),
        (5, "verifier", (), NO_DECISION, "no decision"),
        (5, "verifier", (), ACCEPT, None),
    )
    timeline = play("multi_channel_test", *spoken, shared_reward=True)
    assert timeline.agents == ("prover0", "prover1", "prover2", "verifier")
    unseen, reads = ("unseen", "does not see it"), ("reads", "reads")
    assert words_of(timeline) == [
        (0, [("speaks", "to prover_chat"), reads, reads, unseen]),
        (1, [("speaks", "to prover0_verifier"), unseen, unseen, reads]),
        (2, [reads, *[("reads", "reads main")] * 2, ("speaks", "to main, prover0_verifier")]),
        (5, [unseen, unseen, unseen, ("speaks", "invalid answer 1")]),
        (5, [unseen, unseen, unseen, ("speaks", "decides: accept")]),
    ]
    numbers = [row.number for _, rows in timeline.rounds for row in rows]
    assert numbers == [0, 1, 2, 3, 4]


def test_a_dialogue_of_two_in_one_channel_needs_no_timeline():
    spoken = (0, "verifier", ("main",), NO_DECISION, None)
    assert play("nip", spoken) is None
    assert play("nip") is None
    hidden = play(
        "nip", (0, "verifier", ("main_standard",), NO_DECISION, None), zero_knowledge=True
    )
    ((_, cells),) = words_of(hidden)
    assert dict(zip(hidden.agents, cells, strict=True))["adversarial_verifier"][0] == "unseen"
