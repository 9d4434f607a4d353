"""Plain TRL: LoRA on the answers of conversations, in a process of its own.

    python benchmarks/beside/trl_job.py '{"model": ..., "data": ..., "settings": {...}}'

Prints tokens of the data, seconds of `trainer.train()`, and the loss of the last step, as JSON. The
data has a prompt and a completion in each row, of which TRL learns the completion, as ours does the
assistant's message.
"""

import json
import sys
import time
from typing import Any


def train(model: str, data: str, output: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train as TRL's documentation has it, and save the adapter."""
    from datasets import load_dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=output,
            num_train_epochs=settings["n_epochs"],
            per_device_train_batch_size=settings["batch_size"],
            learning_rate=settings["learning_rate"],
            lr_scheduler_type=settings["lr_scheduler"],
            warmup_steps=settings["warmup_ratio"],
            weight_decay=settings["weight_decay"],
            max_grad_norm=settings["max_grad_norm"],
            optim="adamw_torch",
            seed=0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            completion_only_loss=True,
            max_length=None,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=load_dataset("json", data_files=data, split="train"),
        peft_config=LoraConfig(
            r=settings["lora_rank"],
            lora_alpha=settings["lora_alpha"],
            lora_dropout=settings["lora_dropout"],
            target_modules=settings["lora_target_modules"],
            task_type="CAUSAL_LM",
        ),
    )
    tokens = sum(len(row) for row in trainer.train_dataset["input_ids"])
    began = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - began
    trainer.save_model(output)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "tokens": tokens * settings["n_epochs"],
        "train_s": round(seconds, 3),
        "steps": trainer.state.global_step,
        "final_loss": losses[-1],
        "trainable_parameters": sum(
            p.numel() for p in trainer.model.parameters() if p.requires_grad
        ),
    }


if __name__ == "__main__":
    print(json.dumps(train(**json.loads(sys.argv[1]))))
