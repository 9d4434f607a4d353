"""From a job's settings and the device to the keyword arguments of a trainer's configuration.

common_arguments      the arguments of every configuration of transformers and TRL
effective_arguments   the figures in use, read back from the trainer, for the events
choose_optimizer      the trainer's name of the optimizer

"auto" and None become bfloat16 and the fused optimizer on CUDA, float32 and the plain optimizer
elsewhere. A setting that the device can't have is refused by its name.
"""

from typing import Any

from nip_base.wire import EffectiveSettings
from nip_lm_server.training.job import TrainingJob
from nip_lm_server.training.model.device import (
    choose_device,
    choose_precision,
    processes_of_this_run,
    require_bitsandbytes,
)
from nip_lm_server.training.model.memory import PassPlan


def common_arguments(job: TrainingJob, plan: PassPlan) -> dict[str, Any]:
    """Keyword arguments for any subclass of transformers' TrainingArguments.

    They cover batch, schedule, seed, precision, optimizer, gradient checkpointing and logging.
    `checkpoints` writes the checkpoints, so the trainer's own saving is off. Raises TrainingError
    with the name of a setting that this machine can't have.
    """
    import torch

    settings = job.settings
    device = choose_device(job)
    precision = choose_precision(settings, device)
    # `batch_size` is the size of a step, which the processes share.
    per_process = settings.batch_size // processes_of_this_run(job)
    return {
        "output_dir": str(job.output_dir),
        "num_train_epochs": settings.n_epochs,
        "per_device_train_batch_size": per_process,
        "per_device_eval_batch_size": min(per_process, plan.evaluated_at_once),
        "gradient_accumulation_steps": 1,  # `micro_batches` splits steps
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.lr_scheduler,
        "warmup_steps": settings.warmup_ratio,  # below 1 it is a share of all steps
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "optim": choose_optimizer(settings, device),
        "seed": job.seed,
        "data_seed": job.seed,
        "train_sampling_strategy": "random",
        "use_cpu": device == "cpu",
        "bf16": precision == "bfloat16",
        "fp16": precision == "float16",
        "gradient_checkpointing": plan.gradient_checkpointing,
        "dataloader_num_workers": 0,  # rows are in memory, and processes cost seconds
        "dataloader_pin_memory": torch.cuda.is_available(),
        "ddp_find_unused_parameters": False,
        "save_strategy": "no",  # `checkpoints` saves, without pickle
        "eval_strategy": "no",  # `runner` evaluates, once
        "logging_strategy": "steps",
        "logging_steps": 1,  # a loss that breaks is seen at once
        "logging_nan_inf_filter": False,  # it would hide what must stop the training
        "report_to": [],
        "disable_tqdm": True,
    }


def choose_optimizer(settings: EffectiveSettings, device: str) -> str:
    """Return the trainer's name of the optimizer. Raises TrainingError if it can't be used here."""
    if settings.optimizer == "auto":
        return "adamw_torch_fused" if device == "cuda" else "adamw_torch"
    if settings.optimizer.endswith("8bit"):
        require_bitsandbytes(device, "optimizer", settings.optimizer)
    return settings.optimizer


def effective_arguments(trainer: Any) -> dict[str, Any]:
    """Read the figures in use back from the trainer and from PEFT."""
    args = trainer.args
    used = {
        "learning_rate": args.learning_rate,
        "lr_scheduler": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "warmup_steps": args.warmup_steps,
        "weight_decay": args.weight_decay,
        "max_grad_norm": args.max_grad_norm,
        "n_epochs": args.num_train_epochs,
        "batch_size": args.per_device_train_batch_size * args.world_size,
        "processes": args.world_size,
        "seed": args.seed,
        "device": str(args.device),
        "optimizer": str(getattr(args.optim, "value", args.optim)),
        "bf16": args.bf16,
        "fp16": args.fp16,
        "gradient_checkpointing": args.gradient_checkpointing,
        "tokens_per_pass": trainer.tokens_per_pass,
        "packing": bool(getattr(args, "padding_free", False)),
        "beta": getattr(args, "beta", None),
        "attention": trainer.model.config._attn_implementation,
        "model_dtype": str(trainer.model.dtype).removeprefix("torch."),
        "trainable_parameters": sum(
            p.numel() for p in trainer.model.parameters() if p.requires_grad
        ),
    }
    lora = getattr(trainer.model, "peft_config", {}).get("default")
    if lora is not None:
        used.update(
            lora_rank=lora.r,
            lora_alpha=lora.lora_alpha,
            lora_dropout=lora.lora_dropout,
            lora_target_modules=sorted(lora.target_modules),
        )
    return used
