"""The budget of a run: it lets calls and jobs begin, or stops them at a cap.

Budget         the rest that a run may spend; opened with its session
budget_line    how much of a cap is spent, in words
cap_amount  a sum with its unit
list_caps      the caps that are set
check_budget   refuse a cap below the spending on record

The rule: a call begins unless the spending on record, with the calls since, reaches a cap. Then all
calls wait for the calls in flight, and the run stops. The answers in flight are put on record as
ever, so a run goes over a cap by at most `rollouts.concurrency` calls. The tokens of a fine-tune
job are counted before it is submitted, so it begins only if it fits into the rest.

Calls are counted while they are played because tables are read between stages alone. From there on,
and in a process that goes on with the run, the spending on record counts. Until then all prompts
count at their full price; where cached tokens have another, the records are read before a run
stops.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from nip_core.errors import BudgetError, SettingsError
from nip_core.evaluation.figures_in_words import cap_amount
from nip_core.parameters import HyperParameters
from nip_core.progress.board import Progress
from nip_core.records.iterations import Records
from nip_core.records.spending import Spent
from nip_core.records.spent_in_all import add_up_spending
from nip_core.run_store.run import RunStore

WARN_AT = 0.8  # of a cap: early enough to raise it before the run stops
_GO_ON = "raise it and run the same command to go on, which pays nothing again"


class Budget:
    """The rest that a run may spend. Without a cap it reads nothing and stops nothing."""

    def __init__(self, run: RunStore, parameters: HyperParameters, progress: Progress) -> None:
        """Reads nothing yet, see `look`."""
        self._parameters, self._progress = parameters, progress
        self._caps = parameters.budget
        self._run, self._records = run, Records(run)
        self._on_record, self._counted = Spent(), dict[str, tuple[int, int]]()
        self._in_flight, self._told = 0, False
        prices = parameters.prices.values()
        self._has_discount = any(price.cached_prompt_usd is not None for price in prices)
        self._landed = asyncio.Event()

    def look(self) -> None:
        """Read what the run has spent. Not while calls are in flight: these are counted already."""
        if not self._caps.is_set:
            return
        self._on_record = read_spent_on_record(self._run, self._records)
        self._counted = dict(self._progress.tokens_by_agent)
        self._warn()

    @property
    def spent(self) -> Spent:
        """Return the spending on record, with the calls since."""
        since = {}
        for agent, (prompt, generated) in self._progress.tokens_by_agent.items():
            earlier = self._counted.get(agent, (0, 0))
            since[agent] = (prompt - earlier[0], generated - earlier[1])
        return self._on_record + Spent(by_agent=since)

    @contextlib.asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """For as long as a call is in flight. Raises BudgetError, instead of letting it begin, when
        a cap is reached and no other is in flight any more."""
        while self._caps.is_set and (reached := self._reached()):
            if self._in_flight:  # these answers are paid for; an error now would cancel them
                self._landed.clear()
                await self._landed.wait()
            elif self._has_discount and self._counted != self._progress.tokens_by_agent:
                self.look()  # all answers are on record by now, with their cached tokens
            else:
                raise BudgetError(f"{reached}; {_GO_ON}")
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._landed.set()
            self._warn()

    def admit_job(self, job: str, group: str, tokens: int | None) -> None:
        """Raise BudgetError unless the job of a group fits into the rest.

        `tokens` are the tokens of all its epochs. None: they are not known, and only a cap already
        reached refuses the job.
        """
        if not self._caps.is_set:
            return
        self.look()
        if reached := self._reached():
            raise BudgetError(f"{reached}; {_GO_ON}")
        with_it = self._on_record + Spent(trained={group: tokens or 0})
        now, then = (_by_cap(spending, self._parameters) for spending in (self._on_record, with_it))
        for cap, limit in list_caps(self._parameters).items():
            if then[cap] > limit:
                takes, rest = (cap_amount(cap, n) for n in (then[cap] - now[cap], limit - now[cap]))
                raise BudgetError(
                    f"budget.{cap}: {job} takes about {takes}, and {rest} of "
                    f"{cap_amount(cap, limit)} is left; it was not submitted; {_GO_ON}"
                )

    def _reached(self) -> str | None:
        """Name the cap already reached, if any."""
        amounts = _by_cap(self.spent, self._parameters)
        for cap, limit in list_caps(self._parameters).items():
            if amounts[cap] >= limit:
                cap_is = f"budget.{cap}: the cap of {cap_amount(cap, limit)} is reached"
                return f"{cap_is}, with {cap_amount(cap, amounts[cap])} spent"
        return None

    def tell(self, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        """Log once how little is left."""
        if self._progress.warning and not self._told:
            self._told = True
            log.warning("run %s: %s", self._run.name, self._progress.warning)

    def _warn(self) -> None:
        """Tell people once how little is left."""
        if self._progress.warning or not self._caps.is_set:
            return
        amounts = _by_cap(self.spent, self._parameters)
        for cap, limit in list_caps(self._parameters).items():
            if amounts[cap] >= WARN_AT * limit and not self._progress.warning:
                line = budget_line(cap, amounts[cap], limit)
                self._progress.warn(f"budget.{cap}: {line}; at 100 % the run stops")


def read_spent_on_record(run: RunStore, records: Records) -> Spent:
    """Return what a run has spent; it need not have begun yet."""
    if not run.store.exists(f"{run.root}/run.json"):
        return Spent()
    return add_up_spending(records.look_again())


def check_budget(
    run: RunStore, parameters: HyperParameters, changes: Mapping[str, tuple[Any, Any]]
) -> None:
    """Raise SettingsError for a changed cap below what the run has spent already.

    `changes` has by dotted key the setting on record and the new one.
    """
    caps = {
        cap: limit for cap, limit in list_caps(parameters).items() if f"budget.{cap}" in changes
    }
    if not caps:
        return
    amounts = _by_cap(read_spent_on_record(run, Records(run)), parameters)
    for cap, limit in caps.items():
        if limit < amounts[cap]:
            raise SettingsError(
                f"budget.{cap}: {cap_amount(cap, limit)} is below what run {run.name!r} has spent "
                f"already, {cap_amount(cap, amounts[cap])}; give more than that, or leave it out"
            )


def budget_line(cap: str, amount: float, limit: float) -> str:
    """Say how much of a cap is spent, in words."""
    had = f"{amount:,.0f}" if cap == "tokens" else cap_amount(cap, amount)
    return f"{100 * amount / limit:.0f} % spent, {had} of {cap_amount(cap, limit)}"


def list_caps(parameters: HyperParameters) -> dict[str, float]:
    """Return the caps by name, without those left open."""
    caps = {"usd": parameters.budget.usd, "tokens": parameters.budget.tokens}
    return {cap: limit for cap, limit in caps.items() if limit is not None}


def _by_cap(spending: Spent, parameters: HyperParameters) -> dict[str, float]:
    # A cap in dollars has all prices, see `nip_core.parameters.checks`.
    return {"usd": spending.usd(parameters) or 0.0, "tokens": spending.tokens}
