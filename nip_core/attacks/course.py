"""The course of an attack by training: on which problems it is tested, and when it ends."""

from typing import Literal

TEST: Literal["test"] = "test"
VALIDATION: Literal["validation"] = "validation"
STEPS: Literal["steps"] = "steps"
PLATEAU: Literal["plateau"] = "plateau"
MOST_FALL = 0.03
"""Of soundness: less than this is no fall, and where less is left there is nothing to take."""
LEAST_STEPS = 30
"""Before these no attack has reached a plateau."""
USUAL_STEPS, TESTED_EVERY, ROLLOUTS = 20, 5, 128
"""Steps, steps from test to test, and episodes in a step, where nothing else is asked for."""
MOST_STEPS = 100
"""Of one that ends with a plateau."""
