"""How large everything is: on a GPU, and in a rehearsal on a CPU.

Shape    a Llama's dimensions, as the models that it is named after have them
Sizes    all that the pieces measure
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

FLEX = "sft, uneven, packed (flex)"
PIECE_S = 570.0
"""A piece is ended after this; ten minutes with its start."""


@dataclass(frozen=True)
class Shape:
    """The dimensions of a Llama. `bar_s`: an iteration of 200 episodes and two jobs, warm."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool
    bar_s: float


@dataclass(frozen=True)
class Sizes:
    """What is measured. Tokens of texts are near what they say, not exact."""

    shapes: tuple[Shape, ...] = (
        # Llama 3.2 3B and Llama 3.1 8B, by their config.json.
        Shape("3b", 3072, 8192, 28, 24, 8, tied=True, bar_s=300.0),
        Shape("8b", 4096, 14_336, 32, 32, 8, tied=False, bar_s=480.0),
    )
    largest: str = "8b"
    """The shape of what is measured over one shape alone, and says nothing of which."""
    vocabulary: int = 128_256
    context: int = 16_384
    # Training: transcripts of a game of nine rounds.
    steps: int = 8
    counted_after: int = 3
    """Steps that compile and warm up, which speeds leave out."""
    batch_size: int = 8
    cases: tuple[str, ...] | None = None
    """Of `jobs.CASES`; None: all."""
    conversation_tokens: int = 2750
    lora_rank: int = 32
    # Chats.
    in_flight: tuple[int, ...] = (64, 128, 200)
    chat_rounds: int = 3
    requests_per_slot: int = 2
    chat_tokens: int = 128
    adapters: tuple[int, ...] = (1, 16, 64)
    """So many are named in turn, in chats of the largest number in flight."""
    # The proof.
    scorings: int = 200
    loaded_in_flight: int = 128
    # An iteration of the paper's size.
    episodes: int = 200
    rounds: int = 9
    prompt_tokens: int = 1400
    answer_tokens: int = 150
    said_tokens: int = 50
    """What others say to an agent in a round, beside its own answer."""
    epochs: int = 3
    served_context: int = 8192
    stays_beside: float = 0.4
    """The part of the card that an engine takes which stays while its card trains."""
    jobs_steps: int = 20
    """Steps of a small job that makes an adapter."""
    killed_steps: int = 300
    """About so many steps has the job whose training is killed."""
    head: tuple[str, ...] = ("--tokens=4096", "--batch=4")
    quickstart: tuple[str, ...] = ()
    """Settings of the quick start that differ from its configuration."""
    smollm2: tuple[str, ...] = ()
    """Those of SmolLM2's run."""
    options: dict[str, object] = field(default_factory=dict)
    """More options of vLLM."""


_TINY = {"hidden": 128, "intermediate": 384, "layers": 4, "heads": 4, "kv_heads": 4}
"""The bundled tiny model's."""

GPU = Sizes()
REHEARSAL = Sizes(
    shapes=tuple(Shape(s.name, **_TINY, tied=s.tied, bar_s=s.bar_s) for s in GPU.shapes),
    vocabulary=4096,
    context=1024,
    steps=3,
    counted_after=1,
    batch_size=4,
    # Each method once, packing, and what only a GPU can.
    cases=("sft", "dpo", "trajectories, checkpointing", "sft, packed (sdpa)", FLEX),
    conversation_tokens=120,
    lora_rank=8,
    in_flight=(4, 8),
    chat_rounds=1,
    requests_per_slot=1,
    chat_tokens=8,
    adapters=(1, 3),
    scorings=4,
    loaded_in_flight=4,
    episodes=6,
    rounds=3,
    prompt_tokens=80,
    answer_tokens=12,
    said_tokens=8,
    epochs=1,
    served_context=1024,
    jobs_steps=4,
    killed_steps=60,
    head=("--tokens=64", "--batch=1", "--vocabulary=4096"),
    quickstart=(
        "rl.num_iterations=1",
        "rl.rollouts_per_iteration=40",
        "dataset_options.max_test_size=10",
        "dataset_options.max_train_size=100",
        "agents.verifier.num_epochs=1",
    ),
    smollm2=(
        "rl.rollouts_per_iteration=8",
        "dataset_options.max_test_size=4",
        "agents.verifier.num_epochs=1",
    ),
    options={"enforce_eager": True, "max_num_seqs": 16, "start_timeout_s": 3000.0},
)

BRIEF = replace(
    GPU,
    steps=6,
    cases=("sft", "trajectories", "dpo", "sft, checkpointing", "sft, uneven", FLEX),
    in_flight=(64,),
    chat_rounds=1,
    requests_per_slot=1,
    adapters=(1, 16),
    scorings=20,
    loaded_in_flight=32,
    episodes=32,
    epochs=1,
    killed_steps=100,
    quickstart=(
        "rl.num_iterations=1",
        "rl.rollouts_per_iteration=100",
        "dataset_options.max_test_size=100",
        "agents.verifier.num_epochs=2",
    ),
    largest="3b",
)
"""A part of `GPU`, at the same lengths and over the smaller shape: minutes for most pieces."""


@dataclass(frozen=True)
class Session:
    """What every piece is told. `scratch` has models, adapters and states, and is kept."""

    sizes: Sizes
    scratch: Path
    rehearsal: bool
    seconds: float = PIECE_S
    """The most that a piece may take."""

    @property
    def patience(self) -> float:
        """Factor of all time-outs, 1 on a GPU: a rehearsal may share two processors."""
        return 6.0 if self.rehearsal else 1.0

    @property
    def largest(self) -> Shape:
        """The shape of the pieces that measure one alone."""
        return self.shape(self.sizes.largest)

    def shape(self, name: str) -> Shape:
        """A shape by its name."""
        return next(shape for shape in self.sizes.shapes if shape.name == name)
