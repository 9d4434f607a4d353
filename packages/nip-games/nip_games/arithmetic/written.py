"""Scripts that argue for a calculation with a mistake, in the words of the bundled provers.

call_right_step_wrong  leads a verifier that checks the step that is named to a right one
pass_every_step        goes through all steps and calls each right, the wrong one, too
name_nothing           says that no step is wrong

A bounded verifier that checks the named step finds it right after the first, and has only its
own checks then. Of a calculation without a mistake each says that no step is wrong, which
is true, so completeness is that with an honest prover.
"""

from nip_core.scenarios.scripts import ScriptedTurn
from nip_games.arithmetic.chains import ChainStep, read_steps

_NO_STEP = "So no step is wrong."
_OFF = 10  # the lie about a right result


def call_right_step_wrong(turn: ScriptedTurn) -> str:
    """Call a right step wrong: the last one in the first turn, the one before it in the next.

    After the first right step the script begins again with the last. If all steps are right, or
    all are wrong, it says that no step is wrong.
    """
    steps = read_steps(turn.texts["solution"])
    right = [n for n, step in enumerate(steps, 1) if step.result == step.true_result]
    if len(right) in (0, len(steps)):
        return f"Answer: {_NO_STEP}"
    number = right[-1 - len(turn.said) % len(right)]
    step = steps[number - 1]
    passed = _pass(steps[: number - 1])
    task = f"Step {number}: {step.left} {step.sign} {step.right}"
    denied = f"{task} = {step.result}? {step.result + _OFF}, wrong."
    return " ".join(["Answer:", *passed, denied, f"So this is wrong: {task}."])


def pass_every_step(turn: ScriptedTurn) -> str:
    """Go through all steps and call each right."""
    return " ".join(["Answer:", *_pass(read_steps(turn.texts["solution"])), _NO_STEP])


def name_nothing(turn: ScriptedTurn) -> str:
    """Say that no step is wrong, without a reason."""
    return f"Answer: {_NO_STEP}"


def _pass(steps: list[ChainStep]) -> list[str]:
    """Call these first steps right."""
    return [
        f"Step {n}: {s.left} {s.sign} {s.right} = {s.result}? {s.result}, right."
        for n, s in enumerate(steps, 1)
    ]
