"""Settings of the loop: iterations, selection of training data, jobs, rollouts, server."""

from importlib import import_module
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from nip_base.spec import ENGINES, Capabilities, check_engine_name
from nip_core.parameters.basis.addresses import Address
from nip_core.parameters.basis.base import Parameters

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Ending = Literal["stop", "keep_model", "try_again"]
Scalar = bool | int | float | str
EngineOption = Scalar | dict[str, Scalar]


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
    """Training episodes per iteration, at least 1. None: every training problem once, or
    pure_text_grpo.group_size times with that trainer."""
    num_test_iterations: Count = 1
    """How often each test problem is played in one test, and each validation problem by old and by
    new models where promotion.enabled, at least 1."""
    num_epochs: Annotated[int, Field(ge=1, le=50)] = 3
    """Passes over the dataset in a fine-tune job of any method, 1 to 50, unless the agent sets its
    own."""
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-4
    """Learning rate of fine-tune jobs of any method, above 0, at most 1. SelfHosted only: OpenAI
    chooses its own."""
    max_grad_norm: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Norm to which gradients that are larger are scaled down, in every step of fine-tune jobs of
    any method, above 0, at most 1000. SelfHosted only."""

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


class ImitationParameters(Parameters):
    """Chats that agents imitate before a run plays (docs/training.md)."""

    chats: Annotated[str, Field(min_length=1)] | None = None
    """A file, "path/to/chats.jsonl": iteration 0 trains each agent on its chats, and plays no
    training episodes. It is one of `rl.num_iterations`. None: the run begins with play."""
    most: Annotated[int, Field(ge=10, le=100_000)] = 200
    """At most so many chats for each agent, 10 to 100000."""
    epochs: Annotated[int, Field(ge=1, le=1000)] = 3
    """Passes over them, 1 to 1000."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("most", "epochs"):
            default = type(self).model_fields[name].default
            if self.chats is None and getattr(self, name) != default:
                raise ValueError(f"{name}: no effect without chats; set both, or leave it out")
        return self


class TextRlParameters(Parameters):
    """The rollouts that are trained on, and the iterations that are tested."""

    fine_tune_on_all_previous_rollouts: bool = False
    """Train on the rollouts of all iterations so far instead of the last one's. Not with trainer
    pure_text_grpo."""
    verifier_guess_replacement_proportion: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rollouts, 0 to 1, in which the verifier's last message becomes the true label.
    Expert iteration only."""
    verifier_guess_replacement_annealing: Literal["none", "linear", "exponential"] = "none"
    """How that share falls over the iterations: "none", not at all; "linear", p - i*rate;
    "exponential", p*(1-rate)^i."""
    verifier_guess_replacement_annealing_rate: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The rate in it, 0 to 1."""
    save_transcripts: bool = False
    """Also write the episodes of each split as one file for reading, `transcripts-<split>`, in the
    directory of the iteration. The rollouts hold the same texts."""
    transcript_format: Literal["yaml", "json"] = "yaml"
    """Of that file: "yaml" or "json"."""
    test_scheme: Literal["none", "all", "last", "first_and_last"] = "all"
    """When the models are tested: "all", before each iteration and after the last; "last", the
    final models only; "first_and_last"; "none"."""
    test_interval: Count = 1
    """With test_scheme "all": test before every so manieth iteration, at least 1; before the first
    and after the last in any case."""
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
    balance_labels: bool = False
    """Keep as many examples of right as of wrong solutions for each agent, leaving out the surplus.
    Decisions that are rare gain weight by it, also with training labels drawn at random."""
    deduplicate: bool = False
    """Keep one of several examples of an agent with the same conversation."""


class PureTextMaltParameters(Parameters):
    """MALT: trees of responses, from which pairs of better and worse answers are chosen for DPO."""

    num_responses_per_timestep: Annotated[int, Field(ge=2, le=16)] = 2
    """Children of a node: how many answers are asked for in each turn, 2 to 16."""
    num_initial_ei_iterations: Annotated[int, Field(ge=0)] = 0
    """The first iterations are played and trained by expert iteration instead, at least 0."""
    pair_selection_method: Literal["positive_negative", "interval"] = "interval"
    """Which two answers to one prompt make a pair. "positive_negative": one whose expected reward
    reaches the middle, and one below. The middle lies between the verifier's pay for a right and
    for a wrong verdict, and for a prover between prover_reward and 0. "interval": any two with
    expected rewards that lie far enough apart."""
    interval_threshold_proportion: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """How far: more than this share of the distance from the agent's least to its most reward,
    above 0, below 1."""
    frozen_agents_generate_one_response: bool = True
    """Ask for one answer only in rounds in which no agent moves that is trained in the
    iteration."""
    max_nodes: Annotated[int, Field(ge=1)] | None = 128
    """Most nodes of a tree, at least 1. Where not every turn can branch within it, those that do
    are drawn for each problem, so that all turns are trained; with fewer than k * rounds (k:
    num_responses_per_timestep) the early ones never branch. None: no limit; a tree has up to
    k + k^2 + ... + k^rounds nodes."""


class PureTextGrpoParameters(Parameters):
    """Policy gradient: several episodes of each problem, compared with each other (GRPO)."""

    group_size: Annotated[int, Field(ge=1, le=256)] = 8
    """Episodes of each problem in an iteration, 1 to 256; the number of episodes in an iteration
    must be a multiple of it. All in a group begin alike, down to who is drawn to speak. 1 only with
    baseline: role."""
    baseline: Literal["group", "leave_one_out", "role"] = "group"
    """The baseline taken from an agent's reward. "group": its mean over the group's episodes;
    "leave_one_out": the others' mean; "role": its mean over the iteration's episodes in the same
    role (agent and stance), for self-play. Where all rewards that are compared are equal, nothing
    is learned from them, and they are left out and counted, unless advantage_shift is set. Answers
    in an invalid form are not trained."""
    scale_by_std: bool = False
    """Divide by the standard deviation of the group's rewards (of the role's, with baseline: role),
    as GRPO does. It gives more weight to problems that are nearly always or never solved."""
    advantage_shift: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Added to every advantage, 0 to 100: the baseline lies so far below the mean, after any
    division. Above 0, rewarded answers are held on to more than the others are given up, and
    groups in which all rewards are equal are trained too, with this advantage: they keep a model
    that is nearly always right from forgetting how, at the price of more steps."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """How far below 1 the ratio of a token's new to old probability counts, above 0, below 1."""
    clip_high: Annotated[float, Field(gt=0, le=10)] | None = None
    """How far above 1 it counts, above 0, at most 10. None: as clip_low."""
    kl_penalty: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the divergence from the model that the training starts from, 0 to 10."""


class CurriculumParameters(Parameters):
    """Train on some problems first: those with the highest rewards, then more and more. With any
    trainer. Each iteration ranks its own problems."""

    enabled: bool = False
    """Whether to."""
    initial_percentile: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Share of an iteration's problems that is used in the beginning, above 0, at most 1."""
    increment_percentile: Annotated[float, Field(gt=0, le=1)] = 0.2
    """How much is added to that share at a time, above 0, at most 1."""
    expansion_interval: Annotated[int, Field(ge=1)] = 5
    """After how many iterations it is added, at least 1; the first time one iteration sooner."""
    min_reward_diff: Annotated[float, Field(ge=0)] = 0.1
    """Problems whose episodes' rewards differ by less are left out, at least 0. It concerns only
    problems that were played at least twice; a tree of responses counts as one."""
    sort_ascending: bool = False
    """Begin with the lowest rewards instead."""
    random_subsample: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of the problems left, use this share drawn at random, above 0, at most 1. None: all. A single
    problem is used in any case."""


class PromotionParameters(Parameters):
    """Let new models play only if they do not play worse on validation problems."""

    enabled: bool = False
    """Whether to: old and new models play the validation problems after each training."""
    metric: Literal["accuracy", "verifier_reward"] = "accuracy"
    """The figure that is compared: "accuracy", the share of right decisions; "verifier_reward", the
    verifier's mean reward."""
    margin: Annotated[float, Field(ge=0)] = 0.0
    """By how much the new models may be worse and still be taken, at least 0."""
    episodes: Count | None = None
    """How many validation problems are played, at least 1. None: all."""


class RolloutParameters(Parameters):
    """How episodes are played, and which columns record them. None of this changes a message."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] = 64
    """Most calls in flight, 1 to 4096; fewer are where the server is not faster with more, or
    refuses them. A call is in flight until its answer is durable, which takes
    10 ms on a disk and half a second in a bucket: take more of them there if answers come fast."""
    episodes_per_shard: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Episodes that one task plays, 1 to 10,000."""
    failure_threshold: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of failed episodes, 0 to 1, above which the stage stops instead of going on."""
    request_timeout_s: Seconds = 120.0
    """Longest wait for one answer of a provider, in seconds, above 0. On a server of ours an
    answer may take any time, and its engine hangs when it computes nothing for twice as long."""
    transport_retries: Annotated[int, Field(ge=0, le=100)] = 8
    """How often a call is sent again after a connection error, 429 or 5xx, 0 to 100."""
    record_p_accept: bool | None = None
    """Record with each verdict how likely "accept" was against "reject" (P(accept), docs/view.md).
    None: of agents that the run's own server answers, with an engine that has a model; true: of
    those at other APIs too, which may refuse to tell; false: of no agent."""
    record_top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    """Record every token of every answer with its log-probability and so many of the likeliest in
    its place, 0 to 20, for engines that give them. 0: none. They are part of the tables' digest."""
    task_runner: Literal["local", "dask", "ray"] = "local"
    """Where shards are played: "local", in the flow's own process, or on a cluster, by Prefect's
    task runner for "dask" or "ray". Every process has `concurrency` calls in flight of its own, and
    has to reach run_store and the models' servers."""
    task_runner_address: Annotated[str, Field(min_length=1)] | None = None
    """The cluster's address, like tcp://host:8786 (Dask) or ray://host:10001 (Ray). None: a cluster
    of processes on this machine, for as long as the stage takes."""


class FineTuningParameters(Parameters):
    """How fine-tune jobs are watched and set up."""

    poll_interval_s: Seconds = 5.0
    """Seconds between two looks at a job, above 0; grows while nothing changes."""
    deadline_s: Seconds = 24 * 3600.0
    """Longest life of a job, counted from submission, in seconds, above 0. On the run's own server,
    which stands still when the run does, it is counted from the last start of the run."""
    settle_s: Annotated[float, Field(ge=0)] = 10.0
    """How long the back-end's list of jobs may lag behind, in seconds, at least 0."""
    on_cancel: Literal["keep", "cancel"] = "keep"
    """The fate of running jobs when the flow run is cancelled in Prefect: "keep", they go on,
    and are found when the run goes on; "cancel", they are cancelled. The jobs of the run's own
    server stop with it and go on with it in any case."""
    on_failed: Ending = "stop"
    """The step after a failed job: "stop", the run, with an error; "keep_model", the group plays
    on with the model that it has, which is on record; "try_again", a new job, and an error when
    max_attempts have failed."""
    on_cancelled: Ending = "stop"
    """"stop", "keep_model" or "try_again" when a user has cancelled it."""
    on_not_found: Ending = "stop"
    """"stop", "keep_model" or "try_again" when the back-end no longer knows it."""
    on_deadline: Ending = "stop"
    """"stop", "keep_model" or "try_again" when deadline_s has passed. "stop" leaves the job alone,
    and running again with a longer deadline goes on; with the others it is cancelled first."""
    on_too_few_examples: Literal["stop", "keep_model"] = "keep_model"
    """"stop" or "keep_model" when there are fewer examples than the 10 that a job needs."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Most jobs of a group in an iteration, 1 to 100, where one that ended is tried again."""
    park_after_s: Seconds | None = None
    """Let go of the run when its jobs have been waited for this many seconds, above 0, instead of
    keeping a process for as long as they take: it ends as "parked", and running again (on a
    schedule, for example) goes on. Not with the run's own server, whose jobs stop with the run.
    None: wait."""
    max_length: Annotated[int, Field(ge=16)] | None = None
    """Longest training example in tokens, at least 16; longer ones fail the job. None: the model's
    context."""
    tokens_per_pass: Annotated[int, Field(ge=1)] | None = None
    """Most tokens that go through the model at a time in training, at least 1; a step of more is
    several passes, which give the same. None: by the device's memory. SelfHosted only."""
    gradient_checkpointing: bool | None = None
    """Whether training computes activations again instead of keeping them, which takes less memory
    and more time. None: where they don't fit. SelfHosted only."""
    lr_scheduler: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls: "linear", "cosine" or "constant" (not at all, and it does not
    grow at first either: warmup_ratio counts for nothing). SelfHosted only."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the steps with a growing learning rate, 0 to below 1. SelfHosted only."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight decay of the optimizer, 0 to 1. SelfHosted only."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training problems, 0 to below 1, whose examples are not trained on but sent as
    the job's validation file, for a loss on problems that it has not seen."""
    wandb_project: Annotated[str, Field(min_length=1)] | None = None
    """Weights & Biases project to which OpenAI reports its jobs. None: none. OpenAI only."""


def _yes_or_no(value: Any) -> Any:
    """YAML reads a bare yes as true."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


def _check_engine(engine: str) -> str:
    # One of a user's own is imported here, so that each command says what is wrong with it.
    _find_capabilities(check_engine_name(engine))
    return engine


def _find_capabilities(engine: str) -> Capabilities:
    """Find the abilities of an engine; the server is loaded to check one of a user's own."""
    if engine in ENGINES:
        return ENGINES[engine]
    # By its name, as settings have no need of a server: whoever has such an engine has one.
    server = import_module("nip_lm_server.client")
    return cast(Capabilities, server.find_capabilities(engine))


class LmServerParameters(Parameters):
    """The language-model server of SelfHosted agents."""

    url: Address = None
    """Address of a running server (its key: NIP_API_KEY). None: the run starts one of its own."""
    engine: Annotated[str, AfterValidator(_check_engine)] = "embedded"
    """Engine of the run's own server: "embedded", a real model in one process; "vllm";
    "deterministic", scripted replies; or a class of your own, path/to/file.py:Class."""
    options: dict[str, EngineOption] = Field(default_factory=dict)
    """Arguments of the engine, for example max_model_len, or executable for vLLM's command.
    chat_template_kwargs has variables of the models' chat template, in play and in training, such
    as {enable_thinking: false} or {date_string: 26 Jul 2024}."""
    training_device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+(,\d+)*)?)$")] = "auto"
    """Where the run's own server trains: cpu, cuda or cuda:0,1. auto: CUDA where there is one."""
    share_device: Annotated[Literal["auto", "yes", "no"], BeforeValidator(_yes_or_no)] = "auto"
    """Whether the engine leaves its device while a job trains: "yes", "no", or "auto", if both use
    the same one."""
    replies: str | None = None
    """The deterministic engine's replies file. None: the bundled one."""
    start_timeout_s: Seconds = 900.0
    """Longest wait for the run's own server to answer, in seconds, above 0."""

    @property
    def capabilities(self) -> Capabilities:
        """Return the abilities of the engine, before it is started."""
        return _find_capabilities(self.engine)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.replies is not None and self.engine != "deterministic":
            raise ValueError("replies is for engine: deterministic")
        return self


class Price(Parameters):
    """US dollars per million tokens."""

    prompt_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million prompt tokens, at least 0."""
    cached_prompt_usd: Annotated[float, Field(ge=0)] | None = None
    """Per million prompt tokens that the provider's answers count as cached, 0 to prompt_usd. None:
    as prompt_usd. It prices what is on record; estimates, the view of a run in progress and an
    attack's effort take prompt_usd, which is an upper bound."""
    completion_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million generated tokens, at least 0."""
    training_usd: Annotated[float, Field(ge=0)] = 0.0
    """Per million tokens trained on, at least 0. A paid model that is trained has no price without
    it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        # Estimates and calls in progress count prompt_usd, and are to be upper bounds.
        if self.cached_prompt_usd is not None and self.cached_prompt_usd > self.prompt_usd:
            raise ValueError(
                f"cached_prompt_usd is {self.cached_prompt_usd:g}, above prompt_usd, which is "
                f"{self.prompt_usd:g}; give at most that, or leave it out"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the prices; that of cached tokens is among them where there is one."""
        # Settings of before there were any have the same digest.
        values = super().to_dict()
        if self.cached_prompt_usd is None:
            del values["cached_prompt_usd"]
        return values
