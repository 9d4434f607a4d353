"""Agents that share a model and are trained on the rollouts of all: their base class."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from nip_by_hand.agents.experiment_settings import ExperimentSettings
from nip_by_hand.agents.language_model_client import JobStatus
from nip_by_hand.agents.nested_array_dict import NestedArrayDict
from nip_by_hand.agents.protocol_handler import ProtocolHandler
from nip_by_hand.agents.states import PlainState, PureTextSharedModelGroupState
from nip_by_hand.agents.whole_agent import PureTextWholeAgent
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, PureTextAgentParameters
from nip_core.parameters.checks import GROUP_SETTINGS


class PureTextSharedModelGroup(ABC):
    """Agents that play with one model, which is trained on the messages of all of them.

    Making a group puts it into its agents as `shared_model_group`.
    """

    def __init__(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler,
        agent_wholes: Iterable[PureTextWholeAgent],
        group_name: str,
    ):
        """Put the agents into the group. Raises SettingsError for agents of another group, missing
        ones, agents with other settings, and agents with another group's model.
        """
        self.hyper_params, self.settings = hyper_params, settings
        self.protocol_handler, self.group_name = protocol_handler, group_name
        agents = list(agent_wholes)
        self._check_members(agents)
        self._check_agreement(agents)
        self._check_free(agents)
        self._agents: Mapping[str, PureTextWholeAgent] = {a.agent_name: a for a in agents}
        for agent in agents:
            agent.shared_model_group = self

    def agent_ids_and_names(self) -> Iterable[tuple[int, str]]:
        """The number and the name of every agent of the group."""
        for name, agent in self._agents.items():
            yield agent.agent_id, name

    # Identity.

    @property
    def agent_params(self) -> PureTextAgentParameters:
        """The settings of its first agent; the model's settings are equal for all."""
        return self.hyper_params.group_parameters(self.group_name)

    @property
    def is_trainable(self) -> bool:
        """True if it is trained at all; a frozen group keeps its model."""
        return not self.agent_params.freeze_agent

    @property
    def lora_alpha(self) -> int:
        """Give the LoRA scaling factor: as set, else the rank times its scale."""
        return self.agent_params.effective_lora_alpha

    @property
    def max_message_rounds(self) -> int:
        """The most rounds of an episode."""
        return self.protocol_handler.max_message_rounds

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The name of its present model: the base model, or a fine-tuned one."""

    @property
    def num_epochs(self) -> int:
        """Passes over a dataset: the group's own number, else `rl.num_epochs`."""
        return self.agent_params.num_epochs or self.hyper_params.rl.num_epochs

    @property
    def rl_learning_rate(self) -> float:
        """The learning rate of its training, `rl.lr`."""
        return self.hyper_params.rl.lr

    # Training.

    @abstractmethod
    async def create_supervised_fine_tune_job(
        self,
        rollouts_per_agent: dict[str, NestedArrayDict],
        guess_replaced_rollouts: dict[str, NestedArrayDict] = {},  # noqa: B006 - never changed
        job_name: str | None = None,
    ) -> None:
        """Create a job to train the model on the agents' sides of these rollouts.

        Args:
            rollouts_per_agent: by agent, rollouts of batch size (batch, round).
            guess_replaced_rollouts: more of a verifier's rollouts, in which its last answer becomes
                the right decision.
            job_name: a readable part of the new model's name.
        """

    @abstractmethod
    async def create_dpo_fine_tune_job(
        self,
        positive_examples_per_agent: dict[str, NestedArrayDict],
        negative_examples_per_agent: dict[str, NestedArrayDict],
        job_name: str | None = None,
    ) -> None:
        """Create a job to train the model to prefer one answer to another.

        Args:
            positive_examples_per_agent: by agent, timesteps of batch size (timestep,) in which
                it gave the preferred answer.
            negative_examples_per_agent: in the same order, those with the other answer to the
                same chat.
            job_name: a readable part of the new model's name.
        """

    @abstractmethod
    async def get_fine_tune_job_status(self) -> JobStatus:
        """Tell how far the group's job is; "not_found" if there is none."""

    @abstractmethod
    async def get_fine_tune_job_error_repr(self) -> str:
        """Tell why the job ended without a model."""

    async def fine_tune_job_failed(self) -> bool:
        """Return True if the job has failed."""
        status = await self.get_fine_tune_job_status()
        return status == "failed"

    @abstractmethod
    async def switch_to_next_model(self) -> None:
        """Play with the job's model from now on."""

    async def eval(self) -> None:  # noqa: B027 - not every group has something to do
        """Get ready to play."""

    async def train(self) -> None:  # noqa: B027
        """Get ready to be trained."""

    async def wait_for_ready(self, timeout: float = 300.0) -> None:  # noqa: B027
        """Return once the model can be asked.

        Raises TimeoutError after `timeout` seconds.
        """

    # State.

    def get_state(self) -> PureTextSharedModelGroupState:
        """The state for a checkpoint: nothing, unless a subclass keeps something."""
        return PureTextSharedModelGroupState()

    def get_state_dict(self) -> PlainState:
        """Give the same as plain values, ready for JSON."""
        return self.get_state().to_dict()

    def set_state(self, checkpoint: Any) -> None:  # noqa: B027
        """Restore a state of `get_state` or `get_state_dict`."""

    def _check_members(self, agents: list[PureTextWholeAgent]) -> None:
        groups = self.hyper_params.groups
        if self.group_name not in groups:
            raise SettingsError(
                f"there is no shared model group {self.group_name!r}; there are {', '.join(groups)}"
            )
        expected, agent_names = groups[self.group_name], tuple(a.agent_name for a in agents)
        if set(expected) != set(agent_names) or len(agent_names) != len(expected):
            raise SettingsError(
                f"group {self.group_name!r} is {', '.join(expected)} by the settings "
                f"agents.<name>.shared_model_group, but was given "
                f"{', '.join(agent_names) or 'no agents'}"
            )

    def _check_free(self, agents: list[PureTextWholeAgent]) -> None:
        """An agent plays with the model of one group."""
        for agent in agents:
            if agent.shared_model_group is not None:
                raise SettingsError(
                    f"agents.{agent.agent_name}: this agent has a group named "
                    f"{agent.shared_model_group.group_name!r} already, whose model it plays with; "
                    "make a new agent, or set its shared_model_group to None first"
                )

    def _check_agreement(self, agents: list[PureTextWholeAgent]) -> None:
        """The hyper-parameters see to it where all agents were made from the same ones."""
        for agent in agents:
            for setting in GROUP_SETTINGS:
                shared = getattr(self.agent_params, setting)
                value = getattr(agent.agent_params, setting, None)
                if value != shared:
                    raise SettingsError(
                        f"agents.{agent.agent_name}.{setting} is {value!r}, but the group "
                        f"{self.group_name!r} has {shared!r}; agents that share a model must agree"
                    )
