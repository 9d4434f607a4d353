"""The records of a sweep's runs, as the facts and the verdicts that its results are made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from nip_core.attack_figures.sentences import caution
from nip_core.errors import StoreError
from nip_core.hashing import digest
from nip_core.parameters import HyperParameters
from nip_core.protocols import make_protocol
from nip_core.records.attack_on_record import read_shown_attack
from nip_core.records.intervals import find_rate_alone
from nip_core.records.iterations import Records
from nip_core.records.untrained_attack import digest_way, find_guarantee, list_scripts
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store
from nip_core.scenarios import make_scenario
from nip_core.showing.summary import summarise_run
from nip_study.compute.cells import read_verdicts
from nip_study.compute.departures import find_stamp, list_departures
from nip_study.compute.effort_curves import list_efforts
from nip_study.compute.verifier_tokens import count_verifier_tokens
from nip_study.declare.declaration import StudyDeclaration, read_declaration
from nip_study.documents.results_document import DAMAGED, FINISHED, NOT_BEGUN
from nip_study.documents.swept_facts import (
    FORMAT,
    AttackFacts,
    Kind,
    RunFacts,
    SpentOnTest,
    StampFacts,
    SweepFacts,
    SweptGame,
)
from nip_study.plan.attacks import SweptAttack
from nip_study.plan.swept_runs import Sweep, SweptRun

_OF_PROTOCOLS = (
    *("protocol_common", "nip_protocol", "debate_protocol", "mnip_protocol"),
    *("refereed_protocol", "merlin_arthur_protocol", "zk_protocol"),
)
"""The blocks of settings that protocols read. One of a user's own may read any of them."""


@dataclass(frozen=True)
class Collected:
    """All that the results of a sweep are made of."""

    facts: SweepFacts
    verdicts: pa.Table
    """See `read_verdicts`."""
    declaration: StudyDeclaration | None


def collect_sweep(
    store: Store, sweep: Sweep, failures: Mapping[str, str] | None = None
) -> Collected:
    """Collect the records of a sweep; `failures` says by run why it did not end.

    A run that has not begun has the status "not begun", one that can't be read "damaged".
    """
    verdicts, left_out = read_verdicts(store, sweep)
    reader = _Reader(store, {*list_runs(store)}, failures or {}, left_out)
    runs = tuple(reader.read_run(run) for run in sweep.runs)
    declaration = read_declaration(store, sweep.name)
    departures: tuple[str, ...] = ()
    stamp: StampFacts | None = None
    if declaration is not None:
        status = {run.name: run.status for run in runs}
        status |= {attack.name: attack.status for run in runs for attack in run.attacks}
        departures = list_departures(store, sweep, declaration, status)
        stamp, doubts = find_stamp(store, declaration, status)
        departures += doubts
    facts = SweepFacts(
        format=FORMAT,
        name=sweep.name,
        axes=sweep.axes,
        attacks=sweep.attacks,
        runs=runs,
        left_out=tuple(left_out.values()),
        declaration=None if declaration is None else declaration.sha256,
        departures=departures,
        intervals="calibrated" if declaration is None else declaration.intervals,
        definitions=2 if declaration is None else declaration.definitions,
        stamp=stamp,
    )
    return Collected(facts, verdicts, declaration)


def baseline_kind(parameters: HyperParameters) -> Kind | None:
    """Name the kind of baseline of these settings; None for any other game."""
    provers = make_protocol(parameters).provers
    if not provers:
        return "alone"
    if all(parameters.agents[name].is_random for name in provers):
        return "random"
    return "shuffled" if parameters.dataset_options.shuffle_train_labels else None


def digest_rules(parameters: HyperParameters) -> str:
    """Digest by SHA-256 these settings of the scenario and of protocols.

    Two runs with different digests play different games, though scenario, dataset and protocol have
    the same names: other rounds or rewards, other challenges, other problems. Settings of agents,
    of training and of `dataset_options` are not in it.
    """
    settings = {"scenario": make_scenario(parameters).settings}
    settings |= {name: getattr(parameters, name) for name in _OF_PROTOCOLS}
    if parameters.tool.per_turn:  # else of before there were tools
        settings["tool"] = parameters.tool
    # Without defaults, so that a setting which a later version adds changes no digest.
    dump = {
        name: block.model_dump(mode="json", exclude_defaults=True)
        for name, block in settings.items()
    }
    return digest(dump)


def _digest_beginning(parameters: HyperParameters) -> str | None:
    """Digest the settings that name the models of other runs to begin with; None without any."""
    beginning = {"base_run": parameters.base_run.to_dict()} if parameters.base_run.run_id else {}
    for name, agent in parameters.model_agents.items():
        if agent.load_checkpoint_and_parameters or agent.published_adapter is not None:
            beginning[name] = agent.to_dict()
    return digest(beginning) if beginning else None


@dataclass(frozen=True)
class _Read:
    """The records of a run, or of an attack."""

    status: str
    failure: str | None
    """Why it did not end, or can't be read."""
    records: Records | None = None
    """None for a run that has not begun, or can't be read."""


@dataclass(frozen=True)
class _Reader:
    """Reads facts of runs, and of attacks on them."""

    store: Store
    begun: set[str]
    failures: Mapping[str, str]
    left_out: Mapping[str, str]
    """By run why its verdicts could not be read."""

    def read_run(self, run: SweptRun) -> RunFacts:
        """Read a run, its tests, and the attacks on it."""
        records = self._read_records(run.name)
        parameters = run.parameters
        return RunFacts(
            name=run.name,
            values=run.values,
            seed=parameters.seed,
            game=SweptGame(
                scenario=parameters.scenario,
                dataset=parameters.dataset,
                protocol=parameters.interaction_protocol,
                kind=baseline_kind(parameters),
                rate_alone=find_rate_alone(parameters.to_dict()),
                rules=digest_rules(parameters),
                guaranteed=find_guarantee(parameters.to_dict()),
                scripts=list_scripts(parameters.to_dict()),
            ),
            status=records.status,
            failure=records.failure,
            tests=None if records.records is None else tuple(_read_tests(records.records)),
            attacks=tuple(
                self._read_attack(attack, parameters.test_dataset_split) for attack in run.attacks
            ),
            begins_with=_digest_beginning(parameters),
        )

    def _read_attack(self, attack: SweptAttack, split: str) -> AttackFacts:
        records = self._read_records(attack.name)
        figures, tokens = None, None
        if records.records is not None and records.status == FINISHED:
            figures = read_shown_attack(records.records)
        if figures is not None:
            attack_run = RunStore(self.store, attack.name)
            try:
                tokens = count_verifier_tokens(attack_run, figures.last_test, attack.n)
            except StoreError as error:  # as of its summary
                records, figures = _Read(DAMAGED, str(error)), None
        # Runs of an earlier version have no loss to lying.
        lying = None if figures is None else figures.lost_to_lying
        script = attack.parameters.attack.script
        return AttackFacts(
            label=attack.label,
            name=attack.name,
            status=records.status,
            failure=records.failure,
            iteration=attack.parameters.rl.num_iterations if figures is None else figures.last_test,
            n=attack.n,
            attacked_iteration=attack.parameters.attack.iteration,
            is_lying_known=lying is not None and lying.difference is not None,
            is_script=not attack.parameters.attack.way.samples,
            caution=None if figures is None else caution(figures),
            verdict=None if figures is None or figures.course is None else figures.course.verdict,
            verifier_tokens=tokens,
            efforts=() if figures is None else tuple(list_efforts(figures)),
            is_apart=attack.parameters.test_dataset_split != split,
            way=digest_way(attack.settings),
            script=None if script is None or ":" in script else script,
            sampled=None if figures is None or figures.reach is None else figures.reach.messages,
            rarest_to_train=figures.reach.rarest_to_train if figures and figures.reach else None,
            is_held_out=attack.is_held_out,
        )

    def _read_records(self, name: str) -> _Read:
        """Read the status of a run, and open its records. Without a whole summary it is damaged."""
        failure = self.failures.get(name)
        if name not in self.begun:
            return _Read(NOT_BEGUN, failure)
        run = RunStore(self.store, name)
        records = Records(run)
        try:
            # All figures on the page: a damaged one is better said than averaged.
            status = str(summarise_run(run, records, with_control=False)["status"])
        except StoreError as error:
            # One damaged run does not keep back the results of the others.
            return _Read(DAMAGED, str(error))
        if name in self.left_out:
            return _Read(DAMAGED, self.left_out[name])
        # Another process may have finished a run that failed here.
        return _Read(status, None if status == FINISHED else failure, records)


def _read_tests(records: Records) -> Iterator[SpentOnTest]:
    """Read the effort of a run's tests, in order."""
    for record in records.all():
        metrics = record.stored_metrics(TEST)
        if metrics:
            yield SpentOnTest(
                iteration=record.iteration,
                prompt_tokens=metrics.prompt_tokens,
                generated_tokens=metrics.completion_tokens,
            )
