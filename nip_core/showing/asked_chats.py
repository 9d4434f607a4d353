"""The chat with which an agent is asked, before anything is played or of an episode on record.

Both are rendered by `nip_core.game.render`, as the calls of a run and its training data are.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nip_core.errors import SettingsError
from nip_core.game.answer_rows import AnswerPlace, place_of
from nip_core.game.render import ChatMessage, Game, Situation, make_situation, parse_columns
from nip_core.nearest import nearest_first
from nip_core.parameters import HyperParameters
from nip_core.protocols import Move, Turn
from nip_core.rollouts.model_call import request_body
from nip_core.rollouts.plan import (
    SPLITS,
    TEST,
    EpisodeSpec,
    find_played_problems,
    plan_episodes,
)
from nip_core.rollouts.storage.table_rows import Episode, Generation, read_rows
from nip_core.rollouts.trees import generations_by_episode
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.session.prepare import plan_run
from nip_core.session.problems_of_run import load_all_problems
from nip_core.showing.transcripts import read_committed_rollouts, rebuild_game

_SHOWN = 8
"""Identifiers in an error."""


@dataclass(frozen=True)
class Place:
    """A turn; None is the first that there is."""

    agent: str | None = None
    round: int | None = None
    problem: str | None = None
    """The identifier of a problem, or the number of an episode in the order of play, from 0."""
    iteration: int = 0
    split: str = "train"


@dataclass(frozen=True)
class AskedChat:
    """A chat as it is sent, and where."""

    agent: str
    round: int
    iteration: int
    split: str
    problem: str
    model: str
    messages: list[ChatMessage]
    request: dict[str, Any] | None = None
    """The body of the request without the messages; None of a chat on record."""
    not_yet_said: bool = False
    """Whether messages stand in it that no agent has written yet."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    """On record: the text of each answer, why it was invalid, if it was, and the hint with which it
    was then asked for again, if there was one."""

    def to_dict(self) -> dict[str, Any]:
        """All of it, to be encoded as JSON."""
        return asdict(self)


def render_chat_to_come(parameters: HyperParameters, place: Place) -> AskedChat:
    """The chat of a turn of a run with these settings. Raises SettingsError without such a turn.

    In the place of each earlier message its agent stands in angle brackets.
    """
    # 1. The episode, as it would be played.
    parameters, _, _ = plan_run(parameters)
    if place.split not in SPLITS:
        raise SettingsError(f"--split {place.split!r}: use one of {', '.join(SPLITS)}")
    game = Game(parameters)
    problems = find_played_problems(parameters, load_all_problems(parameters), place.split)
    spec = _planned(
        parameters, plan_episodes(parameters, problems, place.split, place.iteration), place
    )
    # 2. The turn, with turns before it that no agent has taken.
    turns, (agent, round_) = _turns_to_come(game, spec, place)
    situation = make_situation(spec.problem, spec.stance, spec.seed)
    if game.scenario.labels_in_play and turns:
        solution = f"<the {game.scenario.words.thing} that was written>"
        situation = Situation(
            situation.question, solution, spec.stance, spec.seed, situation.columns
        )
    chat = game.render(agent, situation, turns, round_)
    # 3. The rest of the request.
    settings = parameters.model_agents[agent]
    seed = spec.generation_seed(parameters.seed, AnswerPlace(round_, agent))
    limit = parameters.max_tokens(agent)
    form = game.form(agent, round_, spec.seed, [turn for turn in turns if turn.round < round_])
    tool = game.native_tool(agent)
    request = request_body(settings.model_name, settings, (), seed, limit, form=form, tool=tool)
    del request["messages"]
    return AskedChat(
        agent=agent,
        round=round_,
        iteration=place.iteration,
        split=place.split,
        problem=spec.problem.id,
        model=settings.model_name,
        messages=chat,
        request=request,
        not_yet_said=bool(turns),
    )


def _planned(
    parameters: HyperParameters, specs: Sequence[EpisodeSpec], place: Place
) -> EpisodeSpec:
    """Find the episode at `place`. Raises SettingsError for a place without one."""
    last = parameters.rl.num_iterations - (place.split != TEST)
    if not 0 <= place.iteration <= max(last, 0):
        raise SettingsError(
            f"--iteration {place.iteration}: {place.split} is played in iterations 0 to {last}"
        )
    names = [spec.problem.id for spec in specs]
    return specs[_number_of(place, names, f"iteration {place.iteration} plays in {place.split}")]


def _number_of(place: Place, names: Sequence[str], clause: str) -> int:
    """Number the first episode of a problem, or take the number given."""
    wished = place.problem
    if wished is None and names:
        return 0
    if wished in names:
        return names.index(wished)
    if wished is not None and wished.isdecimal() and int(wished) < len(names):
        return int(wished)
    some = ", ".join(nearest_first(str(wished), names)[:_SHOWN])
    raise SettingsError(
        f"--problem {wished}: neither the id of a problem that {clause} nor a number below "
        f"{len(names)}; ids are {some}{', …' if len(names) > _SHOWN else ''}"
    )


def _turns_to_come(
    game: Game, spec: EpisodeSpec, place: Place
) -> tuple[list[Turn], tuple[str, int]]:
    """Return the turns before the one at `place`, and its agent and round."""
    protocol = game.protocol
    turns: list[Turn] = []
    moves: list[tuple[str, int]] = []
    for round_ in range(protocol.max_message_rounds):
        movers = protocol.movers(round_, spec.seed, turns)
        ordered = [agent for agent in protocol.agent_names if agent in movers]
        for agent in ordered:
            moves.append((agent, round_))
            if place.agent in (None, agent) and place.round in (None, round_):
                _refuse_random(game, agent)
                return turns, (agent, round_)
        for agent in ordered:
            text = f"<what {agent} says in round {round_}>"
            turns.append(Turn(round_, agent, text, Move(dict.fromkeys(movers[agent], text))))
    raise _no_such_turn(game, place, moves)


def _refuse_random(game: Game, agent: str) -> None:
    if agent not in game.parameters.model_agents:
        reason = "is random" if agent not in game.parameters.prompted_agents else "has a script"
        raise SettingsError(f"agents.{agent}: {reason}: it has no model and so no prompt")


def _no_such_turn(game: Game, place: Place, moves: Sequence[tuple[str, int]]) -> SettingsError:
    names = game.protocol.agent_names
    if place.agent is not None and place.agent not in names:
        return SettingsError(f"--agent {place.agent!r}: use one of {', '.join(names)}")
    rounds = {name: [str(r) for agent, r in moves if agent == name] for name in names}
    speaks = "; ".join(
        f"{name} in {', '.join(numbers) or 'none'}" for name, numbers in rounds.items()
    )
    subject = f"{place.agent} does not speak" if place.agent else "nobody speaks"
    return SettingsError(f"--round {place.round}: {subject} in it; rounds are: {speaks}")


def render_chat_on_record(run: RunStore, place: Place) -> AskedChat:
    """Render the chat of a turn on record. Raises SettingsError if it is not there."""
    # 1. The game as it was, and its episodes.
    game = rebuild_game(run.open())
    if game is None:
        raise SettingsError(
            f"run {run.name!r}: its protocol, scenario or prompt templates are not what they were, "
            "so what agents were asked can't be shown; put them back"
        )
    rollouts = read_committed_rollouts(run, place.iteration, place.split)
    if rollouts is None:
        raise SettingsError(
            f"run {run.name!r}: iteration {place.iteration} has no rollouts of {place.split!r}; "
            f"there are {_committed(run)}"
        )
    # 2. The episode and its answers, also those that it shares with others.
    episodes = [*read_rows(rollouts.episodes, Episode)]
    clause = f"iteration {place.iteration} has played in {place.split}"
    episode = episodes[_number_of(place, [row.problem for row in episodes], clause)]
    generations = read_rows(rollouts.generations, Generation)
    rows = generations_by_episode(episodes, generations)[episode.key]
    # 3. The turn: those in the rounds before it are its history.
    first_call = next(
        (
            row
            for row in sorted(rows, key=lambda row: row.round)
            if place.agent in (None, row.agent)
            and place.round in (None, row.round)
            and row.agent in game.parameters.model_agents
        ),
        None,
    )
    if first_call is None:
        moves = list(dict.fromkeys((row.agent, row.round) for row in rows))
        raise _no_such_turn(game, place, moves)
    agent, round_ = first_call.agent, first_call.round
    earlier_turns = game.turns([row for row in rows if row.round < round_], episode.seed)
    solution = episode.solution
    if game.scenario.labels_in_play and not earlier_turns:
        solution = ""  # it was still to be written
    situation = Situation(
        episode.question,
        solution,
        episode.prover_stance,
        episode.seed,
        parse_columns(episode.columns),
    )
    calls = [row for row in rows if (row.agent, row.round) == (agent, round_)]
    calls.sort(key=lambda row: (row.exchange, row.attempt))
    game = game.asking(agent, episode)
    mistakes = game.find_mistakes(calls[:-1])
    retry_mistakes = [mistakes.get(place_of(row).next) for row in calls[:-1]] + [None]
    answers = [
        {
            "text": row.text,
            "invalid": row.invalid_reason,
            "asked_again": wrong and game.hint(agent, round_, episode.seed, earlier_turns, wrong),
        }
        for row, wrong in zip(calls, retry_mistakes, strict=True)
    ]
    return AskedChat(
        agent=agent,
        round=round_,
        iteration=place.iteration,
        split=place.split,
        problem=episode.problem,
        model=first_call.model_served,
        messages=game.render(agent, situation, earlier_turns, round_),
        answers=answers,
    )


def _committed(run: RunStore) -> str:
    """Name the committed splits, in words."""
    splits = []
    for name in run.store.list(f"{run.root}/iterations"):
        iteration = name.rstrip("/")
        for split in run.store.list(f"{run.root}/iterations/{iteration}/rollouts"):
            if is_committed(run.store, run.rollouts(int(iteration), split.rstrip("/"))):
                splits.append(f"{split.rstrip('/')} of {int(iteration)}")
    return ", ".join(splits) or "none"
