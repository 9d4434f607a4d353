"""Checks of training: its agents, methods and examples. Each raises ValueError."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from nip_core.parameters.blocks.agents import OWN_DPO_SETTINGS

if TYPE_CHECKING:
    from nip_core.parameters.hyper_parameters import HyperParameters


def check_training(parameters: "HyperParameters") -> None:
    """Refuse settings of the trainer in conflict with each other, or with its agents."""
    text_rl, malt = parameters.text_rl, parameters.pure_text_malt
    imitates = parameters.trainer == "pure_text_ei" or (
        parameters.trainer == "pure_text_malt" and malt.num_initial_ei_iterations > 0
    )
    if text_rl.verifier_guess_replacement_proportion > 0 and not imitates:
        raise ValueError(
            "text_rl.verifier_guess_replacement_proportion is for expert iteration, which trainer "
            f"{parameters.trainer!r} does not do; set it to 0"
        )
    trained_agents = {name for g in parameters.trainable_groups for name in parameters.groups[g]}
    if text_rl.verifier_guess_replacement_proportion > 0 and "verifier" not in trained_agents:
        raise ValueError(
            "text_rl.verifier_guess_replacement_proportion changes what the verifier is trained on "
            f"(got {text_rl.verifier_guess_replacement_proportion:g}), and agents.verifier is "
            "never trained; set it to 0, or agents.verifier.freeze_agent: false"
        )
    _check_methods(parameters)
    if parameters.imitation.chats is not None:
        _check_imitation(parameters)
    if parameters.trainer == "pure_text_malt":
        _check_malt(parameters)
    if parameters.trainer == "pure_text_grpo":
        _check_grpo(parameters)
    _check_hints(parameters, trained_agents)
    if parameters.promotion.enabled and parameters.test_dataset_split == "validation":
        raise ValueError(
            "promotion.enabled: models would be chosen by the problems that they are tested on; "
            "set test_dataset_split: test"
        )
    services = [agent.provider.training for agent in parameters.model_agents.values()]
    if parameters.fine_tuning.wandb_project is not None and not any(
        service is not None and service.takes_wandb for service in services
    ):
        raise ValueError(
            "fine_tuning.wandb_project: OpenAI reports its jobs there, and no agent has "
            "model_provider: OpenAI; leave it out"
        )


def _check_hints(parameters: "HyperParameters", trained_agents: Collection[str]) -> None:
    """Refuse to train behind hints where none is given."""
    for name, agent in parameters.model_agents.items():
        keeps = agent.train_hints == "keep" and name in trained_agents
        if keeps and not parameters.gives_hint(name):
            reason = "" if agent.retry_hint is False else ', as with prompts of version "short"'
            raise ValueError(
                f"agents.{name}.train_hints: keep trains on hints, and this agent is given none "
                f"(retry_hint is off{reason}); set agents.{name}.retry_hint: true, or leave "
                "train_hints out"
            )


def _check_methods(parameters: "HyperParameters") -> None:
    """Refuse a method that the training service of an agent does not take."""
    methods = {parameters.method(i) for i in range(parameters.rl.num_iterations)}
    for group in parameters.trainable_groups:
        name, agent = parameters.groups[group][0], parameters.group_parameters(group)
        service = agent.provider.training
        wrong = sorted(method for method in methods if service and not service.takes(method))
        if service is not None and wrong:
            raise ValueError(
                f"agents.{name}.model_provider: trainer {parameters.trainer!r} needs training by "
                f"{' and '.join(wrong)}, as an lm_server does it (got {agent.model_provider}, "
                f"which takes {', '.join(service.methods) or 'none'}); set SelfHosted, or "
                "freeze_agent: true"
            )


def _check_imitation(parameters: "HyperParameters") -> None:
    """Refuse to imitate where no agent learns by it."""
    reason = None
    if parameters.target_run is not None:
        reason = "an attack begins with attack.start_from; set that, or leave it out"
    elif parameters.base_run.base_run_type == "rerun_tests":
        reason = "base_run.base_run_type rerun_tests trains nobody; leave it out"
    elif not parameters.rl.num_iterations:
        reason = "it is one of rl.num_iterations (got 0); set 1 or more"
    elif not parameters.imitating_agents:
        reason = "no agent is trained in iteration 0 (freeze_agent, update_schedule); leave it out"
    if reason is not None:
        raise ValueError(f"imitation.chats: {reason}")


def _check_malt(parameters: "HyperParameters") -> None:
    """Answers to one prompt can differ, and the possible pay of an episode is known."""
    common = parameters.protocol_common
    if common.reward_function is not None and common.reward_range is None:
        raise ValueError(
            "protocol_common.reward_range: trainer 'pure_text_malt' compares rewards with what can "
            "be earned, which it can't know of a reward_function (got none); set the least and the "
            "most that it pays, such as [-1, 1]"
        )
    for group in parameters.trainable_groups:
        for name in parameters.groups[group]:
            agent = parameters.model_agents[name]
            if agent.temperature == 0:
                raise ValueError(
                    f"agents.{name}.temperature: trainer 'pure_text_malt' compares answers to one "
                    "prompt, which are all equal with it (got 0); raise it, or leave it out"
                )
            # Refused here, as a provider would refuse the job only after the episodes are paid for.
            for setting in OWN_DPO_SETTINGS:
                value = getattr(agent, setting)
                service = agent.provider.training
                if value and service is not None and not service.takes_setting(setting):
                    raise ValueError(
                        f"agents.{name}.{setting}: {agent.model_provider} has no such setting "
                        f"(got {value}); leave it out, or set model_provider: SelfHosted"
                    )


def _check_grpo(parameters: "HyperParameters") -> None:
    """Refuse policy gradient without the sampler's tokens, temperature 1 or whole groups."""
    if parameters.text_rl.fine_tune_on_all_previous_rollouts:
        raise ValueError(
            "text_rl.fine_tune_on_all_previous_rollouts: trainer 'pure_text_grpo' trains on what "
            "the models of the iteration have played; set it to false"
        )
    settings = parameters.pure_text_grpo
    if settings.group_size == 1 and settings.baseline != "role":
        raise ValueError(
            "pure_text_grpo.group_size is 1, so an episode has none to be compared with; set it to "
            "2 or more, or baseline: role"
        )
    count = parameters.rollouts_per_iteration
    if count is not None and count % settings.group_size:
        raise ValueError(
            f"pure_text_grpo.group_size ({settings.group_size}) must divide the number of episodes "
            f"in an iteration ({count}, see rl.rollouts_per_iteration)"
        )
    for group in parameters.trainable_groups:
        for name in parameters.groups[group]:
            agent = parameters.model_agents[name]
            if agent.train_reasoning == "keep":
                raise ValueError(
                    f"agents.{name}.train_reasoning: trainer 'pure_text_grpo' trains on the tokens "
                    "as they were generated, thoughts included (got keep); leave it out"
                )
            if agent.train_hints == "keep":
                raise ValueError(
                    f"agents.{name}.train_hints: trainer 'pure_text_grpo' trains on the tokens as "
                    "they were generated, after hints too (got keep); leave it out"
                )
            if agent.fine_tune_from_scratch:
                raise ValueError(
                    f"agents.{name}.fine_tune_from_scratch: trainer 'pure_text_grpo' improves the "
                    "model that has played, and can't go back to the base model; set it to false"
                )
            if agent.guided_decoding:
                raise ValueError(
                    f"agents.{name}.guided_decoding: trainer 'pure_text_grpo' trains on what the "
                    "model itself chose, and a guide chooses with it (got true); set false, "
                    f"agents.{name}.freeze_agent: true or another trainer"
                )
            for setting in ("temperature", "top_p", "repetition_penalty"):
                if getattr(agent, setting) not in (None, 1.0):
                    raise ValueError(
                        f"agents.{name}.{setting}: trainer 'pure_text_grpo' needs answers that are "
                        f"sampled as the model is, without it (got {getattr(agent, setting)}); "
                        "leave it out"
                    )
