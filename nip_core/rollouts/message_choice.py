"""Playing an attack in whose turns a message is chosen: the tree of an episode.

ChoicePlay        plays an episode so, for several numbers of messages at once
make_choice_play  by the settings of a run that attacks
judges_by_tokens  whether estimates go by log-probabilities of the verifier

In every round in which an attacking prover moves:

1. The attack (`nip_core.attacks`) asks for as many messages as the largest number says, by one
   request where the server can. It may write some itself, too.
2. It may have each message estimated: then the game is played on after it a few times, to its end
   and without any further choice. The mean probability of acceptance there is its estimate.
3. It chooses a message for each number. The game goes on with each message that was chosen for
   some number, until the next such round.

The end that counts is played afresh, with a seed of its own. The highest of many estimates is too
high (the winner's curse), and the continuations by which the message was chosen would repeat that.

A game may draw columns that provers are not shown, such as coins. Then each continuation has its
own, drawn anew as far as the shown columns leave them open (`Scenario.draw_again`). Else a message
would be chosen because it has guessed the coins of this episode, which no prover can know. The new
columns stand in the continuation's row. Only where a verifier has spoken earlier may its words be
about other coins.

An episode becomes a tree as `trees` has them. Below the node of a message, child 0 is the game as
it goes on. If attackers move again, the children below the largest number are their messages. The
children from the largest number on are the continuations that the message was judged by, and behind
these stand the messages that the attack wrote. A message that is not played on has no leaf of its
own; its generation belongs to the first leaf of its tree. Agents that don't attack are asked once
in the same round; the rows of the other messages have a copy of their answers, with a count of 0
tokens.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nip_base.importing import find_line
from nip_core.attacks import Attack, PlayableMessage, find_attack_file
from nip_core.concurrency import gather_or_cancel
from nip_core.errors import NipError, StageError
from nip_core.game.answer_rows import AnswerPlace, place_of
from nip_core.game.render import make_situation
from nip_core.hashing import derive_key, derive_seed
from nip_core.parameters import HyperParameters
from nip_core.parameters.checks import find_attackers
from nip_core.protocols import ACCEPT, NO_DECISION
from nip_core.rollouts.acceptance import estimate_acceptance, has_two_answers
from nip_core.rollouts.branching import make_child
from nip_core.rollouts.episode import EpisodeState
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.scripted_call import make_writing_player
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.table_rows import CallRecord, Episode, MessageChoice
from nip_core.rollouts.turns import Played, PlayedTurn, assign_episode

_FAILED = -1.0  # an invalid message is worse than any valid one
_PLAYED_ON = 0  # the child in a round in which there is nothing to choose


@dataclass(frozen=True)
class _WeighedMessage:
    """The estimate of the message chosen last for a number, and from how many it was chosen."""

    p_accept: float | None = None
    distinct: int | None = None


@dataclass(frozen=True)
class ChoicePlay:
    """Plays by an attack's choices; its `play` is a `PlaySpec` of the engine."""

    attack: Attack
    attackers: frozenset[str]
    temperature: float | None = None  # with which the verifier samples
    by_tokens: bool = True  # estimates are, where there are some; else by verdicts

    async def play(self, spec: EpisodeSpec, context: ShardContext) -> Played:
        """Play one problem for every number. Raises as `play_episode` does."""
        state = EpisodeState(spec, context)
        tree = await self._play_on(state, dict.fromkeys(self.attack.counts, _WeighedMessage()))
        # A message that is not played on has no leaf of its own.
        leaves = {row.key for row in tree.episodes}
        first = tree.episodes[0].key
        records = [
            r if r.generation.episode in leaves else assign_episode(r, first) for r in tree.records
        ]
        return replace(tree, records=records)

    async def _play_on(self, state: EpisodeState, counts: Mapping[int, _WeighedMessage]) -> Played:
        """Play everything from here on for these numbers."""
        records = list(state.records)
        # 1. Go on to the next round in which there is something to choose.
        while state.outcome is None and self.attackers.isdisjoint(state.movers):
            state = await state.play_round(make_child(state.spec, _PLAYED_ON))
            records += state.records
        # 2. Choose there, or stop at the end.
        if state.outcome is None:
            parts = await self._choose(state, counts)
        else:
            row = state.row()
            parts = [
                Played([row], [], [_make_choice(state.spec, row, n, counts[n]) for n in counts])
            ]
        return _join(parts, records)

    async def _choose(
        self, state: EpisodeState, counts: Mapping[int, _WeighedMessage]
    ) -> list[Played]:
        """Play a round in which attackers move, and go on with the messages chosen for each."""
        turn = ChoiceTurn(self, state, tuple(counts))
        # 1. The attack asks, judges and chooses.
        winners: dict[int, dict[int, _WeighedMessage]] = {}
        for n, number in (await self._ask_attack(turn)).items():
            winners.setdefault(number, {})[n] = turn.weigh(number, n)
        # 2. Play on with those, in the order of their numbers.
        order = sorted(winners)
        went_on = await gather_or_cancel(self._play_on(turn.states[i], winners[i]) for i in order)
        ways = dict(zip(order, went_on, strict=True))
        parts = []
        for number, message in sorted(turn.states.items()):
            judging = turn.estimates[number].parts if number in turn.estimates else []
            if number in ways:
                parts.append(_join([ways[number], *judging], []))
            elif message.outcome is not None:
                parts.append(Played([message.row()], message.records))
            else:
                parts.append(_join(judging, message.records))
        return parts

    async def _ask_attack(self, turn: "ChoiceTurn") -> dict[int, int]:
        """Ask the attack for its choice; give by count of messages the number of the message.

        Raises StageError that names the attack, the question and the remedy, for anything wrong
        that a class of the user's raises or returns.
        """
        try:
            choice = await self.attack.choose(turn)
        except NipError:
            raise
        except Exception as error:  # of a user's class
            file = str(find_attack_file(self.attack.settings.by) or "")
            text = " ".join(str(error).split())
            raise StageError(
                f"{turn.place} raised {type(error).__name__}: {text:.500}{find_line(error, file)}; "
                "mend it, and start anew under another name, as a changed attack is another one"
            ) from error
        by_count = (
            {n: choice for n in turn.counts} if isinstance(choice, PlayableMessage) else choice
        )
        wrong = not isinstance(by_count, Mapping) or {*by_count} != {*turn.counts}
        if wrong or any(turn.has_not(message) for message in by_count.values()):
            raise StageError(
                f"{turn.place} chose {choice!r:.200}; it has to return a message of this turn, as "
                f"`ask` or `write` gave it, or one for each of {[*turn.counts]}; mend it, and "
                "start anew under another name"
            )
        return {n: message.number for n, message in by_count.items()}

    async def estimate(self, message: EpisodeState) -> "_Estimate":
        """Play on a few times without any choice, and take the mean acceptance over the ends."""
        if message.outcome is not None:
            return _Estimate(_FAILED)
        # Below it stand messages, where the next round has attackers, too.
        first = self.attack.counts[-1]
        numbers = range(first, first + self.attack.continuations)
        children = [make_child(message.spec, number) for number in numbers]
        ends = await _play_continuations(message, children)
        likely = [self._measure_acceptance(state) for state, _ in ends]
        parts = [_join([Played([state.row()], [])], records) for state, records in ends]
        return _Estimate(sum(likely) / len(likely), parts)

    def _measure_acceptance(self, state: EpisodeState) -> float:
        """Return the probability of acceptance where the game ended.

        It is read from the log-probabilities of the verdict; without them it is 1 or 0, by the
        verdict.
        """
        if state.decision == NO_DECISION:
            return 0.0
        is_known = self.by_tokens and has_two_answers(state.context.game.protocol.scale)
        for turn in reversed(state.turns) if is_known else ():
            if turn.agent == "verifier" and turn.move.decision == state.decision and turn.tokens:
                likely = estimate_acceptance(turn.tokens, state.decision, self.temperature)
                if likely is not None:
                    return likely
                break
        return float(state.decision == ACCEPT)


@dataclass(frozen=True)
class _Estimate:
    p_accept: float
    parts: list[Played] = field(default_factory=list)


def judges_by_tokens(parameters: HyperParameters) -> bool:
    """Tell whether messages are estimated by log-probabilities, where a model gives some."""
    return parameters.attack.score_by == "log_probs"


def make_choice_play(parameters: HyperParameters) -> ChoicePlay:
    """Make what plays the episodes of an attack by its choices."""
    return ChoicePlay(
        parameters.attack.way,
        frozenset(find_attackers(parameters)),
        parameters.model_agents["verifier"].temperature,
        by_tokens=judges_by_tokens(parameters),
    )


class ChoiceTurn:
    """A turn of the attackers while it is played; an `AttackTurn`."""

    def __init__(self, play: ChoicePlay, state: EpisodeState, counts: tuple[int, ...]) -> None:
        self._play, self._state = play, state
        self._message_numbers: list[int] = []
        self._next_written = play.attack.counts[-1] + play.attack.continuations  # behind all others
        self._bystanders: Mapping[str, PlayedTurn] | None = None
        self._lock = asyncio.Lock()
        self.counts = counts
        self.round = state.round
        self.agents = tuple(agent for agent in state.movers if agent in play.attackers)
        self.states: dict[int, EpisodeState] = {}
        """By number, the state after each message."""
        self.estimates: dict[int, _Estimate] = {}

    @property
    def texts(self) -> Mapping[str, str]:
        """The texts of the problem that provers are shown."""
        spec = self._state.spec
        situation = make_situation(spec.problem, spec.stance, spec.seed)
        return self._state.context.game.seen_by_prover(situation)

    @property
    def seed(self) -> int:
        """Derived from settings, problem and place, as the seeds of calls are."""
        spec = self._state.spec
        base = self._state.context.game.parameters.seed
        return spec.generation_seed(base, AnswerPlace(self.round, self.agents[0]))

    @property
    def place(self) -> str:
        """Name the attack and the turn in which something is wrong."""
        attack_name, question = self._play.attack.settings.by, self._state.spec.problem.id
        return f"attack.by: {attack_name} on question {question} (round {self.round})"

    def has_not(self, message: object) -> bool:
        """Tell whether something is no message of this turn."""
        if not isinstance(message, PlayableMessage) or message.number not in self.states:
            return True
        # One of another turn, or with other words, would be played as this turn's message.
        return message != self._read(message.number)

    def weigh(self, number: int, n: int) -> _WeighedMessage:
        """Give a chosen message's estimate, and from how many of the first `n` it was chosen."""
        estimate = self.estimates.get(number)
        likely = None if estimate is None or estimate.p_accept == _FAILED else estimate.p_accept
        words = {self._read(i).words for i in self.states if i < n or i >= self.counts[-1]}
        return _WeighedMessage(likely, len(words))

    async def ask(self, n: int | None = None) -> Sequence[PlayableMessage]:
        """Ask for messages once for all numbers; give the first `n`."""
        largest = max(self.counts)
        n = largest if n is None else n
        async with self._lock:
            if not self._message_numbers:
                await self._ask(min(n, largest))
        if not 1 <= n <= len(self._message_numbers):
            raise StageError(
                f"{self.place} asks for {n} messages, and there may be {largest} (options.n), all "
                "of them asked for at once; mend it, and start anew under another name"
            )
        return [self._read(i) for i in self._message_numbers[:n]]

    async def _ask(self, count: int) -> None:
        """Ask for messages; the other movers say the same beside each."""
        children = [make_child(self._state.spec, number) for number in range(count)]
        ready_turns = [await self._hear_bystanders(spec) for spec in children]
        states = await self._state.play_children(children, _keep_state, ready_turns)
        self.states |= dict(enumerate(states))
        self._message_numbers = [*range(count)]

    async def _hear_bystanders(self, spec: EpisodeSpec) -> Mapping[str, PlayedTurn]:
        """Ask the other movers at the first message; at others they say the same."""
        state = self._state
        bystanders = [agent for agent in state.movers if agent not in self._play.attackers]
        if self._bystanders is None:
            answers = await gather_or_cancel(state.take_turn(spec, a) for a in bystanders)
            self._bystanders = dict(zip(bystanders, answers, strict=True))
            return self._bystanders
        heard = self._bystanders.items()
        return {agent: _copy_turn(turn, spec) for agent, turn in heard}

    async def write(self, text: str) -> PlayableMessage:
        """Play a text in the place of the messages of the provers' models."""
        async with self._lock:
            number, self._next_written = self._next_written, self._next_written + 1
            spec = make_child(self._state.spec, number)
            heard = await self._hear_bystanders(spec)
        context = self._state.context
        players = {agent: make_writing_player(context.game, agent, text) for agent in self.agents}
        writing = replace(context, players={**context.players, **players})
        state = replace(self._state, context=writing, records=[], chats={})
        next_state = await state.play_round(spec, None, heard)
        self.states[number] = replace(next_state, context=context)
        return self._read(number)

    async def estimate(self, messages: Sequence[PlayableMessage]) -> Sequence[float]:
        """Estimate messages side by side, each only once."""
        if not self._play.attack.continuations:
            raise StageError(
                f"{self.place} has messages estimated without continuations; set "
                "attack.options.continuations, or its default in the class"
            )
        new = sorted({m.number for m in messages} - self.estimates.keys())
        weighed = await gather_or_cancel(self._play.estimate(self.states[i]) for i in new)
        self.estimates |= dict(zip(new, weighed, strict=True))
        return [self.estimates[message.number].p_accept for message in messages]

    def _read(self, number: int) -> PlayableMessage:
        state = self.states[number]
        turns = [turn for turn in state.turns if turn.round == state.round - 1]
        texts = {turn.agent: turn.text for turn in turns if turn.agent in self.agents}
        return PlayableMessage(number, texts, goes_on=state.outcome is None)


async def _keep_state(state: EpisodeState) -> EpisodeState:
    return state


async def _play_continuations(
    message: EpisodeState, children: Sequence[EpisodeSpec]
) -> list[tuple[EpisodeState, list[CallRecord]]]:
    """Play each child to its end, with the columns hidden from provers drawn anew for it."""
    drawn_columns = [_draw_again(message, child) for child in children]
    if not any(drawn_columns):
        return await message.play_children(children, _play_to_end)
    # An agent that sees the drawn columns has another prompt in each, so no request is for several.
    return await gather_or_cancel(
        _play_with(message, child, columns)
        for child, columns in zip(children, drawn_columns, strict=True)
    )


def _draw_again(message: EpisodeState, child: EpisodeSpec) -> Mapping[str, str]:
    situation = make_situation(child.problem, child.stance, child.seed)
    seed = derive_seed("drawn again", child.seed, child.branch_path)
    return message.context.game.drawn_again(situation, seed)


async def _play_with(
    message: EpisodeState, child: EpisodeSpec, columns: Mapping[str, str]
) -> tuple[EpisodeState, list[CallRecord]]:
    """Play a child to its end as if these columns had been drawn for its episode."""
    problem = replace(child.problem, columns={**child.problem.columns, **columns})
    state = replace(message, spec=replace(message.spec, problem=problem), records=[], chats={})
    return await _play_to_end(await state.play_round(replace(child, problem=problem)))


async def _play_to_end(state: EpisodeState) -> tuple[EpisodeState, list[CallRecord]]:
    """Play an episode to its end without any choice; give the end and the records of its calls."""
    records = list(state.records)
    while state.outcome is None:
        state = await state.play_round(make_child(state.spec, _PLAYED_ON))
        records += state.records
    return state, records


def _join(parts: Sequence[Played], records: Sequence[CallRecord]) -> Played:
    """Join parts to one, and give the records of calls shared by all of them to the first leaf.

    Without a leaf they stay with their node.
    """
    episodes = [row for part in parts for row in part.episodes]
    if episodes:
        records = [assign_episode(record, episodes[0].key) for record in records]
    lower_records = [record for part in parts for record in part.records]
    return Played(
        episodes, [*records, *lower_records], [row for part in parts for row in part.choices]
    )


def _copy_turn(turn: PlayedTurn, spec: EpisodeSpec) -> PlayedTurn:
    """Copy a turn to the rows of another node, with a count of 0 tokens as nothing was
    generated."""
    exchanges = [
        replace(exchange, records=[_copy_record(record, spec) for record in exchange.records])
        for exchange in turn.exchanges
    ]
    return replace(turn, exchanges=exchanges)


def _copy_record(record: CallRecord, spec: EpisodeSpec) -> CallRecord:
    key = spec.generation_key(place_of(record.generation))
    generation = replace(
        record.generation,
        key=key,
        episode=spec.key,
        branch_path=spec.branch_path,
        prompt_tokens=0,
        completion_tokens=0,
    )
    return CallRecord(generation, replace(record.timing, key=key, latency_s=0.0))


def _make_choice(
    spec: EpisodeSpec, row: Episode, n: int, weighed: _WeighedMessage
) -> MessageChoice:
    place = (spec.run, spec.split, spec.iteration, spec.problem.id, spec.sample)
    return MessageChoice(
        key=derive_key("choice", *place, n),
        problem=spec.problem.id,
        sample=spec.sample,
        n=n,
        episode=row.key,
        p_accept=weighed.p_accept,
        distinct=weighed.distinct,
    )
