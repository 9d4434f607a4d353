"""Going on from a run under another name, with other settings."""

import os
from collections.abc import Mapping

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.run_store.lease import acquire
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store, walk
from nip_core.stages.identity import identity
from nip_core.stages.kept_models import ADAPTERS
from nip_core.stages.rerun import finish_rewinds
from nip_core.stages.session import prepare

# What the forked run's own server makes anew; everything else of its state is the models.
_OWN_TO_EACH = (
    "lm_server/api_key",
    "lm_server/lock",
    "lm_server/owner.lock",
    "lm_server/server.json",
)


def fork_run(
    source: HyperParameters, forked: HyperParameters, environment: Mapping[str, str] = os.environ
) -> RunStore:
    """Start the run of `forked` from the finished iterations of the run of `source`.

    Both names lie in one run store. Its own server's adapters are copied with them, so that the
    forked run plays on with the models it begins with. Raises what `prepare` raises, and
    LeaseError while somebody runs the source.
    """
    if forked.run_store != source.run_store:
        raise SettingsError("--fork: both runs are in one run_store; leave run_store as it is")
    run = RunStore(open_store(source.run_store), source.run_name)
    run.open()  # a run that is not there can't be forked
    prepared = prepare(forked, environment, forked_from=run)
    with acquire(run.store, run.root) as lease:
        finish_rewinds(run, lease)
        kept = [
            name
            for name in (
                path.removeprefix(f"{run.root}/")
                for path in walk(run.store, f"{run.root}/lm_server")
            )
            if name not in _OWN_TO_EACH and not name.startswith("lm_server/logs/")
        ]
        # Where there is no disk, the models are kept in the run.
        adapters = walk(run.store, f"{run.root}/{ADAPTERS}")
        kept += [path.removeprefix(f"{run.root}/") for path in adapters]
        facts = identity(prepared.parameters, prepared.contents)
        return run.fork(forked.run_name, facts.pop("parameters"), also=kept, **facts)
