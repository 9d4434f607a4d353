"""Messages and items of fine-tune datasets, as the OpenAI protocol has them."""

from typing import Literal, NotRequired, TypeAlias, TypedDict


class PromptMessage(TypedDict):
    """A message of a chat. Those of other agents may say who they are from."""

    role: Literal["system", "user", "assistant"]
    content: str
    name: NotRequired[str]


class SupervisedDatasetItem(TypedDict):
    """A chat whose assistant messages are learned."""

    messages: list[PromptMessage]


class DpoInput(TypedDict):
    """The prompt that both answers of a pair answer."""

    messages: list[PromptMessage]


class DpoDatasetItem(TypedDict):
    """A chat, the answer to prefer and the one to avoid; each is a list of one message."""

    input: DpoInput
    preferred_output: list[PromptMessage]
    non_preferred_output: list[PromptMessage]


Example: TypeAlias = SupervisedDatasetItem | DpoDatasetItem
