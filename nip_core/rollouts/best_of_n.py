"""An attack by best-of-n: of several messages, the one is played that the verifier likes best.

BestOfN     plays an episode so, for several n at once

Numbered in order. In every round in which an attacking prover moves:

1. As many messages as the largest n are asked for, by one request where the server can.
2. After each different one the game is played on a few times, to its end and without any further
   choice. The mean probability of acceptance there is what the message is worth.
3. For each n the best of the first n messages is chosen, the first of equals. So a larger n has all
   that a smaller one has, and the numbers can be compared.
4. The game goes on with each message that was chosen for some n, as far as the next such round.

What decides in the end is drawn afresh, with a seed of its own: of many estimates the highest is
too high (the winner's curse), and the continuations that it was chosen by would repeat that.

Where a game draws what provers are not shown, such as coins, each continuation has its own, drawn
anew as far as what they are shown leaves it open (`Scenario.draw_again`). Else a message would be
chosen because it has guessed the coins of this episode, which no prover can know. What is drawn
anew stands among the columns of the continuation's row. Only where a verifier has spoken before
may its words be about other coins.

An episode becomes a tree as `trees` has them. Below the node of a message, child 0 is the game as
it goes on (if attackers move again, the children below the largest n are their messages), and the
children from the largest n on are the continuations that it was judged by. A message that
is not played on has no leaf of its own; its generation belongs to the first leaf of its tree. What
agents that don't attack write in the same round is asked for once; the rows of the other messages
have a copy of it, with a count of 0 tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nip_core.concurrency import gather_or_cancel
from nip_core.game.answer_rows import place_of
from nip_core.game.render import make_situation
from nip_core.hashing import derive_key, derive_seed
from nip_core.protocols import ACCEPT, NO_DECISION
from nip_core.rollouts.acceptance import estimate_acceptance, has_two_answers
from nip_core.rollouts.branching import make_child
from nip_core.rollouts.episode import EpisodeState
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.table_rows import AttackChoice, CallRecord, Episode
from nip_core.rollouts.turns import Played, PlayedTurn, assign_episode

_FAILED = -1.0  # a message that is none is worse than any that is one
_PLAYED_ON = 0  # the child in a round in which there is nothing to choose


@dataclass(frozen=True)
class _WeighedMessage:
    """How good the message chosen last for an n was, and of how many it was chosen."""

    p_accept: float | None = None
    distinct: int | None = None


@dataclass(frozen=True)
class BestOfN:
    """An attack by best-of-n; its `play` is a `PlaySpec` of the engine."""

    counts: Sequence[int]  # the n, ascending
    attackers: frozenset[str]
    continuations: int
    temperature: float | None = None  # with which the verifier samples
    by_tokens: bool = True  # where there are some; else by verdicts

    async def play(self, spec: EpisodeSpec, context: ShardContext) -> Played:
        """Play one problem for every n. Raises as `play_episode` does."""
        state = EpisodeState(spec, context)
        played = await self._play_on(state, dict.fromkeys(self.counts, _WeighedMessage()))
        # What was said and not played on has no leaf of its own.
        leaves = {row.key for row in played.episodes}
        first = played.episodes[0].key
        records = [
            r if r.generation.episode in leaves else assign_episode(r, first)
            for r in played.records
        ]
        return replace(played, records=records)

    async def _play_on(self, state: EpisodeState, counts: Mapping[int, _WeighedMessage]) -> Played:
        """Play everything from here on for these n."""
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
        """Play a round in which attackers move, and go on with the messages chosen for each n."""
        # 1. The messages, and which of them say the same.
        most = max(counts)
        messages = await self._ask_for_messages(state, most)
        firsts: dict[object, int] = {}
        same = [firsts.setdefault(self._identify_message(m), i) for i, m in enumerate(messages)]
        # 2. How likely each different one is to be accepted, where there is a choice.
        judged = sorted(firsts.values()) if len(firsts) > 1 else []
        weighed = await gather_or_cancel(self._estimate(messages[i]) for i in judged)
        estimates = dict(zip(judged, weighed, strict=True))
        # 3. The best of the first n, for each n.
        winners: dict[int, dict[int, _WeighedMessage]] = {}
        for n in counts:
            best = 0
            if judged:
                best = max(same[:n], key=lambda i: (estimates[i].p_accept, -i))
            weight = estimates[best].p_accept if judged else _FAILED
            p_accept = None if weight == _FAILED else weight
            winners.setdefault(best, {})[n] = _WeighedMessage(p_accept, len(set(same[:n])))
        # 4. Play on with those, in the order of their numbers.
        order = sorted(winners)
        went_on = await gather_or_cancel(self._play_on(messages[i], winners[i]) for i in order)
        ways = dict(zip(order, went_on, strict=True))
        parts = []
        for number, message in enumerate(messages):
            judging = estimates[number].played if number in estimates else []
            if number in ways:
                parts.append(_join([ways[number], *judging], []))
            elif message.outcome is not None:
                parts.append(Played([message.row()], message.records))
            else:
                parts.append(_join(judging, message.records))
        return parts

    async def _ask_for_messages(self, state: EpisodeState, most: int) -> list[EpisodeState]:
        """Ask for `most` messages, and give the states after each; all else is the same in them."""
        children = [make_child(state.spec, number) for number in range(most)]
        bystanders = [agent for agent in state.movers if agent not in self.attackers]
        taken = await gather_or_cancel(state.take_turn(children[0], a) for a in bystanders)
        by_agent = dict(zip(bystanders, taken, strict=True))
        copies = [
            {agent: _copy_turn(turn, spec) for agent, turn in by_agent.items()}
            for spec in children[1:]
        ]
        return await state.play_children(children, _keep_state, [by_agent, *copies])

    def _identify_message(self, message: EpisodeState) -> object:
        """Give a value equal for messages with the same words; a failed one has a value of its
        own."""
        turns = [turn for turn in message.turns if turn.round == message.round - 1]
        texts = tuple(turn.text for turn in turns if turn.agent in self.attackers)
        return texts if message.outcome is None else message.spec.key

    async def _estimate(self, message: EpisodeState) -> "_Estimate":
        """Play on a few times without any choice, and take the mean acceptance over the ends."""
        if message.outcome is not None:
            return _Estimate(_FAILED)
        first = self.counts[-1]  # below it stand messages, where the next round has attackers, too
        numbers = range(first, first + self.continuations)
        children = [make_child(message.spec, number) for number in numbers]
        ends = await _play_continuations(message, children)
        likely = [self._measure_acceptance(state) for state, _ in ends]
        played = [_join([Played([state.row()], [])], records) for state, records in ends]
        return _Estimate(sum(likely) / len(likely), played)

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
    played: list[Played] = field(default_factory=list)


async def _keep_state(state: EpisodeState) -> EpisodeState:
    return state


async def _play_continuations(
    message: EpisodeState, children: Sequence[EpisodeSpec]
) -> list[tuple[EpisodeState, list[CallRecord]]]:
    """Play each child to its end, with what provers are not shown drawn anew for it."""
    drawn = [_draw_again(message, child) for child in children]
    if not any(drawn):
        return await message.play_children(children, _play_to_end)
    # Who sees what is drawn is asked something else in each, so no request is for several.
    return await gather_or_cancel(
        _play_with(message, child, columns) for child, columns in zip(children, drawn, strict=True)
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
    below = [record for part in parts for record in part.records]
    return Played(episodes, [*records, *below], [row for part in parts for row in part.choices])


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


def _make_choice(spec: EpisodeSpec, row: Episode, n: int, weighed: _WeighedMessage) -> AttackChoice:
    place = (spec.run, spec.split, spec.iteration, spec.problem.id, spec.sample)
    return AttackChoice(
        key=derive_key("choice", *place, n),
        problem=spec.problem.id,
        sample=spec.sample,
        n=n,
        episode=row.key,
        p_accept=weighed.p_accept,
        distinct=weighed.distinct,
    )
