"""All settings of a run, and the checks that need several of them at once."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from nip_core.parameters.basis.base import Parameters
from nip_core.parameters.basis.not_for_text import UNAVAILABLE
from nip_core.parameters.blocks.agents import (
    AgentParameters,
    AnyAgentParameters,
    PureTextAgentParameters,
    is_random,
    lay_over,
)
from nip_core.parameters.blocks.attack import AttackParameters, AttackQuestions
from nip_core.parameters.blocks.base_run import BaseRunParameters, RunName
from nip_core.parameters.blocks.budget import BudgetParameters
from nip_core.parameters.blocks.game import (
    CodeValidationParameters,
    CommonProtocolParameters,
    DatasetParameters,
    DebateProtocolParameters,
    MerlinArthurProtocolParameters,
    MnipProtocolParameters,
    NipProtocolParameters,
    RefereedProtocolParameters,
    ToolParameters,
    ZkProtocolParameters,
)
from nip_core.parameters.blocks.loop_settings import (
    CurriculumParameters,
    FineTuningParameters,
    ImitationParameters,
    LmServerParameters,
    Price,
    PromotionParameters,
    PureTextEiParameters,
    PureTextGrpoParameters,
    PureTextMaltParameters,
    RlTrainerParameters,
    RolloutParameters,
    TextRlParameters,
)
from nip_core.parameters.blocks.opponents import (
    OpponentsParameters,
    check_opponents,
    list_played_by_models,
)
from nip_core.parameters.blocks.tracking import Trackers
from nip_core.parameters.checks import (
    check_agents,
    check_attack,
    check_budget_prices,
    check_groups,
    check_log_probs,
    check_schedules,
    check_scripted,
    check_tool,
    find_attackers,
    list_scripted,
)
from nip_core.parameters.derived.recording import check_recording
from nip_core.parameters.services.dialects import find_dialect
from nip_core.parameters.training_checks import check_training
from nip_core.protocols import list_agent_names, make_protocol
from nip_core.protocols.reward_function import load_reward_function
from nip_core.scenarios import choose_own_version, find_scenario, make_scenario
from nip_core.scenarios.checked import describe_raised
from nip_core.scenarios.prompt_versions import SHORT, reasons_first

DATA_NEUTRAL = frozenset(
    {
        "budget",
        "run_store",
        "rl.num_iterations",
        "rollouts",
        "fine_tuning.poll_interval_s",
        "fine_tuning.deadline_s",
        "fine_tuning.max_attempts",
        "fine_tuning.on_cancel",
        "fine_tuning.on_cancelled",
        "fine_tuning.on_deadline",
        "fine_tuning.on_failed",
        "fine_tuning.on_not_found",
        "fine_tuning.on_too_few_examples",
        "fine_tuning.park_after_s",
        "fine_tuning.settle_s",
        "lm_server.start_timeout_s",
        "prices",
        "text_rl.save_transcripts",
        "text_rl.test_interval",
        "text_rl.test_scheme",
        "text_rl.transcript_format",
        "tracking",
    }
)
"""Settings that a resumed run may change: they decide how much is done, not what."""

Method = Literal["supervised", "dpo", "trajectories"]
"""Methods of fine-tune jobs."""

_REASONING_TOKENS = 1000


class HyperParameters(AttackQuestions, Parameters):
    """Every setting of a run. A run name means one configuration."""

    run_name: RunName
    """Name of the run: 1 to 41 lower-case letters, digits and dashes, as it becomes part of
    artifact keys and of model names."""
    run_store: Annotated[str, Field(min_length=1)] = "runs"
    """Directory or URL under which runs are kept: file://, s3://bucket/prefix, gs://bucket/prefix."""
    scenario: str = "code_validation"
    """The domain of the problems: code_validation, arithmetic, bags, chain, graphs, reading,
    reasoning_gym, solutions, or a class of one's own: "path/to/file.py:Class" or
    "package.module:Class"."""
    scenario_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the scenario, see docs/scenarios.md. Those of code_validation stand in a block of
    that name."""
    trainer: Literal["pure_text_ei", "pure_text_malt", "pure_text_grpo"] = "pure_text_ei"
    """How episodes are played for training and become training examples: "pure_text_ei", expert
    iteration; "pure_text_malt", preference pairs from trees of responses; "pure_text_grpo", policy
    gradient."""
    dataset: Annotated[str, Field(min_length=1)]
    """A dataset of the scenario's own ("problems" and "families" for code_validation), a file or
    directory of Parquet or JSONL, or a Hugging Face dataset. A relative path, here and in other
    settings, is looked for beside the YAML, then in the working directory."""
    test_dataset_split: Literal["test", "validation"] = "test"
    """The split that tests play: "test" or "validation"."""
    interaction_protocol: str = "nip"
    """Who speaks when, who sees what, when it ends, who is rewarded: nip, adp, debate,
    merlin_arthur, mnip, refereed, solo_verifier, multi_channel_test, or a class of one's own:
    "path/to/file.py:Class" or "package.module:Class"."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 6198
    """Every other seed derives from it; 0 to 2147483647."""
    agents: dict[str, AnyAgentParameters] = Field(default_factory=dict)
    """Settings by agent name; the ones under `_default` hold for all of them. An agent with
    `is_random: true` has no model and no other settings."""
    rl: RlTrainerParameters = RlTrainerParameters()
    text_rl: TextRlParameters = TextRlParameters()
    pure_text_ei: PureTextEiParameters = PureTextEiParameters()
    pure_text_malt: PureTextMaltParameters = PureTextMaltParameters()
    pure_text_grpo: PureTextGrpoParameters = PureTextGrpoParameters()
    curriculum: CurriculumParameters = CurriculumParameters()
    promotion: PromotionParameters = PromotionParameters()
    code_validation: CodeValidationParameters = CodeValidationParameters()
    dataset_options: DatasetParameters = DatasetParameters()
    protocol_common: CommonProtocolParameters = CommonProtocolParameters()
    nip_protocol: NipProtocolParameters = NipProtocolParameters()
    debate_protocol: DebateProtocolParameters = DebateProtocolParameters()
    mnip_protocol: MnipProtocolParameters = MnipProtocolParameters()
    refereed_protocol: RefereedProtocolParameters = RefereedProtocolParameters()
    merlin_arthur_protocol: MerlinArthurProtocolParameters = MerlinArthurProtocolParameters()
    zk_protocol: ZkProtocolParameters = ZkProtocolParameters()
    tool: ToolParameters = ToolParameters()
    base_run: BaseRunParameters = BaseRunParameters()
    attack: AttackParameters = AttackParameters()
    imitation: ImitationParameters = ImitationParameters()
    opponents: OpponentsParameters = OpponentsParameters()
    lm_server: LmServerParameters = LmServerParameters()
    rollouts: RolloutParameters = RolloutParameters()
    fine_tuning: FineTuningParameters = FineTuningParameters()
    prices: dict[str, Price] = Field(default_factory=dict)
    """US dollars per million tokens by base model, for the cost estimate and the budget."""
    budget: BudgetParameters = BudgetParameters()
    tracking: Trackers = ()
    """Trackers that are shown the metrics of the run and the losses of its jobs: trackio, wandb,
    mlflow, tensorboard; each a name or a block with options, see docs/tracking.md."""

    @model_validator(mode="before")
    @classmethod
    def _complete_agents(cls, values: Any) -> Any:
        """Give every agent of the protocol its settings, `_default` underneath."""
        if not isinstance(values, dict):
            return values
        # 1. Which agents there are, the protocol says.
        protocol = values.get("interaction_protocol", "nip")
        agents = values.get("agents")
        agents = {} if agents is None else agents
        if not isinstance(protocol, str) or not isinstance(agents, dict):
            return values  # the field's own error is clearer
        try:
            common = CommonProtocolParameters.model_validate(values.get("protocol_common") or {})
        except ValidationError:
            return values  # the field's own error is clearer
        agents = {name: agent for name, agent in agents.items() if name != "_type"}
        try:
            names = list_agent_names(protocol, common.zero_knowledge)
        except ValueError as error:
            raise ValueError(f"interaction_protocol: {error}") from None
        # 2. No settings for any other agent.
        for name in agents:
            if name not in ("_default", *names):
                raise ValueError(
                    f"agents.{name}: protocol {protocol!r} has no such agent; it has "
                    f"{', '.join(names)}"
                )
        # 3. Each agent's settings, over the defaults.
        default = _plain(agents.get("_default"))
        complete = {}
        for name in names:
            agent = _plain(agents.get(name))
            if not isinstance(agent, dict) or not isinstance(default, dict):
                raise ValueError(f"agents.{name}: a mapping of settings is needed")
            # The defaults are a model's; a random agent has none of those settings.
            complete[name] = agent if is_random(agent) else lay_over(default, agent)
        return {**values, "agents": complete}

    @model_validator(mode="before")
    @classmethod
    def _choose_prompts(cls, values: Any) -> Any:
        """Name the version of prompts of a scenario of one's own: settings say what was played."""
        if not isinstance(values, dict) or ":" not in str(values.get("scenario", "")):
            return values
        of_scenario = values.get("scenario_settings") or {}
        if not isinstance(of_scenario, dict) or "system_prompt_version" in of_scenario:
            return values
        version = choose_own_version(str(values["scenario"]))
        if version is None:
            return values
        return {**values, "scenario_settings": {**of_scenario, "system_prompt_version": version}}

    @field_validator("trainer", "scenario", mode="before")
    @classmethod
    def _say_why(cls, value: Any, info: ValidationInfo) -> Any:
        reason = UNAVAILABLE[str(info.field_name)].get(value) if isinstance(value, str) else None
        if reason is not None:
            raise ValueError(f"{value!r} can't be used: {reason}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_scenario()
        make_protocol(self)  # refuses what makes no game
        load_reward_function(self.protocol_common)
        check_groups(self)
        check_agents(self)
        check_schedules(self)
        check_scripted(self)
        check_log_probs(self)
        check_recording(self)
        self._check_rounds()
        check_training(self)
        check_attack(self)
        check_opponents(self)
        check_budget_prices(self)
        if self.base_run.run_id == self.run_name:
            raise ValueError("base_run.run_id is this run itself; name another run, or resume it")
        return self

    def _check_scenario(self) -> None:
        try:
            kind = find_scenario(self.scenario)
        except ValueError as error:
            raise ValueError(f"scenario: {error}") from None
        # 1. Settings stand in the scenario's block alone.
        if kind.settings_block != "scenario_settings" and self.scenario_settings:
            raise ValueError(
                f"scenario_settings: those of {self.scenario} stand in the block "
                f"{kind.settings_block}"
            )
        if (
            kind.settings_block != "code_validation"
            and self.code_validation != CodeValidationParameters()
        ):
            raise ValueError(
                f"code_validation: the scenario is {self.scenario}, whose settings stand in the "
                f"block {kind.settings_block}"
            )
        # 2. They are right, and the protocol is one that the scenario fits.
        try:
            scenario = make_scenario(self)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(["scenario_settings", *map(str, first["loc"])])
            names = ", ".join(kind.Settings.model_fields)
            unknown = first["type"] == "extra_forbidden"
            reason = f"unknown setting; there are {names}" if unknown else first["msg"]
            raise ValueError(f"{place}: {reason}") from None
        protocol = make_protocol(self)
        try:
            scenario.check(protocol)
        except ValueError:
            raise
        except Exception as error:  # any error that a user's class raises
            raise ValueError(f"scenario: {describe_raised(scenario, 'check', error)}") from error
        if scenario.labels_in_play:
            self._check_labels_in_play()
        check_tool(self, scenario)

    def _check_labels_in_play(self) -> None:
        options = self.dataset_options
        if options.shuffle_train_labels:
            raise ValueError(
                f"dataset_options.shuffle_train_labels: {self.scenario} has its labels from play, "
                "so there are none to shuffle; set it to false"
            )
        if options.labels is not None:
            raise ValueError(
                f"dataset_options.labels: {self.scenario} has its labels from play, so there are "
                "none to choose by; leave it out"
            )

    @property
    def system_prompt_version(self) -> str:
        """Return the version of prompt templates, from the scenario's settings."""
        version: str = make_scenario(self).settings.system_prompt_version
        return version

    def _check_rounds(self) -> None:
        frames, rounds = self.rl.frames_per_batch, make_protocol(self).max_message_rounds
        if frames is not None and frames % rounds:
            raise ValueError(
                f"rl.frames_per_batch ({frames}) must be a multiple of the protocol's "
                f"{rounds} rounds"
            )

    @property
    def prompted_agents(self) -> dict[str, PureTextAgentParameters]:
        """Return the agents that read prompts, by name: those with a model, and scripted ones."""
        return {n: a for n, a in self.agents.items() if isinstance(a, PureTextAgentParameters)}

    @property
    def model_agents(self) -> dict[str, PureTextAgentParameters]:
        """Return by name the agents that play with a model, if only with one of another run."""
        if scripted := {*list_scripted(self)}:
            scripted -= {*list_played_by_models(self)}
        return {n: a for n, a in self.prompted_agents.items() if n not in scripted}

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Agents by shared model group, both in agent order. Random agents are in none."""
        groups: dict[str, tuple[str, ...]] = {}
        for name, agent in self.model_agents.items():
            group = agent.shared_model_group or name
            groups[group] = (*groups.get(group, ()), name)
        return groups

    def group_parameters(self, group: str) -> PureTextAgentParameters:
        """Settings of the group's first agent; settings of the model are equal for all."""
        return self.model_agents[self.groups[group][0]]

    @property
    def trainable_groups(self) -> tuple[str, ...]:
        """List the groups without `freeze_agent`; `training_agents` says when."""
        return tuple(g for g in self.groups if not self.group_parameters(g).freeze_agent)

    def training_agents(self, group: str, iteration: int) -> tuple[str, ...]:
        """The agents with rollouts that train the group in this iteration; () where it is not."""
        agents = {name: self.model_agents[name] for name in self.groups[group]}
        return tuple(
            name
            for name, agent in agents.items()
            if not agent.freeze_agent and agent.update_schedule.updates(iteration)
        )

    @property
    def choosing_provers(self) -> tuple[str, ...]:
        """Return the provers with messages that an attack chooses, writes or trains."""
        return find_attackers(self)

    @property
    def imitating_agents(self) -> tuple[str, ...]:
        """Return the agents that imitate what the run begins with."""
        return tuple(agent for g in self.trainable_groups for agent in self.training_agents(g, 0))

    @property
    def names_run(self) -> bool:
        """Tell whether the settings name another run."""
        is_based = self.base_run.base_run_type != "none" or self.attack.run is not None
        is_based |= any(entry.run is not None for entry in self.opponents.runs)
        agents = self.model_agents.values()
        return is_based or any(agent.load_checkpoint_and_parameters for agent in agents)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings; `imitation` and `tool` are among them where there are any."""
        # Settings of before there were any have the same digest.
        values = super().to_dict()
        if not self.tool.per_turn:
            del values["tool"]
        elif self.tool.call == "line":
            del values["tool"]["call"]
        if self.imitation.chats is None:
            del values["imitation"]
        return values

    def method(self, iteration: int) -> Method:
        """Return how the groups are trained in this iteration."""
        if self.imitates(iteration):
            return "supervised"
        if self.trainer == "pure_text_grpo":
            return "trajectories"
        initial = self.pure_text_malt.num_initial_ei_iterations
        grows = self.trainer == "pure_text_malt" and iteration >= initial
        return "dpo" if grows else "supervised"

    @classmethod
    def construct_test_params(cls) -> Self:
        """Settings for tests: few bundled problems, scripted answers, no API."""
        return cls(
            run_name="test",
            dataset="problems",
            agents={"_default": PureTextAgentParameters.construct_test_params()},
        )

    def gives_hint(self, agent: str) -> bool:
        """Tell whether the agent is told what was wrong when it is asked again."""
        setting = self.prompted_agents[agent].retry_hint
        return self.system_prompt_version != SHORT if setting is None else setting

    def could_be_guided(self, agent: str) -> bool:
        """Tell whether the engine could hold the agent's answers to their form, and is not told to.

        Trainer pure_text_grpo trains on the model's own choices, so no grammar may choose with it.
        """
        settings = self.prompted_agents[agent]
        takes = settings.use_dummy_api or find_dialect(settings).takes_grammars
        is_trained = self.trainer == "pure_text_grpo" and not settings.freeze_agent
        return takes and not is_trained and not settings.guided_decoding

    def max_tokens(self, agent: str) -> int:
        """Return the most tokens for one message of the agent."""
        settings = self.prompted_agents[agent]
        if settings.max_tokens_per_message is not None:
            return settings.max_tokens_per_message
        reasons = reasons_first(self.system_prompt_version)
        return settings.message_tokens + (_REASONING_TOKENS if reasons else 0)

    @property
    def rollouts_per_iteration(self) -> int | None:
        """Training episodes per iteration, by whichever setting; None: every problem once."""
        if self.rl.frames_per_batch is None:
            return self.rl.rollouts_per_iteration
        return self.rl.frames_per_batch // make_protocol(self).max_message_rounds


def _plain(value: Any) -> Any:
    """An agent's settings as a mapping of those that were set."""
    if isinstance(value, AgentParameters):
        return value.model_dump(exclude_unset=True) | {"is_random": value.is_random}
    return {} if value is None else value
