"""Every setting of a run, as pydantic models. Importing this loads no torch, prefect or openai.

hyper_parameters  `HyperParameters`, all settings, and the checks across them
agents            one agent: model, sampling, training
game              protocol, rewards, rounds, dataset, prompts
training          the loop: iterations, selection, rollouts, jobs, server, prices
hosting           where an agent's model is served, and what there is room for
attack            another run whose verifier is attacked
budget            the most that a run may spend
opponents         whether agents also meet models of earlier iterations
load              YAML and ``a.b=c`` overrides, with errors for people (unknown: what was meant)
"""

from nip_core.parameters.agents import (
    AgentsParameters,
    CodeValidationAgentParameters,
    LrFactors,
    PureTextAgentParameters,
    RandomAgentParameters,
)
from nip_core.parameters.attack import AttackParameters
from nip_core.parameters.base_run import BaseRunParameters
from nip_core.parameters.budget import BudgetParameters
from nip_core.parameters.game import (
    CodeValidationParameters,
    CommonProtocolParameters,
    DatasetParameters,
    DebateProtocolParameters,
    MerlinArthurProtocolParameters,
    MnipProtocolParameters,
    NipProtocolParameters,
    RefereedProtocolParameters,
    ZkProtocolParameters,
)
from nip_core.parameters.hyper_parameters import DATA_NEUTRAL, HyperParameters, Method
from nip_core.parameters.load import load_parameters
from nip_core.parameters.loop_settings import (
    CurriculumParameters,
    FineTuningParameters,
    LmServerParameters,
    Price,
    PromotionParameters,
    PureTextEiParameters,
    PureTextGrpoParameters,
    PureTextMaltParameters,
    RlTrainerParameters,
    RolloutParameters,
    TextRlParameters,
)
from nip_core.parameters.opponents import OpponentsParameters
from nip_core.parameters.update_schedule import (
    AgentUpdateSchedule,
    AlternatingPeriodicUpdateSchedule,
    ConstantUpdateSchedule,
    ContiguousPeriodicUpdateSchedule,
)

__all__ = [
    "DATA_NEUTRAL",
    "AgentUpdateSchedule",
    "AgentsParameters",
    "AlternatingPeriodicUpdateSchedule",
    "AttackParameters",
    "BaseRunParameters",
    "BudgetParameters",
    "CodeValidationAgentParameters",
    "CodeValidationParameters",
    "CommonProtocolParameters",
    "ConstantUpdateSchedule",
    "ContiguousPeriodicUpdateSchedule",
    "CurriculumParameters",
    "DatasetParameters",
    "DebateProtocolParameters",
    "FineTuningParameters",
    "HyperParameters",
    "LmServerParameters",
    "LrFactors",
    "MerlinArthurProtocolParameters",
    "Method",
    "MnipProtocolParameters",
    "NipProtocolParameters",
    "OpponentsParameters",
    "Price",
    "PromotionParameters",
    "PureTextAgentParameters",
    "PureTextEiParameters",
    "PureTextGrpoParameters",
    "PureTextMaltParameters",
    "RandomAgentParameters",
    "RefereedProtocolParameters",
    "RlTrainerParameters",
    "RolloutParameters",
    "TextRlParameters",
    "ZkProtocolParameters",
    "load_parameters",
]
