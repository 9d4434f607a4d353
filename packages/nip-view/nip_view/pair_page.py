"""The page that sets two episodes side by side, message by message.

pair_page    values of the template
AlignedTurn  a message of one and of the other, of one agent in one round
align_turns  all of them
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from nip_core.errors import NipError
from nip_core.evaluation.episode_transcripts import Text
from nip_core.game.answer_rows import AnswerPlace, place_of
from nip_core.showing.episodes.episode_index import IndexedEpisode
from nip_view.episode_page import EpisodePage, ShownTurn
from nip_view.pages import NotThereError, Values, find_episode, open_episode
from nip_view.parts.matrix import KIND_WORDS, KINDS, OrderedPairs, order_pairs
from nip_view.parts.queries import PER_PAGE, PairQuery, Query
from nip_view.parts.word_marks import MOST_STEPS, Piece, mark_words
from nip_view.runs import ShownRun, ShownRuns
from nip_view.side_by_side import find_place

_MOST_ON_A_PAGE = 2 * MOST_STEPS
"""For all messages together, as hostile ones may all be as long as may be."""
_LONG_PROBLEM = 1_200  # characters; longer ones are folded


@dataclass(frozen=True)
class PairSide:
    """One of two episodes side by side; `page` is None where it can't be read."""

    run: ShownRun
    key: str
    about: IndexedEpisode
    page: EpisodePage | None
    damage: str

    @property
    def place(self) -> str:
        """Name the place of the episode, RUN@ITERATION."""
        return f"{self.run.name}@{self.about.iteration}"

    @property
    def texts(self) -> tuple[Text, ...]:
        """The problem; nothing where it can't be read."""
        return () if self.page is None else self.page.transcript.texts


@dataclass(frozen=True)
class MarkedTurn:
    """A message, with marks on its differences from the one beside it."""

    turn: ShownTurn
    pieces: tuple[Piece, ...]
    beside: str
    """In words, how it stands to the other."""


@dataclass(frozen=True)
class AlignedTurn:
    """One agent's messages in one place; None where a side has no such message."""

    round: int
    agent: str
    sides: tuple[MarkedTurn | None, MarkedTurn | None]


def pair_page(runs: ShownRuns, parameters: Mapping[str, str]) -> Values:
    """Show two episodes side by side: `a` and `b` are RUN/KEY."""
    query = PairQuery.parse(parameters, KINDS)
    first, second = (_open_side(runs, name, getattr(query, name)) for name in ("a", "b"))
    has_both = first.page is not None and second.page is not None
    texts = [first.texts, second.texts]
    return {
        "sides": (first, second),
        "turns": align_turns(first.page, second.page),
        "is_one_problem": has_both and texts[0] == texts[1],
        "is_long": max(sum(len(text.text) for text in side_texts) for side_texts in texts)
        > _LONG_PROBLEM,
        **_find_neighbours(runs, query, first, second),
        "ways_back": _find_ways_back(query, first, second),
    }


def _open_side(runs: ShownRuns, side: str, episode: str) -> PairSide:
    name, _, key = episode.rpartition("/")
    run = runs.get(name)
    if run is None:
        raise NotThereError(f"{side}: there is no run {name[:60]!r} among those that are shown")
    episodes = run.episodes(with_calls=False)
    index = find_episode(episodes, key)
    page, damage = None, ""
    try:
        page = open_episode(run, episodes, index)
    except (NipError, OSError) as error:
        damage = str(error)
    return PairSide(run, key, episodes.take([index])[0], page, damage)


def _find_ways_back(query: PairQuery, first: PairSide, second: PairSide) -> list[tuple[str, str]]:
    """List the pages a reader came by, each with its address: the list, and the episode in it."""
    if not query.side:
        return []
    side = first if query.side == "a" else second
    # Read and written again, so that it leads to a list and nowhere else.
    end = Query.parse(parse_qsl(query.list)).address(page=1)
    base = f"/runs/{side.run.name}/episodes"
    return [("Episodes", base + end), ("Episode", f"{base}/{side.key}{end}")]


def _find_neighbours(
    runs: ShownRuns, query: PairQuery, first: PairSide, second: PairSide
) -> Values:
    """Find the comparison that the pair is of, and the pairs before and after it there."""
    compared = {"a": first.place, "b": second.place, "kind": query.kind}
    values: Values = {"kind": query.kind, "kind_words": KIND_WORDS, "place": None, "of": 0}
    values |= {"before": None, "after": None}
    # Episodes of two splits may stand side by side, but no comparison has them.
    if first.about.split != second.about.split:
        return {**values, "comparison": _make_address("/compare", **compared)}
    split = first.about.split
    tables = [find_place(runs, side.place, split).table for side in (first, second)]
    pairs = order_pairs(tables[0], tables[1], query.kind)
    place = pairs.find(first.key, second.key)
    page = None if place is None or place < PER_PAGE else place // PER_PAGE + 1
    back = _make_address("/compare", **compared, split=split, page=page)
    return {
        **values,
        "comparison": back,
        "place": place,
        "of": len(pairs.rows),
        "before": _find_address(pairs, place, -1, query, first, second),
        "after": _find_address(pairs, place, 1, query, first, second),
    }


def _find_address(
    pairs: OrderedPairs,
    place: int | None,
    step: int,
    query: PairQuery,
    first: PairSide,
    second: PairSide,
) -> str | None:
    """Return the address of the pair so many steps on; None where there is none."""
    if place is None or not 0 <= place + step < len(pairs.rows):
        return None
    (pair,) = pairs.take(place + step, 1)
    a, b = f"{first.run.name}/{pair.a.key}", f"{second.run.name}/{pair.b.key}"
    return _make_address("/pair", a=a, b=b, kind=query.kind)


def _make_address(path: str, **parameters: Any) -> str:
    given_parameters = {
        name: value for name, value in parameters.items() if value not in ("", None)
    }
    return f"{path}?{urlencode(given_parameters, safe='/@')}"


def align_turns(first: EpisodePage | None, second: EpisodePage | None) -> list[AlignedTurn]:
    """Set the messages of two episodes beside each other by their places."""
    sides = [_find_turns(page) for page in (first, second)]
    agents = [*dict.fromkeys(place.agent for side in sides for place in side)]
    places = sorted({*sides[0], *sides[1]}, key=lambda place: place.order(agents.index))
    steps_left, aligned = _MOST_ON_A_PAGE, []
    for place in places:
        turns = [turns_by_place.get(place) for turns_by_place in sides]
        marked, steps = _mark_turns(turns, min(steps_left, MOST_STEPS))
        steps_left -= steps
        aligned.append(AlignedTurn(place.round, place.agent, marked))
    return aligned


def _find_turns(page: EpisodePage | None) -> dict[AnswerPlace, ShownTurn]:
    """List the messages of an episode by place."""
    turns = () if page is None else page.turns
    return {place_of(turn.message): turn for turn in turns}


def _mark_turns(
    turns: Sequence[ShownTurn | None], limit: int
) -> tuple[tuple[MarkedTurn | None, MarkedTurn | None], int]:
    """Mark the differences of two messages; return them with the steps that took."""
    first, second = turns
    if first is None or second is None:
        return (_leave(first, "only here"), _leave(second, "only here")), 0
    texts = first.message.text, second.message.text
    if texts[0] == texts[1]:
        return (_leave(first, "same in both"), _leave(second, "same in both")), 0
    marking = mark_words(*texts, limit)
    places = max(
        sum(piece.differs for piece in pieces) for pieces in (marking.first, marking.second)
    )
    words = f"differs in {places} place{'' if places == 1 else 's'}"
    if not places:
        words = "differs in spaces alone"
    elif not marking.is_exact:
        words = "differs; too long to mark by words"
    marked = MarkedTurn(first, marking.first, words)
    return (marked, replace(marked, turn=second, pieces=marking.second)), marking.steps


def _leave(turn: ShownTurn | None, words: str) -> MarkedTurn | None:
    """Mark nothing in a message."""
    if turn is None:
        return None
    return MarkedTurn(turn, (Piece(turn.message.text, False),), words)
