"""The errors between an agent and its model.

GenerationError                       no answer that can be used, after all retries
  NotGuessedError                     the verifier had to decide and did not
  ContentFilterError, ContentIsNoneError, UnknownFinishReasonError
  InvalidResponseError                the answer has no valid form
    InvalidDecisionError, NotAllActiveChannelsInResponseError
AgentNotActiveInChannelError          an agent that never spoke can't be trained on its answers
TrainingJobNotFoundClientError        there is no fine-tune job of that id

Every argument is plain, so that they can be pickled.
"""

from nip_core.errors import JobError, NipError


class GenerationError(NipError, RuntimeError):
    """An agent got no answer that can be used. `num_retries`: calls made after the first."""

    def __init__(self, num_retries: int, *details: str) -> None:
        super().__init__(num_retries, *details)
        self.num_retries = num_retries

    problem = "no answer that can be used"

    def __str__(self) -> str:
        details = "".join(f": {detail}" for detail in self.args[1:] if detail)
        return f"{self.problem} after {self.num_retries} retries{details}"


class NotGuessedError(GenerationError):
    """The verifier had to decide and did not."""

    problem = "no decision where one was due"


class ContentFilterError(GenerationError):
    """The provider's content filter blocked the answer."""

    problem = "blocked by the provider's content filter"


class ContentIsNoneError(GenerationError):
    """The answer has no content."""

    problem = "an answer without content"


class UnknownFinishReasonError(GenerationError):
    """Generation ended for a reason other than its end or its limit; `reason` says which."""

    problem = "generation ended for another reason than its end or its limit"

    def __init__(self, num_retries: int, reason: str) -> None:
        super().__init__(num_retries, reason)
        self.reason = reason


class InvalidResponseError(GenerationError, ValueError):
    """The answer has no valid form. `response_text` is the last one, `reason` names the fault."""

    problem = "an answer in an invalid form"

    def __init__(self, num_retries: int, response_text: str, reason: str = "") -> None:
        super().__init__(num_retries, response_text, reason)
        self.response_text, self.reason = response_text, reason

    def __str__(self) -> str:
        reason = self.reason and f" ({self.reason})"
        return f"{self.problem}{reason} after {self.num_retries} retries: {self.response_text!r}"


class InvalidDecisionError(InvalidResponseError):
    """The answer has a decision that is none, or is two."""

    problem = "an invalid decision"


class NotAllActiveChannelsInResponseError(InvalidResponseError):
    """The answer lacks the part for one of its channels."""

    problem = "an answer without the part for each of its channels"


class AgentNotActiveInChannelError(NipError, ValueError):
    """The agent said nothing in this history, so there is no last answer of it.

    `channel_name` is where it was looked for.
    """

    def __init__(self, agent_name: str, channel_name: str = "any channel") -> None:
        super().__init__(agent_name, channel_name)
        self.agent_name, self.channel_name = agent_name, channel_name

    def __str__(self) -> str:
        return f"{self.agent_name} said nothing in {self.channel_name}, so no chat ends with it"


class TrainingJobNotFoundClientError(JobError):
    """There is no fine-tune job: none was created, or the server does not know its id."""
