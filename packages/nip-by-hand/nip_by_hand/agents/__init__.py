"""Agents and the parts that they play with, under the names of neural-interactive-proofs.

The surface for notebooks and scripts. Its names are importable from here, and loaded only then:

whole_agent             the base of every agent: keys, visible channels, one turn of a batch
prompted_whole_agent    its chats, and the examples that it can be trained on
openai_whole_agent      an agent that asks a model, with its retries
shared_model_group      agents that share a model and are trained together
openai_model_group      the same at a provider that speaks the OpenAI protocol
group_jobs              its fine-tune jobs
environment             plays by hand: reset, agents, step
protocol_handler        a protocol with its prompts, as the agents see it
batch, nested_array_dict   the arrays of the episodes of a batch
history                 from a batch's arrays to the turns of an episode
chat_types              messages and items of datasets
experiment_settings, states, errors, language_model_client   the rest of the signatures
synchronous             asynchronous methods called by code that has no event loop

Whoever imports this package alone loads neither torch nor openai nor any of these modules.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_by_hand.agents.chat_types import DpoDatasetItem, PromptMessage, SupervisedDatasetItem
    from nip_by_hand.agents.environment import CodeValidationEnvironment, PureTextEnvironment
    from nip_by_hand.agents.errors import (
        AgentNotActiveInChannelError,
        ContentFilterError,
        ContentIsNoneError,
        GenerationError,
        InvalidDecisionError,
        InvalidResponseError,
        NotAllActiveChannelsInResponseError,
        NotGuessedError,
        TrainingJobNotFoundClientError,
        UnknownFinishReasonError,
    )
    from nip_by_hand.agents.experiment_settings import ExperimentSettings
    from nip_by_hand.agents.language_model_client import (
        LanguageModelClient,
        LmTrainingJobInfo,
        TrainingJobInfo,
    )
    from nip_by_hand.agents.nested_array_dict import NestedArrayDict
    from nip_by_hand.agents.openai_model_group import OpenAiSharedModelGroup
    from nip_by_hand.agents.openai_whole_agent import OpenAiWholeAgent
    from nip_by_hand.agents.protocol_handler import (
        CodeValidationAgentSpec,
        CodeValidationProtocolHandler,
        ProtocolHandler,
    )
    from nip_by_hand.agents.shared_model_group import PureTextSharedModelGroup
    from nip_by_hand.agents.states import (
        AgentState,
        OpenAiSharedModelGroupState,
        OpenAiWholeAgentState,
        PureTextSharedModelGroupState,
    )
    from nip_by_hand.agents.whole_agent import (
        PureTextWholeAgent,
        RandomWholeAgent,
        _ParsedChatCompletion,
    )

_MODULES = (
    *("errors", "chat_types", "states", "experiment_settings", "nested_array_dict"),
    *("protocol_handler", "environment", "whole_agent", "shared_model_group"),
    *("language_model_client", "openai_whole_agent", "openai_model_group"),
)
"""Where the names are looked for; slower modules come later."""

__all__ = [
    "AgentNotActiveInChannelError",
    "AgentState",
    "CodeValidationAgentSpec",
    "CodeValidationEnvironment",
    "CodeValidationProtocolHandler",
    "ContentFilterError",
    "ContentIsNoneError",
    "DpoDatasetItem",
    "ExperimentSettings",
    "GenerationError",
    "InvalidDecisionError",
    "InvalidResponseError",
    "LanguageModelClient",
    "LmTrainingJobInfo",
    "NestedArrayDict",
    "NotAllActiveChannelsInResponseError",
    "NotGuessedError",
    "OpenAiSharedModelGroup",
    "OpenAiSharedModelGroupState",
    "OpenAiWholeAgent",
    "OpenAiWholeAgentState",
    "PromptMessage",
    "ProtocolHandler",
    "PureTextEnvironment",
    "PureTextSharedModelGroup",
    "PureTextSharedModelGroupState",
    "PureTextWholeAgent",
    "RandomWholeAgent",
    "SupervisedDatasetItem",
    "TrainingJobInfo",
    "TrainingJobNotFoundClientError",
    "UnknownFinishReasonError",
    "_ParsedChatCompletion",
]


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        home = importlib.import_module(f"{__name__}.{module}")
        if name in vars(home):
            return vars(home)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
