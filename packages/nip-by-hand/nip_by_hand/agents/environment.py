"""Episodes played by hand: the state before a round, the agents' moves, the state after it.

PureTextEnvironment        reset, step and advance over a batch of episodes
CodeValidationEnvironment  its name in the scenario of code validation

The keys and shapes of a batch stand in `nip_by_hand.agents.batch`; the records of calls are not
in it. Steps stacked along a second dimension are rollouts. Nothing is written to disk. An episode
of a problem has the seeds with which the loop plays it for the first time.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nip_by_hand.agents.batch import datapoint_number
from nip_by_hand.agents.experiment_settings import ExperimentSettings
from nip_by_hand.agents.history import (
    HISTORIES,
    NO_STANCE,
    Actions,
    holds_text,
    read_situation,
    read_turns,
)
from nip_by_hand.agents.nested_array_dict import STRING, NestedArrayDict
from nip_by_hand.agents.protocol_handler import CodeValidationProtocolHandler, ProtocolHandler
from nip_core.errors import SettingsError
from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Turn
from nip_core.hashing import derive_seed
from nip_core.parameters import HyperParameters
from nip_core.rollouts.plan import EpisodeSpec, episode_spec
from nip_core.scenarios import Problem


class PureTextEnvironment:
    """Plays episodes by the protocol, which is a set of pure functions; it asks no model.

    ::

        data = environment.reset(problems)
        while not environment.is_over(data):
            actions = {a.agent_name: await a.aforward(data, environment) for a in agents}
            step = environment.step(data, actions)
            data = environment.advance(step)
    """

    def __init__(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler | CodeValidationProtocolHandler,
        split: str = "train",
        iteration: int = 0,
    ):
        """`split` and `iteration` are those whose seeds the episodes have.

        Raises SettingsError for a game in which log-probabilities decide: the arrays have none.
        """
        game = protocol_handler.game
        if any(game.top_logprobs(agent) for agent in protocol_handler.agent_names):
            raise SettingsError(
                "zk_protocol.similarity: log_probs can't be played by hand, as a batch has no "
                "log-probabilities; set it to text"
            )
        if game.tools:
            raise SettingsError("tool: not where games are played by hand; leave it out")
        if game.scenario.labels_in_play:
            raise SettingsError(
                f"scenario: in {hyper_params.scenario} a prover writes the solution, which isn't "
                "labelled where games are played by hand; use the loop, or another scenario"
            )
        if game.reward_function is not None:
            raise SettingsError(
                "protocol_common.reward_function: games that are played by hand are paid round by "
                "round, and it pays whole episodes; use the loop, or leave it out"
            )
        self.hyper_params, self.settings = hyper_params, settings
        self.protocol_handler = protocol_handler
        self.split, self.iteration = split, iteration
        self._specs: dict[int, EpisodeSpec] = {}  # by seed

    def generation_seed(self, seed: int, round_: int, agent: str, attempt: int) -> int:
        """Sampling seed of a call in the episode of this seed: the loop's, if it is known here."""
        base = self.hyper_params.seed
        if seed in self._specs:
            return self._specs[seed].generation_seed(base, AnswerPlace(round_, agent, attempt))
        return derive_seed("generation", base, seed, round_, agent, attempt)

    def reset(self, problems: Sequence[Problem | EpisodeSpec]) -> NestedArrayDict:
        """The state before round 0 of an episode of each problem; batch size (N,)."""
        specs = [
            problem
            if isinstance(problem, EpisodeSpec)
            else episode_spec(self.hyper_params, self.split, self.iteration, problem, 0)
            for problem in problems
        ]
        self._specs = {spec.seed: spec for spec in specs}
        handler = self.protocol_handler
        n, rounds = len(specs), handler.max_message_rounds
        wide = (n, rounds, handler.num_message_channels)
        return NestedArrayDict(
            {
                "round": np.zeros(n, dtype=np.int64),
                "seed": np.array([spec.seed for spec in specs], dtype=np.int64),
                "y": np.array([spec.problem.y for spec in specs], dtype=np.int64),
                "datapoint_id": np.array(
                    [datapoint_number(spec.problem.id) for spec in specs], dtype=np.int64
                ),
                "prover_stance": np.array([self._stance(spec) for spec in specs], dtype=np.int64),
                "question": np.array([spec.problem.question for spec in specs], dtype=STRING),
                "solution": np.array([spec.problem.solution for spec in specs], dtype=STRING),
                "message_history": np.full(wide, None, dtype=STRING),
                "message_agent_id": np.full(wide, -1, dtype=np.int64),
                "raw_message_history": np.full((n, rounds, handler.num_agents), None, dtype=STRING),
                "done": np.zeros(n, dtype=bool),
                "terminated": np.zeros(n, dtype=bool),
                "padding": np.zeros(n, dtype=bool),
                ("agents", "done"): np.zeros((n, handler.num_agents), dtype=bool),
            },
            (n,),
        )

    def step(
        self, data: NestedArrayDict, actions: Mapping[str, NestedArrayDict]
    ) -> NestedArrayDict:
        """The timestep: `data`, each agent's action below "agents", and the next state below
        "next".

        `actions` are by agent the results of `PureTextWholeAgent.forward`; one without a turn may
        be left out. Whether an agent decided is read from its raw message. Episodes that are over
        stay as they are.

        Raises ValueError, naming episode and agent, if an agent whose turn it is said nothing and
        the game can't go on without it, or if one spoke out of turn.
        """
        # 1. Refuse actions of unknown agents, and put down the agents' actions.
        unknown = sorted(set(actions) - set(self.protocol_handler.agent_names))
        if unknown:
            raise ValueError(f"actions of {unknown}, who are not among the protocol's agents")
        step = NestedArrayDict({key: array.copy() for key, array in data.items()}, data.batch_size)
        self._put_actions(step, actions)
        # 2. Begin the state after the round with the one before it.
        step["next"] = {key: array.copy() for key, array in data.items() if key != ("padding",)}
        shape = (*data.batch_size, self.protocol_handler.num_agents)
        step["next", "agents", "reward"] = np.zeros(shape)
        # 3. Play each episode that goes on.
        for n in range(len(data)):
            over = bool(data["done"][n] or data["terminated"][n])
            step["padding"][n] = over
            # The round goes on in rows after the end, as it does in recorded rollouts.
            step["next", "round"][n] += 1
            if not over:
                self._play(step, n)
        return step

    def advance(self, step: NestedArrayDict) -> NestedArrayDict:
        """The state after a timestep, for the next one."""
        data = NestedArrayDict({}, step.batch_size)
        for key, array in step["next"].items():
            if key != ("agents", "reward"):
                data[key] = array
        data["padding"] = step["next", "done"] | step["next", "terminated"]
        return data

    def is_over(self, data: NestedArrayDict) -> bool:
        """Return True if no episode of the batch goes on."""
        return bool(np.all(data["done"] | data["terminated"]))

    def _stance(self, spec: EpisodeSpec) -> int:
        shared = self.protocol_handler.protocol.shared_stance(spec.stance)
        return NO_STANCE if shared is None else shared

    def _put_actions(self, step: NestedArrayDict, actions: Mapping[str, NestedArrayDict]) -> None:
        handler = self.protocol_handler
        size = (*step.batch_size, handler.num_agents)
        arrays = Actions.make_empty(size, handler.num_message_channels).by_key()
        for agent, action in actions.items():
            for name, array in arrays.items():
                if name in action:
                    array[:, handler.agent_names.index(agent)] = action[name]
        step["agents"] = arrays

    def _play(self, step: NestedArrayDict, n: int) -> None:
        """Put the agents' moves into the histories of one episode, and judge its round."""
        handler, round_, seed = self.protocol_handler, int(step["round"][n]), int(step["seed"][n])
        # 1. Who may move follows from the rounds before.
        protocol, next_step = handler.protocol, step["next"]
        earlier_turns = self._turns(step, n)
        movers = protocol.movers(round_, seed, earlier_turns)
        # 2. Put down their messages; an agent that had to speak and did not is refused, or silent.
        silent = set()
        for a, agent in enumerate(handler.agent_names):
            raw = step["agents", "raw_message"][n, a]
            if agent not in movers:
                if holds_text(raw):
                    raise ValueError(f"episode {n}: {agent} has no turn in round {round_}")
                continue
            if not holds_text(raw):
                if not handler.may_be_silent(agent):
                    raise ValueError(f"episode {n}: {agent} said nothing in its round {round_}")
                silent.add(agent)
                continue
            next_step["raw_message_history"][n, round_, a] = raw
            for c, channel in enumerate(handler.message_channel_names):
                message = step["agents", "message"][n, a, c]
                if holds_text(message) and channel in movers[agent]:
                    next_step["message_history"][n, round_, c] = message
                    next_step["message_agent_id"][n, round_, c] = a
        # 3. The protocol names the next state.
        situation = read_situation(step[n])
        turns = self._turns(next_step, n)
        result = protocol.judge(
            round_, seed, int(step["y"][n]), situation.stance, turns, frozenset(silent)
        )
        next_step["done"][n], next_step["terminated"][n] = result.done, result.terminated
        next_step["agents", "done"][n] = result.done
        for a, agent in enumerate(handler.agent_names):
            next_step["agents", "reward"][n, a] = result.rewards[agent]

    def _turns(self, data: NestedArrayDict, n: int) -> list[Turn]:
        histories = (data[key][n] for key in HISTORIES)
        return read_turns(self.protocol_handler, histories, int(data["seed"][n]))


CodeValidationEnvironment = PureTextEnvironment
"""The scenario adds nothing to it."""
