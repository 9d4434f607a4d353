"""Settings of the game: protocol, rewards, rounds, problems and prompts."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nip_core.parameters.basis.base import Parameters
from nip_core.parameters.basis.plain import PlainDict
from nip_core.protocols.scales import ScaleName
from nip_core.scenarios.code_settings import CodeValidationSettings

Rounds = Annotated[int, Field(ge=1, le=64)]
OF_REWARD_FUNCTION = ("reward_function", "reward_range")
"""The settings of `protocol_common` that are written down only where there is a function."""


class CommonProtocolParameters(Parameters):
    """The settings of every protocol. Rewards are paid in the round in which they fall due."""

    earlier_names: ClassVar[Mapping[str, str]] = {
        "verifier_decision_spectrum": "verifier_decision_scale"
    }

    verifier_first: bool = True
    """Whether the verifier speaks in round 0 (where the protocol leaves it open)."""
    randomize_prover_stance: bool = False
    """Let the provers argue for a verdict drawn per problem (the parity of a hash of the solution),
    instead of always for acceptance. Not in debate, merlin_arthur and refereed, where it is
    fixed."""
    prover_reward: float = 1.0
    """For a prover, when the verdict is the one it argues for; otherwise it gets 0."""
    verifier_reward: float = 1.0
    """For the verifier, when its verdict is right (and, on a scale, as sure as can be)."""
    verifier_incorrect_penalty: float = -1.0
    """For the verifier, when its verdict is wrong (and as sure as can be)."""
    verifier_terminated_penalty: float = -1.0
    """For the verifier, when the rounds are over and it has not decided."""
    verifier_no_guess_reward: float = 0.0
    """For the verifier, for each of its turns without a verdict before the last."""
    verifier_neither_accept_nor_reject_reward: float | None = None
    """For a verdict in the middle of the decision scale. None: halfway between right and wrong."""
    verifier_decision_scale: ScaleName = "accept_reject"
    """The verifier's answer when it decides: "accept_reject", or how sure it is that the
    solution is correct: "likert_scale_4" to "likert_scale_7" (as many phrases: likert_scale_5,
    likert_scale_6), "likert_int_scale_11" (0 to 10), "out_of_10" or "out_of_100". Its reward is
    linear between wrong, neither and right."""
    prover_invalid_response_penalty: Annotated[float, Field(le=0)] | None = None
    """For a prover with no valid answer after all retries, at most 0; it is silent in that round
    and the game goes on. None: the episode fails instead."""
    shared_reward: bool = False
    """Pay every prover what the verifier gets, instead of prover_reward."""
    force_guess: Literal["zero", "one", "y"] | None = None
    """Replace the verifier's first move that may decide by reject ("zero"), accept ("one") or the
    true label ("y"). For tests of the rest of the loop. None: leave its moves alone."""
    zero_knowledge: bool = False
    """Add an adversarial verifier and a simulator (docs/protocols.md)."""
    reward_function: Annotated[str, Field(min_length=1)] | None = None
    """A function of one's own that says what an ended episode pays each agent, in the place of the
    rewards above (docs/howto/rewards.md): "path/to/file.py:function" or "package.module:function".
    None: the protocol pays."""
    reward_range: tuple[float, float] | None = None
    """With `reward_function`: the least and the most that it pays anyone, such as [-1, 1]. A reward
    outside stops the run. Trainer pure_text_malt needs it. None: any finite number."""

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.reward_range is None:
            return self
        if self.reward_function is None:
            raise ValueError(
                "reward_range: no effect without reward_function; set both, or leave it out"
            )
        lowest, highest = self.reward_range
        if lowest >= highest:
            raise ValueError(
                f"reward_range: the least comes first, then the most (got {[lowest, highest]})"
            )
        return self

    def to_dict(self) -> PlainDict:
        """Return the settings; those of a reward function are among them where there is one."""
        # Settings of before there were any have the same digest.
        values = super().to_dict()
        for name in () if self.reward_function else OF_REWARD_FUNCTION:
            values.pop(name, None)
        return values


class NipProtocolParameters(Parameters):
    """Rounds of the `nip` protocol."""

    max_message_rounds: Rounds = 9
    """Rounds after which the episode ends, 1 to 64. The verifier must have the last one."""
    min_message_rounds: Rounds = 1
    """A verdict before this many rounds, 1 to 64, is not registered."""


class DebateProtocolParameters(NipProtocolParameters):
    """Rounds and order of the `debate` protocol."""

    sequential: bool = False
    """Whether the provers speak one after the other, or in the same round."""
    prover0_first: bool = True
    """Which prover speaks first when they are sequential."""
    randomize_channel_order: bool = True
    """Show the verifier the two provers' messages of a round in an order drawn per round."""


class MnipProtocolParameters(DebateProtocolParameters):
    """Rounds and order of the `mnip` protocol."""


class RefereedProtocolParameters(NipProtocolParameters):
    """Rounds of the `refereed` protocol."""

    max_message_rounds: Rounds = 4
    """Rounds after which the episode ends, 1 to 64: the last is the verifier's, all others are
    those of both provers."""


class MerlinArthurProtocolParameters(Parameters):
    """Settings of the `merlin_arthur` protocol."""

    pay_silent_prover: bool = True
    """Whether the prover that was not drawn to speak is paid by the verdict as well."""


class ToolParameters(Parameters):
    """Use of the scenario's tool by the verifier, see docs/tools.md."""

    per_turn: Annotated[int, Field(ge=0, le=32)] = 0
    """Most calls in a turn, up to 32. 0: it has no tool."""
    per_episode: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Most calls in an episode, 1 to 1024. None: as many as its turns allow."""
    price: Annotated[float, Field(ge=0)] = 0.0
    """Taken from the verifier's reward for each call; at least 0."""
    call: Literal["line", "native"] = "line"
    """How it is called: by a "line" of text, or, by a verifier that is not trained, by OpenAI's
    `tools` ("native")."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        is_set = self.price or self.per_episode is not None or self.call != "line"
        if not self.per_turn and is_set:
            raise ValueError(
                "per_turn: with 0 there is no tool, so price, per_episode and call have no effect; "
                "set it, or leave them out"
            )
        return self


class ZkProtocolParameters(Parameters):
    """Settings of the zero-knowledge variants."""

    simulator_reward_coefficient: float = 1.0
    """The simulator's reward for each turn whose imitation is perfect."""
    aux_prover_reward_coefficient: float = 1.0
    """How much of the simulator's reward each prover gets on top of its own."""
    similarity: Literal["text", "log_probs"] = "text"
    """The values that are compared: "text", the texts, or "log_probs", the probabilities of the
    tokens (for engines that give log-probabilities)."""
    top_logprobs: Annotated[int, Field(ge=1, le=20)] = 20
    """With log_probs: how many of the likeliest tokens are asked for at each position, 1 to 20."""


class CodeValidationParameters(Parameters, CodeValidationSettings):
    """Settings of the code-validation scenario."""


class DatasetParameters(Parameters):
    """Which part of the dataset is played."""

    max_train_size: Annotated[int, Field(ge=1)] | None = None
    """Keep at most this many training problems, at least 1, chosen by a stable shuffle. None:
    all."""
    max_validation_size: Annotated[int, Field(ge=1)] | None = None
    """The same for validation problems, at least 1."""
    max_test_size: Annotated[int, Field(ge=1)] | None = None
    """The same for test problems, at least 1."""
    reduce_shuffle_seed: int = 42
    """Seed of the stable shuffle that reduces."""
    on_too_long: Literal["leave_out", "stop"] = "leave_out"
    """The fate of problems whose prompt leaves a model no room for an answer: "leave_out", they
    are left out of the run, counted and on record; "stop", the run does not begin."""
    make_balanced: bool = True
    """Leave out problems of the more frequent label until both are equally frequent."""
    labels: Annotated[tuple[Literal[0, 1], ...], Field(min_length=1)] | None = None
    """Train on problems with these labels alone: [0], wrong ones, or [1], right ones. Tests play
    both. None: both."""
    shuffle_train_labels: bool = False
    """Control experiment: give training problems a random label. Nothing should be learned."""
