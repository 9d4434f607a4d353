"""The table of docs/howto/gpu.md: which model fits which card, and how long a run takes there.

Nothing of it was measured: it is arithmetic, with the assumptions below, which the page states too.
A row that somebody has measured is to replace its estimate, and to say so.

    python scripts/gpu_table.py     # prints the table
"""

from dataclasses import dataclass

RANK = 32  # of LoRA, on all linear layers, as ei-paper-local has it
IN_FLIGHT, CONTEXT = 64, 4_000  # conversations at a time, and the tokens of one
PASS_TOKENS = 4_096  # that go through the model at a time in training, with gradient checkpointing
OTHER_GB = 2.0  # context of CUDA, graphs, what is allocated in passing
# A run as step 3 of the page has it, by its dry run: tokens that are expected, and jobs.
PROMPT_TOKENS, GENERATED_TOKENS, TRAINED_TOKENS, JOBS = 11.5e6, 2.9e6, 16.7e6, 16
JOB_S = 45.0  # start, load, probe, sleep and wake of a job
SHARE = 0.35  # of a card's arithmetic, and of its memory's bandwidth, that is used


@dataclass(frozen=True)
class Model:
    """The shape of a model, as its config.json has it."""

    name: str
    parameters: float
    layers: int
    hidden: int
    feed_forward: int
    keys: int  # the width of a layer's keys, and of its values

    @property
    def lora_parameters(self) -> float:
        """Of all linear layers."""
        widths = 9 * self.hidden + 2 * self.keys + 3 * self.feed_forward
        return RANK * self.layers * widths

    @property
    def training_gb(self) -> float:
        """Weights in bfloat16; LoRA's, their gradients and Adam's two means in float32; a pass."""
        layer = 8 * self.feed_forward + 20 * self.hidden  # bytes that a layer keeps of a token
        kept = PASS_TOKENS * (self.layers * layer / 8 + layer)
        return (2 * self.parameters + 16 * self.lora_parameters + kept) / 1e9 + OTHER_GB

    @property
    def serving_gb(self) -> float:
        """Weights in bfloat16, two adapters, and keys and values of all conversations."""
        cache = IN_FLIGHT * CONTEXT * 4 * self.layers * self.keys
        return (2 * self.parameters + 2 * 4 * self.lora_parameters + cache) / 1e9 + OTHER_GB


@dataclass(frozen=True)
class Card:
    """A card as its maker describes it."""

    name: str
    memory_gb: float
    bandwidth: float  # bytes per second
    arithmetic: float  # operations per second, bfloat16, dense


MODELS = (
    Model("Qwen2.5-0.5B-Instruct", 0.49e9, 24, 896, 4864, 128),
    Model("Qwen2.5-1.5B-Instruct", 1.54e9, 28, 1536, 8960, 256),
    Model("Qwen2.5-3B-Instruct", 3.09e9, 36, 2048, 11008, 256),
    Model("Qwen2.5-7B-Instruct", 7.62e9, 28, 3584, 18944, 512),
    Model("Qwen2.5-14B-Instruct", 14.8e9, 48, 5120, 13824, 1024),
)
CARDS = (
    Card("L4, 24 GB", 24, 0.30e12, 121e12),
    Card("RTX 4090, 24 GB", 24, 1.01e12, 165e12),
    Card("A100, 40 GB", 40, 1.56e12, 312e12),
    Card("A100, 80 GB", 80, 2.04e12, 312e12),
    Card("H100, 80 GB", 80, 3.35e12, 989e12),
    Card("H200, 141 GB", 141, 4.8e12, 989e12),
)


def hours(model: Model, card: Card) -> float:
    """Reading prompts, writing answers, training with every forward pass twice, and jobs."""
    reading_s = 2 * model.parameters * PROMPT_TOKENS / (SHARE * card.arithmetic)
    step_s = 2 * model.parameters / (SHARE * card.bandwidth)
    training_s = 6 * model.parameters * TRAINED_TOKENS / (SHARE * card.arithmetic)
    answers_s = GENERATED_TOKENS / IN_FLIGHT * step_s
    return (reading_s + answers_s + training_s + JOBS * JOB_S) / 3600


def rows() -> list[str]:
    """For each model the smallest cards on which it fits, one of each memory."""
    lines = [
        "| model | memory, serving | memory, training | card | hours | |",
        "|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        needed = max(model.serving_gb, model.training_gb)
        fitting = [card for card in CARDS if 0.9 * card.memory_gb >= needed]
        for card in fitting[:3]:
            lines.append(
                f"| {model.name} | {model.serving_gb:.0f} GB | {model.training_gb:.0f} GB "
                f"| {card.name} | {hours(model, card):.1f} | *estimated* |"
            )
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
