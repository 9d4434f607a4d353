"""Settings of the loop: iterations, selection of training data, jobs, rollouts, server."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from nip_core.parameters.addresses import Address
from nip_core.parameters.base import Parameters

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class RlTrainerParameters(Parameters):
    """Size of the loop and defaults of training."""

    num_iterations: Annotated[int, Field(ge=0, le=9999)] = 8
    """Iterations: rollouts, datasets, fine-tune jobs and model swap, each this many times, 0 to
    9999."""
    frames_per_batch: Count | None = None
    """Training rounds per iteration, at least 1, instead of rollouts_per_iteration; it must be a
    multiple of the protocol's max_message_rounds, and the quotient is the number of episodes. None:
    unused."""
    rollouts_per_iteration: Count | None = 200
    """Training episodes per iteration, at least 1. None: every training problem once."""
    num_test_iterations: Count = 1
    """How often each test problem is played in one test, at least 1."""
    num_epochs: Annotated[int, Field(ge=1, le=50)] = 3
    """Passes over the dataset in a fine-tune job, 1 to 50, unless the agent sets its own."""
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-4
    """Learning rate of fine-tune jobs on one's own hardware, above 0, at most 1."""

    @model_validator(mode="before")
    @classmethod
    def _one_count(cls, values: Any) -> Any:
        """Giving frames_per_batch alone unsets rollouts_per_iteration."""
        if isinstance(values, dict) and values.get("frames_per_batch") is not None:
            return {"rollouts_per_iteration": None, **values}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.frames_per_batch is not None and self.rollouts_per_iteration is not None:
            raise ValueError("set frames_per_batch or rollouts_per_iteration, not both")
        return self


class TextRlParameters(Parameters):
    """What is trained on and when it is tested."""

    fine_tune_on_all_previous_rollouts: bool = False
    """Train on the rollouts of all iterations so far instead of the last one's."""
    verifier_guess_replacement_proportion: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rollouts, 0 to 1, in which the verifier's last message becomes the true
    label."""
    verifier_guess_replacement_annealing: Literal["none", "linear", "exponential"] = "none"
    """How that share falls over the iterations: "none", not at all; "linear", p - i*rate;
    "exponential", p*(1-rate)^i."""
    verifier_guess_replacement_annealing_rate: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The rate in it, 0 to 1."""
    save_transcripts: bool = False
    """Also write the episodes of each split as one file for reading, transcripts-<split>, in the
    directory of the iteration. The rollouts hold the same texts."""
    transcript_format: Literal["yaml", "json"] = "yaml"
    """Of that file: "yaml" or "json"."""
    test_scheme: Literal["none", "all", "last", "first_and_last"] = "all"
    """When the models are tested: "all", before each iteration and after the last; "last", the
    final models only; "first_and_last"; "none"."""
    test_on_whole_dataset: bool = True
    """Test on every test problem instead of rollouts_per_iteration of them."""


class PureTextEiParameters(Parameters):
    """Expert iteration: which rollouts become training examples."""

    rollout_selection_method: Literal["threshold", "weighted_sampling"] = "threshold"
    """"threshold": keep what reaches the threshold; "weighted_sampling": draw, with a probability
    that grows with the reward."""
    reward_threshold: float = 0.9
    """Least episode reward of an agent for its messages to be trained on."""
    weighting_sample_size_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the rollouts to draw in weighted sampling, above 0, at most 1."""
    weighting_minimum: float | None = None
    """Rewards below count as this in weighted sampling. None: the least reward seen."""
    weighting_use_replacement: bool = True
    """Draw with replacement."""
    weighting_epsilon: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the probability that is spread evenly, above 0, at most 1."""
    balance_decisions: bool = False
    """Keep as many accepting as rejecting verifier examples, leaving out the surplus."""


class RolloutParameters(Parameters):
    """How episodes are played. None of this changes the data."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] = 64
    """Most calls in flight, 1 to 4096."""
    episodes_per_shard: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Episodes that one task plays, 1 to 10,000."""
    failure_threshold: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of failed episodes, 0 to 1, above which the stage stops instead of going on."""
    request_timeout_s: Seconds = 120.0
    """Longest wait for one answer, in seconds, above 0."""
    transport_retries: Annotated[int, Field(ge=0, le=100)] = 8
    """How often a call is sent again after a connection error, 429 or 5xx, 0 to 100."""


class FineTuningParameters(Parameters):
    """How fine-tune jobs are watched and set up."""

    poll_interval_s: Seconds = 5.0
    """Seconds between two looks at a job, above 0; grows while nothing changes."""
    deadline_s: Seconds = 24 * 3600.0
    """Longest life of a job, counted from submission, in seconds, above 0."""
    settle_s: Annotated[float, Field(ge=0)] = 10.0
    """How long the back-end's list of jobs may lag behind, in seconds, at least 0."""
    max_length: Annotated[int, Field(ge=16)] | None = None
    """Longest training example in tokens, at least 16; longer ones fail the job. None: the model's
    context."""
    lr_scheduler: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls: "linear", "cosine" or "constant" (not at all). SelfHosted
    only."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the steps with a growing learning rate, 0 to below 1. SelfHosted only."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight decay of the optimizer, 0 to 1. SelfHosted only."""


def _yes_or_no(value: Any) -> Any:
    """YAML reads a bare yes as true."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


class LmServerParameters(Parameters):
    """The language-model server of SelfHosted agents."""

    url: Address = None
    """Address of a running server (its key: NIP_API_KEY). None: the run starts one of its own."""
    engine: Literal["embedded", "vllm", "deterministic"] = "embedded"
    """Engine of the run's own server: "embedded", a real model in one process; "vllm"; or
    "deterministic", scripted replies."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Arguments of the engine, for example max_model_len, or executable for vLLM's command."""
    training_device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+(,\d+)*)?)$")] = "auto"
    """Where the run's own server trains: cpu, cuda or cuda:0,1. auto: CUDA where there is one."""
    share_device: Annotated[Literal["auto", "yes", "no"], BeforeValidator(_yes_or_no)] = "auto"
    """Whether the engine leaves its device while a job trains: "yes", "no", or "auto", if both use
    the same one."""
    replies: str | None = None
    """The deterministic engine's replies file. None: the bundled one."""
    start_timeout_s: Seconds = 180.0
    """Longest wait for the run's own server to answer, in seconds, above 0."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.replies is not None and self.engine != "deterministic":
            raise ValueError("replies is for engine: deterministic")
        return self


class Price(Parameters):
    """US dollars per million tokens."""

    prompt_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million prompt tokens, at least 0."""
    completion_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million generated tokens, at least 0."""
    training_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million tokens trained on, at least 0."""
