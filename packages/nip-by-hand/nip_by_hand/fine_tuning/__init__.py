"""Fine-tuning by hand: trainer adapters, which train on trajectories that another program collects.

interface       TrainerAdapter and its data models, with the names of NVIDIA's NeMo Agent Toolkit
openai_adapter  OpenAITrainerAdapter, for servers that speak OpenAI's protocol; its settings are in
                openai_adapter_config
art_adapter     ARTTrainerAdapter, over OpenPipe ART; needs that package. Its settings and its
                parts are in the room art
nat_plugin      the same for NeMo Agent Toolkit's own command, which imports it
conversion      from submitted trajectories to the rows of a training method
progress_log    the log of `log_progress`

submissions     the jobs of a program without a run, each recorded and created once

The adapters know the ledger by way of `submissions`; nothing here knows a run, Prefect or a trainer
of `nip_core.trainers`. Importing this package loads nothing of it: an
exported name is imported on demand, so that neither `openai` nor `art` is loaded in vain.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_by_hand.fine_tuning.art.art_adapter_config import (
        ARTBackendConfig,
        ARTTrainerAdapterConfig,
    )
    from nip_by_hand.fine_tuning.art_adapter import ARTTrainerAdapter as ARTTrainerAdapter
    from nip_by_hand.fine_tuning.interface import (
        CurriculumLearningConfig,
        DPOItem,
        EpisodeItem,
        EpisodeItemRole,
        FinetuneConfig,
        FinetuneRunConfig,
        OpenAIMessage,
        RewardFunctionConfig,
        TrainerAdapter,
        TrainerAdapterConfig,
        TrainerConfig,
        TrainingJobRef,
        TrainingJobStatus,
        TrainingStatusEnum,
        Trajectory,
        TrajectoryBuilderConfig,
        TrajectoryCollection,
        UnhealthyError,
    )
    from nip_by_hand.fine_tuning.openai_adapter import OpenAITrainerAdapter
    from nip_by_hand.fine_tuning.openai_adapter_config import OpenAITrainerAdapterConfig
    from nip_by_hand.fine_tuning.submissions import LiveSubmission

__all__ = [  # without ARTTrainerAdapter, so that * can be imported where there is no ART
    "ARTBackendConfig",
    "ARTTrainerAdapterConfig",
    "CurriculumLearningConfig",
    "DPOItem",
    "EpisodeItem",
    "EpisodeItemRole",
    "FinetuneConfig",
    "FinetuneRunConfig",
    "LiveSubmission",
    "OpenAIMessage",
    "OpenAITrainerAdapter",
    "OpenAITrainerAdapterConfig",
    "RewardFunctionConfig",
    "TrainerAdapter",
    "TrainerAdapterConfig",
    "TrainerConfig",
    "TrainingJobRef",
    "TrainingJobStatus",
    "TrainingStatusEnum",
    "Trajectory",
    "TrajectoryBuilderConfig",
    "TrajectoryCollection",
    "UnhealthyError",
]

_ELSEWHERE = {
    "ARTBackendConfig": "nip_by_hand.fine_tuning.art.art_adapter_config",
    "ARTTrainerAdapter": "art_adapter",
    "ARTTrainerAdapterConfig": "nip_by_hand.fine_tuning.art.art_adapter_config",
    "LiveSubmission": "nip_by_hand.fine_tuning.submissions",
    "OpenAITrainerAdapter": "openai_adapter",
    "OpenAITrainerAdapterConfig": "openai_adapter_config",
}
"""Modules of the names that are not in `interface`, in this package or by their whole name."""


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _ELSEWHERE.get(name, "interface")
    home = module if "." in module else f"{__name__}.{module}"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ELSEWHERE})
