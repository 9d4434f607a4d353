"""The figures beside an attack on record: the untrained verifier's, and a theorem's guarantee.

digest_way       an attack's settings -> the same for the same attack on other models of its run
find_control     the finished attack of the same way on the untrained models of the same run
find_guarantee   the soundness that the scenario of some settings guarantees
list_scripts     the scripts of that scenario that can be played
put_beside       the figures of an attack, with both
read_section     the section of the report that has them
encode_section   the part of the summary that has them
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nip_core.attack_figures.controls import measure_guarantee, take_control
from nip_core.attack_figures.metrics_document import ShownAttack, UntrainedControl
from nip_core.attack_figures.report_section import make_section
from nip_core.attack_figures.sentences import causes, caution
from nip_core.attacks.base import CHATS
from nip_core.errors import StoreError
from nip_core.hashing import digest
from nip_core.parameters.stored import complete_settings, read_settings
from nip_core.protocols import make_protocol
from nip_core.records.attack_on_record import count_attack_training, read_shown_attack
from nip_core.records.iterations import Records
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store
from nip_core.scenarios import make_scenario

_OF_RUN = ("run_name", "run_store", "seed", "tracking")
"""Settings in which two attacks of a way may differ."""
_OF_ATTACK = ("run", "iteration", "problems")
"""The same of the block `attack`."""


def digest_way(settings: Mapping[str, Any]) -> str:
    """Digest an attack's settings by SHA-256, but for the attacked models, and its seed.

    Two attacks on models of one run have the same digest where one is the other's control.
    """
    completed = complete_settings(dict(settings))
    attack = {key: value for key, value in completed["attack"].items() if key not in _OF_ATTACK}
    start = attack.get("start_from")
    if start is not None and not str(start).endswith(CHATS):
        # That one attacks the same models, so its name is another one.
        attack["start_from"] = "an attack on the same models"
    common_settings = {key: value for key, value in completed.items() if key not in _OF_RUN}
    return digest({**common_settings, "attack": attack})


def find_control(store: Store, run: str, settings: Mapping[str, Any]) -> UntrainedControl | None:
    """Find the finished attack with these `settings` on the untrained models of a run.

    It looks at the runs of the store with names that begin with that run's name and "-", as names
    of attacks do. None without such an attack; one that can't be read is none.
    """
    way = digest_way(settings)
    for name in list_runs(store):
        if not name.startswith(f"{run}-"):
            continue
        try:
            candidate = RunStore(store, name)
            candidate_settings = candidate.open().parameters
            attack = candidate_settings.get("attack")
            if not isinstance(attack, dict) or attack.get("run") != run or attack.get("iteration"):
                continue
            if digest_way(candidate_settings) == way and (
                figures := read_shown_attack(Records(candidate))
            ):
                return take_control(name, figures)
        # A run of another version, or a damaged one, which `nip verify` tells.
        except (StoreError, KeyError, TypeError, AttributeError, ValueError):
            continue
    return None


def find_guarantee(parameters: Mapping[str, Any]) -> float | None:
    """Return `Scenario.guaranteed_soundness` for the game of these settings on record.

    None where nothing is guaranteed, or it is not known.
    """
    try:
        settings = read_settings(dict(parameters))
        return make_scenario(settings).guaranteed_soundness(make_protocol(settings))
    # Any error of a user's module, or settings of another version: a figure less is shown.
    except Exception:
        return None


def list_scripts(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """List the scripts that come with the scenario of these settings and can be played."""
    try:
        return make_scenario(read_settings(dict(parameters))).playable_scripts()
    except Exception:  # as above
        return ()


def put_beside(attack: ShownAttack, records: Records) -> ShownAttack:
    """Put beside the figures of an attack the guarantee, and the untrained verifier."""
    run, parameters = records.run, records.shown.record.parameters
    additions: dict[str, Any] = {}
    if (number := find_guarantee(parameters)) is not None:
        additions["guarantee"] = measure_guarantee(attack, number)
    target = complete_settings(dict(parameters))["attack"]
    # An attack on the untrained models is the control itself.
    if target["iteration"]:
        additions["control"] = find_control(run.store, target["run"], parameters)
    return attack.model_copy(update=additions)


def read_section(records: Records) -> dict[str, Any]:
    """Read the values of the report's section on an attack; empty ones where there is none."""
    attack = read_shown_attack(records)
    return make_section(None if attack is None else put_beside(attack, records))


def encode_section(
    records: Records, of_each: Sequence[str], *, with_control: bool
) -> dict[str, Any]:
    """Encode an attack for a summary, first of all whether it says anything of the verifier.

    Of each n or step it has the metrics `of_each`. `with_control` looks for the same attack on the
    untrained models. Without an attack it is empty.
    """
    attack = read_shown_attack(records)
    if attack is None:
        return {}
    from nip_core.attack_figures.figures import attack_shown  # with Arrow, for attacks alone

    training = count_attack_training(records)
    counts = {} if training is None else training.as_json()
    section: dict[str, Any] = {"caution": caution(attack), "causes": causes(attack)}
    if with_control:
        attack_beside = put_beside(attack, records)
        section |= attack_beside.model_dump(
            mode="json", include={"guarantee", "control"}, exclude_unset=True
        )
    metrics = records.of(records.shown.last).attack
    assert metrics is not None  # it is shown
    return {"attack": {**section, **attack_shown(metrics, of_each), **counts}}
