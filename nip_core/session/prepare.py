"""Everything that is known and checked of a run before anything is started.

prepare   everything that takes no server: models of other runs, problems, prompts, keys, the
          model's path, the run on record, disk space
plan_run  the expected cost of a run
fork_run  start a run from the finished iterations of another one
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from nip_core.bridges import check_trackers
from nip_core.costs.caps import check_budget
from nip_core.costs.estimate import Estimate, estimate_run
from nip_core.costs.taken import find_experience
from nip_core.errors import SettingsError
from nip_core.game.function_checks import check_functions, check_system
from nip_core.game.render import Game
from nip_core.jobs.services import check_services
from nip_core.parameters import DATA_NEUTRAL, HyperParameters
from nip_core.parameters.derived.model_names import check_named
from nip_core.records.left_out import drop_left_out, read_left_out_by_settings
from nip_core.records.rewinds import finish_rewinds
from nip_core.run_store.lease import acquire
from nip_core.run_store.run import Identity, RunRecord, RunStore
from nip_core.run_store.run_documents import DECLARATION, DeclaredBefore
from nip_core.run_store.store import MissingFileError, is_missing, list_files, open_store
from nip_core.scenarios import Problem, find_scenario
from nip_core.servers.endpoints import Endpoints, find_remote_endpoints
from nip_core.servers.kept_models import ADAPTERS
from nip_core.servers.missing_packages import check_packages
from nip_core.servers.own_server import check_server
from nip_core.session.attack_files import try_script
from nip_core.session.contents import digest_contents, name_places, read_code_version
from nip_core.session.disk_room import check_room
from nip_core.session.imitated import check_imitated, check_start_file
from nip_core.session.named_models import check_models
from nip_core.session.opponent_runs import (
    check_opponent_scripts,
    find_opponents_there,
    list_adapters_there,
)
from nip_core.session.origin import Origin, find_origin, resolve_settings, takes_over
from nip_core.session.problems_of_run import load_all_problems
from nip_core.session.tried_rewards import try_reward_function
from nip_core.session.user_files import digest_user_files, find_user_files

# Files that the forked run's own server makes anew; all else of its state is the models.
_OWN_TO_EACH = (
    "lm_server/api_key",
    "lm_server/lock",
    "lm_server/owner.lock",
    "lm_server/server.json",
)


@dataclass(frozen=True)
class Prepared:
    """A run that is checked, of which nothing is started yet."""

    parameters: HyperParameters
    """With the settings that agents take over from another run."""
    game: Game
    run: RunStore
    problems: Mapping[str, list[Problem]]
    endpoints: Mapping[str, Endpoints]
    estimate: Estimate
    identity: Identity
    origin: Origin


def prepare(
    parameters: HyperParameters,
    environment: Mapping[str, str] = os.environ,
    *,
    forked_from: RunStore | None = None,
) -> Prepared:
    """Check everything without a server: prompts, store, problems, keys, disk space, model.

    A run that is on record takes over from other runs the same as when it was created, and one that
    is `forked_from` another the same as that one. Raises SettingsError, DatasetError, StoreError or
    RunConflictError; nothing was written but the directory of the run store.
    """
    # 1. The settings with which the run is played: some may come from other runs.
    store = open_store(parameters.run_store)
    run = RunStore(store, parameters.run_name)
    record = _record(run if forked_from is None else forked_from)
    check_named(parameters)
    check_trackers(parameters.tracking, environment)
    parameters = resolve_settings(parameters, store, record)
    parameters = find_opponents_there(parameters, store, record)
    # 2. The things they name: prompts, problems, keys, the model's path, other runs' models.
    game = Game(parameters)
    check_system(game)
    problems = load_all_problems(parameters)
    check_functions(game, problems)
    try_script(game, problems)
    try_reward_function(game, problems)
    check_opponent_scripts(game, problems)
    check_services(parameters)
    endpoints = find_remote_endpoints(parameters, environment)
    check_server(parameters, environment)
    check_models(parameters, environment, _list_model_names(record))
    origin = find_origin(parameters, store, record)
    if record is None:
        check_imitated(game, store, problems)
        origin = origin.bringing(list_adapters_there(parameters))
    check_packages(parameters, environment)
    # 3. A name means one run: all this must be as it was.
    contents = digest_contents(game, problems, endpoints, origin)
    settings, version = parameters.to_dict(), read_code_version()
    kind = find_scenario(parameters.scenario)
    neutral = DATA_NEUTRAL | {f"{kind.settings_block}.{name}" for name in kind.data_neutral}
    places = name_places(game)
    declaration = _find_declaration(game, environment)
    identity = Identity(settings, version, parameters.seed, contents, neutral, places, declaration)
    check_budget(run, parameters, run.check_same(identity))
    # 4. It must not end for want of disk space.
    estimate = estimate_run(game, problems, find_experience(parameters))
    check_room(parameters, run, estimate, environment)
    return Prepared(parameters, game, run, problems, endpoints, estimate, identity, origin)


def _find_declaration(game: Game, environment: Mapping[str, str]) -> DeclaredBefore | None:
    """Return the declaration of a run's sweep, for its record; None where it has none."""
    sha256 = environment.get(DECLARATION)
    if not sha256:
        return None
    return DeclaredBefore(sha256=sha256, files=digest_user_files(find_user_files(game)))


def plan_run(parameters: HyperParameters) -> tuple[HyperParameters, Estimate, Origin]:
    """Return the settings of a run, its estimate, and the models of elsewhere; write nothing."""
    origin = Origin()
    check_named(parameters)
    check_trackers(parameters.tracking, os.environ)
    if not parameters.names_run:
        parameters = find_opponents_there(parameters, None, None)
    if takes_over(parameters):
        place = parameters.run_store
        if not parameters.names_run and is_missing(place, "run_store"):
            return parameters, estimate_settings(parameters), find_origin(parameters, None, None)
        store = open_store(place, read_only=True)
        record = _record(RunStore(store, parameters.run_name))
        parameters = resolve_settings(parameters, store, record)
        parameters = find_opponents_there(parameters, store, record)
        origin = find_origin(parameters, store, record)  # refuses models that are not there
        if record is None and parameters.imitated is not None:
            check_imitated(Game(parameters), store, load_all_problems(parameters))
    return parameters, estimate_settings(parameters), origin


def estimate_settings(parameters: HyperParameters) -> Estimate:
    """Estimate the cost of a run with these settings, by runs of the same game; writes nothing."""
    check_services(parameters)
    check_server(parameters, os.environ)
    # The Hub is asked by those who show a plan, once for all its runs.
    check_models(parameters, os.environ, {a.model_name for a in parameters.model_agents.values()})
    problems = load_all_problems(parameters)
    game = Game(parameters)
    check_functions(game, problems)
    try_script(game, problems)
    try_reward_function(game, problems)
    check_opponent_scripts(game, problems)
    if parameters.imitated_file is not None:
        check_start_file(parameters)
    problems_left = drop_left_out(problems, read_left_out_by_settings(parameters) or {})
    return estimate_run(game, problems_left, find_experience(parameters))


def _list_model_names(record: RunRecord | None) -> set[str]:
    """List the names of the models with which a run on record has begun."""
    agents = {} if record is None else record.parameters.get("agents") or {}
    return {str(agent.get("model_name")) for agent in agents.values()}


def _record(run: RunStore) -> RunRecord | None:
    try:
        return run.open()
    except MissingFileError:
        return None


def fork_run(
    source: HyperParameters, forked: HyperParameters, environment: Mapping[str, str] = os.environ
) -> RunStore:
    """Start the run of `forked` from the finished iterations of the run of `source`.

    Both names lie in one run store. Its own server's adapters are copied with them, so that the
    forked run plays on with the models it begins with. Raises as `prepare` does, and
    LeaseError while another process runs the source.
    """
    if forked.run_store != source.run_store:
        raise SettingsError("--fork: both runs are in one run_store; leave run_store as it is")
    run = RunStore(open_store(source.run_store), source.run_name)
    run.open()  # a run that is not there can't be forked
    # Before the source's lease is taken: a refused fork should not wait for it.
    prepared = prepare(forked, environment, forked_from=run)
    # Held, so that nothing of the source moves while it is copied.
    with acquire(run.store, run.root) as lease:
        finish_rewinds(run, lease)
        copied = [
            name
            for name in (
                path.removeprefix(f"{run.root}/")
                for path in list_files(run.store, f"{run.root}/lm_server")
            )
            if name not in _OWN_TO_EACH and not name.startswith("lm_server/logs/")
        ]
        # Where there is no disk, the models are kept in the run.
        adapters = list_files(run.store, f"{run.root}/{ADAPTERS}")
        copied += [path.removeprefix(f"{run.root}/") for path in adapters]
        return run.fork(forked.run_name, prepared.identity, also=copied)
