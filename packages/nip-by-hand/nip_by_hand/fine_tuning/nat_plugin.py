"""The ART trainer adapter as a plug-in of NVIDIA's NeMo Agent Toolkit.

The toolkit imports this module by the entry point ``nat.components``; nothing of nip does. Its
configuration files then know::

    trainer_adapters:
      nip: {_type: nip_art_trainer_adapter, backend: {ip: 127.0.0.1, port: 8000, ...}}
    llms:
      player: {_type: nip_art_model, model_name: ..., base_model: tiny, base_url: ...}

NipTrainerAdapterConfig   ARTTrainerAdapterConfig under the name nip_art_trainer_adapter
NipModelConfig            the newest step of a model that the adapter trains, for LangChain

Every epoch builds its workflow anew, and so plays with the newest step. Needs the packages
nvidia-nat-core and nvidia-nat-langchain[openai]; see docs/nemo.md.
"""

from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.llm import LLMProviderInfo
from nat.cli.register_workflow import (
    register_llm_client,
    register_llm_provider,
    register_trainer_adapter,
)
from nat.data_models.finetuning import TrainerAdapterConfig
from nat.llm.openai_llm import OpenAIModelConfig
from pydantic import Field, SecretStr

from nip_by_hand.fine_tuning.art.art_adapter_config import (
    DEFAULT_PROJECT,
    DEFAULT_STATE_DIR,
    ARTTrainerAdapterConfig,
    environment_key,
)
from nip_by_hand.fine_tuning.art.art_steps import StepRecords


class NipTrainerAdapterConfig(
    ARTTrainerAdapterConfig,
    TrainerAdapterConfig,  # type: ignore[misc]
    name="nip_art_trainer_adapter",
):
    """See `ARTTrainerAdapterConfig`."""


@register_trainer_adapter(config_type=NipTrainerAdapterConfig)  # type: ignore[untyped-decorator]
async def nip_art_trainer_adapter(
    config: NipTrainerAdapterConfig, builder: Builder
) -> AsyncIterator[Any]:
    """The adapter; imported here, as `art` takes seconds."""
    from nip_by_hand.fine_tuning.art_adapter import ARTTrainerAdapter

    yield ARTTrainerAdapter(config)


class NipModelConfig(OpenAIModelConfig, name="nip_art_model"):  # type: ignore[misc, call-arg]
    """A model on an lm_server. `model_name` is its name in the adapter's `backend`, and the next
    three stand there too."""

    project: str = DEFAULT_PROJECT
    base_model: str = Field(min_length=1)
    """The model that answers as long as no step was trained."""
    state_dir: str = DEFAULT_STATE_DIR

    def served(self) -> OpenAIModelConfig:
        """An OpenAI model: the newest step, with the settings for training on its answers."""
        try:
            record = StepRecords(self.state_dir).load(self.project, self.model_name)
            model = record.served
        except LookupError:
            model = self.base_model
        settings = self.model_dump(exclude={"type", *_OURS}, exclude_unset=True)
        key = self.api_key.get_secret_value() if self.api_key else ""
        extra_body = {"return_tokens_as_token_ids": True, **settings.pop("extra_body", {})}
        ours = {
            "model_name": model,
            "api_key": SecretStr(environment_key(key)),
            "logprobs": True,
            "extra_body": extra_body,
        }
        return OpenAIModelConfig(**{**settings, **ours})


_OURS = ("project", "base_model", "state_dir")


@register_llm_provider(config_type=NipModelConfig)  # type: ignore[untyped-decorator]
async def nip_art_model(config: NipModelConfig, builder: Builder) -> AsyncIterator[LLMProviderInfo]:
    """Give the toolkit's list its entry for these models."""
    yield LLMProviderInfo(config=config, description="The newest step of a model that nip trains.")


@register_llm_client(config_type=NipModelConfig, wrapper_type=LLMFrameworkEnum.LANGCHAIN)  # type: ignore[untyped-decorator]
async def nip_art_model_langchain(config: NipModelConfig, builder: Builder) -> AsyncIterator[Any]:
    """The toolkit's own LangChain client of the newest step."""
    from nat.plugins.langchain.llm import openai_langchain

    async with openai_langchain(config.served(), builder) as client:
        yield client
