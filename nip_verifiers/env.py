"""The environment: an episode of a protocol, in which each agent is a rollout of verifiers.

ProtocolConfig    who plays with which model, and who trains, under ``env``
ProtocolEnv       plays
load_environment  one by hand

Agents are seats of verifiers: ``env.prover.model`` and the like say who plays. A seat that says
nothing is the run's model, the one that a trainer trains.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import verifiers.v1 as vf
from pydantic import create_model, model_validator
from verifiers.v1.configs.agent import agent_config_fields

from nip_core.errors import NipError, ServerError
from nip_core.library.played_games import make_context
from nip_core.parameters import HyperParameters
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.episode import play_episode
from nip_core.rollouts.plan import EpisodeSpec, episode_spec
from nip_core.rollouts.storage.table_rows import stored_row
from nip_verifiers.scoring import record
from nip_verifiers.seats import SeatCalls
from nip_verifiers.taskset import EpisodeData, EpisodeTask, GameConfig

NAME = "nip-verifiers"
SEAT = vf.AgentConfig(runtime={"type": "subprocess"})  # where nothing is run


class ProtocolConfig(vf.EnvConfig):
    """The seats of all agents that nip's protocols have; a game needs those of its own protocol."""

    verifier: vf.AgentConfig = SEAT
    prover: vf.AgentConfig = SEAT
    prover0: vf.AgentConfig = SEAT
    prover1: vf.AgentConfig = SEAT
    prover2: vf.AgentConfig = SEAT
    adversarial_verifier: vf.AgentConfig = SEAT
    simulator: vf.AgentConfig = SEAT
    train_group: str | None = None
    """The only model group that trains. None: all agents that are not frozen, as they share the
    run's model, whatever their groups."""

    @model_validator(mode="after")
    def _check(self) -> "ProtocolConfig":
        if not isinstance(self.taskset, GameConfig):
            return self  # an id is missing, or another one's; ProtocolEnv refuses it
        parameters = self.taskset.game.parameters
        seats = agent_config_fields(self)
        for name, seat in seats.items():
            _check_seat(name, seat, parameters)
        _check_groups(self.train_group, seats, parameters)
        return self


def _check_seat(name: str, seat: vf.AgentConfig, parameters: HyperParameters) -> None:
    if seat == SEAT:
        return
    if name not in parameters.model_agents:
        raise ValueError(
            f"env.{name}: no model plays an agent of that name in protocol "
            f"{parameters.interaction_protocol}; it has {', '.join(parameters.model_agents)}"
        )
    if seat.harness is not None and seat.harness.id != NAME:
        raise ValueError(
            f"env.{name}.harness: nip makes the calls of its agents itself (got "
            f"{seat.harness.id!r}); leave it out"
        )
    if seat.runtime != SEAT.runtime:
        raise ValueError(
            f"env.{name}.runtime: nothing is run there (got {seat.runtime.type!r}); leave it out"
        )


def _check_groups(
    train_group: str | None, seats: dict[str, vf.AgentConfig], parameters: HyperParameters
) -> None:
    # 1. Agents of a group have one model.
    for group, agents in parameters.groups.items():
        models = {agent: _model_of(seats.get(agent, SEAT)) for agent in agents}
        first, *further = agents
        for agent in further:
            if models[agent] != models[first]:
                raise ValueError(
                    f"env.{agent}: agents {', '.join(agents)} share the model group {group!r}, but "
                    f"not a model; give them the same, or agents.{agent}.shared_model_group another"
                )
    # 2. The agents to train are there, and are the run's.
    if train_group is None:
        return
    if train_group not in parameters.trainable_groups:
        raise ValueError(
            f"env.train_group: {train_group!r} is no model group that trains; there are "
            f"{', '.join(parameters.trainable_groups) or 'none'}"
        )
    pinned = [
        agent
        for agent in parameters.groups[train_group]
        if _model_of(seats.get(agent, SEAT)) != (None, None)
    ]
    if pinned:
        raise ValueError(
            f"env.train_group: {train_group!r} can't train, as env.{pinned[0]} has a model that is "
            "not the run's; leave that out"
        )


def _model_of(seat: vf.AgentConfig) -> tuple[str | None, Any]:
    return seat.model, seat.client


class ProtocolEnv(vf.Env[ProtocolConfig]):
    """Plays a protocol of nip on the problems of its taskset."""

    def __init__(self, config: ProtocolConfig) -> None:
        """Take the taskset. Raises ValueError or TypeError for a taskset of another package."""
        if not config.taskset.id:
            config = config.model_copy(update={"taskset": GameConfig(id=NAME)})
        if not isinstance(config.taskset, GameConfig):
            raise TypeError(
                f"env.taskset.id: {NAME} plays problems of its own (got {config.taskset.id!r}); "
                f"set {NAME}"
            )
        taskset = config.taskset
        super().__init__(_add_seats(config, list(taskset.game.parameters.model_agents)))
        self._game, self._split = taskset.game, taskset.split
        self._problems = {spec.problem.id: spec.problem for spec in taskset.specs}
        self._group_of = {
            agent: group
            for group, agents in self._game.parameters.groups.items()
            for agent in agents
        }

    def slots(self, task: EpisodeTask, n: int = 1) -> list[vf.env.RunSlot]:
        """Plan `n` rollouts of a task. Raises ValueError where they would all be the same."""
        if n > 1 and self.config.taskset.send_seeds:
            raise ValueError(
                f"num_rollouts: {n} rollouts of a task with the same seeds are {n} times the same "
                f"episode; set env.taskset.plays {n}, or env.taskset.send_seeds false"
            )
        slots: list[vf.env.RunSlot] = super().slots(task, n)
        return slots

    async def run_slot(
        self,
        slot: vf.env.RunSlot,
        ctx: vf.ModelContext,
        semaphore: Any = None,
        on_complete: Any = None,
        on_trace: Any = None,
    ) -> vf.Episode:
        """Play a planned episode, without calls of `on_trace`: a server would send nodes at once
        and never again, but the trained ones are known only in the end.
        """
        return await super().run_slot(slot, ctx, semaphore, on_complete)

    async def setup(self, agents: vf.Agents) -> None:
        """Say who trains, and how long a message may be where only the sampler can say it."""
        parameters = self._game.parameters
        for name in parameters.model_agents:
            agent = getattr(agents, name)
            agent.trainable = self.is_trainable(name)
            # A client for training takes nothing of a request but its messages.
            if isinstance(agent.ctx.client, vf.TrainClientConfig):
                sampling = agent.ctx.sampling
                if sampling.max_tokens is None:
                    sampling.max_tokens = parameters.max_tokens(name)

    def is_trainable(self, agent: str) -> bool:
        """Say whether an agent's tokens train the run's model."""
        group, seat = self._group_of[agent], getattr(self.config, agent)
        if self.config.train_group is not None and group != self.config.train_group:
            return False
        frozen = group not in self._game.parameters.trainable_groups
        return not frozen and _model_of(seat) == (None, None)

    async def run(self, task: EpisodeTask, agents: vf.Agents) -> None:
        """Play the episode of a task.

        Raises ProviderError where a model gives no answer, and EnvError for a fault that ends every
        episode.
        """
        spec, parameters = self._spec(task.data), self._game.parameters
        log = EpisodeLog(self._game.protocol.agent_names)
        async with AsyncExitStack() as stack:
            # 1. Every agent that a model plays takes its seat.
            client = await stack.enter_async_context(
                ChatClient(
                    concurrency=len(parameters.model_agents),
                    timeout_s=parameters.rollouts.request_timeout_s,
                    retries=parameters.rollouts.transport_retries,
                )
            )
            seats: dict[str, vf.Interaction] = {}
            for name in parameters.model_agents:
                seat = getattr(agents, name).interaction(task)
                seats[name] = await stack.enter_async_context(seat)
            # 2. The episode, as nip plays it.
            calls = SeatCalls(client, seats, self.config.taskset.send_seeds)
            models = {name: getattr(agents, name).ctx.model for name in parameters.model_agents}
            context = make_context(self._game, models, calls, log)
            try:
                [row] = (await play_episode(spec, context)).episodes
            except ServerError as error:
                raise vf.ProviderError(str(error)) from None
            except NipError as error:
                raise vf.EnvError(str(error)) from None
        # 3. The outcome, in the trace of each.
        stored = stored_row(row)
        for name, seat in seats.items():
            rows = log.rows(name)
            record(
                seat.trace,
                name,
                self._group_of[name],
                stored,
                rows,
                calls.nodes.get(name, ()),
            )

    def _spec(self, data: EpisodeData) -> EpisodeSpec:
        """Specify a task's episode: the one of `nip play`, seeds included."""
        problem = self._problems.get(data.problem)
        if problem is None or data.split != self._split:
            raise ValueError(
                f"task {data.id}: problem {data.problem!r} is not in split {self._split} of this "
                "game; give taskset and environment the same settings"
            )
        return episode_spec(self._game.parameters, self._split, 0, problem, data.sample)


class EpisodeLog:
    """The journal of an episode that verifiers plays; traces have what is to be kept of it."""

    def __init__(self, agents: Sequence[str]) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {agent: [] for agent in agents}

    async def append(self, record: dict[str, Any]) -> None:
        """Keep the row of an answer; a label made in play is in the episode's row."""
        row = record.get("generation")
        if row is not None:
            self._rows[row["agent"]].append(row)

    def rows(self, agent: str) -> list[dict[str, Any]]:
        """The answers of an agent, in the order of play."""
        return self._rows[agent]


def _add_seats(config: ProtocolConfig, agents: Sequence[str]) -> ProtocolConfig:
    """Give the configuration a seat for each agent. A protocol of one's own may have further
    agents; they play with the run's model.
    """
    missing: dict[str, Any] = {
        name: (vf.AgentConfig, SEAT) for name in agents if name not in type(config).model_fields
    }
    if not missing:
        return config
    for name in missing:
        if name in dir(vf.EnvConfig):
            raise ValueError(f"verifiers has no seat for an agent {name!r}; call it otherwise")
    wider = create_model(type(config).__name__, __base__=type(config), **missing)
    return cast(ProtocolConfig, wider.model_validate(dict(config)))


def load_environment(**arguments: Any) -> ProtocolEnv:
    """An environment by hand: `load_environment(protocol="adp", seed=7, prover={"model": ...})`.

    Arguments are those of `GameConfig` and `ProtocolConfig`. Raises pydantic's ValidationError, a
    ValueError.
    """
    own_to_env = {*ProtocolConfig.model_fields} - {"taskset"}
    of_env = {name: value for name, value in arguments.items() if name in own_to_env}
    of_game = {name: value for name, value in arguments.items() if name not in own_to_env}
    config = vf.resolve_env_config({**of_env, "taskset": {"id": NAME, **of_game}})
    env: ProtocolEnv = vf.load_environment(config)
    return env
