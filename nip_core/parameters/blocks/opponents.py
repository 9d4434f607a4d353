"""The models that training episodes are played against: of today, of earlier iterations, of
other runs.

OpponentsParameters  the settings
OpponentRun          a run with models, or a script, that play in a share of the episodes
name_opponent        either, as the table of episodes has it
FoundOpponent        its record from when this run was created
list_opponents       the agents that other models than the present ones may play
list_played_by_models  those of them that models of other runs may play
check_opponents      refuses opponents that could not be, or would train no agent
asked_as_there       the settings by which the agents of another run are asked
join_agents          several agents as one text, as the table of episodes has them; split_agents
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nip_core.parameters.basis.base import Parameters
from nip_core.parameters.blocks.base_run import RunName
from nip_core.protocols import make_protocol
from nip_core.scenarios import make_scenario
from nip_core.scenarios.scripts import OF_SCRIPT, check_script_named
from nip_core.tolerance import at_least

if TYPE_CHECKING:
    from nip_core.parameters.hyper_parameters import HyperParameters

LEAGUE: Literal["league"] = "league"
RUNS: Literal["runs"] = "runs"
WRONG: Literal["wrong"] = "wrong"
_BETWEEN = "+"
_OF_KIND = {"share": LEAGUE, "last": LEAGUE, "runs": RUNS}
"""By setting, the one kind that it is for."""


class FoundOpponent(Parameters):
    """The record of another run; it is read from here on, so that the other run may go."""

    iteration: Annotated[int, Field(ge=0)] | None
    """The iteration there whose models play, from 0; None for a script."""
    shared_reward: bool
    """Whether provers are paid what the verifier gets there, which their prompts may tell."""
    asked: dict[str, dict[str, Any]]
    """By agent that the run plays, the settings by which it is asked otherwise there than here."""
    models: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By agent, its model there; none where a script plays."""
    script: str | None = None
    """The script that writes the messages of these agents."""
    script_digest: str | None = None
    """Of the script's file, if it is yours."""


def name_opponent(run: str | None, script: str | None) -> str:
    """Name a run by its name, a script by its own after a prefix that no run's name has.

    Without the folder of its file, which has other paths from elsewhere.
    """
    return f"{OF_SCRIPT}{os.path.basename(str(script))}" if run is None else run


class OpponentRun(Parameters):
    """A run, or a script, whose provers play in a share of this run's training episodes."""

    run: RunName | None = None
    """Its name; None for a script."""
    script: Annotated[str, Field(min_length=1)] | None = None
    """The script that plays, in the place of a run, as in `attack.script`."""
    share: Annotated[float, Field(gt=0, le=1)]
    """The share of the training episodes that it plays in, above 0, at most 1."""
    iteration: Annotated[int, Field(ge=0, le=9999)] | None = None
    """The iteration there whose models play, 0 to 9999. None: the newest, of an attack by training
    its worst provers."""
    on: Literal["all", "wrong"] = "all"
    """On which problems it plays: all, or wrong ones alone, with that share of these."""
    found: FoundOpponent | None = None
    """Its record from when this run was created; filled in by nip."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.run is None) == (self.script is None):
            raise ValueError(
                f"an entry names a run or a script (got run {self.run!r} and script "
                f"{self.script!r}); set exactly one of them"
            )
        if self.script is not None and self.iteration is not None:
            raise ValueError(
                f"iteration: a script has no iterations (got {self.iteration}); leave it out"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the settings; a script is among them where there is one."""
        # Settings of before there were any have the same digest.
        values = super().to_dict()
        if self.script is None:
            del values["script"]
        return values

    @property
    def name(self) -> str:
        """Name it as the table of episodes does."""
        return name_opponent(self.run, self.script)

    @property
    def agents(self) -> tuple[str, ...]:
        """Return the agents that it plays, all in the same episodes."""
        return () if self.found is None else tuple(self.found.asked)

    def is_met_on(self, label: int) -> bool:
        """Tell whether the run's provers play problems with this label."""
        return self.on != WRONG or label == 0


class OpponentsParameters(Parameters):
    """Whom agents meet in training (docs/league.md). `opponents: league` is short for
    `opponents: {kind: league}`."""

    kind: Literal["present", "league", "runs"] = "present"
    """"present": all play with the models of the iteration. "league": in a share of the training
    episodes one agent plays with the model of an earlier iteration. "runs": in a share the provers
    are those of other runs, such as attacks. No agent is trained on their messages."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """For league: the share of the training episodes, above 0, at most 1, from the first iteration
    on that has an earlier model."""
    of: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """For league: the agents that earlier models may play, one in each such episode. None: the
    provers that are trained. For runs: the agents that other runs may play, all together. None: all
    provers, of an attack those that attacked."""
    last: Annotated[int, Field(ge=1)] | None = None
    """For league: of each agent's earlier models the newest so many, at least 1. None: all, the one
    that the run began with included."""
    runs: tuple[OpponentRun, ...] = ()
    """For runs: the other runs in the same `run_store`, each a block. `run`, its name: a run that
    has trained, or an attack by training or by a script; or in its place `script`, a script as in
    attack.script, which plays the provers that argue for acceptance. `share`, of the training
    episodes, above 0 and together at most 1; in the rest all play with present models. `iteration`,
    whose models play; without it the newest, of an attack by training its worst provers. `on`:
    wrong, only on wrong problems, with that share of these; else on all. `found` is filled in by
    nip: `iteration`, `shared_reward`, `asked`, `models`, `script` and `script_digest`."""

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, values: Any) -> Any:
        return {"kind": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        plain = type(self).model_construct()
        for name in ("share", "of", "last", "runs"):
            needed = _OF_KIND.get(name)
            has_effect = self.kind == needed or (needed is None and self.kind != "present")
            if getattr(self, name) != getattr(plain, name) and not has_effect:
                kinds = needed or f"{LEAGUE} or {RUNS}"
                raise ValueError(
                    f"{name}: no effect without kind: {kinds}; set that, or leave this out"
                )
        if self.of is not None and len({*self.of}) < len(self.of):
            raise ValueError(f"of names an agent twice (got {list(self.of)})")
        if self.kind == RUNS:
            self._check_runs()
        return self

    def _check_runs(self) -> None:
        if not self.runs:
            raise ValueError(
                "runs is missing; kind: runs needs those whose models play, each with run and share"
            )
        names = [entry.name for entry in self.runs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"runs: {', '.join(twice)} stands twice; name each once")
        shares = [entry.share for entry in self.runs]
        if not at_least(1.0, sum(shares)):
            raise ValueError(
                f"runs: the shares are of all training episodes, so together at most 1 (got "
                f"{' + '.join(f'{share:g}' for share in shares)} = {sum(shares):g})"
            )


def join_agents(agents: Iterable[str]) -> str:
    """Write the agents whom others play in an episode as one text."""
    return _BETWEEN.join(agents)


def split_agents(opponent: str | None) -> tuple[str, ...]:
    """Read which agents others play in an episode; None: no agent."""
    return () if opponent is None else tuple(opponent.split(_BETWEEN))


def list_opponents(parameters: "HyperParameters") -> tuple[str, ...]:
    """List the agents that are played by other models in a share of the training episodes."""
    settings = parameters.opponents
    if settings.kind == "present":
        return ()
    if settings.of is not None:
        return tuple(name for name in parameters.agents if name in settings.of)
    provers = make_protocol(parameters).provers
    if settings.kind == RUNS:
        opponents = [entry.found for entry in settings.runs if entry.found is not None]
        # Before the runs are looked at, all provers may be.
        return tuple(
            p
            for p in provers
            if not opponents or any(p in opponent.asked for opponent in opponents)
        )
    trained_agents = {name for g in parameters.trainable_groups for name in parameters.groups[g]}
    return tuple(name for name in provers if name in trained_agents)


def list_played_by_models(parameters: "HyperParameters") -> tuple[str, ...]:
    """List the agents that models of other runs play in a share of the training episodes."""
    entries = [entry for entry in parameters.opponents.runs if entry.run is not None]
    opponents = list_opponents(parameters) if entries else ()
    return tuple(
        agent
        for agent in opponents
        # Before the runs are looked at, all may have models.
        if any(entry.found is None or agent in entry.found.models for entry in entries)
    )


def check_opponents(parameters: "HyperParameters") -> None:
    """Refuse opponents that could not be, or from whom no agent would learn. Raises ValueError."""
    if parameters.opponents.kind == "present":
        return
    # 1. The run trains an agent in several iterations.
    if parameters.target_run is not None:
        raise ValueError(
            "opponents: an attack trains the newest provers against one verifier, and tells the "
            "worst of all steps without a league; leave it out"
        )
    if parameters.base_run.base_run_type == "rerun_tests":
        raise ValueError(
            "opponents: base_run.base_run_type: rerun_tests trains nobody; leave it out"
        )
    protocol = make_protocol(parameters)
    if len(parameters.agents) < 2:
        raise ValueError(
            f"opponents: protocol {protocol.name!r} has one agent alone, who has no opponents; "
            "leave it out"
        )
    for name in parameters.opponents.of or ():
        if name not in parameters.agents:
            agents = ", ".join(parameters.agents)
            raise ValueError(
                f"opponents.of: protocol {protocol.name!r} has no agent {name!r}; it has {agents}"
            )
    if parameters.opponents.kind == RUNS:
        _check_runs(parameters)
    else:
        _check_league(parameters)


def _check_league(parameters: "HyperParameters") -> None:
    """Refuse a league without earlier models to play, or without a learner."""
    # 1. The run makes models that are followed by others.
    iterations = parameters.rl.num_iterations
    if iterations < 2:
        raise ValueError(
            "opponents: the first iteration has no earlier models, so a league needs "
            f"rl.num_iterations of 2 or more (got {iterations})"
        )
    # 2. Each of the agents has earlier models, and another agent is trained against them.
    protocol = make_protocol(parameters)
    trained_agents = {name for g in parameters.trainable_groups for name in parameters.groups[g]}
    opponents = list_opponents(parameters)
    if not opponents:
        raise ValueError(
            f"opponents: no prover of protocol {protocol.name!r} is trained, so none has earlier "
            "models; train one (freeze_agent: false), or name other agents in opponents.of"
        )
    for name in opponents:
        if name not in trained_agents:
            raise ValueError(
                f"opponents.of: agents.{name} is never trained, so it has no earlier models; leave "
                "it out, or set its freeze_agent: false"
            )
        if trained_agents == {name}:
            raise ValueError(
                f"opponents: nobody but agents.{name} is trained, so nobody would learn from "
                "playing with its earlier models; train another agent too, or leave it out"
            )
        _check_adapters(parameters, name)


def _check_runs(parameters: "HyperParameters") -> None:
    """Refuse other runs for agents without a place for their models, or without a learner."""
    for entry in parameters.opponents.runs:
        check_script_named(make_scenario(parameters), entry.script, "opponents.runs")
        if entry.run == parameters.run_name:
            raise ValueError(
                f"opponents.runs: {entry.run!r} is this run itself; name another run, or use kind: "
                "league for its own earlier models"
            )
    opponents = list_opponents(parameters)
    for name in opponents:
        if name not in parameters.prompted_agents:
            raise ValueError(
                f"opponents.of: agents.{name} has no model here (is_random), so there is no server "
                "for those of other runs; leave it out, or give it a model"
            )
    trained_agents = {name for g in parameters.trainable_groups for name in parameters.groups[g]}
    if trained_agents <= {*opponents}:
        subject = f"nobody but {', '.join(sorted(trained_agents))}" if trained_agents else "nobody"
        raise ValueError(
            f"opponents: {subject} is trained, so nobody would learn from playing with other runs; "
            "train another agent (freeze_agent: false), or leave it out"
        )
    for name in list_played_by_models(parameters):
        _check_adapters(parameters, name)


def _check_adapters(parameters: "HyperParameters", name: str) -> None:
    """Refuse models that could not answer at the same time as the present ones."""
    agent = parameters.model_agents[name]
    if agent.provider.names_weights and not agent.use_lora:
        raise ValueError(
            f"opponents: agents.{name}.use_lora: false makes a new base model, which takes the "
            "place of the one before, so that no earlier one can answer; set use_lora: true, "
            "or leave opponents out"
        )


def asked_as_there(parameters: "HyperParameters", opponent: FoundOpponent) -> "HyperParameters":
    """Return these settings as the agents of another run are asked by them, and no agent trained.

    The game is the same; the prompts of agents, and how they are sampled, may differ.
    """
    values = parameters.to_dict()
    for setting in ("opponents", "curriculum", "promotion", "base_run", "imitation", "text_rl"):
        values.pop(setting, None)
    for agent in values["agents"].values():
        if not agent.get("is_random"):
            agent["freeze_agent"] = True
    for name, settings in opponent.asked.items():
        values["agents"][name] |= settings
    values["protocol_common"]["shared_reward"] = opponent.shared_reward
    return type(parameters).from_dict({**values, "trainer": "pure_text_ei"})
