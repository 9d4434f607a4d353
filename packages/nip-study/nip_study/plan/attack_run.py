"""The settings of an attack on a run that is on record; the attack is a run of its own."""

from collections.abc import Sequence

from nip_core.attacks.course import TESTED_EVERY
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.parameters.attack_settings import derive_from_record, name_way
from nip_core.parameters.basis.plain import PlainMapping
from nip_core.parameters.stored import complete_settings
from nip_core.records.named_run import find_run
from nip_core.run_store.run import RUN_NAME
from nip_core.session.origin import check_attacked


def attack_settings(
    run_store: str,
    run: str,
    attack: PlainMapping,
    *,
    steps: int | None = None,
    every: int = TESTED_EVERY,
    name: str | None = None,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Make the settings of an attack on the verifier of `run` in `run_store`.

    `attack` has settings of the block of that name but `run`; without an `iteration`, the newest
    models are attacked. An attack by training takes at most so many `steps`, each an iteration, and
    tests `every` so many. `overrides` are laid over what follows from the attacked run.

    Raises SettingsError for what is not there, and for another game than the attacked run's.
    """
    source = find_run(run, run_store)
    attacked_run = complete_settings(source.open().parameters)
    iteration = attack.get("iteration")
    if iteration is None:
        iteration = source.finished_iterations()
        if iteration == 0:
            raise SettingsError(
                f"run {run!r} has finished no iteration, so its verifier was never trained; to "
                "attack the model that it began with, give --iteration 0"
            )
    attack_options = {**attack, "run": run, "iteration": iteration}
    parameters = derive_from_record(
        attacked_run,
        attack_options,
        run_store=run_store,
        steps=steps,
        every=every,
        name=_default_name(attack_options) if name is None else name,
        overrides=overrides,
    )
    check_attacked(parameters, source)
    return parameters


def _default_name(attack: PlainMapping) -> str:
    """Name an attack after its run, its way and its iteration.

    Raises SettingsError where that is too long.
    """
    by = name_way(str(attack["by"]), str(attack.get("script") or ""))
    name = f"{attack['run']}-{by}-{attack['iteration']}"
    if not RUN_NAME.fullmatch(name):
        raise SettingsError(f"the attack would be called {name!r}, which is too long; give --name")
    return name
