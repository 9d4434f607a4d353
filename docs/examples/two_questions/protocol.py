"""`two_questions`: the verifier asks about the problem and about the code, both at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from nip_core.protocols import ACCEPT, AgentSpec, Protocol

HEADERS = {"problem": "About the problem:", "code": "About the code:"}


class TwoQuestions(Protocol):
    """Two pairs of questions, each with a pair of answers, and then the verdict."""

    name = "two_questions"
    agents: ClassVar[Mapping[str, AgentSpec]] = {
        "prover": AgentSpec("Expert", stance=ACCEPT, headers=HEADERS),
        "verifier": AgentSpec("Verifier", headers=HEADERS, decides=True, last_round_message=True),
    }
    channels = tuple(HEADERS)
    max_message_rounds = 5
    stance_can_be_randomized = True
    template_directory = Path(__file__).parent

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """The verifier in even rounds, the prover in odd ones, each to both channels."""
        return {("verifier", "prover")[round_ % 2]: ("problem", "code")}
