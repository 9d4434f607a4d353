"""Checks of agents that need more than one agent's settings. Each raises ValueError.

check_groups         agents that share a model agree on its settings
check_agents         the settings of one agent fit together and to the rest
check_schedules      agents that alternate do so in step
check_log_probs      who is compared by log-probabilities has some
check_attack         an attack attacks another run, with provers that have a model
check_tool           the scenario has the tool that the settings allow
check_budget_prices  a cap in dollars has all prices that it needs
find_attackers       the provers that attack
check_scripted       an agent with a script is a prover that is not trained
list_scripted        the provers that have their messages from a script
"""

from typing import TYPE_CHECKING

from nip_core.parameters.basis.update_schedule import AlternatingPeriodicUpdateSchedule
from nip_core.parameters.blocks.agents import OWN_DPO_SETTINGS, PureTextAgentParameters
from nip_core.parameters.derived.hosting import find_host, takes_turns
from nip_core.parameters.derived.prices import find_missing_prices, write_price_lines
from nip_core.parameters.services.dialects import check_dialect, find_dialect
from nip_core.protocols import ACCEPT, make_protocol
from nip_core.protocols.zero_knowledge import EXTRA_AGENTS
from nip_core.scenarios import Scenario, make_scenario
from nip_core.scenarios.scripts import check_script_named

if TYPE_CHECKING:
    from nip_core.parameters.hyper_parameters import HyperParameters

GROUP_SETTINGS = (
    "model_provider",
    "model_name",
    "base_url",
    "api_dialect",
    "served_as",
    "language_model_server_scheme_host",
    "language_model_server_port",
    "vllm_server_port",
    "use_dummy_api",
    "load_checkpoint_and_parameters",
    "checkpoint_run_id",
    "checkpoint_version",
    "published_adapter",
    "fine_tune_from_scratch",
    "freeze_agent",
    "quantization",
    "num_epochs",
    "dpo_beta",
    *OWN_DPO_SETTINGS,
    "use_lora",
    "lora_rank",
    "lora_alpha",
    "lora_alpha_scale",
    "lora_dropout",
    "stack_lora_adapters",
    "per_device_train_batch_size",
)
"""What the agents of a shared model group must agree on: all that concerns their one model. How
they are sampled, their prompts and when they are trained may differ."""

_SUFFIX_LENGTH = 64  # of a job, as fine-tuning APIs take it


def check_tool(parameters: "HyperParameters", scenario: Scenario) -> None:
    """Refuse a tool without one in the scenario, and in zero-knowledge games."""
    if not parameters.tool.per_turn:
        return
    if scenario.tool is None:
        raise ValueError(
            f"tool.per_turn: scenario {parameters.scenario} has no tool; leave the block tool out"
        )
    if parameters.protocol_common.zero_knowledge:
        raise ValueError(
            "tool.per_turn: not in zero-knowledge games, whose simulator can use no tool; leave "
            "the block tool out"
        )
    verifier = parameters.prompted_agents.get("verifier")
    if verifier is None:
        raise ValueError("tool.per_turn: a random verifier calls none; leave the block tool out")
    if verifier.guided_decoding:
        raise ValueError(
            "tool.per_turn: a guided verifier can call no tool; set "
            "agents.verifier.guided_decoding to false"
        )
    if parameters.tool.call == "native" and not verifier.freeze_agent:
        raise ValueError(
            "tool.call: a verifier that is trained calls by a line of its text (got native), as "
            "examples have no other form; set tool.call: line, or agents.verifier.freeze_agent: "
            "true"
        )


def check_groups(parameters: "HyperParameters") -> None:
    """Refuse agents of one model with different settings for it, and unusable names of groups."""
    for group, names in parameters.groups.items():
        suffix = f"{parameters.run_name}-0000-{group}"
        if len(suffix) > _SUFFIX_LENGTH:
            raise ValueError(
                f"run_name: jobs are named like {suffix!r}, which has {len(suffix)} of at most "
                f"{_SUFFIX_LENGTH} characters; shorten run_name or the name of the shared model "
                "group"
            )
        first = parameters.model_agents[names[0]]
        for name in names[1:]:
            # The addresses also differ where one agent has set what is the default.
            for setting in (*GROUP_SETTINGS, "set_addresses"):
                mine = getattr(first, setting)
                theirs = getattr(parameters.model_agents[name], setting)
                if mine != theirs:
                    raise ValueError(
                        f"agents.{name}.{setting} is {theirs!r} but agents.{names[0]}.{setting} "
                        f"is {mine!r}; both share the model group {group!r} and must agree"
                    )


def check_agents(parameters: "HyperParameters") -> None:
    """Every agent's provider, address, weights and checkpoint fit together."""
    quantized: dict[str, str] = {}
    for name, agent in parameters.model_agents.items():
        _check_provider(f"agents.{name}", agent)
        _check_address(f"agents.{name}", agent, parameters)
        _check_checkpoint(f"agents.{name}", agent, parameters)
        _check_published(f"agents.{name}", agent, parameters)
        _check_quantization(f"agents.{name}", agent, parameters)
        _check_full_training(f"agents.{name}", agent, parameters)
        if agent.provider.names_weights:
            quantization = quantized.setdefault(agent.model_name, agent.quantization)
            if quantization != agent.quantization:
                raise ValueError(
                    f"agents.{name}.quantization: another agent uses {agent.model_name!r} with "
                    f"{quantization!r}, and one engine serves a model one way"
                )
        if agent.stack_lora_adapters and agent.fine_tune_from_scratch:
            raise ValueError(
                f"agents.{name}.stack_lora_adapters: there is nothing to stack upon with "
                "fine_tune_from_scratch: true; set that to false"
            )


def check_log_probs(parameters: "HyperParameters") -> None:
    """Refuse to compare tokens of agents with an engine that gives no log-probabilities."""
    settings = parameters.zk_protocol
    if not parameters.protocol_common.zero_knowledge or settings.similarity != "log_probs":
        return
    for name in EXTRA_AGENTS:
        agent = parameters.model_agents.get(name)
        if agent is None:
            continue  # a random one is refused by the protocol
        if not find_host(parameters, agent).gives_logprobs:
            raise ValueError(
                f"zk_protocol.similarity: agents.{name} plays with the deterministic engine, which "
                "gives no log-probabilities; use text, or a model"
            )
        if not find_dialect(agent).takes_logprobs:
            raise ValueError(
                f"zk_protocol.similarity: the API of agents.{name} gives no log-probabilities; use "
                "text"
            )


def check_attack(parameters: "HyperParameters") -> None:
    """An attack has a verifier to attack, and attacking provers."""
    attack = parameters.attack
    if attack.run is None:
        return
    if attack.run == parameters.run_name:
        raise ValueError("attack.run is this run itself; give the attack a name of its own")
    if parameters.base_run.base_run_type != "none" or any(
        agent.load_checkpoint_and_parameters for agent in parameters.model_agents.values()
    ):
        raise ValueError(
            "attack.run: the models are those of the attacked run; leave out base_run and "
            "load_checkpoint_and_parameters"
        )
    protocol = make_protocol(parameters)
    if "verifier" not in parameters.model_agents:
        raise ValueError(
            "attack.run: agents.verifier has no model (is_random), so there is nothing to attack"
        )
    if not protocol.provers:
        raise ValueError(
            f"attack.run: protocol {protocol.name!r} has no prover that could attack the verifier; "
            "attack a run of a protocol that has one"
        )
    if not find_attackers(parameters):
        raise ValueError(
            f"attack.run: protocol {protocol.name!r} has no prover with a model that argues for "
            "acceptance"
        )
    attack.way.check_run(parameters)
    for setting in ("randomize_prover_stance", "shared_reward"):
        if getattr(parameters.protocol_common, setting):
            raise ValueError(
                f"protocol_common.{setting}: provers that attack argue for acceptance and are paid "
                "for it; set it to false"
            )
    if parameters.protocol_common.reward_function is not None:
        raise ValueError(
            "protocol_common.reward_function: provers that attack argue for acceptance and are "
            "paid for it; leave it out"
        )
    if make_scenario(parameters).labels_in_play:
        raise ValueError(
            f"attack.run: {parameters.scenario} has its labels from play, so it is not known "
            "beforehand which problems are wrong"
        )


def check_budget_prices(parameters: "HyperParameters") -> None:
    """Refuse a cap in dollars where a paid model has no price."""
    models = find_missing_prices(parameters) if parameters.budget.usd is not None else ()
    if models:
        prices = ", ".join(line.strip() for line in write_price_lines(parameters))
        raise ValueError(
            f"budget.usd: what {', '.join(models)} costs is not known; add, with US dollars per "
            f"million tokens, prices: {{{prices}}}, or "
            "cap tokens with budget.tokens"
        )


def find_attackers(parameters: "HyperParameters") -> tuple[str, ...]:
    """List the provers an attack chooses messages for: with a model, and arguing for acceptance."""
    protocol = make_protocol(parameters)
    return tuple(
        agent
        for agent in protocol.provers
        if not parameters.agents[agent].is_random and protocol.stance(agent, None) == ACCEPT
    )


def list_scripted(parameters: "HyperParameters") -> tuple[str, ...]:
    """List the provers whose messages a script writes, by its attack or by their own settings."""
    attack = parameters.attack
    attackers = find_attackers(parameters) if attack.run and attack.way.script else ()
    agents = parameters.prompted_agents.items()
    return tuple(n for n, agent in agents if n in attackers or agent.script is not None)


def check_scripted(parameters: "HyperParameters") -> None:
    """Refuse scripts that are not there, and for agents that are no provers, train or attack."""
    protocol = make_protocol(parameters)
    for name, agent in parameters.prompted_agents.items():
        setting = f"agents.{name}.script"
        if agent.script is None:
            continue
        if name not in protocol.provers:
            raise ValueError(
                f"{setting}: a script writes messages of provers alone (got {agent.script!r}), "
                f"which are {', '.join(protocol.provers) or 'none'} here; leave it out"
            )
        if not agent.freeze_agent:
            raise ValueError(
                f"{setting}: a script is not trained (got {agent.script!r}); set "
                f"agents.{name}.freeze_agent: true"
            )
        if parameters.target_run is not None and name in find_attackers(parameters):
            raise ValueError(
                f"{setting}: the attack says what this prover says (got {agent.script!r}); leave "
                "it out, or attack by script"
            )
        check_script_named(make_scenario(parameters), agent.script, setting)


def check_schedules(parameters: "HyperParameters") -> None:
    """Refuse alternating agents with different periods, or different parts of them."""
    schedules: dict[tuple[int, int], str] = {}
    for name, agent in parameters.model_agents.items():
        schedule = agent.update_schedule
        if isinstance(schedule, AlternatingPeriodicUpdateSchedule):
            schedules.setdefault((schedule.period, schedule.first_agent_num_iterations), name)
    if len(schedules) > 1:
        (mine, first), (theirs, second) = list(schedules.items())[:2]
        raise ValueError(
            f"agents.{second}.update_schedule: alternates with period and first part {theirs}, but "
            f"agents.{first} with {mine}; agents that alternate must agree on both"
        )


def _check_provider(place: str, agent: PureTextAgentParameters) -> None:
    if agent.use_dummy_api:
        return
    check_dialect(place, agent)
    provider = agent.provider
    if provider.training is None and not agent.freeze_agent:
        raise ValueError(
            f"{place}: {agent.model_provider} can't fine-tune; set freeze_agent: true or another "
            "model_provider"
        )
    refuses = not provider.takes_repetition_penalty and agent.base_url is None
    if refuses and agent.repetition_penalty is not None:
        raise ValueError(
            f"{place}.repetition_penalty is not known to the {agent.model_provider} API; unset it, "
            "or name another API with base_url"
        )
    is_stacked = provider.training is not None and provider.training.takes_setting("start_from")
    if agent.stack_lora_adapters and not is_stacked:
        raise ValueError(
            f"{place}.stack_lora_adapters needs model_provider: SelfHosted (got "
            f"{agent.model_provider})"
        )


def _check_address(
    place: str, agent: PureTextAgentParameters, parameters: "HyperParameters"
) -> None:
    """At most one setting says where the agent's model is."""
    if agent.use_dummy_api:
        setting = "base_url" if agent.base_url is not None else "language_model_server_*"
        if agent.base_url is not None or agent.moves_server:
            raise ValueError(f"{place}: use_dummy_api calls no API, so {setting} can't be set")
        return
    if not agent.provider.is_lm_server:
        if agent.moves_server:
            raise ValueError(
                f"{place}: language_model_server_* and vllm_server_port need model_provider: "
                f"SelfHosted (got {agent.model_provider}); for another API set base_url"
            )
        if agent.base_url is None and agent.provider.address is None:
            raise ValueError(
                f"{place}.base_url is missing; {agent.model_provider} has no address of its own"
            )
        return
    if agent.control_url is None:
        return
    if agent.base_url is not None:
        raise ValueError(
            f"{place}: base_url and language_model_server_* both name a server; set one of them"
        )
    if parameters.lm_server.url is not None:
        raise ValueError(
            f"{place}: lm_server.url and language_model_server_* both name a server; set one of "
            "them"
        )


def _check_checkpoint(
    place: str, agent: PureTextAgentParameters, parameters: "HyperParameters"
) -> None:
    if not agent.load_checkpoint_and_parameters:
        if agent.checkpoint_run_id is not None or agent.checkpoint_version != "latest":
            raise ValueError(
                f"{place}: checkpoint_run_id and checkpoint_version have no effect without "
                "load_checkpoint_and_parameters: true"
            )
        return
    if agent.checkpoint_run_id is None:
        raise ValueError(
            f"{place}.checkpoint_run_id is missing; load_checkpoint_and_parameters needs the name "
            "of a run"
        )
    if agent.checkpoint_run_id == parameters.run_name:
        raise ValueError(
            f"{place}.checkpoint_run_id is this run itself; name another run, or resume this one"
        )
    if agent.use_dummy_api:
        raise ValueError(f"{place}: use_dummy_api plays without a model, so none can be loaded")


def _check_published(
    place: str, agent: PureTextAgentParameters, parameters: "HyperParameters"
) -> None:
    """An adapter of the Hub is on the run's own server, and the only one to begin with."""
    if agent.published_adapter is None:
        return
    reason, host = None, find_host(parameters, agent)
    if not host.takes_adapters:
        reason = (
            "is served by the run's own server, and this agent's model is elsewhere; set "
            "model_provider: SelfHosted, and leave out base_url and lm_server.url"
        )
    elif not host.loads_weights:
        reason = "needs an engine with a model; set lm_server.engine: embedded or vllm"
    elif agent.load_checkpoint_and_parameters or parameters.base_run.base_run_type != "none":
        reason = (
            "is what the agent begins with; leave out base_run and load_checkpoint_and_parameters"
        )
    elif parameters.attack.run is not None:
        reason = (
            "can't be used in an attack, whose models are those of the attacked run; leave it out"
        )
    if reason is not None:
        raise ValueError(f"{place}.published_adapter: {agent.published_adapter} {reason}")


def _check_quantization(
    place: str, agent: PureTextAgentParameters, parameters: "HyperParameters"
) -> None:
    if agent.quantization == "none" or agent.use_dummy_api:
        return
    server = parameters.lm_server
    if not find_host(parameters, agent).is_launched:
        raise ValueError(
            f"{place}.quantization is for the run's own server; another one is told how to hold "
            "its weights where it is started"
        )
    if not server.capabilities.quantizes:
        raise ValueError(f"{place}.quantization needs lm_server.engine: vllm (got {server.engine})")
    if server.options.get("quantization", agent.quantization) != agent.quantization:
        raise ValueError(
            f"{place}.quantization is {agent.quantization!r} but lm_server.options.quantization is "
            f"{server.options['quantization']!r}; set one of them"
        )


def _check_full_training(
    place: str, agent: PureTextAgentParameters, parameters: "HyperParameters"
) -> None:
    """Refuse full-weight training where no server could serve its base models."""
    if agent.use_lora or not agent.provider.names_weights:
        return
    if agent.stack_lora_adapters:
        raise ValueError(
            f"{place}.stack_lora_adapters: with use_lora: false every weight is trained and there "
            "is no adapter; set one of them"
        )
    if agent.quantization != "none":
        raise ValueError(
            f"{place}.quantization: with use_lora: false every weight is trained, and quantized "
            "ones can't be; set one of them"
        )
    groups = [parameters.group_parameters(group) for group in parameters.groups]
    playing = [each for each in groups if each.model_name == agent.model_name]
    # Groups play at the same time. Old and new models of one group, for the gate, take turns.
    if len(playing) > 1 and not agent.freeze_agent and takes_turns(parameters, agent):
        raise ValueError(
            f"{place}.use_lora: false makes a new base model, which takes the place of the one "
            f"before, and another group plays with {agent.model_name!r}; set use_lora: true, or "
            "use the run's own server with lm_server.engine: embedded, which serves several beside "
            "each other"
        )
