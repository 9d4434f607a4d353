"""From the record of an episode to the chat that an agent sees: one pure function.

Prompting and dataset building both call `render`, so training examples have the prompts of play.
"""

import json
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

from nip_core.errors import SettingsError
from nip_core.game.answer_rows import AnswerPlace, Attempted, Spoken, make_exchange, place_of
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm
from nip_core.game.answers.reasons import Kind, sort_reason
from nip_core.game.chat_format import format_chat
from nip_core.game.retry_hints import hint
from nip_core.game.rules import Rules
from nip_core.parameters import HyperParameters
from nip_core.parameters.blocks.opponents import asked_as_there, split_agents
from nip_core.protocols import (
    Exchange,
    Move,
    Protocol,
    RoundResult,
    Turn,
    make_protocol,
)
from nip_core.protocols.reward_function import EndedEpisode, load_reward_function
from nip_core.protocols.zero_knowledge import EXTRA_AGENTS, ZeroKnowledgeProtocol
from nip_core.scenarios import Problem, Scenario, check_own_words, make_scenario
from nip_core.scenarios.base import PROVER
from nip_core.scenarios.checked import (
    call_for_rejection,
    call_for_text,
    draw_columns,
    draw_columns_again,
    list_seen_columns,
    use_tool,
)
from nip_core.scenarios.prompts import SystemPrompts
from nip_core.tools import MOST_IN_ARGUMENT, Tool, ToolUse

ChatMessage = dict[str, Any]
"""Role and content, of others a name; a call has `tool_calls`, its result the call's id."""


@dataclass(frozen=True)
class Situation:
    """The problem of an episode: its facts, never its label."""

    question: str
    solution: str
    stance: int | None  # the drawn verdict the provers argue for, if any
    seed: int
    columns: Mapping[str, str] = field(default_factory=dict)
    """The texts of the scenario's further columns."""


def columns_json(columns: Mapping[str, str]) -> str | None:
    """Write further texts of a problem as the table of episodes has them; null: there are none."""
    return json.dumps(columns, sort_keys=True, ensure_ascii=False) if columns else None


def parse_columns(document: str | None) -> Mapping[str, str]:
    """Read the further texts of a problem, as `columns_json` wrote them."""
    return {} if document is None else dict(json.loads(document))


def make_situation(problem: Problem, stance: int | None, seed: int) -> Situation:
    """Return what an episode of this problem, drawn stance and seed is about."""
    return Situation(problem.question, problem.solution, stance, seed, problem.columns)


class Met(typing.Protocol):
    """An episode, as far as it says who was played by another run."""

    @property
    def opponent(self) -> str | None: ...
    @property
    def opponent_run(self) -> str | None: ...


class Game:
    """A protocol on a scenario, with its prompts: everything needed to render and to judge."""

    def __init__(self, parameters: HyperParameters):
        """Raises SettingsError for a scenario's words or templates that make no prompts."""
        self.parameters = parameters
        self.protocol: Protocol = make_protocol(parameters)
        self.scenario: Scenario = make_scenario(parameters)
        try:
            check_own_words(self.scenario, parameters.scenario)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        self.tools = list_tools(parameters, self.protocol, self.scenario)
        """By agent, the tool that it may use."""
        self.prompts = SystemPrompts(parameters, self.protocol, self.scenario, self.tools)
        self._rules = Rules(parameters, self.protocol, self.prompts, self.tools)
        self.reward_function = load_reward_function(parameters.protocol_common)
        self.announces = type(self.scenario).announce is not Scenario.announce
        """Whether agents may be told something before a turn that depends on what was said."""
        self._has_rule = type(self.scenario).rejects is not Scenario.rejects
        self._formats = {name: a.chat_format for name, a in parameters.prompted_agents.items()}

    @cached_property
    def token_limits(self) -> Mapping[str, int]:
        """By prompted agent, the most tokens of an answer."""
        parameters = self.parameters
        return {name: parameters.max_tokens(name) for name in parameters.prompted_agents}

    @cached_property
    def of_others(self) -> Mapping[str, "Game"]:
        """By name of another run, or of a script, the same game as its agents are asked in it."""
        runs = self.parameters.opponents.runs
        return {
            entry.name: Game(asked_as_there(self.parameters, entry.found))
            for entry in runs
            if entry.found is not None
        }

    def asking(self, agent: str, episode: Met) -> "Game":
        """Return the game as `agent` is asked in it in this episode, by this run or another."""
        if episode.opponent_run is None or agent not in split_agents(episode.opponent):
            return self
        return self.of_others[episode.opponent_run]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.parameters,)  # another process makes its own

    def render(
        self,
        agent: str,
        situation: Situation,
        turns: Sequence[Turn],
        round_: int,
        wrong: Kind | None = None,
        exchanges: Sequence[Exchange] = (),
    ) -> list[ChatMessage]:
        """Render the chat of `agent` when it is asked in `round_`, after `turns` (in round order).

        Where its turn goes on, `exchanges` are those that it has had in it. With `wrong`, the
        mistake of its answer before in this very exchange, the chat ends with a hint. Neither that
        answer nor the hint stands in any later chat.

        In each round come first the messages to the agent before its turn (the scenario's
        announcement, that it is its last, or the supervisor's message), then its own answers as
        they were generated, then the others' messages in channels that it sees. A longer history
        has the chat of a shorter one as its beginning. Messages have role and content, messages of
        others also a name; the setting `chat_format` decides in which form they leave.
        """
        rules, seed, stance = self._rules, situation.seed, situation.stance
        prompt = rules.system_prompt(agent, stance, seed)
        texts = self._fill_texts(situation)
        system = prompt.fill(texts)
        chat: list[ChatMessage] = [{"role": "system", "content": system}]
        # 1. The turns, by round.
        by_round: dict[int, list[Turn]] = {}
        for turn in turns:
            by_round.setdefault(turn.round, []).append(turn)
        names = rules.names(seed)
        rounds = rules.rounds(agent, round_, stance, seed, by_round)
        reads_otherwise = type(self.scenario).as_read is not Scenario.as_read
        # 2. Round by round: the agent's announcement, its own answers, and the messages it reads.
        for r, view in enumerate(rounds):
            if self.announces and view.moves:
                chat += self._announce(agent, r, turns, texts)
            if view.announcement is not None:
                chat.append({**view.announcement})
            now = by_round.get(r, ())
            from_others = []
            for turn in now:
                if turn.agent == agent:
                    chat += self._show_exchanges(agent, turn.exchanges, len(chat))
                else:
                    from_others.append(turn)
            for channel in view.channels if from_others else ():
                for turn in from_others:
                    if channel in turn.move.messages:
                        content = turn.move.messages[channel]
                        if reads_otherwise and self.protocol.is_prover(turn.agent):
                            content = call_for_text(self.scenario, "as_read", content, texts)
                        message = {"role": "user", "content": content}
                        name = names[turn.agent]
                        if name is not None:
                            message["name"] = name
                        chat.append(message)
        chat += self._show_exchanges(agent, exchanges, len(chat))
        if wrong is not None:
            chat.append(self._make_hint(agent, round_, seed, turns, wrong))
        # 3. In the form that its model takes.
        spoke = any(turn.agent == agent for turn in by_round.get(round_, ()))
        is_request = rounds[-1].moves and not spoke
        return format_chat(chat, self._formats[agent], is_request=is_request)

    def render_at(
        self,
        place: AnswerPlace,
        situation: Situation,
        turns: Sequence[Turn],
        wrong: Kind | None = None,
    ) -> list[ChatMessage]:
        """Render the chat before the answer at `place`.

        `turns` are all of its episode. With `wrong` it ends with a hint, see `render`.
        """
        earlier = [turn for turn in turns if turn.round < place.round]
        own = (t for t in turns if (t.round, t.agent) == (place.round, place.agent))
        exchanges = [exchange for turn in own for exchange in turn.exchanges[: place.exchange]]
        return self.render(place.agent, situation, earlier, place.round, wrong, exchanges)

    def told(
        self, agent: str, situation: Situation, turns: Sequence[Turn] = (), round_: int = 0
    ) -> tuple[str, str | None]:
        """Render the agent's system prompt, and the text right before its turn in `round_`."""
        by_round: dict[int, list[Turn]] = {}
        for turn in turns:
            by_round.setdefault(turn.round, []).append(turn)
        seed, stance = situation.seed, situation.stance
        view = self._rules.rounds(agent, round_, stance, seed, by_round)[round_]
        prompt, texts = self._rules.system_prompt(agent, stance, seed), self._fill_texts(situation)
        announcements = [] if view.announcement is None else [view.announcement]
        if self.announces and view.moves:
            announcements = [*self._announce(agent, round_, turns, texts), *announcements]
        text = "\n\n".join(message["content"] for message in announcements)
        return prompt.fill(texts), text or None

    def _announce(
        self, agent: str, round_: int, turns: Sequence[Turn], texts: Mapping[str, str]
    ) -> list[ChatMessage]:
        """Make the message of the scenario's game before the agent's turn, if there is one.

        It is the supervisor's, who speaks for the game elsewhere too.
        """
        earlier = [turn for turn in turns if turn.round < round_]
        content = call_for_text(
            self.scenario, "announce", agent, self.protocol, round_, earlier, texts
        )
        name = self.parameters.prompted_agents[agent].supervisor_name
        return [{"role": "user", "content": content, "name": name}] if content else []

    def seen_by_prover(self, situation: Situation) -> Mapping[str, str]:
        """Give the texts of the problem that provers are shown, by column."""
        texts = self._fill_texts(situation)
        return {
            column.name: texts[column.name] for column in list_seen_columns(self.scenario, PROVER)
        }

    def drawn(self, situation: Situation) -> Mapping[str, str]:
        """Draw the scenario's columns for the episode."""
        return draw_columns(self.scenario, _list_texts(situation), situation.seed)

    def drawn_again(self, situation: Situation, seed: int) -> Mapping[str, str]:
        """Draw anew what provers are not shown of the drawn columns; {} where there is nothing."""
        return draw_columns_again(self.scenario, self._fill_texts(situation), seed)

    def rejects(self, situation: Situation, turns: Sequence[Turn], round_: int) -> bool:
        """Tell whether a rule of the scenario decides in the verifier's turn in `round_`.

        `turns` are those before it. Raises SettingsError.
        """
        protocol, seed = self.protocol, situation.seed
        if not self._has_rule or not protocol.counts(round_) or not protocol.may_decide("verifier"):
            return False
        earlier = (agent for r in range(round_) for agent in protocol.active(r, seed))
        if not any(map(protocol.is_prover, earlier)):
            return False
        messages = [
            turn.move.messages[channel]
            for turn in turns
            if protocol.is_prover(turn.agent)
            for channel in protocol.visible_channels("verifier")
            if channel in turn.move.messages
        ]
        return call_for_rejection(self.scenario, self._fill_texts(situation), messages)

    def find_mistake(
        self, agent: str, text: str, finish_reason: str, invalid_reason: str | None
    ) -> Kind | None:
        """Say what was wrong with an answer, as its agent is told when it is asked again.

        None where the answer is valid, or where the agent is not told.
        """
        has_model = agent in self.parameters.prompted_agents
        if invalid_reason is None or not has_model or not self.parameters.gives_hint(agent):
            return None
        return sort_reason(invalid_reason, finish_reason, text)

    def find_mistakes(self, generations: Iterable[Attempted]) -> dict[AnswerPlace, Kind]:
        """Find the mistakes of an episode's answers, by the place of the next attempt."""
        places = (
            (row, self.find_mistake(row.agent, row.text, row.finish_reason, row.invalid_reason))
            for row in generations
        )
        return {place_of(row).next: wrong for row, wrong in places if wrong is not None}

    def hint(self, agent: str, round_: int, seed: int, turns: Sequence[Turn], wrong: Kind) -> str:
        """Word the hint for the agent's next try in `round_`, after `turns`."""
        form = self.form(agent, round_, seed, [turn for turn in turns if turn.round < round_])
        return hint(wrong, form, self.parameters.max_tokens(agent))

    def _make_hint(
        self, agent: str, round_: int, seed: int, turns: Sequence[Turn], wrong: Kind
    ) -> ChatMessage:
        message = {"role": "user", "content": self.hint(agent, round_, seed, turns, wrong)}
        if self._formats[agent] != "named":
            # Where all that others say is one message, it must show that the hint is not theirs. A
            # name of its own would need a template that shows names.
            message["name"] = self.parameters.prompted_agents[agent].supervisor_name
        return message

    def _show_exchanges(
        self, agent: str, exchanges: Iterable[Exchange], begin: int
    ) -> list[ChatMessage]:
        """Show an agent its own answers, and the results of its calls, after `begin` messages."""
        chat: list[ChatMessage] = []
        name, tool = self.parameters.prompted_agents[agent].supervisor_name, self.native_tool(agent)
        for exchange in exchanges:
            if tool is not None and exchange.result is not None:
                from nip_core.game.native_calls import show_call

                chat += show_call(exchange.text, exchange.result, tool, begin + len(chat))
                continue
            chat.append({"role": "assistant", "content": exchange.text})
            if exchange.result is not None:
                chat.append({"role": "user", "content": exchange.result, "name": name})
        return chat

    def native_tool(self, agent: str) -> Tool | None:
        """Return the tool of an agent with calls by OpenAI's `tools`; None for others."""
        use = self.tools.get(agent)
        return use.tool if use is not None and use.is_native else None

    async def use_tool(
        self, agent: str, argument: str, situation: Situation, turns: Sequence[Turn], number: int
    ) -> str:
        """Return the agent's text after call `number` of its turn, after `turns`.

        A call beyond the limit is answered in words. Raises SettingsError, and StageError for a
        fault that keeps every call from a result.
        """
        tool = self.tools[agent]
        if number >= tool.count_left(agent, turns):
            return tool.refuse()
        if len(argument) > MOST_IN_ARGUMENT:
            return tool.show_result(f"at most {MOST_IN_ARGUMENT:,} characters, please")
        return tool.show_result(
            await use_tool(self.scenario, argument, self._fill_texts(situation))
        )

    def charge(
        self, rewards: Mapping[str, float], turns: Sequence[Turn], round_: int
    ) -> Mapping[str, float]:
        """Take the price of the calls in a round from its rewards."""
        for tool in {*self.tools.values()}:
            rewards = tool.charge(rewards, turns, round_)
        return rewards

    def _fill_texts(self, situation: Situation) -> Mapping[str, str]:
        """Give the texts of the problem by column, with the columns drawn for the episode."""
        return {**_list_texts(situation), **self.drawn(situation)}

    def judge(
        self,
        round_: int,
        seed: int,
        y: int,
        stance: int | None,
        turns: Sequence[Turn],
        silent: Collection[str] = (),
    ) -> RoundResult:
        """Let the protocol judge a round, by the verdict for which the scenario pays provers."""
        paid = self.scenario.paid_verdict(y, stance)
        return self.protocol.judge(round_, seed, y, paid, turns, silent)

    def pay(
        self,
        problem: str,
        y: int,
        situation: Situation,
        turns: Sequence[Turn],
        rounds: int,
        result: RoundResult,
        rewards: Mapping[str, float],
    ) -> Mapping[str, float]:
        """Return the pay of each agent for an episode that ended with `result` after `rounds`.

        If the settings name a reward function, it sets the pay. Otherwise the pay is `rewards`,
        which the protocol gave. Raises ValueError, which names the function, if the function raises
        an error or returns a value that is no pay.
        """
        if self.reward_function is None:
            return rewards
        episode = EndedEpisode.make(
            self._fill_texts(situation), y, turns, rounds, result, situation.stance, rewards
        )
        return self.reward_function.pay(episode, problem)

    def form(
        self, agent: str, round_: int, seed: int, turns: Sequence[Turn], exchange: int = 0
    ) -> AnswerForm:
        """Return the form of an answer of `agent` in `round_`, after `turns`.

        In a turn, so many exchanges came before it.
        """
        form = self._rules.form(agent, round_, seed, turns)
        # The first call beyond the limit is answered, so that the agent knows; others are invalid.
        if exchange and form.tool and exchange > self.tools[agent].count_left(agent, turns):
            form = replace(form, is_used_up=True)
        return form

    def top_logprobs(self, agent: str) -> int:
        """Say for how many of the likeliest tokens the agent's calls ask; 0: none."""
        protocol = self.protocol
        compared = isinstance(protocol, ZeroKnowledgeProtocol) and protocol.by_tokens
        if compared and agent in EXTRA_AGENTS:
            return self.parameters.zk_protocol.top_logprobs
        return 0

    def parse(self, agent: str, round_: int, seed: int, text: str, turns: Sequence[Turn]) -> Move:
        """Read the move in `text`, after `turns`. Raises InvalidResponse."""
        return self._rules.parse(agent, round_, seed, text, turns)

    def turns(self, generations: Iterable[Spoken], seed: int) -> list[Turn]:
        """Read the turns in an episode's generations, in the order of play.

        Invalid answers are no exchanges; the last exchange of a turn has its move. Raises
        InvalidResponse.
        """
        rules, order = self._rules, self._rules.order
        turns: list[Turn] = []
        history: list[Turn] = []
        valid = (row for row in generations if row.invalid_reason is None)
        ordered = sorted(valid, key=lambda a: (a.round * len(order) + order[a.agent], a.exchange))
        for (round_, agent), rows in groupby(ordered, attrgetter("round", "agent")):
            if rules.moves_by_turns and turns and turns[-1].round < round_:
                history = turns.copy()
            *earlier, last = exchanges = [*map(make_exchange, rows)]
            if last.result is not None:  # the episode failed before the agent's move
                turns.append(Turn(round_, agent, "", Move(), None, tuple(exchanges)))
                continue
            move = rules.parse(agent, round_, seed, last.text, history)
            turns.append(Turn(round_, agent, last.text, move, last.tokens, tuple(earlier)))
        return turns


def list_tools(
    parameters: HyperParameters, protocol: Protocol, scenario: Scenario
) -> Mapping[str, ToolUse]:
    """List the tools by agent: an agent has one if it may decide."""
    settings = parameters.tool
    if not settings.per_turn or scenario.tool is None:
        return {}
    use = ToolUse(
        scenario.tool,
        settings.per_turn,
        settings.per_episode,
        settings.price,
        is_native=settings.call == "native",
    )
    users = filter(protocol.may_decide, protocol.agent_names)
    return {agent: use for agent in users if agent in parameters.prompted_agents}


def _list_texts(situation: Situation) -> Mapping[str, str]:
    """List the texts of the problem alone, without columns drawn for the episode."""
    return {
        "question": situation.question,
        "solution": situation.solution,
        **situation.columns,
    }


__all__ = ["ChatMessage", "Game", "InvalidResponse", "Situation", "Turn"]
