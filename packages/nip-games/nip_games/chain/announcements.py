"""Announcements of the steps in dispute, or of the drawn step, for the agents.

explain_dispute, explain_draw   in their system prompts
ask_for_value                   before a turn of a prover
show_disputed, show_drawn       before the verifier decides
"""

from collections.abc import Mapping

from nip_core.scenarios.base import PROVER, Role
from nip_games.chain.disputes import Dispute
from nip_games.chain.modular import Steps

_HEADING = "## How the claim is checked\n\n"
_IN_ALL_FORM = "1: <number>, 2: <number>"
_FORM = "Value: <number>"


def explain_dispute(role: Role, asserting: str, denying: str) -> str:
    """Explain how the steps in dispute are halved; both are names of experts."""
    if role == PROVER:
        return (
            f"{_HEADING}In each turn both experts are asked for the value in the middle of the "
            "steps in dispute. If they state the same one, the later half of these steps is in "
            "dispute from then on, otherwise the earlier half. The verifier is shown the one step "
            f"that is left, and calculates it. If {denying} states no value, or several, that of "
            f"{asserting} stands; if {asserting} states none, it has lost. State a value in this "
            f"form: {_FORM}"
        )
    return (
        f"{_HEADING}In each turn both experts are asked for the value in the middle of the steps "
        "in dispute. If they state the same one, the later half of these steps is in dispute from "
        "then on, otherwise the earlier half. In the end you are shown the one step that is left, "
        f"the value before it, which stands, and the value after it that {asserting} states. "
        f"Calculate the step. If it leads to the value of {asserting}, the claim is true, "
        "otherwise it is false. If the expert on the right side, for a true claim or against a "
        "false one, is honest and states each value that it is asked for, this is always right."
    )


def explain_draw(role: Role) -> str:
    """Explain that a step is drawn after all values were stated."""
    if role == PROVER:
        return (
            f"{_HEADING}State the value after each step, in this form: {_IN_ALL_FORM}. Then a step "
            "is drawn by lot, and the verifier is shown this step, with the values that you state "
            "before it and after it."
        )
    return (
        f"{_HEADING}The expert states the value after each step. Then a step is drawn by lot, and "
        "you are shown this step, with the values that the expert states before it and after it. "
        "Calculate the step, and accept only if it leads from the one to the other."
    )


def ask_for_value(dispute: Dispute, asserting: str, is_short: bool) -> str:
    """Ask for the value in the middle; "" where one step is left."""
    first, last, value, asserted, _ = dispute
    if dispute.is_one_step:
        return ""
    if is_short:
        end = "?" if asserted is None else asserted
        return f"Steps {first + 1} to {last}: {value} to {end}. Value after step {dispute.middle}?"
    says = "states no value" if asserted is None else f"says that the value is {asserted}"
    return (
        f"Steps {first + 1} to {last} are in dispute. Before them the value is {value}, and after "
        f"them {asserting} {says}. State the value after step {dispute.middle}, in this form: "
        f"{_FORM}"
    )


def show_disputed(
    dispute: Dispute, chain: Steps, asserting: str, denying: str, is_short: bool
) -> str:
    """Show the last step in dispute, and both experts' values of it."""
    _, last, value, asserted, denied = dispute
    step, modulus = chain.steps[last - 1], chain.modulus
    if is_short:
        values = ["none" if v is None else v for v in (asserted, denied)]
        return (
            f"Step {last}: {value}, {step}, modulo {modulus}. {asserting}: {values[0]}. "
            f"{denying}: {values[1]}."
        )
    says = "states no value" if asserted is None else f"says that the value is {asserted}"
    denies = "denies it"
    if denied is not None:
        denies = str(denied)
    elif last < len(chain.steps):
        denies = "none either"
    return (
        f"Step {last} is left: {step}, modulo {modulus}. Before it the value is {value}. After it "
        f"{asserting} {says}, {denying} {denies}."
    )


def show_drawn(chain: Steps, number: int, stated: Mapping[int, int], is_short: bool) -> str:
    """Show the drawn step, and the expert's values before and after it."""
    step, modulus = chain.steps[number - 1], chain.modulus
    value_before, value_after = (stated.get(place, "none") for place in (number - 1, number))
    if is_short:
        return f"Step {number}: {value_before}, {step}, modulo {modulus}. Expert: {value_after}."
    return (
        f"Step {number} was drawn: {step}, modulo {modulus}. The expert's values (at the ends of "
        f"the chain those of the claim): {value_before} before it, {value_after} after it."
    )
