"""Settings of the game: protocol, rewards, rounds, problems and prompts."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nip_core.parameters.base import Parameters

Rounds = Annotated[int, Field(ge=1, le=64)]


class CommonProtocolParameters(Parameters):
    """What every protocol understands. Rewards are paid in the round in which they fall due."""

    verifier_first: bool = True
    """Whether the verifier speaks in round 0 (where the protocol leaves it open)."""
    randomize_prover_stance: bool = False
    """Let the prover argue for a verdict drawn per problem, instead of always for acceptance."""
    prover_reward: float = 1.0
    """For a prover, when the verdict is the one it argues for; otherwise it gets 0."""
    verifier_reward: float = 1.0
    """For the verifier, when its verdict is right."""
    verifier_incorrect_penalty: float = -1.0
    """For the verifier, when its verdict is wrong."""
    verifier_terminated_penalty: float = -1.0
    """For the verifier, when the rounds are over and it has not decided."""
    verifier_no_guess_reward: float = 0.0
    """For the verifier, for each of its turns without a verdict before the last."""
    shared_reward: bool = False
    """Pay every prover what the verifier gets, instead of prover_reward."""


class NipProtocolParameters(Parameters):
    """Rounds of the `nip` protocol."""

    max_message_rounds: Rounds = 9
    """Rounds after which the episode ends. The verifier must have the last one."""
    min_message_rounds: Rounds = 1
    """A verdict before this many rounds is not registered."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_message_rounds > self.max_message_rounds:
            raise ValueError(
                f"min_message_rounds ({self.min_message_rounds}) is greater than "
                f"max_message_rounds ({self.max_message_rounds})"
            )
        return self


class CodeValidationParameters(Parameters):
    """Settings of the code-validation scenario."""

    system_prompt_version: Literal["v1", "short"] = "v1"
    """Which prompt templates: "v1" for real models, "short" for very small ones."""
    apps_difficulty: Literal["introductory", "interview", "competition"] | None = None
    """Keep only problems of this difficulty. None: all. For lrhammond/buggy-apps."""
    apps_exclude_flagged: bool = True
    """Leave out problems with moderation flags. For lrhammond/buggy-apps."""


class DatasetParameters(Parameters):
    """Which part of the dataset is played."""

    max_train_size: Annotated[int, Field(ge=1)] | None = None
    """Keep at most this many training problems, chosen by a stable shuffle. None: all."""
    max_validation_size: Annotated[int, Field(ge=1)] | None = None
    """The same for validation problems."""
    max_test_size: Annotated[int, Field(ge=1)] | None = None
    """The same for test problems."""
    reduce_shuffle_seed: int = 42
    """Seed of the stable shuffle that reduces."""
    make_balanced: bool = True
    """Leave out problems of the more frequent label until both are equally frequent."""
    shuffle_train_labels: bool = False
    """Control experiment: give training problems a random label. Nothing should be learned."""
