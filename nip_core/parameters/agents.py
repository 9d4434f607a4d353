"""Settings of one agent: which model it is, how it is sampled, how it is trained."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from nip_core.parameters.base import Parameters

Provider = Literal["OpenAI", "OpenRouter", "SelfHosted"]

LORA_ALPHA_SCALE = 1.0


class AgentParameters(Parameters):
    """What the settings of every agent share."""

    is_random: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _check_kind(cls, values: Any) -> Any:
        """Take `is_random`, which `to_dict` adds, where it is right."""
        if isinstance(values, dict) and "is_random" in values:
            values = dict(values)
            if values.pop("is_random") is not cls.is_random:
                raise ValueError(f"is_random must be {cls.is_random} here, or left out")
        return values


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

    model_provider: Provider = "OpenAI"
    """Who serves the model: OpenAI, OpenRouter (inference only) or SelfHosted (an lm_server)."""
    model_name: Annotated[str, Field(min_length=1)] = "gpt-4o-mini-2024-07-18"
    """The base model. SelfHosted: "tiny" (bundled), a path, or a Hugging Face name."""
    shared_model_group: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")] | None = None
    """Agents with the same group use and train one model. None: a group named like the agent."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature, 0 to 2. None: the provider's default. Not together with top_p."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling mass, 0 to 1. None: the provider's default. Not with temperature."""
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    """Above 1 discourages repetition. SelfHosted and OpenRouter only."""
    fine_tune_from_scratch: bool = True
    """Train each iteration from the base model (True) or from the last fine-tuned one (False)."""
    freeze_agent: bool = False
    """Do not train this agent's group."""
    num_epochs: Annotated[int, Field(ge=1, le=50)] | None = None
    """Passes over the dataset. None: `rl.num_epochs`."""
    use_lora: Literal[True] = True
    """Train LoRA weights over the base model. Full fine-tuning is not available yet."""
    lora_rank: Annotated[int, Field(ge=1, le=256)] = 64
    """Rank of the LoRA matrices."""
    lora_alpha: Annotated[int, Field(ge=1)] | None = None
    """LoRA scaling factor. None: lora_rank * lora_alpha_scale."""
    lora_alpha_scale: Annotated[float, Field(gt=0)] | None = None
    """Used for lora_alpha when that is not set. Set at most one of the two. None: 1.0."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Dropout inside the LoRA layers, 0 to 1."""
    per_device_train_batch_size: Annotated[int, Field(ge=1, le=256)] = 2
    """Examples per optimizer step and device."""
    system_prompt_template_path: str | None = None
    """A file to use instead of the protocol's system prompt template."""
    use_supervisor_message: Literal["none", "all", "first", "all_but_first"] = "none"
    """Before which of the agent's turns a user message repeats what it has to do now. Some models
    need one, as their chats must have a user message."""
    supervisor_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "Supervisor"
    """The name of the user who sends that message."""
    chat_format: Literal["named", "alternating", "alternating_no_system"] = "named"
    """How a history becomes a chat. "named": one message each, others with their name. For strict
    chat templates "alternating": user and assistant in turn after one system message, names in the
    text; "alternating_no_system": the same, with the system prompt in the first user message."""
    max_response_words: Annotated[int, Field(ge=1)] = 150
    """Told to the agent as the limit of a message, in words."""
    max_tokens_per_message: Annotated[int, Field(ge=1)] | None = None
    """Most tokens generated per message. None: 1.5 * max_response_words."""
    num_invalid_generation_retries: Annotated[int, Field(ge=0, le=100)] = 20
    """How often an answer in an invalid form is asked for again before the episode fails."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.temperature is not None and self.top_p is not None:
            raise ValueError("set temperature or top_p, not both")
        if self.lora_alpha is not None and self.lora_alpha_scale is not None:
            raise ValueError("set lora_alpha or lora_alpha_scale, not both")
        if self.repetition_penalty is not None and self.model_provider == "OpenAI":
            raise ValueError("repetition_penalty is not known to the OpenAI API; unset it")
        return self

    @property
    def effective_lora_alpha(self) -> int:
        """The LoRA scaling factor that training gets."""
        if self.lora_alpha is not None:
            return self.lora_alpha
        scale = LORA_ALPHA_SCALE if self.lora_alpha_scale is None else self.lora_alpha_scale
        return max(1, round(self.lora_rank * scale))

    @property
    def effective_max_tokens(self) -> int:
        """Most tokens generated per message."""
        if self.max_tokens_per_message is not None:
            return self.max_tokens_per_message
        return int(1.5 * self.max_response_words)


def _kind(values: Any) -> str:
    """Which settings a mapping (or an object) holds."""
    is_random = (
        values.get("is_random") if isinstance(values, dict) else getattr(values, "is_random", False)
    )
    return "random" if is_random is True else "model"


AnyAgentParameters = Annotated[
    Annotated[PureTextAgentParameters, Tag("model")]
    | Annotated[RandomAgentParameters, Tag("random")],
    Discriminator(_kind),
]
