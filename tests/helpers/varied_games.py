"""Games of all kinds, by their settings, and a script that ends them in all ways.

GAMES  settings by name
reply  a script: some invalid answers, some early verdicts
"""

from handmade import ACCEPT, REJECT

from nip_core.hashing import derive_seed

EVERY_PART = (
    "Question for Expert_1: {0}?\nQuestion for Expert_2: {0}!\n"
    "To everyone: {0}\nTo Expert_1 alone: {0}\nTo Verifier_1: {0}\nTo Verifier_2: -{0}"
)


def reply(body):
    """Some invalid answers, some early verdicts, some episodes without any."""
    draw = derive_seed("reply", body["messages"], body["seed"]) % 8
    if draw == 0:
        return ""
    if body["model"].startswith("prover"):
        return f"  Answer: {draw}\n{EVERY_PART.format(draw)}\n"
    said = f"Question: {draw}?\n{EVERY_PART.format(draw)}"
    return ACCEPT if draw == 1 else REJECT if draw == 2 else said


GAMES = {
    "nip": {},
    "prover-first": {
        "nip_protocol": {"max_message_rounds": 4},
        "protocol_common": {"verifier_first": False},
    },
    "adp": {"interaction_protocol": "adp"},
    "solo": {"interaction_protocol": "solo_verifier"},
    "stances": {
        "protocol_common": {"randomize_prover_stance": True, "shared_reward": True},
        "code_validation": {"system_prompt_version": "v1"},
        "nip_protocol": {"max_message_rounds": 5, "min_message_rounds": 3},
    },
    "debate": {"interaction_protocol": "debate", "debate_protocol": {"max_message_rounds": 5}},
    "mnip": {
        "interaction_protocol": "mnip",
        "mnip_protocol": {"max_message_rounds": 7, "sequential": True},
        "agents": {"_default": {"use_supervisor_message": "all_but_first"}},
    },
    "merlin-arthur": {
        "interaction_protocol": "merlin_arthur",
        "agents": {"_default": {"chat_format": "alternating"}},
    },
    "zero-knowledge": {
        "interaction_protocol": "debate",
        "debate_protocol": {"max_message_rounds": 7, "min_message_rounds": 3},
        "protocol_common": {"zero_knowledge": True},
        "agents": {"_default": {"chat_format": "alternating_no_system"}},
    },
    "many-channels": {"interaction_protocol": "multi_channel_test"},
    "silent": {
        "protocol_common": {"prover_invalid_response_penalty": -0.5},
        "agents": {"prover": {"num_invalid_generation_retries": 0}},
    },
    "random": {"agents": {"verifier": {"is_random": True}}},
}
