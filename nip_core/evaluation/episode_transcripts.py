"""Episodes as a person reads them: the problem, the messages, and the verdict.

Transcript, Message        one episode, as plain data
reasons                    why each episode of a batch is worth reading
transcripts_from_tables    the episodes of a batch worth reading, and a stable sample of the rest
transcript_of              a certain one, with the rows of its messages
decided_words              a verdict in words
judged_words               a verdict beside the label, in words

The sample depends on the seed and on which problem is played how often, not on the iteration:
where the same problems are played in every iteration (as in a test), the sample shows the same
problems in every iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import NipError
from nip_core.evaluation.figures_in_words import true_minus
from nip_core.game.answer_rows import place_of, take_moves
from nip_core.game.render import Game, Situation, parse_columns
from nip_core.hashing import derive_key
from nip_core.protocols import ACCEPT, NEITHER, NO_DECISION, REJECT, Move, Protocol, Turn
from nip_core.rollouts.storage.row_tables import agent_order
from nip_core.rollouts.storage.table_rows import Episode, Generation, read_rows, row_columns
from nip_core.rollouts.trees import Leaf, generations_by_episode, tree_of
from nip_core.scenarios import NO_LABEL, Scenario
from nip_core.scenarios.checked import call_for_text, draw_columns

DECISION_WORDS = {
    REJECT: "reject",
    ACCEPT: "accept",
    NO_DECISION: "no decision",
    NEITHER: "neither",
}

_PAST_WORDS = {
    REJECT: "rejected",
    ACCEPT: "accepted",
    NO_DECISION: "no decision",
    NEITHER: "neither accepted nor rejected",
}

REASONS = ("failed", "wrong", "invalid", "changed", "sample")
"""Why an episode is shown, the most telling first: it failed; its verdict is wrong; an answer in it
was invalid; the verdict on this problem was another one before; it stands for the rest."""
SAMPLE = REASONS[-1]

_LONG = (
    *("reasoning", "prompt_token_ids", "completion_token_ids"),
    *("completion_logprobs", "token_logprobs"),
)
_MESSAGE_COLUMNS = tuple(name for name in row_columns(Generation) if name not in _LONG)


@dataclass(frozen=True)
class Message:
    """One answer of a model, valid or not."""

    round: int
    agent: str
    text: str
    model: str  # the model that really answered
    decision: int  # 0 reject, 1 accept, 2 none, 3 neither
    attempt: int  # invalid answers before this one in its exchange
    invalid_reason: str | None  # None: valid, and part of the conversation
    told: str | None = None  # the text that the agent read before this call; only with a `Game`
    decision_value: float | None = None  # on the decision scale, from -1 to 1
    channels: tuple[str, ...] = ()  # that it was sent to; none for a decision
    remark: str = ""  # the scenario's, on the others' texts; only with a `Game`
    exchange: int = 0  # valid answers before this one in its turn
    tool_result: str | None = None  # the answer to its call of a tool; None: it called none


@dataclass(frozen=True)
class Text:
    """One text of the problem."""

    heading: str
    text: str
    language: str | None = None  # of which it is a listing


@dataclass(frozen=True)
class Transcript:
    """One episode with its messages in the order they were generated."""

    key: str
    split: str
    iteration: int
    problem: str
    question: str
    solution: str
    texts: tuple[Text, ...]
    """All that the problem consists of, as the scenario calls it."""
    y: int  # 1 right, 0 wrong
    decision: int
    outcome: str  # finished, terminated, failed
    rewards: dict[str, float]
    messages: tuple[Message, ...]
    difficulty: str | None = None
    mutation: str | None = None
    error: str | None = None  # why it failed
    decision_value: float | None = None
    prover_stance: int | None = None  # the verdict that was drawn for the provers to argue
    chosen: str = SAMPLE  # why it is among those chosen, one of `REASONS`
    system_prompts: dict[str, str] = field(default_factory=dict)
    """By agent, with "[the question]" and the like in their places; only with a `Game`."""
    thing: str = "solution"
    label: str = ""
    """The scenario's name of the judged object, and its word for `y`, such as "correct"."""
    stance: str = ""
    """How the scenario calls a prover of the drawn stance, where that isn't what it argues for."""

    @property
    def right(self) -> bool:
        """Say whether the verdict equals the label; a failed episode is never right."""
        return self.outcome != "failed" and self.decision == self.y


def transcripts_from_tables(
    episodes: pa.Table,
    generations: pa.Table,
    limit: int,
    seed: int,
    protocol: Protocol | None = None,
    *,
    worth_reading: Sequence[str] = (),
    max_special: int = 0,
    game: Game | None = None,
) -> list[Transcript]:
    """At most `limit` transcripts of each iteration and split, chosen by a hash from `seed`.

    With `worth_reading`, the reason of each episode (see `reasons`), at most `max_special` with one
    come first, in the order of `REASONS`; the sample fills up to `limit`, and is never less than a
    quarter of it. Else sorted by iteration,
    split and hash, in any order of the rows. A leaf of a tree has all messages on its path,
    also those that it shares with others. The `protocol` that was played says to which channels
    each message went, and the `game` the agents' prompts; without them these are left out.
    """
    if protocol is None and game is not None:
        protocol = game.protocol
    places = _chosen(episodes, worth_reading, limit, max_special, seed)
    rows = [*read_rows(episodes.take(pa.array(places, pa.int64())), Episode)]
    generated = _rows_by_episode(episodes, generations.select(_MESSAGE_COLUMNS), rows)
    return [
        _transcript(
            row,
            generated[row.key],
            worth_reading[place] if worth_reading else SAMPLE,
            protocol,
            game,
        )
        for place, row in zip(places, rows, strict=True)
    ]


def transcript_of(
    key: str, episodes: pa.Table, generations: pa.Table, game: Game | None = None
) -> tuple[Transcript, list[Generation]]:
    """The episode with this key, and for each of its messages the row of `generations`.

    `episodes` must have the other leaves of its tree as well. Raises KeyError if it is not there.
    """
    rows = [*read_rows(episodes.filter(pc.equal(episodes["key"], key)), Episode)]
    if not rows:
        raise KeyError(key)
    generated = _rows_by_episode(episodes, generations, rows)[key]
    protocol = None if game is None else game.protocol
    return _transcript(rows[0], generated, SAMPLE, protocol, game), generated


def _transcript(
    row: Episode,
    generated: list[Generation],
    reason: str,
    protocol: Protocol | None,
    game: Game | None,
) -> Transcript:
    """The episode of a row, with the rows of its generations in their order."""
    return Transcript(
        key=row.key,
        split=row.split,
        iteration=row.iteration,
        problem=row.problem,
        question=row.question,
        solution=row.solution,
        y=row.y,
        difficulty=row.difficulty,
        mutation=row.mutation,
        decision=row.decision,
        decision_value=row.decision_value,
        outcome=row.outcome,
        error=row.error,
        prover_stance=row.prover_stance,
        rewards=dict(row.rewards),
        messages=_messages(row, generated, protocol, game),
        texts=_texts(row, game),
        thing="solution" if game is None else game.scenario.words.thing,
        label=_label(row.y, game),
        stance=_stance(row.prover_stance, game),
        chosen=reason,
        system_prompts=_system_prompts(row, game),
    )


def reasons(
    episodes: pa.Table, generations: pa.Table, earlier_verdicts: Mapping[tuple[str, int], int]
) -> list[str]:
    """Tell why each episode is worth reading, one of `REASONS`; `SAMPLE`: nothing special.

    `earlier_verdicts` has the verdicts of an earlier iteration by problem and sample.
    """
    is_invalid = pc.is_valid(generations["invalid_reason"])
    invalid = set(generations.filter(is_invalid)["episode"].to_pylist())
    names = ("key", "problem", "sample", "outcome", "decision", "y")
    columns = [episodes[name].to_pylist() for name in names]

    def reason(key: str, problem: str, sample: int, outcome: str, decision: int, y: int) -> str:
        if outcome == "failed":
            return "failed"
        if decision != y:
            return "wrong"
        if key in invalid:
            return "invalid"
        return (
            "changed" if earlier_verdicts.get((problem, sample), decision) != decision else SAMPLE
        )

    return [reason(*values) for values in zip(*columns, strict=True)]


def _chosen(
    episodes: pa.Table, worth_reading: Sequence[str], limit: int, max_special: int, seed: int
) -> list[int]:
    """The rows of the episodes that are shown, in their order."""
    # 1. Rank the episodes of each iteration and split: by reason, then by hash.
    names = ("iteration", "split", "problem", "sample", "branch_path", "key")
    columns = [episodes[name].to_pylist() for name in names]
    groups: dict[tuple[int, str], list[tuple[int, str, str, int]]] = {}
    for row, values in enumerate(zip(*columns, strict=True)):
        iteration, split, problem, sample, branch_path, key = values
        rank = derive_key("transcript", seed, problem, sample, branch_path)
        first = REASONS.index(worth_reading[row]) if worth_reading else REASONS.index(SAMPLE)
        groups.setdefault((iteration, split), []).append((first, rank, key, row))
    # 2. Take what is worth reading, and fill up with the sample.
    rows_in_order = []
    for group in sorted(groups):
        ranked = sorted(groups[group])
        special = [entry for entry in ranked if entry[0] < REASONS.index(SAMPLE)]
        rest = ranked[len(special) :]
        special_rows = special[:max_special]
        rows_in_order += [*special_rows, *rest[: max(limit - len(special_rows), limit // 4)]]
    return [row for *_, row in rows_in_order]


def _rows_by_episode(
    episodes: pa.Table, generations: pa.Table, sample: Sequence[Episode]
) -> dict[str, list[Generation]]:
    """The generations of each of the `sample` episodes in order, invalid answers included."""
    # 1. The other leaves of the trees: shared rows of a leaf may stand with any of them.
    trees = {tree_of(row) for row in sample if row.branch_path}
    family: list[Episode | Leaf] = list(sample)
    if trees:
        places = read_rows(episodes, Leaf)
        family += [row for row in places if tree_of(row) in trees]
    # 2. Their generations, in the order in which they were asked for.
    keys = pa.array(sorted({row.key for row in family}), pa.string())
    own = generations.filter(pc.is_in(generations["episode"], value_set=keys))
    rows_of = generations_by_episode(family, read_rows(own, Generation))
    for episode in sample:
        place = agent_order(episode.rewards)
        rows_of[episode.key].sort(key=lambda row: (*place_of(row).order(place), row.key))
    return rows_of


def _messages(
    episode: Episode,
    rows: list[Generation],
    protocol: Protocol | None,
    game: Game | None,
) -> tuple[Message, ...]:
    valid = [row for row in rows if row.invalid_reason is None]
    moves = take_moves(valid)
    final_keys = {row.key for row in moves}
    turns = [Turn(row.round, row.agent, row.text, Move(decision=row.decision)) for row in moves]

    def channels(row: Generation) -> tuple[str, ...]:
        if protocol is None or protocol.name != episode.protocol:
            return ()
        if row.key not in final_keys or row.decision != NO_DECISION:
            return ()
        earlier = [turn for turn in turns if turn.round < row.round]
        movers = protocol.movers(row.round, episode.seed, earlier)
        return tuple(movers.get(row.agent, ()))

    # What an agent reads before its next exchange.
    results = {
        place_of(row)._replace(attempt=0, exchange=row.exchange + 1): row.tool_result
        for row in valid
    }
    hints = {} if game is None else game.find_mistakes(rows)
    situation, spoken = (None, turns) if game is None else _said(episode, valid, turns, game)

    def told(row: Generation) -> str | None:
        has_prompts = game is not None and game.protocol.name == episode.protocol
        if (
            game is None
            or situation is None
            or not has_prompts
            or row.agent not in game.parameters.model_agents
        ):
            return None
        agent, round_ = row.agent, row.round
        earlier = [turn for turn in spoken if turn.round < round_]
        if (row.attempt, row.exchange) == (0, 0):
            return game.asking(agent, episode).told(agent, situation, earlier, round_)[1]
        wrong = hints.get(place_of(row))
        if wrong is None and row.attempt == 0:
            return results.get(place_of(row))
        return wrong and game.hint(agent, round_, episode.seed, earlier, wrong)

    remarks = _remarks(episode, valid, game)
    return tuple(
        Message(
            round=row.round,
            agent=row.agent,
            text=row.text,
            model=row.model_served,
            decision=row.decision,
            attempt=row.attempt,
            invalid_reason=row.invalid_reason,
            decision_value=row.decision_value,
            channels=channels(row),
            told=told(row),
            remark=remarks.get((row.round, row.agent, row.text), ""),
            exchange=row.exchange,
            tool_result=row.tool_result,
        )
        for row in rows
    )


def _said(
    episode: Episode, valid: list[Generation], turns: list[Turn], game: Game
) -> tuple[Situation, list[Turn]]:
    """Give the texts and the turns that an agent's prompt depends on, where it does."""
    if not game.announces or game.protocol.name != episode.protocol:
        return _situation(episode, game), turns
    columns = parse_columns(episode.columns)
    situation = Situation(
        episode.question, episode.solution, episode.prover_stance, episode.seed, columns
    )
    return situation, game.turns(valid, episode.seed)


def _remarks(
    episode: Episode, valid: list[Generation], game: Game | None
) -> dict[tuple[int, str, str], str]:
    """The scenario's remarks on provers' messages by round, agent and answer."""
    if game is None or type(game.scenario).remark is Scenario.remark:
        return {}
    if game.protocol.name != episode.protocol:
        return {}
    texts = _columns(episode, game)

    def remark(message: str) -> str:
        try:
            return call_for_text(game.scenario, "remark", message, texts)
        except NipError as error:  # this is for reading alone
            return f"remark failed: {error}"

    return {
        (turn.round, turn.agent, turn.text): remark(
            "\n".join(dict.fromkeys(turn.move.messages.values()))
        )
        for turn in game.turns(valid, episode.seed)
        if game.protocol.is_prover(turn.agent)
    }


def _system_prompts(episode: Episode, game: Game | None) -> dict[str, str]:
    if game is None or game.protocol.name != episode.protocol:
        return {}
    situation = _situation(episode, game)
    names = game.parameters.model_agents
    return {name: game.asking(name, episode).told(name, situation)[0] for name in names}


def _situation(episode: Episode, game: Game) -> Situation:
    """The episode's, with the names of the problem's texts in their places."""
    names = {column.name: f"[the {column.name}]" for column in game.scenario.columns}
    question, solution = names.pop("question"), names.pop("solution")
    return Situation(question, solution, episode.prover_stance, episode.seed, names)


def _texts(episode: Episode, game: Game | None) -> tuple[Text, ...]:
    """The texts of the problem in the scenario's order, under its headings if it is known."""
    texts = _columns(episode, game)
    if game is None:
        return tuple(Text(name.capitalize(), text) for name, text in texts.items())
    return tuple(
        Text(column.heading, texts[column.name], column.code)
        for column in game.scenario.columns
        if column.name in texts
    )


def _columns(episode: Episode, game: Game | None) -> dict[str, str]:
    """The texts of the problem by column, with the draws of the episode.

    Tables of earlier versions do not have it; then it takes the game.
    """
    texts = {
        "question": episode.question,
        "solution": episode.solution,
        **parse_columns(episode.columns),
        **parse_columns(episode.drawn),
    }
    return texts if game is None else {**texts, **draw_columns(game.scenario, texts, episode.seed)}


def _label(y: int, game: Game | None) -> str:
    if y == NO_LABEL:
        return "not labelled"
    return ("wrong", "right")[y] if game is None else game.scenario.words.labels[y]


def _stance(stance: int | None, game: Game | None) -> str:
    return "" if game is None or stance is None else game.scenario.words.stances[stance]


def decided_words(source: Transcript | Message) -> str:
    """The verdict in words, with its value where that says more, as "accept, +0.5"."""
    words = DECISION_WORDS[source.decision]
    if source.decision_value is None or abs(source.decision_value) in (0, 1):
        return words
    return f"{words}, {source.decision_value:+g}"


def judged_words(transcript: Transcript) -> str:
    """Say a verdict beside the label, as "wrong: rejected, but the solution is correct"."""
    if transcript.outcome == "failed":
        words = "failed"
    else:
        words = _PAST_WORDS[transcript.decision]
        value = transcript.decision_value
        if value is not None and abs(value) not in (0, 1):
            words += true_minus(f" ({value:+g})")
    if transcript.y == NO_LABEL:
        return f"{words}; {transcript.label}"
    truth = f"the {transcript.thing} is {transcript.label}"
    if transcript.outcome == "failed":
        return f"{words}; {truth}"
    if transcript.right:
        return f"right: {words}, and {truth}"
    is_opposite = transcript.decision in (ACCEPT, REJECT)
    return f"wrong: {words}{', but' if is_opposite else ';'} {truth}"
