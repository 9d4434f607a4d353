"""Players of `chain` that read nothing but their chat.

checks   a verifier that calculates the one step that it is shown
"""

import re

STEP = re.compile(
    r"^Step (\d+)(?: is left| was drawn)?: (?:(\d+|none), )?(\w[\w ]*) (\d+),? modulo (\d+)\. (.*)",
    re.MULTILINE,
)


def checks(chat):
    """A verifier that calculates the one step that it is shown in its last message, and no other."""
    shown = STEP.search(chat[-1]["content"])
    _, before, verb, operand, modulus, said = shown.groups()
    if "was drawn" in shown[0]:
        values = re.search(r"(\d+|none) before it, (\d+|none) after it", said)
        before, after = values.groups()
    elif before is not None:  # in few words
        after = re.search(r"(?:Expert_2|Expert): (\d+|none)", said)[1]
    else:
        before = re.search(r"Before it the value is (\d+)", said)[1]
        after = re.search(r"Expert_2 (?:says that the value is )?(\d+|states no value)", said)[1]
    if not (before.isdigit() and after.isdigit()):
        return 0
    value, n, p = int(before), int(operand), int(modulus)
    results = {"add": value + n, "subtract": value - n, "multiply by": value * n}
    return int(results[verb] % p == int(after))
