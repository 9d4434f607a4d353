"""Games, rollouts, attacks and their figures, for a loop of one's own. The page: docs/howto.

games            a game, of settings or of names; `PlayableGame`
model_functions  the models that play it: a function of the caller's for each agent
played_games     its episodes, as Arrow tables; the rewards of answers
live_episodes    an episode that a loop goes through step by step
played_figures   metrics with intervals, attacks and their figures

Nothing here starts a server, opens a run or writes a file, and Prefect, the server and the Hub are
not loaded; a contract and a test hold it. Each name is documented where it is defined.
"""

from nip_core.library.games import PlayableGame, make_game
from nip_core.library.live_episodes import FinishedEpisode, LiveEpisode, SeatError
from nip_core.library.model_functions import ModelAnswer, ModelFunction
from nip_core.library.played_figures import PlayedAttack, attack, compare, measure
from nip_core.library.played_games import PlayedEpisodes, RewardedAnswer, make_attack_game, play
from nip_core.rollouts.client.completions import ContextLengthError, RequestRefusedError

__all__ = [
    "ContextLengthError",
    "FinishedEpisode",
    "LiveEpisode",
    "ModelAnswer",
    "ModelFunction",
    "PlayableGame",
    "PlayedAttack",
    "PlayedEpisodes",
    "RequestRefusedError",
    "RewardedAnswer",
    "SeatError",
    "attack",
    "compare",
    "make_attack_game",
    "make_game",
    "measure",
    "play",
]
