"""Every setting of a run, as pydantic models. Importing this loads no torch, prefect or openai.

hyper_parameters  `HyperParameters`, all settings, and the checks across them
blocks            the blocks of settings: agents, the game, the loop, attacks, opponents, a budget
services          providers, and the dialects of their APIs
derived           answers that settings alone give: hosts, prices, names of models
basis             the base class of blocks, and values that several have
load              YAML and ``a.b=c`` overrides, with errors for people (unknown: suggestions)
"""

from nip_core.parameters.basis.update_schedule import (
    AgentUpdateSchedule,
    AlternatingPeriodicUpdateSchedule,
    ConstantUpdateSchedule,
    ContiguousPeriodicUpdateSchedule,
)
from nip_core.parameters.blocks.agents import (
    AgentsParameters,
    CodeValidationAgentParameters,
    LrFactors,
    PureTextAgentParameters,
    RandomAgentParameters,
)
from nip_core.parameters.blocks.attack import AttackParameters
from nip_core.parameters.blocks.base_run import BaseRunParameters
from nip_core.parameters.blocks.budget import BudgetParameters
from nip_core.parameters.blocks.game import (
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
from nip_core.parameters.blocks.loop_settings import (
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
from nip_core.parameters.blocks.opponents import OpponentsParameters
from nip_core.parameters.hyper_parameters import DATA_NEUTRAL, HyperParameters, Method
from nip_core.parameters.load import load_parameters
from nip_core.parameters.services.providers import Provider, TrainingService

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
    "Provider",
    "PureTextAgentParameters",
    "PureTextEiParameters",
    "PureTextGrpoParameters",
    "PureTextMaltParameters",
    "RandomAgentParameters",
    "RefereedProtocolParameters",
    "RlTrainerParameters",
    "RolloutParameters",
    "TextRlParameters",
    "TrainingService",
    "ZkProtocolParameters",
    "load_parameters",
]
