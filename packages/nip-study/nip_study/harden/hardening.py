"""Hardening a verifier: rounds in which it is attacked, and trained further against the attackers.

HardeningSettings  the settings of the rounds
plan_hardening     all runs of all rounds of a finished run, with their settings
plan_rounds        the same for a run that may yet have to be played
AttackAsked        a way of attacking; parse_attack, parse_mix: as they are written

Round 0 attacks the verifier of the run. Each further round trains it on against its honest provers,
who keep their weights, and all attackers so far, and attacks it with a fresh one (as Kirchner et
al., "Prover-Verifier Games improve legibility of LLM outputs", 2024, do). Every one is an ordinary
run with a name of its own, so all of it can be stopped and goes on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nip_core.attacks import ATTACKS, Attack
from nip_core.attacks.base import CHATS
from nip_core.attacks.course import TESTED_EVERY
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.attack_settings import derive_attack, find_way, name_way, refuse_default
from nip_core.parameters.basis.plain import PlainDict, PlainMapping
from nip_core.parameters.blocks.opponents import RUNS, WRONG
from nip_core.parameters.checks import find_attackers
from nip_core.parameters.stored import complete_settings, read_settings
from nip_core.records.iterations import Records
from nip_core.records.named_run import find_run
from nip_core.records.status import find_status
from nip_core.run_store.run import RUN_NAME
from nip_core.scenarios import make_scenario
from nip_core.tolerance import at_least

MOST_ROUNDS = 50
EVERY_PROBLEM = "all"
_SAME_PROBLEMS = (
    *("scenario", "scenario_settings", "code_validation", "dataset", "dataset_options"),
    *("test_dataset_split", "interaction_protocol", "protocol_common", "seed", "attack"),
)
_FILLED_IN = ("run_name", "run_store", "base_run", "opponents", "attack", "imitation.chats")
"""The settings that follow from the rounds, in their training."""
_FILLED_IN_ATTACKS = ("run_name", "run_store", "base_run", "attack.run", "attack.iteration")
_GAME = ("scenario", "scenario_settings", "code_validation", "dataset", "interaction_protocol")
HONEST = "honest"
"""The group of provers that shared a model with the verifier, which alone is trained on."""
_FROZEN: PlainDict = {
    "freeze_agent": True,
    "load_checkpoint_and_parameters": False,
    "checkpoint_run_id": None,
    "checkpoint_version": "latest",
    "published_adapter": None,
}


@dataclass(frozen=True)
class AttackAsked:
    """A way of attacking, the same in each round."""

    name: str
    script: str | None = None

    @property
    def label(self) -> str:
        """Name it, as a part of the names of runs."""
        return name_way(self.name, self.script or "")

    @property
    def kind(self) -> type[Attack]:
        """Return the attack that is named."""
        return find_way(self.name, "--attack")


@dataclass(frozen=True)
class HardeningSettings:
    """The settings of the rounds; attacks have the defaults of `nip attack`."""

    rounds: int
    attacks: tuple[AttackAsked, ...]
    honest: float = 0.5
    """The share of the training episodes that is played with honest provers."""
    attackers: float = 0.5
    """The share of all attackers together, the same for each."""
    played_problems: str = EVERY_PROBLEM
    """The problems on which attackers play: all, or wrong ones alone, with their share of these."""
    iterations: int | None = None
    """Iterations of training in a round; None: as many as the run had."""
    show: str | None = None
    """The file of chats that the verifier imitates first in each round, in an iteration more."""
    steps: int | None = None
    every: int | None = None
    until: str | None = None
    problems: int | None = None
    name: str | None = None
    """The beginning of all runs' names; None: RUN-harden."""
    overrides: tuple[str, ...] = ()
    """Settings on top of the run's, for the training of each round."""
    attack_overrides: tuple[str, ...] = ()
    """The same for the attacks."""

    def __post_init__(self) -> None:
        """Raises SettingsError for settings that can't be."""
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise SettingsError(
                f"--rounds {self.rounds}: a round attacks and trains; give 1 to {MOST_ROUNDS}"
            )
        if self.iterations is not None and self.iterations < 1:
            raise SettingsError(f"--iterations {self.iterations}: give 1 or more")
        if self.played_problems not in (EVERY_PROBLEM, WRONG):
            raise SettingsError(
                f"--on {self.played_problems!r}: attackers play on all problems, or on wrong"
            )
        if self.show is not None and not self.show.endswith(CHATS):
            raise SettingsError(f"--show {self.show}: name a file of chats, path/to/chats.jsonl")
        if not self.attacks:
            raise SettingsError("--attack is missing; use sneaky, script or script:NAME")
        labels = [attack.label for attack in self.attacks]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise SettingsError(f"--attack: {', '.join(twice)} stands twice; give each once")
        _refuse_settings("--set", self.overrides, _FILLED_IN)
        filled_in = (*_FILLED_IN_ATTACKS, "attack.by", "attack.script", *_GAME)
        _refuse_settings("--attack-set", self.attack_overrides, filled_in)
        trains = any(attack.kind.trains for attack in self.attacks)
        for option in ("steps", "every", "until"):
            if getattr(self, option) is not None and not trains:
                training = ", ".join(kind.name for kind in ATTACKS if kind.trains)
                raise SettingsError(f"--{option} is for --attack {training} alone; leave it out")


def _refuse_settings(
    option: str, overrides: Sequence[str], refused_settings: Sequence[str]
) -> None:
    """Refuse settings that follow from the rounds, or would play another game."""
    for override in overrides:
        setting = override.partition("=")[0]
        if any(setting == name or setting.startswith(f"{name}.") for name in refused_settings):
            raise SettingsError(
                f"{option} {setting}: the rounds set it, or it is the game of the hardened run; "
                "leave it out"
            )
        if option == "--set" and setting.endswith(".freeze_agent"):
            raise SettingsError(
                f"{option} {setting}: the rounds train the verifier and nobody else; leave it out"
            )


@dataclass(frozen=True)
class PlannedStep:
    """One run of a hardening."""

    name: str
    parameters: HyperParameters
    attack_name: str | None = None
    """How it attacks; None: it trains."""
    label: str | None = None

    @property
    def settings(self) -> PlainMapping:
        """Return all of its settings."""
        return self.parameters.to_dict()


@dataclass(frozen=True)
class PlannedRound:
    """A round: a verifier, and the attacks on it."""

    number: int
    run: str
    """The run with the verifier: the hardened run itself in round 0."""
    iteration: int
    """The models that are attacked."""
    training: PlannedStep | None
    """None in round 0, which has its verifier."""
    attacks: tuple[PlannedStep, ...]

    @property
    def steps(self) -> tuple[PlannedStep, ...]:
        """Return its runs in their order."""
        return (*([] if self.training is None else [self.training]), *self.attacks)


@dataclass(frozen=True)
class Hardening:
    """All rounds."""

    name: str
    run: str
    run_store: str
    settings: HardeningSettings
    rounds: tuple[PlannedRound, ...] = field(default=())

    @property
    def steps(self) -> tuple[PlannedStep, ...]:
        """Return all of its runs in their order."""
        return tuple(step for round_plan in self.rounds for step in round_plan.steps)


def parse_attack(text: str) -> AttackAsked:
    """Read a way of attacking: sneaky, script, script:NAME, path/to/file.py:Class.

    Raises SettingsError for one without provers that a verifier can be trained against.
    """
    way, _, script = text.partition(":")
    for kind in ATTACKS:
        if way == kind.name and (kind.takes_script or (kind.trains and not script)):
            return AttackAsked(way, script or None)
    if script and way not in {kind.name for kind in ATTACKS}:
        attack = AttackAsked(text)
        if attack.kind.trains or attack.kind.takes_script:
            return attack
    raise SettingsError(
        f"--attack {text!r}: use sneaky, script (the scenario's first), script:NAME or "
        "path/to/file.py:Class of an attack by training; one that chooses, as best-of-n, trains "
        "no prover that a verifier could be trained against"
    )


def parse_mix(text: str) -> dict[str, float]:
    """Read shares such as ``honest=0.5,attackers=0.5``. Raises SettingsError unless they fit."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name in shares:
            raise SettingsError(f"--mix {text!r}: {name} stands twice; give each share once")
        try:
            shares[name] = float(number)
        except ValueError:
            shares[name] = float("nan")
    total = sum(shares.values())
    fits = at_least(total, 1.0) and at_least(1.0, total)
    if {*shares} != {"honest", "attackers"} or min(shares.values()) < 0 or not fits:
        raise SettingsError(
            f"--mix {text!r}: give the shares of the training episodes, none negative, 1 together, "
            "such as honest=0.5,attackers=0.5"
        )
    if shares["attackers"] == 0:
        raise SettingsError(
            f"--mix {text!r}: without attackers nothing is hardened; give them a share above 0"
        )
    return shares


def plan_hardening(run_store: str, run: str, settings: HardeningSettings) -> Hardening:
    """Plan the rounds of hardening the verifier of `run`, which is finished; nothing is written.

    Raises SettingsError where the run is not there, is not finished, has no verifier of its own
    training, or can't be attacked; and for settings that can't be a run's.
    """
    source = find_run(run, run_store)
    stored_settings = complete_settings(source.open().parameters)
    parameters = read_settings({**stored_settings, "run_store": run_store})
    # A run that can never be hardened is refused also when it has stopped.
    hardening = plan_rounds(parameters, settings)
    if (status := find_status(source, Records(source))) != "finished":
        raise SettingsError(
            f"run {run!r} is {status}, not finished, so its verifier may yet change; go on with it "
            f"first (nip continue-run {run})"
        )
    return hardening


def plan_rounds(parameters: HyperParameters, settings: HardeningSettings) -> Hardening:
    """Plan the rounds for a run with the settings `parameters`, which may yet have to be played.

    Raises SettingsError as `plan_hardening` does.
    """
    _check_trained(parameters)
    hardened = _Hardened(parameters, settings)
    return Hardening(
        name=hardened.name,
        run=parameters.run_name,
        run_store=parameters.run_store,
        settings=settings,
        rounds=tuple(hardened.plan()),
    )


def _check_trained(parameters: HyperParameters) -> None:
    """Refuse a run whose verifier can't be hardened. Raises SettingsError."""
    name = parameters.run_name
    if parameters.attack.run is not None:
        raise SettingsError(
            f"run {name!r} is an attack and has trained no verifier; harden "
            f"{parameters.attack.run!r}"
        )
    if (kind := parameters.opponents.kind) != "present":
        opponents = "in a league" if kind != RUNS else "against other runs"
        raise SettingsError(
            f"run {name!r} was trained {opponents} (opponents), which the rounds would leave out; "
            "harden a run without, or go on with a hardening by more --rounds"
        )
    if parameters.protocol_common.randomize_prover_stance:
        raise SettingsError(
            f"run {name!r} draws what its provers argue for "
            "(protocol_common.randomize_prover_stance), and an attacker always argues for "
            "acceptance, which is another game; harden a run without"
        )
    if not find_attackers(parameters):
        raise SettingsError(
            f"run {name!r}: protocol {parameters.interaction_protocol!r} has no prover with a "
            "model that argues for acceptance, so nobody can attack its verifier"
        )
    verifier = parameters.model_agents.get("verifier")
    if verifier is None or verifier.freeze_agent:
        raise SettingsError(
            f"run {name!r} trains no verifier (agents.verifier); harden one that does"
        )
    if parameters.base_run.base_run_type == "rerun_tests" or not parameters.rl.num_iterations:
        raise SettingsError(f"run {name!r} trains nobody; harden one that has trained")


class _Hardened:
    """The run whose verifier is hardened."""

    def __init__(self, parameters: HyperParameters, settings: HardeningSettings) -> None:
        self._trained, self._settings = parameters, settings
        self.stored = parameters.to_dict()
        self.name = settings.name or f"{parameters.run_name}-harden"

    def plan(self) -> Iterator[PlannedRound]:
        """Plan the rounds, each from the one before."""
        attackers: list[str] = []
        run, parameters = self._trained.run_name, self._trained
        for number in range(self._settings.rounds + 1):
            training = None
            if number:
                training = self._plan_training(number, run, attackers)
                run, parameters = training.name, training.parameters
            iteration = parameters.rl.num_iterations
            attacks = tuple(self._plan_attacks(number, run, iteration, parameters))
            yield PlannedRound(number, run, iteration, training, attacks)
            attackers += [attack.name for attack in attacks]

    def _plan_training(self, number: int, previous: str, attackers: Sequence[str]) -> PlannedStep:
        """Plan how a round goes on training the verifier of the previous run."""
        settings, stored_settings = self._settings, self.stored
        share = settings.attackers / len(attackers)
        had = self._trained.rl.num_iterations - self._trained.imitates(0)
        plays = had if settings.iterations is None else settings.iterations
        rl = {**stored_settings["rl"], "num_iterations": plays + (settings.show is not None)}
        values = {
            **stored_settings,
            "imitation": {"chats": settings.show},
            "run_name": self._name(number, None),
            "agents": self._agents(),
            "rl": rl,
            "base_run": {"base_run_type": "parameters", "run_id": previous},
            "opponents": {
                "kind": RUNS,
                "runs": [
                    {"run": a, "share": share, "on": settings.played_problems} for a in attackers
                ],
            },
        }
        if stored_settings["text_rl"]["test_scheme"] == "none":
            values["text_rl"] = {**stored_settings["text_rl"], "test_scheme": "last"}
        refuse_default(settings.overrides, f"run {self._trained.run_name!r}")
        parameters = load_parameters(values, settings.overrides)
        for setting in _SAME_PROBLEMS:
            if parameters.to_dict()[setting] != stored_settings[setting]:
                raise SettingsError(
                    f"--set {setting}: all rounds are trained and tested on the problems of run "
                    f"{self._trained.run_name!r}, in its game; leave it out"
                )
        return PlannedStep(parameters.run_name, parameters)

    def _plan_attacks(
        self, number: int, run: str, iteration: int, attacked_parameters: HyperParameters
    ) -> Iterator[PlannedStep]:
        settings, names = self._settings, set[str]()
        for wanted_attack in settings.attacks:
            is_scripted, trains = wanted_attack.kind.takes_script, wanted_attack.kind.trains
            script = wanted_attack.script or (self._first_script() if is_scripted else None)
            name = self._name(number, name_way(wanted_attack.name, script or ""))
            if name in names:
                raise SettingsError(f"--attack script:{script} stands twice; give each once")
            names.add(name)
            attack: PlainDict = {"by": wanted_attack.name, "run": run, "iteration": iteration}
            attack |= {"problems": settings.problems} | (
                {} if script is None else {"script": script}
            )
            attack |= {"until": settings.until} if trains and settings.until else {}
            parameters = derive_attack(
                attacked_parameters,
                attack,
                steps=settings.steps if trains else None,
                every=settings.every or TESTED_EVERY,
                name=name,
                overrides=settings.attack_overrides,
            )
            yield PlannedStep(
                name, parameters, wanted_attack.name, name_way(wanted_attack.name, script or "")
            )

    def _agents(self) -> dict[str, PlainMapping]:
        """Return the agents' settings: the verifier is trained on, all others are frozen."""
        agents: dict[str, PlainMapping] = {**self.stored["agents"]}
        verifier = agents["verifier"]
        shared = verifier.get("shared_model_group") or "verifier"
        for name, agent in self.stored["agents"].items():
            if name != "verifier" and not agent.get("is_random"):
                group = agent.get("shared_model_group")
                own_group = HONEST if (group or name) == shared else group
                agents[name] = {**agent, **_FROZEN, "shared_model_group": own_group}
        # Each adapter goes on from the one before: a verifier that is trained anew on these
        # episodes alone has lost its earlier skill.
        agents["verifier"] = {
            **verifier,
            **_FROZEN,
            "freeze_agent": False,
            "fine_tune_from_scratch": False,
            "update_schedule": "ConstantUpdateSchedule",
        }
        return agents

    def _name(self, number: int, label: str | None) -> str:
        name = f"{self.name}-{number}" + ("" if label is None else f"-{label}")
        if not RUN_NAME.fullmatch(name):
            raise SettingsError(
                f"a run would be called {name!r}, which is not one of at most 41 lower-case "
                "letters, digits and '-'; give a shorter --name"
            )
        return name

    def _first_script(self) -> str:
        scenario = make_scenario(self._trained)
        if not scenario.scripts:
            raise SettingsError(
                f"--attack script: scenario {scenario.name} brings no script; name one of your "
                "own, script:path/to/file.py:function"
            )
        return next(iter(scenario.scripts))
