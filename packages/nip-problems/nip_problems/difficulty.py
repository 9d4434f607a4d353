"""How hard problems are: by how many of their bugs a verifier that decides alone notices.

make_game              the settings under which it plays, whose name tells models apart
plan_episodes_on_bugs  one episode for each buggy row
ask_verifier           its decisions; earlier answers come from the journal
rate_difficulty        easy, medium or hard, by problem
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nip_core.game.render import Game
from nip_core.hashing import derive_key, digest
from nip_core.parameters import HyperParameters
from nip_core.progress.board import Progress
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.model_call import Player
from nip_core.rollouts.plan import EpisodeSpec, episode_spec
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.journal import GroupCommits
from nip_core.rollouts.storage.table_rows import recorded_calls
from nip_core.scenarios import Problem
from nip_core.scenarios.rows import Row
from nip_problems.asked_model import (
    AGENT,
    AskedModelOptions,
    OpenModel,
    find_agent,
    make_settings,
)

EASY, HARD = 2 / 3, 1 / 3
"""The shares of bugs noticed from which a problem is easy, and below which it is hard."""
PROMPT_TOKENS = 300
"""Of instructions, before the problem."""
_REJECT = 0
_BYTES_PER_TOKEN = 4


def make_game(options: AskedModelOptions) -> Game:
    """Make the game of the lone verifier. Raises SettingsError."""
    # Keys of answers carry the name: another model, or other settings, find none of them.
    name = f"difficulty-{digest(vars(replace(options, base_url=None, usd=None)))[:16]}"
    return Game(make_settings(options, name))


def plan_episodes_on_bugs(game: Game, rows: Sequence[Row]) -> list[EpisodeSpec]:
    """Plan an episode on each buggy row, whose identity is its text."""
    buggy = [row for row in rows if row.y == 0]
    return [episode_spec(game.parameters, "test", 0, _problem(row), 0) for row in buggy]


def _problem(row: Row) -> Problem:
    key = derive_key("difficulty", row.question, row.solution)
    return Problem(key, row.question_id, row.question, row.solution, row.y)


def estimate_prompt_tokens(specs: Sequence[EpisodeSpec]) -> int:
    """Estimate how many tokens the verifier reads in these episodes."""
    size = sum(len((s.problem.question + s.problem.solution).encode()) for s in specs)
    return size // _BYTES_PER_TOKEN + PROMPT_TOKENS * len(specs)


async def ask_verifier(
    game: Game, specs: Sequence[EpisodeSpec], model: OpenModel, journal: GroupCommits
) -> tuple[dict[str, list[bool]], tuple[int, int, int]]:
    """Let the verifier decide; say by question_id whether it noticed each bug, and the tokens.

    Raises StageError if too many answers have no valid form, TransportError for a server that
    stays silent.
    """
    parameters: HyperParameters = game.parameters
    recorded_answers = recorded_calls(journal.replay(), journal.name)
    context = ShardContext(
        game=game,
        players={AGENT: Player(AGENT, model.name, model.endpoint, find_agent(parameters))},
        client=model.client,
        log=journal,
        recorded=recorded_answers,
        progress=Progress(),
    )
    episodes = await play_episodes(specs, context)
    noticed: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes.episodes:
        if episode.outcome != "failed":
            noticed[episode.question_id].append(episode.decision == _REJECT)
    prompt = sum(g.prompt_tokens for g in episodes.generations)
    completion = sum(g.completion_tokens for g in episodes.generations)
    return dict(noticed), (len(episodes.generations), prompt, completion)


def rate_difficulty(noticed: Mapping[str, Sequence[bool]]) -> dict[str, str]:
    """Return the difficulty by question_id."""
    levels = {}
    for question_id, bugs in noticed.items():
        share = sum(bugs) / len(bugs)
        levels[question_id] = "easy" if share >= EASY else "hard" if share < HARD else "medium"
    return levels
