"""All settings of a run, and the checks that need several of them at once."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from nip_core.parameters.agents import (
    AgentParameters,
    AnyAgentParameters,
    PureTextAgentParameters,
)
from nip_core.parameters.base import Parameters
from nip_core.parameters.game import (
    CodeValidationParameters,
    CommonProtocolParameters,
    DatasetParameters,
    DebateProtocolParameters,
    MerlinArthurProtocolParameters,
    MnipProtocolParameters,
    NipProtocolParameters,
    ZkProtocolParameters,
)
from nip_core.parameters.training import (
    FineTuningParameters,
    LmServerParameters,
    Price,
    PureTextEiParameters,
    RlTrainerParameters,
    RolloutParameters,
    TextRlParameters,
)
from nip_core.protocols import agent_names_of, make_protocol

DATA_NEUTRAL = frozenset(
    {
        "run_store",
        "rl.num_iterations",
        "rollouts",
        "fine_tuning.poll_interval_s",
        "fine_tuning.deadline_s",
        "fine_tuning.settle_s",
        "lm_server.start_timeout_s",
        "prices",
        "text_rl.test_scheme",
    }
)
"""Settings that a resumed run may change: they decide how much is done, not what."""

_GROUP_SETTINGS = (
    "model_provider",
    "model_name",
    "freeze_agent",
    "fine_tune_from_scratch",
    "num_epochs",
    "lora_rank",
    "lora_alpha",
    "lora_alpha_scale",
    "lora_dropout",
    "per_device_train_batch_size",
)


class HyperParameters(Parameters):
    """Every setting of a run. A run name means one configuration."""

    run_name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
    """Name of the run: 1 to 41 lower-case letters, digits and dashes, as it becomes part of
    artifact keys and of model names."""
    run_store: Annotated[str, Field(min_length=1)] = "runs"
    """Directory or URL under which runs are kept."""
    scenario: Literal["code_validation"] = "code_validation"
    """The domain of the problems."""
    trainer: Literal["pure_text_ei"] = "pure_text_ei"
    """How rollouts become training examples: expert iteration."""
    dataset: Annotated[str, Field(min_length=1)]
    """"problems" or "families" (bundled), a file or directory of Parquet or JSONL, or a Hugging
    Face dataset."""
    test_dataset_split: Literal["test", "validation"] = "test"
    """The split that tests play."""
    interaction_protocol: str = "nip"
    """Who speaks when, who sees what, when it ends, who is rewarded: nip, adp, debate,
    merlin_arthur, mnip, solo_verifier, multi_channel_test, or "package.module:Class"."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 6198
    """Every other seed derives from it."""
    agents: dict[str, AnyAgentParameters] = Field(default_factory=dict)
    """Settings by agent name; what stands under `_default` holds for all of them. An agent with
    `is_random: true` has no model and no other settings."""
    rl: RlTrainerParameters = RlTrainerParameters()
    text_rl: TextRlParameters = TextRlParameters()
    pure_text_ei: PureTextEiParameters = PureTextEiParameters()
    code_validation: CodeValidationParameters = CodeValidationParameters()
    dataset_options: DatasetParameters = DatasetParameters()
    protocol_common: CommonProtocolParameters = CommonProtocolParameters()
    nip_protocol: NipProtocolParameters = NipProtocolParameters()
    debate_protocol: DebateProtocolParameters = DebateProtocolParameters()
    mnip_protocol: MnipProtocolParameters = MnipProtocolParameters()
    merlin_arthur_protocol: MerlinArthurProtocolParameters = MerlinArthurProtocolParameters()
    zk_protocol: ZkProtocolParameters = ZkProtocolParameters()
    lm_server: LmServerParameters = LmServerParameters()
    rollouts: RolloutParameters = RolloutParameters()
    fine_tuning: FineTuningParameters = FineTuningParameters()
    prices: dict[str, Price] = Field(default_factory=dict)
    """US dollars per million tokens by base model, for the cost estimate."""

    @model_validator(mode="before")
    @classmethod
    def _complete_agents(cls, values: Any) -> Any:
        """Give every agent of the protocol its settings, `_default` underneath."""
        if not isinstance(values, dict):
            return values
        protocol = values.get("interaction_protocol", "nip")
        agents = values.get("agents", {})
        if not isinstance(protocol, str) or not isinstance(agents, dict):
            return values  # the field's own error is clearer
        common = values.get("protocol_common")
        zero_knowledge = (
            common.get("zero_knowledge")
            if isinstance(common, dict)
            else getattr(common, "zero_knowledge", False)
        )
        names = agent_names_of(protocol, zero_knowledge is True)
        for name in agents:
            if name != "_default" and name not in names:
                raise ValueError(
                    f"agents.{name}: protocol {protocol!r} has no such agent; it has "
                    f"{', '.join(names)}"
                )

        def plain(value: Any) -> Any:
            if isinstance(value, AgentParameters):
                own = value.model_dump(exclude_unset=True)
                return own | ({"is_random": True} if value.is_random else {})
            return {} if value is None else value

        default = plain(agents.get("_default"))
        complete = {}
        for name in names:
            own = plain(agents.get(name))
            if not isinstance(own, dict) or not isinstance(default, dict):
                raise ValueError(f"agents.{name}: a mapping of settings is needed")
            # The defaults are a model's; a random agent has none of those settings.
            complete[name] = own if own.get("is_random") else {**default, **own}
        return {**values, "agents": complete}

    @model_validator(mode="after")
    def _check(self) -> Self:
        make_protocol(self)  # refuses what makes no game
        for group, names in self.groups.items():
            suffix = f"{self.run_name}-0000-{group}"
            if len(suffix) > 64:
                raise ValueError(
                    f"run_name: jobs are named like {suffix!r}, which has {len(suffix)} of at most "
                    "64 characters; shorten run_name or the name of the shared model group"
                )
            first_agent = self.model_agents[names[0]]
            for name in names[1:]:
                for setting in _GROUP_SETTINGS:
                    mine, theirs = (
                        getattr(first_agent, setting),
                        getattr(self.model_agents[name], setting),
                    )
                    if mine != theirs:
                        raise ValueError(
                            f"agents.{name}.{setting} is {theirs!r} but agents.{names[0]}.{setting}"
                            f" is {mine!r}; both share the model group {group!r} and must agree"
                        )
            if first_agent.model_provider == "OpenRouter" and not first_agent.freeze_agent:
                raise ValueError(
                    f"agents.{names[0]}: OpenRouter can't fine-tune; set freeze_agent: true or "
                    "another model_provider"
                )
        return self

    @property
    def model_agents(self) -> dict[str, PureTextAgentParameters]:
        """The agents that play with a model."""
        return {n: a for n, a in self.agents.items() if isinstance(a, PureTextAgentParameters)}

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Agents by shared model group, both in agent order. Random agents are in none."""
        groups: dict[str, tuple[str, ...]] = {}
        for name, agent in self.model_agents.items():
            group = agent.shared_model_group or name
            groups[group] = (*groups.get(group, ()), name)
        return groups

    def group_parameters(self, group: str) -> PureTextAgentParameters:
        """Settings of the group's first agent; what concerns the model is equal for all."""
        return self.model_agents[self.groups[group][0]]

    @property
    def trainable_groups(self) -> tuple[str, ...]:
        """Groups that are fine-tuned in each iteration."""
        return tuple(g for g in self.groups if not self.group_parameters(g).freeze_agent)
