"""The session: all that the stages of a run share in one process, opened and closed as one."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from nip_core.bridges import RunFeeders
from nip_core.costs.caps import Budget
from nip_core.costs.estimate import Estimate
from nip_core.game.render import Game
from nip_core.jobs.job import Clock
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.model_names import base_name
from nip_core.progress.board import Progress
from nip_core.records.iterations import Records
from nip_core.records.left_out import LeftOut
from nip_core.records.models import ServedModel
from nip_core.rollouts.client.call_limit import Places
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.engine import EPISODES_PER_CALL
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore
from nip_core.scenarios import Problem
from nip_core.servers.endpoints import Endpoints
from nip_core.servers.own_server import OwnServer

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """A run that this process holds. Made by `nip_core.session.opening.open_session`."""

    parameters: HyperParameters
    game: Game
    run: RunStore
    lease: Lease
    problems: Mapping[str, list[Problem]]
    endpoints: Mapping[str, Endpoints]  # by group; those on the run's own server are not there
    client: ChatClient
    progress: Progress
    budget: Budget
    left_out: LeftOut = field(default_factory=dict)
    """By split, the problems that are not among `problems`: too long for a model."""
    server: OwnServer | None = None
    log: logging.Logger | logging.LoggerAdapter[logging.Logger] = _log
    """The log that people read."""
    clock: Clock = field(default_factory=Clock)
    """By which jobs are waited for."""
    retry_failed_jobs: bool = False  # a failed job on record is submitted anew
    origin: tuple[Mapping[str, ServedModel], ...] = ()
    """[i]: by group, the model of another run that plays iteration i, see `origin`."""
    splits: dict[tuple[int, str], object] = field(default_factory=dict)
    """By iteration and split, the splits in play: `nip_core.stages.playing` alone reads it."""
    feeders: RunFeeders | None = None
    """Of the run's trackers; None: there are none."""
    estimate: Estimate | None = None
    """Of the whole run; None where only a part of it is done here."""

    @cached_property
    def places(self) -> Places:
        """Limit the episodes at play at a time, over all shards.

        Not more than always have a call to make: episodes are begun in the order of the plan, so
        the shards before are soon committed, and neither memory nor a run that goes on after a kill
        has to do with all of them.
        """
        return self.client.make_places(EPISODES_PER_CALL)

    @cached_property
    def records(self) -> Records:
        """The records of the iterations, as far as they were read."""
        return Records(self.run)

    def tell(self, kind: str, words: str, **facts: Any) -> None:
        """Announce an event, to every view of the run and in the log for people."""
        self.progress.tell(kind, words, **facts)
        self.log.info("%s", words)

    def at(self, group: str) -> Endpoints:
        """Return the addresses of a group, for playing and for training."""
        if (remote := self.endpoints.get(group)) is not None:
            return remote
        assert self.server is not None  # there is one if a group needs it
        return Endpoints(self.server.endpoint, self.server.endpoint)

    async def with_server(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work`; if the run's own server dies meanwhile, raise ServerError at once.

        A server that is found dead is started again first, so that repeating a stage helps.
        """
        return await (work() if self.server is None else self.server.during(work))

    def base_model(self, group: str) -> str:
        """Return the name of the group's base model at its server."""
        return base_name(self.parameters, self.parameters.group_parameters(group))
