"""Settings of one agent: which model it is, how it is sampled, how it is trained."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from nip_core.parameters.basis.addresses import Address, SchemeAndHost
from nip_core.parameters.basis.base import Parameters, group_for
from nip_core.parameters.basis.plain import Plain, PlainDict, PlainMapping
from nip_core.parameters.basis.update_schedule import ConstantUpdateSchedule, UpdateSchedule
from nip_core.parameters.blocks.base_run import RunName
from nip_core.parameters.services.dialects import ApiDialect, ReasoningEffort, describe_dialects
from nip_core.parameters.services.providers import (
    Provider,
    Scripted,
    describe_providers,
    find_provider,
)
from nip_core.parameters.services.published import PublishedAdapter

Port = Annotated[int, Field(ge=1, le=65535)]

DEFAULT_SCHEME_HOST = "http://localhost"
DEFAULT_CONTROL_PORT = 5000
DEFAULT_ENGINE_PORT = 8000

_ADDRESS_DEFAULTS: PlainMapping = {
    "language_model_server_scheme_host": DEFAULT_SCHEME_HOST,
    "language_model_server_port": DEFAULT_CONTROL_PORT,
    "vllm_server_port": DEFAULT_ENGINE_PORT,
}
SET_ADDRESSES = "set_addresses"
"""In a dictionary that `to_dict` made: the addresses that were set to their default."""

ALTERNATIVES = (
    frozenset({"temperature", "top_p"}),
    frozenset({"lora_alpha", "lora_alpha_scale"}),
)
"""Settings of which only one can hold."""
OWN_DPO_SETTINGS = ("dpo_sft_weight", "dpo_label_smoothing")
"""Settings of training by DPO that only an lm_server knows, by the same names. One that is not 0 is
sent with the job."""
LORA_ALPHA_MAX = 4096  # the most that an lm_server takes


def _check_provider(name: str) -> str:
    find_provider(name)
    return name


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


CheckpointVersion = Annotated[
    Annotated[str, Field(pattern=r"^(latest|[0-9]{1,4})$")], BeforeValidator(_number_as_text)
]


class LrFactors(Parameters):
    """Factors of the learning rate of networks trained on tensors. Nothing here uses them."""

    actor: float = 1.0
    """Of the actor."""
    critic: float = 1.0
    """Of the critic."""


class AgentParameters(Parameters):
    """The settings that every agent has."""

    is_random: ClassVar[bool] = False
    """Whether the agent has no model and acts at random. In a dictionary it may be given."""

    @model_validator(mode="before")
    @classmethod
    def _check_kind(cls, values: Any) -> Any:
        """Take `is_random`, an addition of `to_dict`, where it is right."""
        if isinstance(values, dict) and "is_random" in values:
            values = dict(values)
            if values.pop("is_random") is not cls.is_random:
                raise ValueError(f"is_random must be {cls.is_random} here, or left out")
        return values

    @classmethod
    def _tags(cls) -> PlainDict:
        return {**super()._tags(), "is_random": cls.is_random}


class RandomAgentParameters(AgentParameters):
    """An agent without a model, which says and decides at random. Nothing of it is trained.

    In a configuration: ``is_random: true``.
    """

    is_random: ClassVar[bool] = True

    @property
    def num_invalid_generation_retries(self) -> int:
        """Its answers are always valid."""
        return 0


class PureTextAgentParameters(AgentParameters):
    """An agent that plays by calling a language model."""

    LOAD_PRESERVED_PARAMETERS: ClassVar[frozenset[str]] = frozenset(
        {
            "load_checkpoint_and_parameters",
            "checkpoint_entity",
            "checkpoint_project",
            "checkpoint_run_id",
            "checkpoint_version",
            "published_adapter",
        }
    )
    """Settings that `load_from_wandb_config` leaves as they are."""
    marks: ClassVar[frozenset[str]] = frozenset({SET_ADDRESSES})

    agent_lr_factor: LrFactors | None = None
    """Keeps its default: a factor of the learning rate of networks trained on tensors."""
    body_lr_factor: LrFactors | None = None
    """Keeps its default: a factor of the learning rate of networks trained on tensors."""
    update_schedule: UpdateSchedule = ConstantUpdateSchedule()
    """In which iterations the agent is trained: ConstantUpdateSchedule, in all, or a mapping such
    as {_type: ContiguousPeriodicUpdateSchedule, period: 4, start: 0, stop: 2}."""
    use_manual_architecture: bool = False
    """Keeps its default: of agents made by hand for a scenario of tensors."""
    normalize_message_history: bool = False
    """Keeps its default: of histories that are tensors. For strict chat templates see
    `chat_format`."""
    load_checkpoint_and_parameters: bool = False
    """Start from a model that another run in the same `run_store` has trained for the agent of
    this name, and with that agent's settings. Needs checkpoint_run_id."""
    checkpoint_entity: str = Field(default_factory=str)
    """Keeps its default, the empty text: checkpoints are those of runs in `run_store`."""
    checkpoint_project: str = Field(default_factory=str)
    """Keeps its default, the empty text: checkpoints are those of runs in `run_store`."""
    checkpoint_run_id: RunName | None = None
    """The name of that run."""
    checkpoint_version: CheckpointVersion = "latest"
    """Which of its models: "latest", or the number of the iteration that trained it, from 0."""
    use_orthogonal_initialisation: bool = True
    """Keeps its default: of networks trained from nothing."""
    orthogonal_initialisation_gain: float = 1.0
    """Keeps its default: of networks trained from nothing."""
    model_provider: Annotated[
        str, AfterValidator(_check_provider), Field(description=describe_providers())
    ] = "OpenAI"
    model_name: Annotated[str, Field(min_length=1)] = "gpt-4o-mini-2024-07-18"
    """The base model; a run's settings name it, none is played by default. SelfHosted: "tiny",
    "tiny-arithmetic", "tiny-arithmetic-turns", "tiny-arithmetic-looks", "tiny-reading" or
    "tiny-bags" (bundled), "smollm2" (after `nip models add smollm2`, docs/models.md), a path, or a
    Hugging Face name."""
    language_model_server_scheme_host: SchemeAndHost = DEFAULT_SCHEME_HOST
    """Scheme and host of a running lm_server for this agent's group. SelfHosted only. Where
    neither this nor one of the two ports is set, at its default or another value, the group uses
    base_url, lm_server.url, or the run's own server."""
    language_model_server_port: Port = DEFAULT_CONTROL_PORT
    """Port of that server's control address, for models and jobs, 1 to 65535."""
    vllm_server_port: Port = DEFAULT_ENGINE_PORT
    """Port of that server's engine, 1 to 65535. Chat completions go there if it is set; otherwise
    to the control address, from where `nip serve` passes them on."""
    use_dummy_api: bool = False
    """Play with scripted answers of the deterministic engine: no model, no key, no cost."""
    shared_model_group: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")] | None = None
    """Agents with the same group use and train one model: 1 to 32 lower-case letters, digits,
    dashes and underscores. None: a group named like the agent."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature, 0 to 2. None: the provider's default. Not together with top_p. Trainer
    pure_text_grpo plays with 1 what it trains, and takes no other."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling mass, above 0, at most 1. None: the provider's default. Not together with
    temperature."""
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    """Above 0, at most 2; above 1 discourages repetition. None: the provider's default. Not known
    to OpenAI's own API."""
    fine_tune_from_scratch: bool = True
    """Train each iteration from the base model (True) or from the last fine-tuned one (False).
    Trainer pure_text_grpo needs False."""
    freeze_agent: bool = False
    """Do not train this agent's group, with any update schedule."""
    quantization: Literal["bitsandbytes", "fp8", "none"] = "none"
    """How the base model's weights are held: "none", as they are; "fp8", in 8 bits by the
    engine and as they are while training; or "bitsandbytes", in 4 bits by both, which takes vLLM
    below 0.28 or its vllm-bnb-plugin. For less memory at some cost in accuracy. Only with the run's
    own server and lm_server.engine: vllm."""
    num_epochs: Annotated[int, Field(ge=1, le=50)] | None = None
    """Passes over the dataset, 1 to 50. None: `rl.num_epochs`."""
    dpo_beta: Annotated[float, Field(gt=0, le=2)] | None = None
    """For training by DPO (trainer pure_text_malt): how closely the new model keeps to the one
    before, above 0, at most 2. None: the provider's default."""
    use_lora: bool = True
    """Train LoRA weights over the base model (True), or every weight (False), which makes a new
    base model that takes the place of the one before. SelfHosted only. Where another group plays
    with the same model, False needs the run's own server, and an lm_server.engine other than
    vllm."""
    lora_rank: Annotated[int, Field(ge=1, le=256)] = 64
    """Rank of the LoRA matrices, 1 to 256, for every method. SelfHosted and use_lora: true only,
    as all of LoRA."""
    lora_alpha: Annotated[int, Field(ge=1, le=4096)] | None = None
    """LoRA scaling factor, 1 to 4096. None: lora_rank * lora_alpha_scale. Exactly one of this and
    lora_alpha_scale is set; giving this alone unsets the other."""
    lora_alpha_scale: Annotated[float, Field(gt=0, le=4096)] | None = 1.0
    """The LoRA scaling factor as a multiple of the rank, above 0, at most 4096; so is the
    product."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Dropout inside the LoRA layers, 0 to below 1."""
    stack_lora_adapters: bool = False
    """Train a new adapter on top of the last one (True), or the last one further (False). Needs
    fine_tune_from_scratch: false."""
    per_device_train_batch_size: Annotated[int, Field(ge=1, le=256)] = 2
    """Examples (conversations, pairs or trajectories) per optimizer step and device, 1 to 256.
    SelfHosted only."""
    system_prompt_template_path: str | None = None
    """A file to use instead of the protocol's system prompt template. None: that template."""
    use_supervisor_message: Literal["none", "all", "first", "all_but_first"] = "none"
    """Before which of the agent's turns a user message repeats what it has to do now: "none",
    "all", "first" or "all_but_first". Some models need one, as their chats must have a user
    message."""
    supervisor_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "Supervisor"
    """The name of the user who sends that message: 1 to 64 letters, digits, dashes and
    underscores."""
    max_response_words: Annotated[int, Field(ge=1)] = 150
    """Told to the agent as the limit of a message, in words, at least 1."""
    max_tokens_per_message: Annotated[int, Field(ge=1)] | None = None
    """Most tokens generated per message, at least 1. None: 1.5 * max_response_words, and where
    agents reason first (system_prompt_version v2 or v4) 1000 more."""
    num_invalid_generation_retries: Annotated[int, Field(ge=0, le=100)] = 20
    """How often an answer in an invalid form is asked for again before the episode fails, 0 to
    100. So is a message where only a decision is of use; the last one stands."""
    retry_hint: bool | None = None
    """Whether an answer that is asked for again is asked for with a last user message that says
    what was wrong with the one before (docs/answers.md). False: with the same chat. None: true,
    unless the prompts have the version "short", whose models follow no instructions. A run that
    goes on does as it began."""
    train_hints: Literal["drop", "keep"] = "drop"
    """How expert iteration and MALT train an answer of this agent that was given after a hint:
    "drop", on the chat without the hint, as the next model is asked first; "keep", on the chat with
    the hint, as it was given. Needs retry_hint. Trainer pure_text_grpo trains on the sampled
    answers, hints included, and takes "drop" only."""
    guided_decoding: bool = False
    """Whether the engine holds the agent's answers to their form, whatever the model would have
    written: a decision line or a question, reasoning before it where agents reason first, within
    max_tokens_per_message; the words are free (docs/answers.md). For small models that do not keep
    the form. SelfHosted, with every engine; trainer pure_text_grpo trains no agent that plays so.
    P(accept) is then that among the words that the form allows."""
    base_url: Address = None
    """Address of an API that speaks OpenAI's protocol, for this agent's group, like
    https://host/v1. None: the provider's, or lm_server.url."""
    dpo_sft_weight: Annotated[float, Field(ge=0, le=100)] = 0.0
    """For training by DPO: the weight of imitating the better answer beside preferring it, 0 to
    100. DPO alone may make both answers of a pair unlikely. SelfHosted only."""
    dpo_label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """For training by DPO: the share of pairs taken to have their better and worse answers
    exchanged, 0 to below 0.5. The loss is corrected for it (robust DPO). SelfHosted only."""
    chat_format: Literal["named", "alternating", "alternating_no_system"] = "named"
    """How a history becomes a chat. "named": one message each, others with their name. For strict
    chat templates "alternating": user and assistant in turn after one system message, names in the
    text; "alternating_no_system": the same, with the system prompt in the first user message."""
    api_dialect: Annotated[ApiDialect, Field(description=describe_dialects())] = "auto"
    reasoning_effort: ReasoningEffort | None = None
    """How much a model that thinks is to think: "none", "minimal", "low", "medium", "high" or
    "xhigh"; models know some of them. None: the provider's default. Thoughts are recorded, never
    shown to others, and count towards max_tokens_per_message. Not for an lm_server, whose models
    follow lm_server.options.chat_template_kwargs."""
    train_reasoning: Literal["drop", "keep"] = "drop"
    """Whether expert iteration and MALT train this agent on its recorded thoughts too: "drop", on
    the text alone; "keep", on the thoughts before the text, as the model's chat template writes
    them. SelfHosted only: fine-tuning APIs of others take no thoughts. Trainer pure_text_grpo
    trains on whatever was generated, and takes "drop" only."""
    served_as: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Other names that may answer for model_name, as a gateway's do. An answer by any other name is
    none. Needs freeze_agent: true."""
    published_adapter: PublishedAdapter | None = None
    """Start from a LoRA adapter of the Hugging Face Hub over model_name: hf://OWNER/NAME@REVISION.
    The revision (a branch, a tag or a commit; without it, the main branch) is pinned to its commit
    when the run is created. Needs the run's own server, and another lm_server.engine than
    deterministic."""
    script: Annotated[str, Field(min_length=1)] | None = None
    """The function that writes this prover's messages in every episode, in the place of its model,
    which is neither loaded nor paid for: one that comes with the scenario, by its name, or one of
    your own, as in attack.script. Needs freeze_agent: true. In an attack on the run the prover
    has its model, or the script of the attack."""

    @model_validator(mode="before")
    @classmethod
    def _read_addresses(cls, values: Any) -> Any:
        """Tell chosen addresses from defaults written out by `to_dict`."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        is_written = "_type" in values or SET_ADDRESSES in values
        set_names = values.pop(SET_ADDRESSES, None) or ()
        for name, default in _ADDRESS_DEFAULTS.items():
            if is_written and name not in set_names and values.get(name) == default:
                del values[name]
        return values

    @model_validator(mode="before")
    @classmethod
    def _one_alpha(cls, values: Any) -> Any:
        """Giving lora_alpha alone unsets lora_alpha_scale."""
        if isinstance(values, dict) and values.get("lora_alpha") is not None:
            return {"lora_alpha_scale": None, **values}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.__post_init__()
        return self

    def __post_init__(self) -> None:
        """Check the settings against each other. Raises ValueError, naming them."""
        if self.temperature is not None and self.top_p is not None:
            raise ValueError("set temperature or top_p, not both")
        if (self.lora_alpha is None) == (self.lora_alpha_scale is None):
            raise ValueError(
                "set exactly one of lora_alpha and lora_alpha_scale, and the other to null (got "
                f"{self.lora_alpha} and {self.lora_alpha_scale})"
            )
        if self.effective_lora_alpha > LORA_ALPHA_MAX:
            raise ValueError(
                f"lora_rank * lora_alpha_scale must be at most {LORA_ALPHA_MAX} (got "
                f"{self.effective_lora_alpha})"
            )

    @classmethod
    def construct_test_params(cls) -> Self:
        """Make settings for tests: scripted answers, so no API is called."""
        return cls(use_dummy_api=True)

    def load_from_wandb_config(self, wandb_config: PlainMapping) -> None:
        """Take over the settings of this agent in another run, in place.

        `wandb_config` is the result of `to_dict` there. Settings in LOAD_PRESERVED_PARAMETERS stay
        as they are, and so do settings that it lacks; keys that are no setting are left out.
        Settings are otherwise never changed: do this before other code has the object.

        Raises pydantic's ValidationError, a ValueError, having changed nothing.
        """
        loaded = self.loaded_from(wandb_config)
        self.__dict__.update(loaded.__dict__)
        self.__pydantic_fields_set__.clear()
        self.__pydantic_fields_set__.update(loaded.__pydantic_fields_set__)

    def loaded_from(self, config: PlainMapping) -> Self:
        """Return a copy of these settings after `load_from_wandb_config`."""
        values = {
            key: value
            for key, value in config.items()
            if key in type(self).model_fields and key not in self.LOAD_PRESERVED_PARAMETERS
        }
        settings = lay_over(self.to_dict(), values)
        if not values.keys().isdisjoint(_ADDRESS_DEFAULTS):
            plain: Plain = (
                [] if "_type" in config else [*(values.keys() & _ADDRESS_DEFAULTS.keys())]
            )
            settings[SET_ADDRESSES] = config.get(SET_ADDRESSES, plain)
        return self.from_dict(settings)

    @property
    def set_addresses(self) -> tuple[str, ...]:
        """List the settings of an lm_server's address set to their own defaults on purpose."""
        return tuple(
            name
            for name, default in _ADDRESS_DEFAULTS.items()
            if name in self.model_fields_set and getattr(self, name) == default
        )

    @property
    def provider(self) -> type[Provider]:
        """Return who serves and trains the agent's model."""
        return Scripted if self.use_dummy_api else find_provider(self.model_provider)

    @property
    def moves_server(self) -> bool:
        """Return whether a part of an lm_server's address is not the default."""
        return any(getattr(self, name) != value for name, value in _ADDRESS_DEFAULTS.items())

    @property
    def control_url(self) -> str | None:
        """Return the address of the lm_server in `language_model_server_*`; None: there is none."""
        return self._server(self.language_model_server_port)

    @property
    def engine_url(self) -> str | None:
        """Return the address for chat completions: the engine's, if its port is set."""
        port = self.vllm_server_port
        if port == DEFAULT_ENGINE_PORT and "vllm_server_port" not in self.set_addresses:
            return self.control_url
        return self._server(port)

    def _server(self, port: int) -> str | None:
        if not (self.moves_server or self.set_addresses):
            return None
        return f"{self.language_model_server_scheme_host}:{port}"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings; a script is among them where there is one."""
        # Settings of before there were any have the same digest.
        values = super().to_dict()
        if self.script is None:
            values.pop("script", None)
        return values

    def _marks(self) -> PlainDict:
        return {SET_ADDRESSES: list(self.set_addresses)} if self.set_addresses else {}

    @property
    def message_tokens(self) -> int:
        """Return how many tokens a message of max_response_words may take, about."""
        return int(1.5 * self.max_response_words)

    @property
    def effective_lora_alpha(self) -> int:
        """Return the LoRA scaling factor for training."""
        if self.lora_alpha is not None:
            return self.lora_alpha
        assert self.lora_alpha_scale is not None  # `__post_init__`
        return max(1, round(self.lora_rank * self.lora_alpha_scale))


def is_random(values: PlainMapping) -> bool:
    """Return whether a mapping of settings is a random agent's."""
    kinds = (PureTextAgentParameters, RandomAgentParameters)
    return group_for(kinds, values) is RandomAgentParameters


def _kind(values: Any) -> str:
    """Say whether a mapping, or an object, holds settings of a model or of a random agent."""
    if isinstance(values, Mapping):
        return "random" if is_random(values) else "model"
    return "random" if isinstance(values, RandomAgentParameters) else "model"


def lay_over(default: PlainMapping, own: PlainMapping) -> PlainDict:
    """`own` settings with `default` underneath; who sets one of two alternatives sets both."""
    replaced = {name for pair in ALTERNATIVES if not pair.isdisjoint(own) for name in pair}
    return {**{key: value for key, value in default.items() if key not in replaced}, **own}


AGENT_KINDS = ("model", "random")
AnyAgentParameters = Annotated[
    Annotated[PureTextAgentParameters, Tag("model")]
    | Annotated[RandomAgentParameters, Tag("random")],
    Discriminator(_kind),
]

AgentsParameters = dict[str, AnyAgentParameters]
"""Settings by agent name."""

CodeValidationAgentParameters = PureTextAgentParameters
"""The agents of code validation have no settings of their own."""
