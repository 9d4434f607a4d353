"""Settings of a trained agent that Tinker's API can't carry: each is refused by its name."""

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters

ALPHA = 32
"""The numerator of LoRA's scale at every service of this API; no request can name another."""
_DEFAULT_DROPOUT = 0.05


def check_agent(parameters: HyperParameters, name: str) -> None:
    """Raise SettingsError for the first of them. Settings at their defaults count as not set."""
    agent, place = parameters.model_agents[name], f"agents.{name}"
    scale = agent.lora_alpha_scale
    is_other_alpha = agent.effective_lora_alpha != ALPHA and scale != 1.0
    gradient, tuning = parameters.pure_text_grpo, parameters.fine_tuning
    faults: tuple[tuple[bool, str, object, str], ...] = (
        (not agent.use_lora, f"{place}.use_lora", False, "it trains LoRA alone; set true"),
        (
            is_other_alpha,
            f"{place}.lora_alpha" if scale is None else f"{place}.lora_alpha_scale",
            agent.lora_alpha if scale is None else scale,
            f"it has alpha {ALPHA} for every rank; set lora_alpha: {ALPHA}, or leave it and "
            "lora_alpha_scale out",
        ),
        (
            agent.lora_dropout not in (0.0, _DEFAULT_DROPOUT),
            f"{place}.lora_dropout",
            agent.lora_dropout,
            "it has no dropout; set 0, or leave it out",
        ),
        (
            agent.stack_lora_adapters,
            f"{place}.stack_lora_adapters",
            True,
            "it trains the last adapter on, or a new one over the base model; set false",
        ),
        (
            agent.quantization != "none",
            f"{place}.quantization",
            agent.quantization,
            "how it holds its weights is the service's; leave it out",
        ),
        (
            parameters.trainer == "pure_text_grpo" and gradient.kl_penalty > 0,
            "pure_text_grpo.kl_penalty",
            gradient.kl_penalty,
            "its losses have no such term; set 0",
        ),
        (
            tuning.validation_fraction > 0,
            "fine_tuning.validation_fraction",
            tuning.validation_fraction,
            "its jobs have no validation file; set 0",
        ),
        *(
            (
                getattr(tuning, setting) is not None,
                f"fine_tuning.{setting}",
                getattr(tuning, setting),
                "the service decides it; leave it out",
            )
            for setting in ("tokens_per_pass", "gradient_checkpointing")
        ),
    )
    for is_fault, setting, value, remedy in faults:
        if is_fault:
            raise SettingsError(
                f"{setting} is {value}, which {agent.model_provider} can't carry: {remedy}"
            )
