"""System prompts: one template per protocol and agent, in `templates/<version>/<protocol>/`.

Templates use ``$name`` placeholders (string.Template). They are read and checked when the
scenario is built, so a wrong one stops a run before anything is spent.
"""

import string
from collections.abc import Mapping
from pathlib import Path

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.protocols import ACCEPT, Protocol

PLACEHOLDERS = (
    "question",
    "solution",
    "max_questions",
    "max_response_words",
    "agent_stance_string",
    "expert_aim",
    "prover_task",
    "prover_reward",
)

LAST_ROUND_MESSAGES = {
    "v1": "You have no more questions. Decide now: write exactly one of the lines "
    '"Decision: accept" and "Decision: reject" and nothing else.',
    "v2": "You have no more questions. Reason, then decide: end with exactly one of the lines "
    '"Decision: accept" and "Decision: reject".',
    "short": "No more questions. Decide now.",
}

_TEMPLATES = Path(__file__).parent / "templates"


class SystemPrompts:
    """The system prompts of one run."""

    def __init__(self, parameters: HyperParameters, protocol: Protocol):
        self._protocol = protocol
        self._shared_reward = parameters.protocol_common.shared_reward
        self._words = {n: a.max_response_words for n, a in parameters.model_agents.items()}
        version = parameters.code_validation.system_prompt_version
        self.last_round_message = LAST_ROUND_MESSAGES[version]
        self._templates: dict[str, string.Template] = {}
        for name, agent in parameters.model_agents.items():
            custom = agent.system_prompt_template_path
            path = Path(custom) if custom else _TEMPLATES / version / protocol.name / f"{name}.txt"
            self._templates[name] = _read_template(path, name)

    def render(
        self, agent: str, question: str, solution: str, stance: int | None, seed: int
    ) -> str:
        """The system prompt of `agent` for one problem; `stance` is the drawn one, if any.

        `seed` is the episode's, for protocols in which it deals the roles.
        """
        return self._templates[agent].substitute(
            self._values(agent, stance), question=question.strip(), solution=solution.strip()
        )

    def supervisor_message(self, agent: str, round_: int, seed: int) -> str:
        """What the supervisor tells `agent` before its turn in `round_`."""
        raise NotImplementedError

    def _values(self, agent: str, stance: int | None) -> Mapping[str, str | int]:
        protocol = self._protocol
        prover = next((a for a in protocol.agents if protocol.is_prover(a)), None)
        speaker = agent if protocol.is_prover(agent) else prover
        verdict = ""
        if speaker is not None:
            verdict = "accept" if protocol.stance(speaker, stance) == ACCEPT else "reject"
        if self._shared_reward:
            aim = "The expert is rewarded when your decision is right."
            task = "Your task is to help it decide rightly."
            reward = "You are rewarded if the verifier's decision is right."
        else:
            aim = (
                f"The expert argues that you should {verdict} the solution and may mislead you, "
                "so check what it says against the code."
            )
            task = (
                f"Your task is to convince it to {verdict} the solution, whether that is right "
                "or not."
            )
            reward = f"You are rewarded if the verifier decides to {verdict}."
        return {
            "max_questions": protocol.max_questions(0),
            "max_response_words": self._words[agent],
            "agent_stance_string": verdict,
            "expert_aim": aim,
            "prover_task": task,
            "prover_reward": reward,
        }


def _read_template(path: Path, agent: str) -> string.Template:
    place = f"agents.{agent}: system prompt template {path}"
    try:
        template = string.Template(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{place} can't be read ({error})") from None
    if not template.is_valid():
        raise SettingsError(
            f"{place} has a '$' that starts no placeholder; write '$$' for a dollar"
        )
    unknown = sorted(set(template.get_identifiers()) - set(PLACEHOLDERS))
    if unknown:
        raise SettingsError(
            f"{place} has unknown placeholders {unknown}; known are {', '.join(PLACEHOLDERS)}"
        )
    missing = sorted({"question", "solution"} - set(template.get_identifiers()))
    if missing:
        raise SettingsError(
            f"{place} lacks the placeholders {missing}; the agent would not see them"
        )
    return template
