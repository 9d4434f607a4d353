"""Settings of the loop: iterations, selection of training data, jobs, rollouts, server."""

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from nip_core.parameters.base import Parameters

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class RlTrainerParameters(Parameters):
    """Size of the loop and defaults of training."""

    num_iterations: Annotated[int, Field(ge=0, le=9999)] = 8
    """Iterations: rollouts, datasets, fine-tune jobs and model swap, each this many times."""
    rollouts_per_iteration: Count | None = 200
    """Training episodes per iteration. None: every training problem once."""
    num_test_iterations: Count = 1
    """How often each test problem is played in one test."""
    num_epochs: Annotated[int, Field(ge=1, le=50)] = 3
    """Passes over the dataset in a fine-tune job, unless the agent sets its own."""
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-4
    """Learning rate of fine-tune jobs on one's own hardware."""


class TextRlParameters(Parameters):
    """What is trained on and when it is tested."""

    fine_tune_on_all_previous_rollouts: bool = False
    """Train on the rollouts of all iterations so far instead of the last one's."""
    verifier_guess_replacement_proportion: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rollouts in which the verifier's last message becomes the true label."""
    verifier_guess_replacement_annealing: Literal["none", "linear", "exponential"] = "none"
    """How that share falls over the iterations: linear p - i*rate, exponential p*(1-rate)^i."""
    verifier_guess_replacement_annealing_rate: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The rate in it."""
    test_scheme: Literal["none", "all", "last", "first_and_last"] = "all"
    """Before which iterations the models are tested; "last" is the test of the final models."""
    test_on_whole_dataset: bool = True
    """Test on every test problem instead of rollouts_per_iteration of them."""


class PureTextEiParameters(Parameters):
    """Expert iteration: which rollouts become training examples."""

    rollout_selection_method: Literal["threshold", "weighted_sampling"] = "threshold"
    """Keep what reaches the threshold, or draw with probability growing with the reward."""
    reward_threshold: float = 0.9
    """Least episode reward of an agent for its messages to be trained on."""
    weighting_sample_size_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the rollouts to draw in weighted sampling."""
    weighting_minimum: float | None = None
    """Rewards below count as this in weighted sampling. None: the least reward seen."""
    weighting_use_replacement: bool = True
    """Draw with replacement."""
    weighting_epsilon: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the probability that is spread evenly."""
    balance_decisions: bool = False
    """Keep as many accepting as rejecting verifier examples, leaving out the surplus."""


class RolloutParameters(Parameters):
    """How episodes are played. None of this changes the data."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] = 64
    """Most calls in flight."""
    episodes_per_shard: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Episodes that one task plays."""
    failure_threshold: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of failed episodes above which the stage stops instead of going on."""
    request_timeout_s: Seconds = 120.0
    """Longest wait for one answer, in seconds."""
    transport_retries: Annotated[int, Field(ge=0, le=100)] = 8
    """How often a call is sent again after a connection error, 429 or 5xx."""


class FineTuningParameters(Parameters):
    """How fine-tune jobs are watched and set up."""

    poll_interval_s: Seconds = 5.0
    """Seconds between two looks at a job; grows while nothing changes."""
    deadline_s: Seconds = 24 * 3600.0
    """Longest life of a job, counted from submission, in seconds."""
    settle_s: Annotated[float, Field(ge=0)] = 10.0
    """How long the back-end's list of jobs may lag behind, in seconds."""
    max_length: Annotated[int, Field(ge=16)] | None = None
    """Longest training example in tokens; longer ones fail the job. None: the model's context."""
    lr_scheduler: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls. SelfHosted only."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the steps with a growing learning rate. SelfHosted only."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of the optimizer. SelfHosted only."""


def _plain_address(value: Any) -> Any:
    """Refuse an address that carries more than a place; what it carries may be a secret."""
    if value is None:
        return None
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        well_formed = parts.scheme in ("http", "https") and bool(parts.hostname)
        well_formed = well_formed and not any(c.isspace() for c in value) and parts.port != 0
    except ValueError:
        well_formed = False
    if isinstance(value, str) and any(c in value for c in "@?#"):
        raise ValueError(
            "an address without user name, password, query and fragment is needed, like "
            "http://host:8000; the key belongs into the environment variable NIP_API_KEY"
        )
    if not well_formed:
        raise ValueError("an address like http://host:8000 is needed")
    return value


def _yes_or_no(value: Any) -> Any:
    """YAML reads a bare yes as true."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


class LmServerParameters(Parameters):
    """The language-model server of SelfHosted agents."""

    url: Annotated[str | None, BeforeValidator(_plain_address)] = None
    """Address of a running server (its key: NIP_API_KEY). None: the run starts one of its own."""
    engine: Literal["embedded", "vllm", "deterministic"] = "embedded"
    """Engine of the run's own server: a real model in one process, vLLM, or scripted replies."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Arguments of the engine, for example max_model_len, or executable for vLLM's command."""
    training_device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+(,\d+)*)?)$")] = "auto"
    """Where the run's own server trains: cpu, cuda or cuda:0,1. auto: CUDA where there is one."""
    share_device: Annotated[Literal["auto", "yes", "no"], BeforeValidator(_yes_or_no)] = "auto"
    """Whether the engine leaves its device while a job trains. auto: if both use the same one."""
    replies: str | None = None
    """The deterministic engine's replies file. None: the bundled one."""
    start_timeout_s: Seconds = 180.0
    """Longest wait for the run's own server to answer, in seconds."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.replies is not None and self.engine != "deterministic":
            raise ValueError("replies is for engine: deterministic")
        return self


class Price(Parameters):
    """US dollars per million tokens."""

    prompt_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million prompt tokens."""
    completion_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million generated tokens."""
    training_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million tokens trained on."""
