"""Supervised LoRA training of one job, in a process of its own.

``python -m nip_core.lm_server.training.sft --job-dir DIR`` reads ``DIR/job.json``, appends to
``DIR/events.jsonl`` (see `job`) and writes ``adapter_model.safetensors``, ``adapter_config.json``
and ``training_result.json`` into the job's output directory. Exit status 0 means that all three
are whole. TRL's SFTTrainer trains PEFT's LoRA on sequences that `encoding` made.

What is covered: the same job with the same seed, thread count and machine gives the same bytes,
so a training that was killed is run again from its beginning with the same result. A loss that is
not finite ends it at once. The process dies with its parent.
What is not: no checkpoints, so a kill costs the training done so far.
"""

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from nip_core.lm_server import chat_template, formats
from nip_core.lm_server.processes import die_with_parent_process
from nip_core.lm_server.training.encoding import EncodedExample, ExampleError, encode_example
from nip_core.lm_server.training.job import Events, TrainingError, TrainingJob, TrainingSettings

if TYPE_CHECKING:
    from trl import SFTConfig, SFTTrainer

RESULT_FILE = "training_result.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the job of ``--job-dir``. Returns the exit status: 1 after a clean refusal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--job-dir", type=Path, required=True)
    job_dir: Path = parser.parse_args(arguments).job_dir
    events = Events(job_dir / "events.jsonl")
    try:
        train(read_job(job_dir), events)
    except TrainingError as error:
        events.error(error)
        print(error, file=sys.stderr)
        return 1
    except Exception as error:
        traceback.print_exc()
        events.error(as_training_error(error))
        return 1
    finally:
        events.close()
    return 0


def read_job(job_dir: Path) -> TrainingJob:
    """Read ``job.json``. Raises TrainingError, naming the first setting that is wrong."""
    try:
        return TrainingJob.model_validate_json((job_dir / "job.json").read_bytes())
    except OSError as error:
        raise TrainingError(
            "job_unreadable", f"can't read {job_dir / 'job.json'}: {error}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"]))
        message = f"{param}: {first['msg']}, got {first.get('input')!r}"
        raise TrainingError("invalid_job", message, param) from None


def as_training_error(error: Exception) -> TrainingError:
    """The event for an exception that nobody foresaw."""
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return TrainingError("out_of_memory", f"the training ran out of memory: {error}")
    if isinstance(error, OSError) and error.errno == 28:  # ENOSPC
        return TrainingError("disk_full", f"the disk is full: {error}")
    return TrainingError("training_failed", f"{type(error).__name__}: {error}")


def train(job: TrainingJob, events: Events) -> None:
    """Do the whole job. Raises TrainingError where it can't be done."""
    started_s = time.monotonic()
    settings = job.hyperparameters
    tokenizer = _load_tokenizer(job)
    config = _load_config(job)
    stop_tokens = chat_template.stop_token_ids(tokenizer, _generation_config(job))
    context = chat_template.context_length(tokenizer, config)
    max_length = min(n for n in (settings.max_length, context, 2**31) if n)
    training = encode_file(job.training_file, tokenizer, stop_tokens, max_length, "training_file")
    validation = (
        encode_file(job.validation_file, tokenizer, stop_tokens, max_length, "validation_file")
        if job.validation_file
        else None
    )
    events.message(
        f"{len(training)} sequences, {sum(len(e.input_ids) for e in training)} tokens, "
        f"{sum(e.learned for e in training)} of them learned"
    )
    model = _load_model(job)
    trainer = build_trainer(job, model, tokenizer, training, validation, events)
    events.message(
        "effective arguments " + json.dumps(effective_arguments(trainer), sort_keys=True)
    )
    ready_s = time.monotonic()
    output = trainer.train()
    figures = {
        "final_loss": _last_loss(trainer),
        "mean_loss": output.training_loss,
        "validation_loss": trainer.evaluate()["eval_loss"] if validation else None,
        "steps": trainer.state.global_step,
        "tokens": settings.n_epochs * sum(len(e.input_ids) for e in training),
        "wall_s": round(time.monotonic() - started_s, 3),
        "startup_s": round(ready_s - started_s, 3),
        "trainable_parameters": sum(p.numel() for p in model_parameters(trainer)),
    }
    _check_finite(model_parameters(trainer))
    job.output_dir.mkdir(parents=True, exist_ok=True)
    trainer.model.save_pretrained(job.output_dir)
    (job.output_dir / "README.md").unlink(missing_ok=True)  # an empty model card
    (job.output_dir / RESULT_FILE).write_text(json.dumps(figures, indent=1) + "\n")


def encode_file(
    path: Path, tokenizer: Any, stop_tokens: frozenset[int], max_length: int, param: str
) -> list[EncodedExample]:
    """Every sequence of a JSONL file. Raises TrainingError, naming the line."""
    encoded: list[EncodedExample] = []
    try:
        lines = list(formats.read_jsonl(path))
        problems = formats.validate_supervised(lines, min_examples=1)
        if problems:
            message = formats.describe_problems(problems)
            raise TrainingError(problems[0].code, message, param)
        for line, example in lines:
            messages = [
                {**message, "content": formats.text_of(message["content"])}
                for message in example["messages"]
            ]
            encoded += encode_example(
                tokenizer, messages, stop_tokens=stop_tokens, max_length=max_length, line=line
            )
    except ExampleError as error:
        raise TrainingError(error.code, str(error), param) from error
    except (OSError, formats.JsonlError) as error:
        raise TrainingError("invalid_file", f"{path.name}: {error}", param) from error
    return encoded


def build_trainer(
    job: TrainingJob,
    model: Any,
    tokenizer: Any,
    training: Sequence[EncodedExample],
    validation: Sequence[EncodedExample] | None,
    events: Events,
) -> "SFTTrainer":
    """TRL's trainer over encoded sequences, with the LoRA adapter in place."""
    from transformers import PrinterCallback
    from trl import SFTTrainer

    from nip_core.lm_server.training.callback import make_callback

    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    trainer = SFTTrainer(
        model=_with_adapter(job, model),
        args=make_config(job),
        train_dataset=_dataset(training),
        eval_dataset=_dataset(validation) if validation else None,
        processing_class=tokenizer,
        callbacks=[make_callback(events)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def make_config(job: TrainingJob) -> "SFTConfig":
    """TRL's arguments for this job and this machine."""
    import torch
    from transformers import set_seed
    from trl import SFTConfig

    cuda = torch.cuda.is_available()
    settings = job.hyperparameters
    set_seed(job.seed)
    return SFTConfig(
        output_dir=str(job.output_dir),
        num_train_epochs=settings.n_epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.lr_scheduler,
        warmup_steps=settings.warmup_ratio,  # below 1 it is a share of all steps
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        seed=job.seed,
        data_seed=job.seed,
        max_length=None,  # longer examples were refused, none is ever cut
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        train_sampling_strategy="random",
        remove_unused_columns=True,
        use_cpu=not cuda,
        bf16=cuda,
        gradient_checkpointing=cuda,
        dataloader_num_workers=0,
        dataloader_pin_memory=cuda,
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would hide what must stop the training
        report_to=[],
        disable_tqdm=True,
    )


def effective_arguments(trainer: "SFTTrainer") -> dict[str, Any]:
    """The figures that training really uses, read back from the trainer and from PEFT."""
    args, lora = trainer.args, trainer.model.peft_config["default"]
    return {
        "learning_rate": args.learning_rate,
        "lr_scheduler": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "warmup_steps": args.warmup_steps,
        "weight_decay": args.weight_decay,
        "n_epochs": args.num_train_epochs,
        "batch_size": args.per_device_train_batch_size,
        "seed": args.seed,
        "lora_rank": lora.r,
        "lora_alpha": lora.lora_alpha,
        "lora_dropout": lora.lora_dropout,
        "lora_target_modules": sorted(lora.target_modules),
        "device": str(args.device),
        "bf16": args.bf16,
        "gradient_checkpointing": args.gradient_checkpointing,
    }


def model_parameters(trainer: "SFTTrainer") -> list[Any]:
    """The parameters that are trained."""
    return [p for p in trainer.model.parameters() if p.requires_grad]


def _dataset(examples: Sequence[EncodedExample]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "input_ids": [list(example.input_ids) for example in examples],
            "labels": [list(example.labels) for example in examples],
        }
    )


def _with_adapter(job: TrainingJob, model: Any) -> Any:
    from peft import LoraConfig, PeftModel, get_peft_model

    settings = job.hyperparameters
    if job.parent_adapter_path is not None:
        _check_parent(job.parent_adapter_path, settings)
        return PeftModel.from_pretrained(model, job.parent_adapter_path, is_trainable=True)
    from transformers import set_seed

    set_seed(job.seed)  # the adapter's initial values are drawn here
    return get_peft_model(
        model,
        LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            lora_dropout=settings.lora_dropout,
            target_modules=settings.lora_target_modules or "all-linear",
            bias="none",
            task_type="CAUSAL_LM",
        ),
    )


def _check_parent(path: Path, settings: TrainingSettings) -> None:
    """The parent's shape is the adapter's shape: settings that differ are refused, not ignored."""
    if not (path / "adapter_model.safetensors").is_file():
        raise TrainingError(
            "parent_adapter_unreadable", f"{path} has no adapter_model.safetensors", "model"
        )
    config = json.loads((path / "adapter_config.json").read_text())
    for name, key in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        asked, has = getattr(settings, name), config[key]
        if asked != has:
            raise TrainingError(
                "parent_adapter_differs",
                f"{name} is {asked}, but the adapter to continue from has {has}: give the same or "
                "start from the base",
                name,
            )


def _load_tokenizer(job: TrainingJob) -> Any:
    try:
        return chat_template.load_tokenizer(job.base_model_path)
    except (chat_template.ModelPathError, chat_template.ChatTemplateError) as error:
        raise TrainingError("base_model_unusable", str(error), "model") from error


def _load_config(job: TrainingJob) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(
        job.base_model_path, local_files_only=chat_template.offline(), trust_remote_code=False
    )


def _generation_config(job: TrainingJob) -> Any:
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(
            job.base_model_path, local_files_only=chat_template.offline()
        )
    except OSError:
        return None  # the file is optional


def _load_model(job: TrainingJob) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            job.base_model_path,
            dtype=torch.bfloat16 if torch.cuda.is_available() else torch.float32,
            local_files_only=chat_template.offline(),
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError) as error:
        raise TrainingError("base_model_unusable", str(error), "model") from error


def _last_loss(trainer: "SFTTrainer") -> float | None:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses[-1] if losses else None


def _check_finite(parameters: Sequence[Any]) -> None:
    if not all(math.isfinite(float(parameter.detach().sum())) for parameter in parameters):
        raise TrainingError(
            "loss_not_finite", "the trained weights are not finite", "learning_rate"
        )


if __name__ == "__main__":
    die_with_parent_process(os.getppid())
    sys.exit(main())
