"""System prompts: one template per protocol and agent, ``<version>/<protocol>/<agent>.txt``.

A template is looked for with the scenario first (`Scenario.template_directory`, as
``code_validation/templates/``), then in ``templates/`` beside this file, which serves every
scenario: each agent's is taken from where it is. `nip prompt` shows the result.

Templates use ``$name`` placeholders (string.Template), which docs/prompts.md lists;
`prompt_phrases` says all that depends on settings. They are read and checked when the game is
built, so a wrong one stops a run before anything is spent.

A protocol with a `template_directory` has its own there, for every version. Where no agent has more
than one turn, so that nothing is asked, nip, debate and mnip have those of another game: of
solo_verifier if no prover speaks before, else of adp or, with two provers, `one_message`. Prompts
that these lack are the protocol's own, like the prompt of an agent that never speaks. In a
zero-knowledge game the agents of the wrapped protocol have its templates, provers with an addition;
the templates of the other two, and the addition, are in `templates/<version>/zero_knowledge/`.
"""

import string
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from nip_base.formats.bounds import ReadError
from nip_base.formats.untrusted import read_text
from nip_core.errors import SettingsError
from nip_core.protocols import Protocol
from nip_core.protocols.settings import GameSettings
from nip_core.protocols.zero_knowledge import EXTRA_AGENTS, ZeroKnowledgeProtocol
from nip_core.scenarios import prompt_phrases as phrases
from nip_core.scenarios.base import PROVER, VERIFIER, Role, Scenario
from nip_core.scenarios.checked import call_for_text, list_seen_columns, read_own_sentences
from nip_core.scenarios.prompt_versions import SHORT, form_of
from nip_core.tools import ToolUse

PLACEHOLDERS = (
    "problem",
    "max_questions",
    "question_limit",
    "asking_limit",
    "earliest_decision",
    "opening",
    "max_response_words",
    "word_limit",
    "max_tokens",
    "token_limit",
    "agent_stance_string",
    "expert_aim",
    "other_aim",
    "decision_form",
    "turn_form",
    "prover_task",
    "prover_reward",
    "prover_secrecy",
    "verifier_reward",
    "adversary_reward",
    "simulator_reward",
)
"""Of every template, beside the columns of the scenario and its words (`Words.placeholders`)."""

_NO_QUESTIONS = {
    "v1": "You have no more questions.",
    "v2": "You have no more questions.",
    "short": "No more questions.",
}
_DECIDE = {
    "v1": "Decide now: write exactly $decision_line and nothing else.",
    "v2": "Reason, then decide: end with exactly $decision_line.",
    "short": "Decide now.",
}
_SEEDS = range(16)  # of episodes that are looked at
_TEMPLATES = Path(__file__).parent / "templates"
_ZERO_KNOWLEDGE = "zero_knowledge"


class FilledPrompt:
    """A system prompt in which only the problem is missing."""

    def __init__(
        self,
        template: string.Template,
        values: Mapping[str, str | int],
        show: Callable[[Mapping[str, str]], str],
    ):
        """`values` has all placeholders of the template but ``problem`` and the columns.

        `show` gives ``problem`` from the texts of the columns.
        """
        self._show = show
        self._parts: list[str] = [""]  # text, then name and text in turn
        text, position = template.template, 0
        for placeholder in template.pattern.finditer(text):
            self._parts[-1] += text[position : placeholder.start()]
            position = placeholder.end()
            name = placeholder["named"] or placeholder["braced"]
            if name is None:
                self._parts[-1] += template.delimiter
            elif name in values:
                self._parts[-1] += str(values[name])
            else:
                self._parts += [name, ""]
        self._parts[-1] += text[position:]

    def fill(self, texts: Mapping[str, str]) -> str:
        """Write the prompt for a problem with these texts by column."""
        texts = {name: text.strip() for name, text in texts.items()}
        parts = self._parts.copy()
        parts[1::2] = [
            self._show(texts) if name == "problem" else texts[name] for name in parts[1::2]
        ]
        return "".join(parts)


class SystemPrompts:
    """The system prompts of one run, and the messages to agents before their turns."""

    def __init__(
        self,
        parameters: GameSettings,
        protocol: Protocol,
        scenario: Scenario,
        tools: Mapping[str, ToolUse],
    ):
        """Take the tools by the agents that use them.

        Raise SettingsError, naming the file, for a missing or wrong template.
        """
        self._protocol, self._scenario, self._words = protocol, scenario, scenario.words
        self._base = protocol.base if isinstance(protocol, ZeroKnowledgeProtocol) else protocol
        self._zero_knowledge = parameters.zk_protocol
        self._parameters = parameters
        self._agents = parameters.prompted_agents
        self._in_words: str = scenario.settings.system_prompt_version
        self._version = form_of(self._in_words)
        self._asks = any(protocol.max_questions(seed) for seed in _SEEDS)
        message = _DECIDE[self._version]
        if self._asks:
            message = f"{_NO_QUESTIONS[self._version]} {message}"
        line = phrases.decision_line(protocol.scale)
        self.last_round_message = string.Template(message).substitute(decision_line=line)
        self._refuse_unused()
        self._templates: dict[str, string.Template] = {}
        self.paths: dict[str, Path] = {}
        self.texts: dict[str, str] = {}
        """By agent, of its file; a pipe could not be read again."""
        for name, agent in self._agents.items():
            path = Path(agent.system_prompt_template_path or self._path(name))
            self.paths[name], self.texts[name] = path, self._read(path, name)
            text = self.texts[name].strip()
            if agent.system_prompt_template_path is None:
                text += self._addition(name, text) + self._scenario_addition(name)
            if name in tools:  # also after a template of a user's own, which can't know it
                text += self._tell_tool(tools[name])
            self._templates[name] = string.Template(text)

    def template(self, agent: str) -> string.Template:
        """The template of the agent's system prompt."""
        return self._templates[agent]

    def filled(self, agent: str, stance: int | None, seed: int) -> FilledPrompt:
        """Fill the system prompt of `agent` with everything but the problem.

        `stance` is the drawn one, if any; `seed` the episode's, for protocols in which it deals
        the roles.
        """
        values = self._values(agent, self._argued(stance), seed)
        role = self._role(agent)
        values = {**values, **read_own_sentences(self._scenario, role, stance)}
        show = partial(self._shown, role)
        return FilledPrompt(self._templates[agent], values, show)

    def _shown(self, role: Role, texts: Mapping[str, str]) -> str:
        return call_for_text(self._scenario, "show", texts, role)

    def _argued(self, stance: int | None) -> int | None:
        """Return the drawn verdict of the provers; the author of a solution argues for its own."""
        return None if self._scenario.labels_in_play else stance

    def _role(self, agent: str) -> Role:
        return PROVER if agent in self._base.provers else VERIFIER

    def supervisor_message(
        self, agent: str, round_: int, seed: int, stance: int | None = None
    ) -> str:
        """Return the supervisor's message to `agent` before its turn in `round_`.

        `stance` is the drawn one, if any; where it is not known, provers are told to keep to the
        verdict of their system prompt.
        """
        if self._protocol.may_decide(agent):
            return self._tell_verifier(agent, round_, seed)
        return self._tell_prover(agent, round_, seed, stance)

    def _tell_prover(self, agent: str, round_: int, seed: int, stance: int | None) -> str:
        words = self._word_limit(agent)
        aim = read_own_sentences(self._scenario, PROVER, stance).get("reminder")
        if aim is None:
            aim = phrases.reminder(self._base, self._words, agent, self._argued(stance))
        if self._version == "short":
            return f"Your turn, at most {words}. {aim}"
        first = "Reason first, then write" if self._version == "v2" else "Write"
        headers = self._headers(agent, round_, seed)
        if headers:
            header_names = phrases.join_words([f'"{header}"' for header in headers.values()])
            form = (
                f" each, in parts that begin with {header_names} while both verifiers talk with you"
            )
        else:
            form = ' in the form "Answer: <your answer>"' if self._version == "v2" else ""
        return f"It is your turn. {first} at most {words}{form}. {aim}"

    def _tell_verifier(self, agent: str, round_: int, seed: int) -> str:
        protocol, version = self._protocol, self._version
        words = self._word_limit(agent)
        turns_left = self._turns_after(agent, round_, seed)
        if turns_left == 0:
            return self.last_round_message
        times = f"You can ask in {turns_left} more turns, this one included."
        if turns_left == 1:
            times = "This is the last turn in which you can ask."
        if version == "short":
            return f"{'Ask or decide' if protocol.counts(round_) else 'Ask'}. {times}"
        form = phrases.message_form(self._headers(agent, round_, seed), "question")
        lines = phrases.join_words([f'"{line}"' for line in form.splitlines()])
        each = " each" if "\n" in form else ""
        ask = f"ask in the form {lines}, in at most {words}{each}"
        choice = f"{ask}. A decision does not count yet."
        if protocol.counts(round_):
            line = phrases.decision_line(protocol.scale)
            end = "and nothing else" if version == "v1" else "as the last line"
            choice = f"either {ask}, or decide: write exactly {line} {end}."
        first = "Reason first, then" if version == "v2" else "Now"
        return f"It is your turn. {first} {choice} {times}"

    def _turns_after(self, agent: str, round_: int, seed: int) -> int:
        turns = self._protocol.turns_of
        all_ = turns(agent, seed, self._protocol.max_message_rounds)
        return all_ - turns(agent, seed, round_ + 1)

    def _headers(self, agent: str, round_: int, seed: int) -> Mapping[str, str]:
        channels = self._protocol.active(round_, seed).get(agent, ())
        return self._protocol.headers(agent, channels, seed)

    # Which templates.

    def _path(self, agent: str) -> Path:
        if agent in EXTRA_AGENTS and self._base is not self._protocol:
            return self._template_path(_ZERO_KNOWLEDGE, agent)
        directory = self._base.template_directory
        if directory is not None:
            return directory / f"{agent}.txt"
        if not self._asks and not self._speaks_again():
            substitute = self._template_path(self._game_without_questions(), agent)
            if substitute.exists():
                return substitute
        return self._template_path(self._base.name, agent)

    def _refuse_unused(self) -> None:
        """Refuse templates of the scenario for agents unknown to this protocol."""
        own, game = self._scenario.template_directory, self._base.name
        if own is None:
            return
        places = [own / version / game for version in {self._in_words, self._version}]
        for path in sorted(path for place in places for path in place.glob("*.txt")):
            if path.stem not in self._base.agent_names:
                raise SettingsError(
                    f"scenario {self._scenario.name}: template {path} is for no agent of {game}, "
                    f"which are {', '.join(self._base.agent_names)}; rename it"
                )

    def _template_path(self, game: str, name: str) -> Path:
        """Return where a template lies: with the scenario if it has it, else here."""
        place, own = Path(game) / f"{name}.txt", self._scenario.template_directory
        if own is not None:
            for version in (self._in_words, self._version):
                if (own / version / place).exists():
                    return own / version / place
        return _TEMPLATES / self._version / place

    def _game_without_questions(self) -> str:
        """Name the game to borrow templates from, where the verifier has one turn, at the end."""
        if self._base.rounds_setting is None:
            return self._base.name  # made for it
        speakers = [a for a in self._base.provers if self._first_turn(a, 0) is not None]
        return ("solo_verifier", "adp", "one_message")[min(len(speakers), 2)]

    def _speaks_again(self) -> bool:
        """Say whether a prover has several turns: no game of one message, so with its own words."""
        turns, rounds = self._protocol.turns_of, self._protocol.max_message_rounds
        return any(turns(agent, 0, rounds) > 1 for agent in self._base.provers)

    def _addition(self, agent: str, text: str) -> str:
        """Write the text after a template, unless it is the user's own."""
        if self._base is not self._protocol and agent in self._base.provers:
            path = self._template_path(_ZERO_KNOWLEDGE, "prover_addition")
            gap = "\n" if self._version == "short" else "\n\n"
            return gap + path.read_text(encoding="utf-8").strip()
        forms_in_text = {"decision_form", "turn_form"} & set(
            string.Template(text).get_identifiers()
        )
        silent = (
            self._version == "short" and not forms_in_text and self._base.template_directory is None
        )
        if silent and self._protocol.may_decide(agent) and len(self._protocol.scale.values) > 2:
            # The tiny model is tied to these templates, which say no more than accept or reject.
            return "\n$decision_form"
        return ""

    def _scenario_addition(self, agent: str) -> str:
        addition = call_for_text(self._scenario, "addition", self._role(agent), self._base)
        addition = addition.replace("$", "$$")
        gap = "\n" if self._version == "short" else "\n\n"
        return addition and gap + addition

    def _tell_tool(self, tool: ToolUse) -> str:
        is_short = self._version == SHORT
        told_text = tool.describe(is_short=is_short).replace("$", "$$")
        return ("\n" if is_short else "\n\n") + told_text

    # Texts for the placeholders.

    def _values(self, agent: str, stance: int | None, seed: int) -> Mapping[str, str | int]:
        protocol, base, version = self._protocol, self._base, self._version
        speaker = agent if agent in base.provers else next(iter(base.provers), None)
        questions = protocol.max_questions(seed)
        values: dict[str, str | int] = {
            "max_questions": questions,
            "question_limit": _limit(questions, "question"),
            "asking_limit": _times(questions),
            "earliest_decision": self._earliest_decision(seed),
            "opening": self._opening(agent, seed),
            "max_response_words": self._agents[agent].max_response_words,
            "word_limit": self._word_limit(agent),
            "max_tokens": self._parameters.max_tokens(agent),
            "token_limit": _counted(self._parameters.max_tokens(agent), "token"),
            **self._words.placeholders(),
            "agent_stance_string": phrases.verdict(base, speaker, stance) if speaker else "",
            "expert_aim": phrases.expert_aim(base, self._words, stance, version),
            "decision_form": phrases.decision_form(protocol.scale, self._words, self._in_words),
            "turn_form": "",
            "verifier_reward": phrases.verifier_reward(base),
            **dict.fromkeys(("other_aim", "prover_task", "prover_reward"), ""),
            **phrases.zero_knowledge_rewards(self._zero_knowledge, self._words),
        }
        if protocol.may_decide(agent):
            values["turn_form"] = self._turn_form(agent, seed, questions)
        if agent in base.provers:
            values |= {
                "other_aim": phrases.other_aim(base, self._words, agent, stance),
                "prover_task": phrases.prover_task(base, self._words, agent, stance, version),
                "prover_reward": phrases.prover_reward(base, agent, seed, stance),
            }
        return values

    def _earliest_decision(self, seed: int) -> str:
        """Say how many first decisions do not count, or ""."""
        turn_count = self._protocol.turns_of(
            "verifier", seed, self._protocol.min_message_rounds - 1
        )
        if turn_count == 0:
            return ""
        turns = "first turn" if turn_count == 1 else f"first {turn_count} turns"
        return f"; a decision in your {turns} does not count"

    def _opening(self, agent: str, seed: int) -> str:
        """Tell a prover to open, where it speaks before any question; else ""."""
        first, verifier = self._first_turn(agent, seed), self._first_turn("verifier", seed)
        if agent not in self._base.provers or first is None or first > (verifier or 0):
            return ""
        return " Before your first message nobody has asked yet: begin with what matters most."

    def _first_turn(self, agent: str, seed: int) -> int | None:
        rounds = range(self._protocol.max_message_rounds)
        return next((r for r in rounds if agent in self._protocol.active(r, seed)), None)

    def _turn_form(self, agent: str, seed: int, questions: int) -> str:
        """Say all a verifier may do in its turns."""
        decide = phrases.decision_form(self._protocol.scale, self._words, self._in_words)
        if questions == 0:
            return decide
        words = self._word_limit(agent)
        round_ = self._first_turn(agent, seed) or 0
        form = phrases.message_form(self._headers(agent, round_, seed), "question")
        each = " each" if "\n" in form else ""
        if self._version == "short":
            return f"Ask, at most {words}{each}, or decide.\n{form}\n{decide}"
        return (
            f"In each turn do one of two things.\n\nEither ask, in at most {words}{each}, in "
            f"this form:\n\n{form}\n\nYou can do so {_times(questions)}. Or "
            f"decide{self._earliest_decision(seed)}. {decide}"
        )

    def _word_limit(self, agent: str) -> str:
        return _counted(self._agents[agent].max_response_words, "word")

    def _read(self, path: Path, agent: str) -> str:
        """The text of a template. Raises SettingsError if it is missing or wrong."""
        place = f"agents.{agent}: system prompt template {path}"
        # 1. Its text.
        try:
            text = read_text(path)
        except ReadError as error:
            advice = "; a protocol of your own names their folder in template_directory"
            hint = advice if _TEMPLATES in path.parents else "; name a file of text"
            raise SettingsError(f"{place} {error}{hint}") from None
        template = string.Template(text)
        if not template.is_valid():
            raise SettingsError(
                f"{place} has a '$' that starts no placeholder; write '$$' for a dollar"
            )
        # 2. Its placeholders: no unknown ones, no column that the agent must not see.
        names = set(template.get_identifiers())
        columns = [column.name for column in self._scenario.columns]
        visible = [column.name for column in list_seen_columns(self._scenario, self._role(agent))]
        known_names = (*columns, *PLACEHOLDERS, *self._words.placeholders())
        unknown = sorted(names - {*known_names})
        if unknown:
            raise SettingsError(
                f"{place} has unknown placeholders {unknown}; known are {', '.join(known_names)}"
            )
        hidden = sorted(names & {*columns} - {*visible})
        if hidden:
            raise SettingsError(
                f"{place} has the placeholders {hidden}, which scenario {self._scenario.name} "
                "does not let this agent see"
            )
        # 3. The whole problem must be in it.
        absent_names = sorted({*visible} - names)
        if absent_names and "problem" not in names:
            raise SettingsError(
                f"{place} lacks the placeholders {absent_names}; the agent would not see them"
            )
        return text


def _times(questions: int) -> str:
    if questions == 0:
        return "not at all"
    return f"at most {'once' if questions == 1 else f'{questions} times'}"


def _limit(number: int, noun: str) -> str:
    return f"at most {_counted(number, noun)}" if number else f"no {noun}s"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
