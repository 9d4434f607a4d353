"""The differences between APIs that speak OpenAI's protocol: a table of data.

Dialect       a row of it
DIALECTS      the table, by the names that the setting `api_dialect` takes
find_dialect  the row of an agent

Sources, read in November 2026: the pages of all of them on chat completions and on compatibility
with OpenAI; for a refusal that no page names, reports of the very answer: Gemini and
``seed`` (Vali-98/ChatterUI#227), Mistral and ``max_completion_tokens``
(editor-code-assistant/eca#231), Mistral and ``name`` (Gage-Technologies/mistral-go#2).
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from nip_core.parameters.blocks.agents import PureTextAgentParameters

ApiDialect = Literal[
    "auto", "openai", "self_hosted", "openrouter", "together", "gemini", "anthropic", "mistral"
]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


@dataclass(frozen=True)
class Dialect:
    """The fields that an API takes. Others are not sent to it, or refused before the run."""

    hosts: tuple[str, ...] = ()
    """Where it answers, for `base_url`."""
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Its word for the most tokens of an answer."""
    least_limit: int = 1
    """The fewest tokens of an answer that it takes; a model that thinks needs some to begin."""
    seed: Literal["seed", "random_seed"] | None = "seed"
    """Its word for the seed; None: it takes none."""
    takes_n: bool = True
    """Several answers to one request."""
    takes_names: bool = True
    """The speaker's name beside a message; others refuse it, or drop it without a word."""
    takes_logprobs: bool = True
    takes_grammars: bool = False
    """A grammar by which a text is guided, in vLLM's parameter."""
    max_temperature: float = 2.0
    effort: Literal["reasoning_effort", "reasoning"] | None = None
    """Where it takes `reasoning_effort`: under this name, or as ``reasoning.effort``."""

    def effort_fields(self, effort: ReasoningEffort | None) -> dict[str, Any]:
        """Return a request's fields for this effort."""
        if effort is None or self.effort is None:
            return {}
        return (
            {"reasoning": {"effort": effort}}
            if self.effort == "reasoning"
            else {self.effort: effort}
        )


DIALECTS: dict[str, Dialect] = {
    "openai": Dialect(
        hosts=("api.openai.com",),
        limit="max_completion_tokens",
        least_limit=16,
        effort="reasoning_effort",
    ),
    # The effect of an effort in vLLM depends on the model's template: see chat_template_kwargs.
    "self_hosted": Dialect(takes_grammars=True),
    "openrouter": Dialect(hosts=("openrouter.ai",), takes_n=False, effort="reasoning"),
    # Its logprobs is a number of tokens, and no word of names stands on its pages.
    "together": Dialect(
        hosts=("api.together.ai", "api.together.xyz"), takes_names=False, takes_logprobs=False
    ),
    "gemini": Dialect(
        hosts=("generativelanguage.googleapis.com",), seed=None, effort="reasoning_effort"
    ),
    # Most fields that it does not take it drops without a word; so none of them is sent.
    "anthropic": Dialect(
        hosts=("api.anthropic.com",),
        seed=None,
        takes_n=False,
        takes_names=False,
        takes_logprobs=False,
        max_temperature=1.0,
    ),
    "mistral": Dialect(
        hosts=("api.mistral.ai",),
        seed="random_seed",
        takes_names=False,
        takes_logprobs=False,
        effort="reasoning_effort",
    ),
}


def describe_dialects() -> str:
    """Say what the setting `api_dialect` means, for the page of settings."""
    names = [
        f'"{name}" (an lm_server)' if name == "self_hosted" else f'"{name}"' for name in DIALECTS
    ]
    return (
        f"What the API takes otherwise than OpenAI's: {', '.join(names[:-1])} or {names[-1]}. "
        '"auto": by the host of base_url, where it is known, else by model_provider.'
    )


def dialect_name(agent: "PureTextAgentParameters") -> str:
    """The name of the row: by the setting, the host of `base_url`, or the provider."""
    if agent.use_dummy_api:
        return "self_hosted"
    if agent.api_dialect != "auto":
        return agent.api_dialect
    return _name_by_host(agent.base_url or "") or agent.provider.dialect


@cache
def _name_by_host(base_url: str) -> str | None:
    host = urlsplit(base_url).hostname
    return next((name for name, dialect in DIALECTS.items() if host in dialect.hosts), None)


def find_dialect(agent: "PureTextAgentParameters") -> Dialect:
    """The row of an agent."""
    return DIALECTS[dialect_name(agent)]


def check_dialect(place: str, agent: "PureTextAgentParameters") -> None:
    """Raise ValueError for a setting the agent's API would refuse, or drop without a word."""
    name = dialect_name(agent)
    if name not in DIALECTS:
        raise ValueError(
            f"{place}.model_provider: the dialect of {agent.model_provider} is one of "
            f"{', '.join(DIALECTS)} (got {name!r})"
        )
    dialect = find_dialect(agent)
    # The error names the user's setting: the provider alone may have led to a dialect of its own.
    by_provider = agent.api_dialect == "auto" and agent.base_url is None
    api = f"model_provider {agent.model_provider}" if by_provider else f"api_dialect {name}"
    if agent.reasoning_effort is not None and dialect.effort is None:
        instead = (
            "set lm_server.options.chat_template_kwargs to what the model's template knows"
            if name == "self_hosted"
            else "leave it out"
        )
        raise ValueError(
            f"{place}.reasoning_effort: {api} takes none (got {agent.reasoning_effort}); {instead}"
        )
    if agent.chat_format == "named" and not dialect.takes_names:
        raise ValueError(
            f"{place}.chat_format: {api} takes no names of speakers, so nobody would "
            "know who says what; set chat_format: alternating"
        )
    if agent.guided_decoding and not dialect.takes_grammars:
        raise ValueError(
            f"{place}.guided_decoding: {api} takes no grammar, so nobody could hold its answers to "
            "a form (got true); leave it out, or set model_provider: SelfHosted"
        )
    if agent.temperature is not None and agent.temperature > dialect.max_temperature:
        raise ValueError(
            f"{place}.temperature: {api} takes at most {dialect.max_temperature:g} "
            f"(got {agent.temperature:g})"
        )
    keeps, training = agent.train_reasoning == "keep", agent.provider.training
    if keeps and not agent.freeze_agent and not (training and training.takes_thoughts):
        raise ValueError(
            f"{place}.train_reasoning: fine-tuning at {agent.model_provider} takes no thoughts "
            "(got keep); leave it out, or set model_provider: SelfHosted"
        )
    if agent.served_as and not agent.freeze_agent:
        raise ValueError(
            f"{place}.served_as: a model that is trained answers by its own name, or it is not "
            "known which one does; set freeze_agent: true or leave served_as out"
        )
