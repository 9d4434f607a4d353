"""What an attack by training has taken until a step, and what its provers said.

add_up_efforts  by tested step, calls, tokens and dollars
read_gallery    messages by kind, of training and of the test of the worst provers
"""

from collections.abc import Collection, Iterable

from nip_core.attack_figures.effort import make_effort
from nip_core.attack_figures.message_gallery import OF_MESSAGES, OF_PROBLEMS, gallery_of_training
from nip_core.attack_figures.metrics_document import Effort, MessageGallery
from nip_core.game.render import Game
from nip_core.parameters import HyperParameters
from nip_core.parameters.checks import find_attackers
from nip_core.records.iterations import Records
from nip_core.records.spending import STAGE_BY_SPLIT, Spent, add_up
from nip_core.rollouts.plan import ATTACK, TEST, TRAIN
from nip_core.rollouts.tables import RolloutTables, StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore

_TRAINING = "train "
"""The beginning of the names of stages in which a group is trained."""


def add_up_efforts(
    run: RunStore, parameters: HyperParameters, steps: Collection[int]
) -> dict[int, Effort]:
    """Add up what playing and training took until each of the `steps`.

    Tests measure what training has taken, and are no part of it.
    """
    # Read anew: what is known of an iteration may be from before its training ended.
    records, spent, efforts = Records(run), Spent(), dict[int, Effort]()
    for step in range(max(steps) + 1):
        if step in steps:
            usd = spent.usd(parameters)
            efforts[step] = make_effort(spent.calls, spent.by_agent, usd, spent.trained_tokens)
        if step < max(steps):
            spent = add_up([spent, *_list_parts(records, step)])
    return efforts


def _list_parts(records: Records, iteration: int) -> Iterable[Spent]:
    for stage, part in records.of(iteration).spent.items():
        if stage == STAGE_BY_SPLIT[TRAIN] or stage.startswith(_TRAINING):
            yield part


def read_gallery(
    run: RunStore, game: Game, steps: Iterable[int], worst: int, last: int
) -> MessageGallery:
    """Count by kind the messages of the training `steps`, and those of the `worst` step's test.

    That is the one on test problems, where tests by step are on others.
    """

    def read(iteration: int, split: str) -> RolloutTables:
        stored = StoredRollouts(run.store, [run.rollouts(iteration, split)])
        return RolloutTables(stored.episodes(OF_PROBLEMS), stored.generations(OF_MESSAGES))

    final = last if worst else 0
    is_apart = is_committed(run.store, run.rollouts(final, ATTACK))
    tested = read(final, ATTACK) if is_apart else read(worst, TEST)
    trained = (read(step, TRAIN) for step in steps)
    return gallery_of_training(game, trained, tested, worst, find_attackers(game.parameters))
