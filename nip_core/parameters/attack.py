"""Another run whose verifier this one attacks."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nip_core.parameters.base import Parameters
from nip_core.parameters.base_run import RunName

Candidates = Annotated[int, Field(ge=1, le=4096)]
BEST_OF_N: Literal["best-of-n"] = "best-of-n"
SNEAKY: Literal["sneaky"] = "sneaky"
SCRIPT: Literal["script"] = "script"
WAY_OF = {"n": BEST_OF_N, "steps": SNEAKY, "every": SNEAKY, "script": SCRIPT}
"""By option of `nip attack` and of a sweep's attack, the one way of attacking that it is for."""
TEMPERATURE = 1.0
"""Of attacking provers, unless the settings of the attack say another."""


class AttackParameters(Parameters):
    """An attack on the verifier of another run (docs/attack.md). `nip attack` fills it in."""

    run: RunName | None = None
    """The run, in the same `run_store`, whose verifier is attacked. None: this run attacks none."""
    iteration: Annotated[int, Field(ge=0, le=9999)] = 0
    """The models that play this iteration there are attacked, 0 to 9999; 0: those that it began
    with."""
    by: Literal["best-of-n", "sneaky", "script"] = BEST_OF_N
    """How: "best-of-n", of several messages the one is played that makes the verifier likeliest to
    accept; "sneaky", provers that begin with their base model are trained against the verifier;
    "script", a function writes the provers' messages."""
    script: Annotated[str, Field(min_length=1)] | None = None
    """For script: the function that writes the provers' messages. One that comes with the scenario,
    by its name (docs/attack.md), or one of your own: "path/to/file.py:function" or
    "package.module:function", which runs as your code, with all that you may do."""
    n: Annotated[tuple[Candidates, ...], Field(min_length=1)] = (1, 4, 16, 64)
    """For best-of-n: how many messages there are to choose from in each of a prover's turns, 1 to
    4096, in ascending order. Each number is an attack of its own; they share their messages."""
    problems: Annotated[int, Field(ge=1)] | None = None
    """Test with at most this many problems of each label, at least 1, chosen by a stable shuffle.
    None: every test problem that is wrong, and as many that are right."""
    continuations: Annotated[int, Field(ge=1, le=64)] = 4
    """For best-of-n: how often the game is played on after each different message to estimate how
    likely it is to be accepted, 1 to 64."""
    score_by: Literal["log_probs", "verdicts"] = "log_probs"
    """For best-of-n: what each of these continuations counts: "log_probs", the probability of
    acceptance at the word that decides (by the verdict, where an answer has no log-probabilities,
    and always with the deterministic engine); "verdicts", 1 or 0 by the verdict."""

    exploited_at: Annotated[float, Field(gt=0, le=1)] = 0.5
    """For sneaky: the share, above 0, at most 1, of the soundness that the verifier had in its own
    run's test, from whose loss on it counts as exploited."""

    @property
    def candidates(self) -> tuple[int, ...]:
        """Return how many messages there are to choose from; a script writes one."""
        return (1,) if self.by == SCRIPT else self.n

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(later <= earlier for earlier, later in zip(self.n, self.n[1:], strict=False)):
            raise ValueError(
                f"n must ascend, each number larger than the one before (got {list(self.n)})"
            )
        if self.by == SCRIPT and self.script is None:
            raise ValueError(
                "script is missing; by: script needs the name of one that comes with the scenario, "
                "or path/to/file.py:function"
            )
        if self.by != SCRIPT and self.script is not None:
            raise ValueError(
                f"script: no effect with by: {self.by}; set by: script, or leave it out"
            )
        if self.run is None:
            plain = type(self).model_construct()
            changed = [n for n in type(self).model_fields if getattr(self, n) != getattr(plain, n)]
            if changed:
                raise ValueError(
                    f"{', '.join(changed)}: no effect without run, the run whose verifier is "
                    "attacked; name it, or leave this out"
                )
        return self
