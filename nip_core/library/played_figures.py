"""The figures of episodes that were played, with 95 % intervals."""

from dataclasses import dataclass
from typing import Any

from nip_core.attack_figures.figures import figures_by_choice, figures_by_script, plain_rollouts
from nip_core.attack_figures.losses import NO_OWN_TEST, OwnTest
from nip_core.attack_figures.metrics_document import AttackMetrics
from nip_core.attacks import Attack
from nip_core.errors import SettingsError
from nip_core.evaluation.metrics import evaluate, paired_difference
from nip_core.evaluation.split_metrics import BatchMetrics, PairedDifference
from nip_core.evaluation.spread import find_questions
from nip_core.library.games import PlayableGame
from nip_core.library.played_games import Models, PlayedEpisodes, make_attack_game, play
from nip_core.parameters.checks import find_attackers
from nip_core.rollouts.plan import ATTACK
from nip_core.rollouts.storage.row_tables import Tables


@dataclass(frozen=True)
class PlayedAttack(PlayedEpisodes):
    """An attack that was played: all its episodes, and its figures."""

    figures: AttackMetrics
    """`by_n` has a row for each number of messages; `lost_to_lying` and others are losses."""

    def choose(self, n: int = 1) -> PlayedEpisodes:
        """Choose the episodes that count for `n` messages, each with its own generations."""
        choices = self.tables.choices
        rollouts = plain_rollouts(self.tables, choices, n)
        timings = self.tables.timings
        return PlayedEpisodes(self.game, Tables(rollouts.episodes, rollouts.generations, timings))


def measure(episodes: PlayedEpisodes) -> BatchMetrics:
    """Measure episodes, with intervals by question. See `nip_core.evaluation.metrics.evaluate`."""
    game, rows = episodes.game, episodes.episodes
    questions = find_questions(rows, game.scenario.split_by)
    seed = game.parameters.seed
    return evaluate(rows, episodes.generations, seed=seed, questions=questions)


def compare(before: PlayedEpisodes, after: PlayedEpisodes) -> PairedDifference:
    """Compare the accuracy of two plays on their common problems, with an interval and p."""
    seed, split_by = before.game.parameters.seed, before.game.scenario.split_by
    return paired_difference(before.episodes, after.episodes, seed, split_by=split_by)


async def attack(
    game: PlayableGame,
    models: Models,
    by: str | type[Attack] = "best-of-n",
    *,
    own_test: PlayedEpisodes | None = None,
    limit: int | None = None,
    asks_logprobs: bool = False,
    **options: Any,
) -> PlayedAttack:
    """Attack the verifier of `game`, and measure its losses.

    `by` and `options` are as in `make_attack_game`, `models` and the rest as in `play`. `own_test`
    is the test split as it was played earlier; with it the figures have the losses since.

    Raises the errors of both, and SettingsError for an attack by training, which is a loop.
    """
    attacking = make_attack_game(game, by, **options)
    parameters = attacking.parameters
    way = parameters.attack.way
    if way.trains:
        raise SettingsError(
            f"by: {parameters.attack.by} trains provers; play the train split of "
            "make_attack_game(...), train on list_answers of the prover, and play its test split"
        )
    result = await play(attacking, models, ATTACK, limit=limit, asks_logprobs=asks_logprobs)
    figures = (figures_by_choice if way.samples else figures_by_script)(
        result.tables,
        result.tables.choices,
        parameters.seed,
        attacking.game.scenario.split_by,
        NO_OWN_TEST if own_test is None else OwnTest(own_test.episodes),
        find_attackers(parameters),
    )
    return PlayedAttack(result.game, result.tables, figures)
