"""The beginning of a run: chats of a file, or of another run's provers, that agents imitate.

find_imitated    the examples of a group, and the digests of their sources
check_imitated   the same beforehand: enough of them, and of the same game
check_start_file the same of a file alone
read_start_file  the text of a file of chats
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from nip_base.formats import MIN_EXAMPLES
from nip_base.formats.bounds import ReadError
from nip_base.formats.untrusted import read_text
from nip_core.attack_figures.figures import plain_rollouts
from nip_core.errors import SettingsError, StoreError
from nip_core.evaluation.spread import shared_text
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.parameters import HyperParameters
from nip_core.parameters.checks import find_attackers
from nip_core.parameters.stored import complete_settings
from nip_core.rollouts.plan import ATTACK, TEST, TRAIN
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.tables import StoredRollouts, read_rollouts
from nip_core.run_store.facts import SplitFacts
from nip_core.run_store.manifest import is_committed, read_manifest
from nip_core.run_store.run import RUN_NAME, RunStore, list_runs
from nip_core.run_store.store import MissingFileError, Store
from nip_core.scenarios import Problem
from nip_core.trainers.base import Choice, Example
from nip_core.trainers.imitation import choose_fooling, read_chats

_SETTING = "attack.start_from"


@dataclass(frozen=True)
class Imitated:
    """The examples that the agents of a group imitate."""

    choice: Choice
    examples: Sequence[Example]
    inputs: Mapping[str, str]
    """By place, digests of their sources."""


def find_imitated(
    game: Game, store: Store, problems: Mapping[str, Sequence[Problem]], agents: Sequence[str]
) -> Imitated:
    """Find the examples that `agents` imitate. Raises SettingsError for an unusable source."""
    if game.parameters.imitated_file is not None:
        text = read_start_file(game.parameters)
        choice = _read_given(game.parameters, text, agents)
        inputs = {"imitated/file": digest(text)}
    else:
        source = _open_source(game.parameters, store)
        tested_on = {
            shared_text(p.question_id, p.columns, game.scenario.split_by) for p in problems[TEST]
        }
        _check_game(game, source)
        places = _list_played(source)
        tables = (_read_plain(source, place) for place in places)
        limit = game.parameters.most_imitated
        choice = choose_fooling(game, agents, tables, tested_on, limit)
        inputs = {
            f"imitated/{place}": SplitFacts.from_manifest(
                read_manifest(source.store, place)
            ).canonical_digest
            for place in places
        }
    return Imitated(choice, [e for e in choice.examples if isinstance(e, Example)], inputs)


def check_imitated(game: Game, store: Store, problems: Mapping[str, Sequence[Problem]]) -> None:
    """Raise SettingsError where a run has not enough to begin with."""
    parameters = game.parameters
    if parameters.imitated is None:
        return
    if parameters.imitated_file is not None:
        check_start_file(parameters)
        return
    attackers = find_attackers(parameters)
    imitated = find_imitated(game, store, problems, attackers)
    for agent in attackers:
        few = _find_few(imitated.examples, agent, parameters)
        if few is None:
            continue
        counts = imitated.choice.counts
        tested_on = counts.get("tested_on", 0)
        raise SettingsError(
            f"{few}: in {counts.get('candidates', 0)} episodes a wrong solution was accepted, "
            f"{tested_on} of them on problems with which this attack is tested; name a run "
            "that fooled its verifier on others, as an attack by training does in its steps, or "
            "one with --set test_dataset_split=validation"
        )


def check_start_file(parameters: HyperParameters) -> None:
    """Raise SettingsError where the file that a run begins with has not enough chats.

    Neither a run nor a problem is looked at, so a run that is planned can be checked, too.
    """
    agents = parameters.imitating_agents
    choice = _read_given(parameters, read_start_file(parameters), agents)
    examples = [example for example in choice.examples if isinstance(example, Example)]
    for agent in agents:
        if (few := _find_few(examples, agent, parameters)) is not None:
            raise SettingsError(f"{few}; add some")


def _read_given(parameters: HyperParameters, text: str, agents: Sequence[str]) -> Choice:
    place = f"{parameters.imitation_setting}: {parameters.imitated_file}"
    return read_chats(text, place, agents, parameters.imitating_agents, parameters.most_imitated)


def _find_few(examples: Sequence[Example], agent: str, parameters: HyperParameters) -> str | None:
    """Say that there are too few chats for an agent; None if there are enough."""
    count = sum(example.agent == agent for example in examples)
    if count >= MIN_EXAMPLES:
        return None
    start = f"{parameters.imitation_setting}: {parameters.imitated}"
    return f"{start} has {count} chats for {agent}, {MIN_EXAMPLES} are needed"


def read_start_file(parameters: HyperParameters) -> str:
    """Read a file of chats. Raises SettingsError where there is none that can be read."""
    setting, file = parameters.imitation_setting, str(parameters.imitated_file)
    try:
        return read_text(Path(file))
    except ReadError as error:
        raise SettingsError(f"{setting}: {file} {error}; name a file of chats") from None


def _open_source(parameters: HyperParameters, store: Store) -> RunStore:
    """Open the run with the imitated messages. Raises SettingsError where there is none."""
    name = str(parameters.attack.start_from)
    names = ", ".join(list_runs(store)) or "none"
    if not RUN_NAME.fullmatch(name):
        raise SettingsError(
            f"{_SETTING}: {name!r} is no run's name, and no file of chats, which ends in .jsonl; "
            f"there are {names}"
        )
    source = RunStore(store, name)
    try:
        source.open()
    except MissingFileError:
        raise SettingsError(
            f"{_SETTING}: there is no run {name!r} in {store.url}; there are {names}"
        ) from None
    except StoreError as error:
        raise SettingsError(f"{_SETTING}: run {name!r} can't be read ({error})") from error
    return source


def _check_game(game: Game, source: RunStore) -> None:
    """Raise SettingsError for a run of another game: its messages would answer other requests."""
    source_settings, settings = (
        complete_settings(source.open().parameters),
        game.parameters.to_dict(),
    )
    compared = ["scenario", "interaction_protocol", f"{settings['interaction_protocol']}_protocol"]
    # Columns drawn for an episode are drawn again by its seed, which gives the same by the same
    # settings alone.
    if any(column.drawn for column in game.scenario.columns):
        compared.append("scenario_settings")
    for setting in compared:
        theirs, ours = source_settings.get(setting), settings.get(setting)
        if theirs != ours:
            raise SettingsError(
                f"{_SETTING}: run {source.name!r} plays another game, with {setting} {theirs!r} in "
                f"the place of {ours!r}; name an attack on a run of the same scenario and "
                "protocol, or a file of chats"
            )


def _list_played(source: RunStore) -> list[str]:
    """List the committed splits with messages that may have fooled a verifier, in order."""
    names = source.store.list(f"{source.root}/iterations")
    numbers = sorted(int(name[:-1]) for name in names if name[:-1].isdigit())
    places = (
        source.rollouts(number, split) for number in numbers for split in (TRAIN, TEST, ATTACK)
    )
    return [place for place in places if is_committed(source.store, place)]


def _read_plain(source: RunStore, place: str) -> RolloutTables:
    """Read a split; of an attack by choice the episodes with the most messages."""
    tables = StoredRollouts(source.store, [place])
    rollouts = read_rollouts(source.store, place)
    if not tables.has_choices:
        return rollouts
    choices = tables.choices()
    return plain_rollouts(rollouts, choices, pc.max(choices["n"]).as_py())
