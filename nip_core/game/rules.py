"""The answers of a protocol and its prompts, asked once for all episodes, or once for each seed.

Most protocols treat all episodes alike, and say so by `Protocol.uses_seed`. Of these, answers are
kept for good; of all others, those that a user adds included, for a while. Nothing is kept that
depends on the messages of an episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.game.answers.reasons import USED_UP
from nip_core.parameters import HyperParameters
from nip_core.protocols import Move, Protocol, Turn
from nip_core.scenarios.prompt_versions import reasons_first
from nip_core.scenarios.prompts import FilledPrompt, SystemPrompts
from nip_core.tools import ToolUse

_MOST_KEPT = 4096  # short texts with their moves
_MOST_SEEDS = 128
_SHORT = 64  # characters of an answer that is likely to come again, such as a decision


class Seen(NamedTuple):
    """A round as one agent sees it."""

    moves: bool  # whether it is the agent's turn
    announcement: Mapping[str, str] | None  # the message with which it is told so, if there is one
    channels: tuple[str, ...]  # that it reads, in the order in which it is shown them


class _Kept:
    """Answers for all seeds, or for one."""

    __slots__ = ("forms", "names", "prompts", "rounds")

    def __init__(self) -> None:
        self.prompts: dict[tuple[str, int | None], FilledPrompt] = {}
        self.names: Mapping[str, str | None] | None = None
        self.rounds: dict[tuple[str, int, int | None], Sequence[Seen]] = {}
        self.forms: dict[tuple[str, int], AnswerForm] = {}


class Rules:
    """A protocol with its prompts: for each turn the prompt, the form and the reading of an answer.

    Callers don't change its results.
    """

    def __init__(
        self,
        parameters: HyperParameters,
        protocol: Protocol,
        prompts: SystemPrompts,
        tools: Mapping[str, ToolUse],
    ):
        """Take the settings, and the tools by agent."""
        self._parameters, self._protocol, self._prompts = parameters, protocol, prompts
        self._tools = {agent: use.tool for agent, use in tools.items()}
        self.order = {name: i for i, name in enumerate(protocol.agent_names)}
        self._by_seed = protocol.uses_seed
        self.moves_by_turns = type(protocol).movers is not Protocol.movers
        """Whether who moves may depend on what was said."""
        self._same = _Kept()
        self._of_seeds: dict[int, _Kept] = {}
        self._parsed: dict[tuple[str, int, str], Move] = {}

    def system_prompt(self, agent: str, stance: int | None, seed: int) -> FilledPrompt:
        """Fill in the agent's system prompt, but for the problem."""
        prompts = self._keep_answers(seed).prompts
        prompt = prompts.get((agent, stance))
        if prompt is None:
            prompt = prompts[agent, stance] = self._prompts.filled(agent, stance, seed)
        return prompt

    def names(self, seed: int) -> Mapping[str, str | None]:
        """Name each agent as the others see it in its messages; None: without a name."""
        answers = self._keep_answers(seed)
        if answers.names is None:
            answers.names = {
                name: None if spec.anonymous else self._protocol.human_name(name, seed)
                for name, spec in self._protocol.agents.items()
            }
        return answers.names

    def _keep_answers(self, seed: int) -> _Kept:
        if not self._by_seed:
            return self._same
        answers = self._of_seeds.get(seed)
        if answers is None:
            if len(self._of_seeds) >= _MOST_SEEDS:
                self._of_seeds = {}
            answers = self._of_seeds[seed] = _Kept()
        return answers

    # Rounds.

    def rounds(
        self,
        agent: str,
        last: int,
        stance: int | None,
        seed: int,
        by_round: Mapping[int, Sequence[Turn]],
    ) -> Sequence[Seen]:
        """Tell the rounds from the first to `last` as `agent` sees them, with these turns by
        round."""
        if self.moves_by_turns:
            return self._rounds(agent, last, stance, seed, by_round)
        cache = self._keep_answers(seed).rounds
        rounds = cache.get((agent, last, stance))
        if rounds is None:
            rounds = self._rounds(agent, last, stance, seed, by_round)
            cache[agent, last, stance] = rounds
        return rounds

    def _rounds(
        self,
        agent: str,
        last: int,
        stance: int | None,
        seed: int,
        by_round: Mapping[int, Sequence[Turn]],
    ) -> Sequence[Seen]:
        rounds = []
        earlier: list[Turn] = []
        own_turns = 0
        for round_ in range(last + 1):
            moves = agent in self._protocol.movers(round_, seed, earlier)
            announcement = self._announce(agent, round_, own_turns, stance, seed) if moves else None
            own_turns += moves
            channels = self._protocol.channel_order(agent, round_, seed)
            rounds.append(Seen(moves, announcement, tuple(channels)))
            earlier += by_round.get(round_, ())
        return rounds

    def _announce(
        self, agent: str, round_: int, own_turns: int, stance: int | None, seed: int
    ) -> Mapping[str, str] | None:
        settings = self._parameters.prompted_agents[agent]
        due = {
            "none": False,
            "all": True,
            "first": own_turns == 0,
            "all_but_first": own_turns > 0,
        }[settings.use_supervisor_message]
        if due:
            content = self._prompts.supervisor_message(agent, round_, seed, stance)
            return {"role": "user", "content": content, "name": settings.supervisor_name}
        last = self._protocol.is_last_turn(agent, round_, seed)
        if last and self._protocol.agents[agent].last_round_message:
            return {"role": "system", "content": self._prompts.last_round_message}
        return None

    # Answers.

    def form(self, agent: str, round_: int, seed: int, earlier: Sequence[Turn]) -> AnswerForm:
        """Return the form of the agent's answer in the round, after the turns before it."""
        if self.moves_by_turns:
            return self._form(agent, round_, seed, earlier)
        forms = self._keep_answers(seed).forms
        form = forms.get((agent, round_))
        if form is None:
            form = forms[agent, round_] = self._form(agent, round_, seed, earlier)
        return form

    def _form(self, agent: str, round_: int, seed: int, earlier: Sequence[Turn]) -> AnswerForm:
        protocol = self._protocol
        channels = protocol.movers(round_, seed, earlier)[agent]
        return AnswerForm(
            channels=channels,
            headers=protocol.headers(agent, channels, seed),
            scale=protocol.scale if protocol.may_decide(agent) else None,
            has_reasoning=reasons_first(self._parameters.system_prompt_version),
            must_decide=protocol.must_decide(agent, round_, seed),
            is_early=not protocol.counts(round_),
            tool=self._tools.get(agent),
        )

    def parse(self, agent: str, round_: int, seed: int, text: str, earlier: Sequence[Turn]) -> Move:
        """Read the move in `text`; a call too many that stands is an empty one.

        Raises InvalidResponse.
        """
        form = self.form(agent, round_, seed, earlier)
        if form.tool is not None:
            try:
                return parse_response(text, replace(form, is_used_up=True))
            except InvalidResponse as invalid:
                if invalid.reason != USED_UP:
                    raise
                return Move()
        if len(text) > _SHORT or self._by_seed or self.moves_by_turns:
            return parse_response(text, form)
        place = (agent, round_, text)
        move = self._parsed.get(place)
        if move is None:
            move = parse_response(text, form)
            if len(self._parsed) >= _MOST_KEPT:
                self._parsed = {}
            self._parsed[place] = move
        return move
