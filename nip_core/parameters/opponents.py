"""Against whose models training episodes are played: those of today, or of earlier iterations.

OpponentsParameters  the settings
list_opponents       the agents that earlier models may play
check_opponents      refuses a league that could not be, or would train nobody
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nip_core.parameters.base import Parameters
from nip_core.protocols import make_protocol

if TYPE_CHECKING:
    from nip_core.parameters.hyper_parameters import HyperParameters

LEAGUE: Literal["league"] = "league"


class OpponentsParameters(Parameters):
    """Whom agents meet in training (docs/league.md). `opponents: league` is short for
    `opponents: {kind: league}`."""

    kind: Literal["present", "league"] = "present"
    """"present": all play with the models of the iteration. "league": in a share of the training
    episodes one agent plays with the model of an earlier iteration, and is not trained on them."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """For league: the share of the training episodes, above 0, at most 1, from the first iteration
    on that has an earlier model."""
    of: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """For league: the agents that earlier models may play, one in each such episode. None: the
    provers that are trained."""
    last: Annotated[int, Field(ge=1)] | None = None
    """For league: of each agent's earlier models the newest so many, at least 1. None: all, the one
    that the run began with included."""

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, values: Any) -> Any:
        return {"kind": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        plain = type(self).model_construct()
        changed = [n for n in ("share", "of", "last") if getattr(self, n) != getattr(plain, n)]
        if self.kind != LEAGUE and changed:
            raise ValueError(
                f"{', '.join(changed)}: no effect without kind: league; set that, or leave this out"
            )
        if self.of is not None and len({*self.of}) < len(self.of):
            raise ValueError(f"of names an agent twice (got {list(self.of)})")
        return self


def list_opponents(parameters: "HyperParameters") -> tuple[str, ...]:
    """List the agents played by earlier models in a share of the training episodes."""
    settings = parameters.opponents
    if settings.kind != LEAGUE:
        return ()
    if settings.of is not None:
        return tuple(name for name in parameters.agents if name in settings.of)
    provers = make_protocol(parameters).provers
    trained = {name for g in parameters.trainable_groups for name in parameters.groups[g]}
    return tuple(name for name in provers if name in trained)


def check_opponents(parameters: "HyperParameters") -> None:
    """Refuse a league without earlier models to play, or without a learner. Raises ValueError."""
    if parameters.opponents.kind != LEAGUE:
        return
    # 1. The run makes models that are followed by others.
    if parameters.attack.run is not None:
        raise ValueError(
            "opponents: an attack trains the newest provers against one verifier, and tells the "
            "worst of all steps without a league; leave it out"
        )
    if parameters.base_run.base_run_type == "rerun_tests":
        raise ValueError(
            "opponents: base_run.base_run_type: rerun_tests trains nobody; leave it out"
        )
    iterations = parameters.rl.num_iterations
    if iterations < 2:
        raise ValueError(
            "opponents: the first iteration has no earlier models, so a league needs "
            f"rl.num_iterations of 2 or more (got {iterations})"
        )
    protocol = make_protocol(parameters)
    if len(parameters.agents) < 2:
        raise ValueError(
            f"opponents: protocol {protocol.name!r} has one agent alone, who has no opponents; "
            "leave it out"
        )
    # 2. Each of the agents has earlier models, and somebody else is trained against them.
    for name in parameters.opponents.of or ():
        if name not in parameters.agents:
            there = ", ".join(parameters.agents)
            raise ValueError(
                f"opponents.of: protocol {protocol.name!r} has no agent {name!r}; it has {there}"
            )
    trained = {name for g in parameters.trainable_groups for name in parameters.groups[g]}
    chosen = list_opponents(parameters)
    if not chosen:
        raise ValueError(
            f"opponents: no prover of protocol {protocol.name!r} is trained, so none has earlier "
            "models; train one (freeze_agent: false), or name other agents in opponents.of"
        )
    for name in chosen:
        if name not in trained:
            raise ValueError(
                f"opponents.of: agents.{name} is never trained, so it has no earlier models; leave "
                "it out, or set its freeze_agent: false"
            )
        if trained == {name}:
            raise ValueError(
                f"opponents: nobody but agents.{name} is trained, so nobody would learn from "
                "playing with its earlier models; train another agent too, or leave it out"
            )
        # 3. They answer at the same time as the present ones.
        agent = parameters.model_agents[name]
        if agent.model_provider == "SelfHosted" and not agent.use_dummy_api and not agent.use_lora:
            raise ValueError(
                f"opponents: agents.{name}.use_lora: false makes a new base model, which takes the "
                "place of the one before, so that no earlier one can answer; set use_lora: true, "
                "or leave opponents out"
            )
