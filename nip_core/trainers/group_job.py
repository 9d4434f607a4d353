"""The fine-tune job of a group, by the settings: in the loop and by hand.

The road of a hyper-parameter, say `rl.lr`: `nip_core.parameters.load` reads the YAML into
`RlTrainerParameters` (`nip_core.parameters.blocks.loop_settings`); here it becomes a part of
`JobSpec` (settings that the API has words for) or of `NipSettings` (all else).
`nip_core.jobs.openai_backend` sends both; in the server `nip_lm_server.jobs.settings` completes
them, `nip_lm_server.training.job` carries them into the process that trains, and
`nip_lm_server.training.methods.arguments` hands them to TRL.
"""

from dataclasses import dataclass
from typing import Any, Literal

from nip_base.wire import NipSettings
from nip_core.hashing import derive_seed, digest
from nip_core.jobs.job import JobSpec
from nip_core.parameters import HyperParameters, PureTextAgentParameters
from nip_core.parameters.blocks.agents import OWN_DPO_SETTINGS
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.services.providers import TrainingService
from nip_core.trainers.lines import ADVANTAGE


@dataclass(frozen=True)
class Parent:
    """The model at the start of a job."""

    model: str  # as its server names it
    digest: str | None  # of its weights, where the server has said it
    is_base: bool
    can_stack: bool  # another adapter can be trained over it


def group_job(
    parameters: HyperParameters,
    run: str,
    iteration: int,
    group: str,
    parent: Parent,
    *,
    method: str,
    dataset_digest: str,
    examples: int,
    attempt: int,
    suffix: str | None = None,
    validation_examples: int = 0,
    validation_digest: str | None = None,
) -> JobSpec:
    """Describe the job of a group on this data, trained as the settings say, in the loop or by
    hand."""
    hyper_parameters, nip = training_settings(
        parameters, group, from_base=parent.is_base, can_stack=parent.can_stack, method=method
    )
    if parameters.imitates(iteration):
        hyper_parameters["n_epochs"] = parameters.imitation_epochs
    return JobSpec(
        run=run,
        iteration=iteration,
        group=group,
        dataset_digest=dataset_digest,
        parent_model=parent.model,
        parent_model_digest=parent.digest or digest(parent.model),
        seed=derive_seed("job", parameters.seed, iteration, group),
        examples=examples,
        method=method,
        hyper_parameters=hyper_parameters,
        nip=nip,
        attempt=attempt,
        suffix=suffix or f"{run}-{iteration:04d}-{group}",
        validation_examples=validation_examples,
        validation_digest=validation_digest,
        integrations=integrations(parameters, group),
    )


def integrations(parameters: HyperParameters, group: str) -> list[dict[str, Any]]:
    """Return who else is told of the group's jobs, in the words of OpenAI's API."""
    project = parameters.fine_tuning.wandb_project
    agent = parameters.group_parameters(group)
    service = agent.provider.training
    if project is None or service is None or not service.takes_wandb:
        return []
    return [{"type": "wandb", "wandb": {"project": project}}]


def training_settings(
    parameters: HyperParameters,
    group: str,
    *,
    from_base: bool,
    can_stack: bool = True,
    method: str = "supervised",
) -> tuple[dict[str, Any], NipSettings]:
    """Split the settings of a group's training: the words of OpenAI's API, and the rest.

    The first are the hyper-parameters of the method. Only what the method and the training service
    take is in it. `from_base`: not from the model that plays; `can_stack`: that one is an adapter,
    so that another can be trained over it.
    """
    agent = parameters.group_parameters(group)
    service = agent.provider.training or TrainingService()
    start_from: Literal["base", "continue", "stack"] = "base"
    if not from_base:
        start_from = "stack" if agent.stack_lora_adapters and can_stack else "continue"
    hyper_parameters: dict[str, Any] = {"n_epochs": agent.num_epochs or parameters.rl.num_epochs}
    if method == "dpo" and agent.dpo_beta is not None:
        hyper_parameters["beta"] = agent.dpo_beta
    if method == "trajectories":
        gradient = parameters.pure_text_grpo
        hyper_parameters["advantage"] = ADVANTAGE
        hyper_parameters["clip_low"] = gradient.clip_low
        if gradient.clip_high is not None:
            hyper_parameters["clip_high"] = gradient.clip_high
        hyper_parameters["kl_penalty"] = gradient.kl_penalty
    hyper_parameters["batch_size"] = agent.per_device_train_batch_size
    nip = {
        "learning_rate": parameters.rl.lr,
        "lr_scheduler": parameters.fine_tuning.lr_scheduler,
        "warmup_ratio": parameters.fine_tuning.warmup_ratio,
        "weight_decay": parameters.fine_tuning.weight_decay,
        "start_from": start_from,
        **_list_further(parameters, agent, method),
    }
    return (
        {name: value for name, value in hyper_parameters.items() if service.takes_setting(name)},
        NipSettings.model_construct(
            **{name: value for name, value in nip.items() if service.takes_setting(name)}
        ),
    )


def _list_further(
    parameters: HyperParameters, agent: PureTextAgentParameters, method: str
) -> dict[str, Any]:
    """List the settings that only some jobs have.

    Settings are sent as they stand here: a job's key goes by them, 8 is another than 8.0.
    """
    further: dict[str, Any] = {}
    if parameters.rl.max_grad_norm != 1.0:  # the server's own, which earlier jobs were made with
        further["max_grad_norm"] = parameters.rl.max_grad_norm
    if agent.use_lora:
        further["lora_rank"] = agent.lora_rank
        further["lora_alpha"] = agent.effective_lora_alpha
        further["lora_dropout"] = agent.lora_dropout
    else:
        further["use_lora"] = False
    if method == "dpo":
        values = {name: getattr(agent, name) for name in OWN_DPO_SETTINGS}
        further |= {name: value for name, value in values.items() if value}
    for name in ("max_length", "tokens_per_pass", "gradient_checkpointing"):
        if getattr(parameters.fine_tuning, name) is not None:
            further[name] = getattr(parameters.fine_tuning, name)
    if agent.quantization == "bitsandbytes" and find_host(parameters, agent).loads_weights:
        further["quantization"] = "4bit"  # as bitsandbytes holds it in the engine
    return further
