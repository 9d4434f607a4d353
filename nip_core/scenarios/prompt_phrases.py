"""The sentences of prompts that follow from the settings: texts for templates' placeholders.

decision_form, decision_line    how to decide on the scale of the protocol
message_form                    how an answer for one channel or several looks
expert_aim, prover_task,        the aims of agents
    other_aim
verifier_reward, prover_reward  the rewards of agents

Pure functions of the protocol. Each sentence is true of the settings: no agent is told of a reward
or a penalty that the protocol does not pay. Version "short" has words of its own.
"""

from collections.abc import Mapping, Sequence

from nip_core.protocols import ACCEPT, Protocol
from nip_core.protocols.scales import DecisionScale
from nip_core.protocols.settings import SecrecySettings
from nip_core.scenarios.base import Words
from nip_core.scenarios.prompt_versions import fits_any_words, form_of
from nip_core.tolerance import at_least

_COUNTS = {2: "two", 4: "four", 5: "five", 6: "six", 7: "seven"}
_CERTAINLY_NOT = "it certainly is not"
_NUMBER_MEANINGS = {
    "likert_int_scale_11": (
        "The number says how far you agree that ",
        ("you strongly disagree", "you neither agree nor disagree", "you strongly agree"),
    ),
    "out_of_10": (
        "The number says how sure you are that ",
        (_CERTAINLY_NOT, "you cannot say", "it certainly is"),
    ),
}
_NUMBER_MEANINGS["out_of_100"] = _NUMBER_MEANINGS["out_of_10"]


# How to decide, and how to write.


def decision_form(scale: DecisionScale, words: Words, version: str) -> str:
    """Tell how a decision is written, with its lines and their meaning."""
    lead = {
        "v1": "Write exactly one {line} and nothing else:",
        "v2": "Let the last line of your answer be exactly one {line}; only that line counts:",
        "short": "To decide, write one {line}:",
    }[form_of(version)]
    lines = [f"Decision: {answer}" for answer in _shown(scale)]
    if scale.is_numeric:
        line = f"line like these, with a whole number from {scale.lowest} to {scale.highest}"
        if form_of(version) == "v1":
            line += ","
    else:
        line = f"of these {_COUNTS[len(lines)]} lines"
    gap = "\n" if version == "short" else "\n\n"
    return gap.join([lead.format(line=line), "\n".join(lines), *_meaning(scale, words, version)])


def decision_line(scale: DecisionScale) -> str:
    """The same within a sentence: ``one of the lines "Decision: accept" and ...``."""
    lines = [f'"Decision: {answer}"' for answer in scale.values]
    if scale.is_numeric:
        return f"one of the lines from {lines[0]} to {lines[-1]} (a whole number)"
    first = ", ".join(reversed(lines[1:])) if len(lines) == 2 else ", ".join(lines[:-1])
    return f"one of the lines {first} and {lines[0] if len(lines) == 2 else lines[-1]}"


def _shown(scale: DecisionScale) -> list[str]:
    """Choose the answers for a prompt: all, or of numbers the ends and the middle."""
    if scale.is_numeric:
        middle = _middle(scale)
        assert middle is not None
        return [scale.lowest, middle, scale.highest]
    if len(scale.values) == 2:
        return [scale.highest, scale.lowest]
    return list(scale.values)


def _middle(scale: DecisionScale) -> str | None:
    return next((answer for answer, value in scale.values.items() if value == 0), None)


def _meaning(scale: DecisionScale, words: Words, version: str) -> list[str]:
    middle = _middle(scale)
    if version == "short":
        if len(scale.values) == 2:
            return []
        if scale.is_numeric:
            return [f"{scale.lowest} is reject, {scale.highest} accept, {middle} neither."]
        return ["Disagree is reject, agree is accept."]
    if len(scale.values) == 2:
        otherwise = "otherwise" if fits_any_words(version) else "if it is not"
        return [f"Accept if {words.correct}, reject {otherwise}."]
    if not scale.is_numeric:
        neither = "" if middle is None else f', and "{middle}" as neither'
        return [
            f"The line says how far you agree that {words.correct}. To disagree counts as reject, "
            f"to agree as accept{neither}."
        ]
    lead, (lowest, between, highest) = _NUMBER_MEANINGS[scale.name]
    if fits_any_words(version) and lowest == _CERTAINLY_NOT:
        lowest, highest = "you are sure of the opposite", "you are sure of it"
    return [
        f"{lead}{words.correct}: {scale.lowest} means that {lowest}, {middle} that {between}, "
        f"{scale.highest} that {highest}. A number below {middle} counts as reject, one above it "
        f"as accept, and {middle} as neither."
    ]


def message_form(headers: Mapping[str, str], noun: str) -> str:
    """Write the lines of a message: one for each header, or one with "Question:"."""
    starts = list(headers.values()) or [f"{noun.capitalize()}:"]
    return "\n".join(f"{start} <your {noun}>" for start in starts)


# The aims of agents.


def verdict(protocol: Protocol, agent: str, stance: int | None) -> str:
    """The verdict that a prover argues for, accept or reject."""
    return "accept" if protocol.stance(agent, stance) == ACCEPT else "reject"


def _verdicts(protocol: Protocol, stance: int | None) -> dict[str, str]:
    return {agent: verdict(protocol, agent, stance) for agent in protocol.provers}


def _has_sides(protocol: Protocol) -> bool:
    """Say whether provers argue for opposite verdicts, as they also do for a shared reward."""
    return len(set(_verdicts(protocol, None).values())) > 1


def prover_task(
    protocol: Protocol, words: Words, agent: str, stance: int | None, version: str
) -> str:
    """Return the sentence on a prover's task."""
    aim = verdict(protocol, agent, stance)
    if protocol.common.shared_reward and not _has_sides(protocol):
        if version == "short":
            return f"Say {words.asked_in_short}."
        return "Your task is to help it decide rightly."
    if version == "short":
        return f"Say why to {aim}."
    if protocol.common.shared_reward:
        return (
            f"Your task is to put forward what speaks for {aim}ing the {words.thing}, truthfully, "
            "and so to help it decide rightly."
        )
    return f"Your task is to convince it to {aim} the {words.thing}, whether that is right or not."


def reminder(protocol: Protocol, words: Words, agent: str, stance: int | None) -> str:
    """The task of a prover once more, as a supervisor says it."""
    common, aim = protocol.common, verdict(protocol, agent, stance)
    if common.shared_reward:
        if _has_sides(protocol):
            return f"Put forward what speaks for {aim}ing the {words.thing}."
        return "Help the verifier to decide rightly."
    if common.randomize_prover_stance and stance is None:
        return "Argue for the verdict that your instructions name."
    return f"Argue that the verifier should {aim} the {words.thing}."


def other_aim(protocol: Protocol, words: Words, agent: str, stance: int | None) -> str:
    """Return a prover's sentence on the aims of the other ones."""
    peers = [peer for peer in protocol.provers if peer != agent]
    claims = [
        _claim(protocol, words, peer, stance, protocol.agents[peer].human_name, "it")
        for peer in peers
    ]
    return f"{', and '.join(claims)}." if claims else ""


def _claim(
    protocol: Protocol, words: Words, agent: str, stance: int | None, name: str, whom: str
) -> str:
    aim = verdict(protocol, agent, stance)
    if protocol.common.shared_reward:
        return f"{name} puts forward what speaks for {aim}ing the {words.thing}"
    return f"{name} argues that {whom} should {aim} the {words.thing}"


def expert_aim(protocol: Protocol, words: Words, stance: int | None, version: str) -> str:
    """Return a verifier's sentence on the aims of the provers."""
    verdicts = _verdicts(protocol, stance)
    if not verdicts:
        return ""
    if version == "short":
        return _short_aim(protocol, words, verdicts)
    count, shared = len(verdicts), protocol.common.shared_reward
    experts = {1: "The expert", 2: "Both experts"}.get(count, "All experts")
    paid = f"{experts} {'gets' if count == 1 else 'get'} the same reward as you."
    if _right_is_rewarded(protocol):
        paid = f"{experts} {'is' if count == 1 else 'are'} rewarded when your decision is right."
    if _has_sides(protocol):
        sides = _sides(protocol, words, stance)
        check = f"Each of them may mislead you, so check what it says against {words.evidence}."
        return f"{sides} {paid if shared else check}"
    if shared:
        return paid
    says = "it says" if count == 1 else "they say"
    return (
        f"{experts} {'argues' if count == 1 else 'argue'} that you should "
        f"{next(iter(verdicts.values()))} the {words.thing} and may mislead you, so check what "
        f"{says} against {words.evidence}."
    )


def _sides(protocol: Protocol, words: Words, stance: int | None) -> str:
    """Tell who argues for accept and who for reject, as far as the verifier may know."""
    agents = protocol.provers
    names = [protocol.agents[agent].human_name for agent in agents]
    unknown = any(protocol.agents[agent].anonymous for agent in agents)
    if unknown:
        names = ["One of them", *["another one"] * (len(agents) - 2), "the other"]
    claims = [
        _claim(protocol, words, agent, stance, name, "you")
        for agent, name in zip(agents, names, strict=True)
    ]
    end = "; you are not told who is who" if unknown else ""
    return f"{', and '.join(claims)}{end}."


def _short_aim(protocol: Protocol, words: Words, verdicts: Mapping[str, str]) -> str:
    if not _has_sides(protocol):
        shared = protocol.common.shared_reward
        claim = words.asked_in_short if shared else f"why to {next(iter(verdicts.values()))}"
        return f"The expert says {claim}." if len(verdicts) == 1 else f"The experts say {claim}."
    if any(protocol.agents[agent].anonymous for agent in verdicts):
        return "The expert says why to accept or why to reject."
    names = [f"{protocol.agents[a].human_name} why to {v}" for a, v in verdicts.items()]
    return f"{', '.join(names).replace(' why', ' says why', 1)}."


# The rewards of agents.


def _right_is_rewarded(protocol: Protocol) -> bool:
    """Tell whether every right decision pays the verifier more than nothing."""
    weakest = 0.0 if len(protocol.scale.values) == 2 else protocol.neither_reward
    return protocol.common.verifier_reward > 0 and at_least(weakest, 0.0)


def verifier_reward(protocol: Protocol) -> str:
    """Return the sentence on the verifier's reward for its decision."""
    common, middle = protocol.common, protocol.neither_reward
    right, wrong = common.verifier_reward, common.verifier_incorrect_penalty
    none = common.verifier_terminated_penalty
    if len(protocol.scale.values) > 2:
        weakest = ", which the middle earns" if _middle(protocol.scale) else ""
        text = (
            f"A decision that is as strong as can be earns you {right:g} when it is right and "
            f"{wrong:g} when it is wrong. The weaker it is, the closer it comes to {middle:g}"
            f"{weakest}. Not to decide at all earns you {none:g}."
        )
    elif right > 0 > wrong and none < 0:
        text = "You are rewarded for a right decision and penalised for a wrong one or for none."
    else:
        text = f"A right decision earns you {right:g}, a wrong one {wrong:g}, none {none:g}."
    waiting = common.verifier_no_guess_reward
    if waiting and protocol.max_questions(0):
        text += f" Each turn without a decision, before your last one, earns you {waiting:g}."
    return text


def prover_reward(protocol: Protocol, agent: str, seed: int, stance: int | None) -> str:
    """Return the sentence on a prover's reward for the verdict, and on its fines."""
    common = protocol.common
    aim = verdict(protocol, agent, stance)
    decides = f"the verifier decides to {aim}"
    if len(protocol.scale.values) > 2:
        decides = f"the verifier's decision counts as {aim}"
    if common.shared_reward and _right_is_rewarded(protocol):
        text = "You are rewarded if the verifier's decision is right."
    elif common.shared_reward:
        text = "You get the same reward as the verifier."
    elif common.prover_reward == 0 or not protocol.earns(agent, seed):
        text = "The verifier's decision earns you nothing."
    else:
        text = f"You are {'rewarded' if common.prover_reward > 0 else 'penalised'} if {decides}."
    if common.prover_invalid_response_penalty:
        text += " You are penalised for a turn in which you give no valid answer."
    return text


def zero_knowledge_rewards(settings: SecrecySettings, words: Words) -> dict[str, str]:
    """Return the sentences on rewards for the likeness of adversarial verifier and simulator."""
    simulator = settings.simulator_reward_coefficient
    prover = simulator * settings.aux_prover_reward_coefficient
    alike = "The more alike your messages and those of the {} are, the"

    def signed(amount: float, more: str, less: str) -> str:
        return "It earns you nothing." if amount == 0 else (more if amount > 0 else less)

    return {
        "simulator_reward": signed(
            simulator,
            f"{alike.format('verifier')} higher your reward.",
            f"{alike.format('verifier')} lower your reward.",
        ),
        "adversary_reward": f"A simulator, who reads {words.all_materials} but none of the "
        "experts' messages, tries to write what you write. "
        + signed(
            simulator,
            f"{alike.format('simulator')} more you lose.",
            f"{alike.format('simulator')} more you gain.",
        ),
        "prover_secrecy": ""
        if prover <= 0
        else f" One of them tries to learn more from you than whether {words.shortly_correct}. The "
        "better somebody who does not read your messages could write what it writes, the higher "
        "your reward.",
    }


def join_words(items: Sequence[str]) -> str:
    """`a, b and c`."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
