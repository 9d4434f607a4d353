"""The budget of a run: what begins while there is something left, and what does not any more.

Budget         what a run may still spend; opened with its session
budget_line    how much of a cap is spent, in words
cap_amount  a sum with its unit
list_caps      the caps that are set
check_budget   refuse a cap below what is spent already

The rule: a call begins unless what is on record, with what has come since, reaches a cap. Then all
calls wait for those in flight, whose answers are put on record as ever, and the run stops. So it
goes over a cap by no more than what was in flight: `rollouts.concurrency` calls. A fine-tune job
is known before it is asked for, so it begins only if it fits into what is left.

Calls are counted while they are played because tables are read between stages alone; from there on,
and in a process that goes on with the run, what is on record counts.
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
    """What a run may still spend. Without a cap it reads nothing and stops nothing."""

    def __init__(self, run: RunStore, parameters: HyperParameters, progress: Progress) -> None:
        """Reads nothing yet, see `look`."""
        self._parameters, self._progress = parameters, progress
        self._caps = parameters.budget
        self._run, self._records = run, Records(run)
        self._on_record, self._counted = Spent(), dict[str, tuple[int, int]]()
        self._in_flight, self._told = 0, False
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
        """Return what is on record, and what has come since."""
        since = {}
        for agent, (prompt, generated) in self._progress.tokens_by_agent.items():
            before = self._counted.get(agent, (0, 0))
            since[agent] = (prompt - before[0], generated - before[1])
        return self._on_record + Spent(by_agent=since)

    @contextlib.asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """For as long as a call is in flight. Raises BudgetError, instead of letting it begin, when
        a cap is reached and no other is in flight any more."""
        if self._caps.is_set and (reached := self._reached()):
            # Their answers are paid for; an error now would cancel them.
            while self._in_flight:
                self._landed.clear()
                await self._landed.wait()
            raise BudgetError(f"{self._reached() or reached}; {_GO_ON}")
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._landed.set()
            self._warn()

    def admit_job(self, what: str, group: str, tokens: int | None) -> None:
        """Raise BudgetError unless the job of a group fits into the rest.

        `tokens` are those of
        all its epochs; None: not known, and only a cap already reached refuses it.
        """
        if not self._caps.is_set:
            return
        self.look()
        if reached := self._reached():
            raise BudgetError(f"{reached}; {_GO_ON}")
        with_it = self._on_record + Spent(trained={group: tokens or 0})
        now, then = (_by_cap(spent, self._parameters) for spent in (self._on_record, with_it))
        for cap, most in list_caps(self._parameters).items():
            if then[cap] > most:
                takes, left = (cap_amount(cap, n) for n in (then[cap] - now[cap], most - now[cap]))
                raise BudgetError(
                    f"budget.{cap}: {what} takes about {takes}, and {left} of "
                    f"{cap_amount(cap, most)} is left; it was not submitted; {_GO_ON}"
                )

    def _reached(self) -> str | None:
        """Name the cap already reached, if any."""
        spent = _by_cap(self.spent, self._parameters)
        for cap, most in list_caps(self._parameters).items():
            if spent[cap] >= most:
                cap_is = f"budget.{cap}: the cap of {cap_amount(cap, most)} is reached"
                return f"{cap_is}, with {cap_amount(cap, spent[cap])} spent"
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
        spent = _by_cap(self.spent, self._parameters)
        for cap, most in list_caps(self._parameters).items():
            if spent[cap] >= WARN_AT * most and not self._progress.warning:
                line = budget_line(cap, spent[cap], most)
                self._progress.warn(f"budget.{cap}: {line}; at 100 % the run stops")


def read_spent_on_record(run: RunStore, records: Records) -> Spent:
    """Return what a run has spent; it need not have begun yet."""
    if not run.store.exists(f"{run.root}/run.json"):
        return Spent()
    return add_up_spending(records.look_again())


def check_budget(
    run: RunStore, parameters: HyperParameters, changed: Mapping[str, tuple[Any, Any]]
) -> None:
    """Raise SettingsError for a changed cap below what the run has spent already.

    `changed` has by
    dotted key what is on record and what is given.
    """
    caps = {cap: most for cap, most in list_caps(parameters).items() if f"budget.{cap}" in changed}
    if not caps:
        return
    spent = _by_cap(read_spent_on_record(run, Records(run)), parameters)
    for cap, most in caps.items():
        if most < spent[cap]:
            raise SettingsError(
                f"budget.{cap}: {cap_amount(cap, most)} is below what run {run.name!r} has spent "
                f"already, {cap_amount(cap, spent[cap])}; give more than that, or leave it out"
            )


def budget_line(cap: str, spent: float, most: float) -> str:
    """Say how much of a cap is spent, in words."""
    had = f"{spent:,.0f}" if cap == "tokens" else cap_amount(cap, spent)
    return f"{100 * spent / most:.0f} % spent, {had} of {cap_amount(cap, most)}"


def list_caps(parameters: HyperParameters) -> dict[str, float]:
    """Return the caps by name, without those left open."""
    caps = {"usd": parameters.budget.usd, "tokens": parameters.budget.tokens}
    return {cap: most for cap, most in caps.items() if most is not None}


def _by_cap(spent: Spent, parameters: HyperParameters) -> dict[str, float]:
    # A cap in dollars has all prices, see `nip_core.parameters.checks`.
    return {"usd": spent.usd(parameters) or 0.0, "tokens": spent.tokens}
