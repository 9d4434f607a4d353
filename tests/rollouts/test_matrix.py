"""Every setting of the game with every protocol: it plays, or is refused by name.

What can be set is read from the settings models: each field with a finite set of values (a
Literal, a bool, one of these or None) and each number that may be None, of the groups that
concern the game (those that concern a model alone are `GROUP_SETTINGS`). For each protocol every value, and every pair of values, is either refused on its
own, with an error that names one of the two settings, or is part of a configuration that is
played: two episodes against a server that answers by hash. What is played must end with a verdict
or with its rounds, and give training examples that are the requests that were made.
"""

import re
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from hashed_play import Players, check
from playing import play_at, problems
from pydantic import BaseModel
from scripted_server import scripted_server
from thorough import THOROUGH

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.parameters import (
    CodeValidationParameters,
    CommonProtocolParameters,
    HyperParameters,
    PureTextAgentParameters,
    ZkProtocolParameters,
    load_parameters,
)
from nip_core.parameters.checks import GROUP_SETTINGS
from nip_core.protocols import find_protocol, protocol_names
from nip_core.protocols.scales import SCALES
from nip_core.rollouts.plan import plan_episodes

Value = Any
Setting = tuple[str, Value]
Row = dict[str, Value]
Accepted = tuple[Row, HyperParameters]

# Not enumerable: which numbers of rounds are tried, and which agents have no model.
ROUNDS = {"max_message_rounds": (9, 7, 4, 6, 2, 1, 10), "min_message_rounds": (1, 3)}
RANDOM = ("nobody", "provers", "verifiers", "everybody")
FEW = ("nip",)  # of the protocols, where there is little time


def values_of(annotation: Any) -> tuple[Value, ...] | None:
    """What a setting of this type can be, None if that is not a short list."""
    if get_origin(annotation) is Annotated:
        return values_of(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if annotation is bool:
        return (False, True)
    if annotation is type(None):
        return (None,)
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [values_of(part) for part in get_args(annotation)]
        if None in parts and (None,) in parts:  # a number that may be left out
            parts = [
                _a_number(part) if p is None else p
                for p, part in zip(parts, get_args(annotation), strict=True)
            ]
        return None if None in parts else tuple(v for part in parts for v in part)
    return None


def _a_number(annotation: Any) -> tuple[Value, ...] | None:
    base, *bounds = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
    if base not in (int, float):
        return None
    inner = [b for bound in bounds for b in getattr(bound, "metadata", [bound])]
    low = next((b.ge if isinstance(b, Ge) else b.gt for b in inner if isinstance(b, Ge | Gt)), None)
    high = next(
        (b.le if isinstance(b, Le) else b.lt for b in inner if isinstance(b, Le | Lt)), None
    )
    if low is not None and high is not None:
        return (base((low + high) / 2),)
    return (
        (base(low + 1),)
        if low is not None
        else (base(high - 1),)
        if high is not None
        else (base(0),)
    )


OF_REQUESTS = (*GROUP_SETTINGS, "reasoning_effort")  # whom to ask and how, not what is played


@cache
def dimensions(protocol: str) -> dict[str, tuple[Value, ...]]:
    """By address, the values of every setting that concerns a game of this protocol, the default
    first."""
    groups = {
        "protocol_common": CommonProtocolParameters,
        "zk_protocol": ZkProtocolParameters,
        "code_validation": CodeValidationParameters,
        "agents._default": PureTextAgentParameters,
    }
    own = f"{protocol}_protocol"
    if own in HyperParameters.model_fields:
        groups[own] = HyperParameters.model_fields[own].annotation
    found: dict[str, tuple[Value, ...]] = {"random": RANDOM}
    for group, model in groups.items():
        for name, field in model.model_fields.items():
            values = ROUNDS.get(name) or values_of(field.annotation)
            if field.metadata and values is None:
                values = values_of(Annotated[field.annotation, *field.metadata])
            if values is None or len(values) < 2 or name in OF_REQUESTS:
                continue
            default = field.get_default(call_default_factory=True)
            others = [v for v in values if v != default and type(v) is not type(default)]
            others = [v for v in values if v != default] if default in values else others
            found[f"{group}.{name}"] = (default, *others)
    return found


def configuration(protocol: str, row: Mapping[str, Value]) -> HyperParameters:
    """The settings of a row. Raises SettingsError."""
    settings: dict[str, Any] = {
        "run_name": "a",
        "dataset": "x",
        "interaction_protocol": protocol,
        "rl": {"rollouts_per_iteration": None},
        "pure_text_ei": {"reward_threshold": -1000.0},
        "rollouts": {"failure_threshold": 1.0, "transport_retries": 0},
        "agents": {
            "_default": {
                "model_provider": "SelfHosted",
                "model_name": "m",
                "num_invalid_generation_retries": 2,
            }
        },
    }
    defaults = {address: values[0] for address, values in dimensions(protocol).items()}
    for address, value in row.items():
        if address != "random" and value != defaults[address]:
            place = settings
            *groups, name = address.split(".")
            for group in groups:
                place = place.setdefault(group, {})
            place[name] = value
    zero_knowledge = row.get("protocol_common.zero_knowledge", False)
    extra = ("adversarial_verifier", "simulator") if zero_knowledge else ()
    for agent in (*find_protocol(protocol).agents, *extra):
        kind = "provers" if agent.startswith("prover") else "verifiers"
        if row.get("random") in (kind, "everybody"):
            settings["agents"][agent] = {"is_random": True}
    parameters = load_parameters(settings)
    Game(parameters)  # reads the prompts
    return parameters


class Covering:
    """Rows that together hold every pair of values that can be played.

    `refusals` has the message for each value, and each pair, that can't be with the others'
    defaults and some number of rounds.
    """

    def __init__(self, protocol: str):
        self.protocol = protocol
        self.values = dimensions(protocol)
        self.rounds = next((a for a in self.values if a.endswith("max_message_rounds")), None)
        self.refusals: dict[tuple[Setting, ...], str] = {}
        settings = [(a, v) for a, values in self.values.items() for v in values]
        alone = {setting: self._alone((setting,)) for setting in settings}
        self.playable: dict[str, list[Value]] = {}
        for (address, value), found in alone.items():
            if found is not None:
                self.playable.setdefault(address, []).append(value)
        # What needs another setting beside it comes first, and is not put into other rows.
        self.uncovered = dict.fromkeys(
            sorted(
                (p for p in combinations(settings, 2) if p[0][0] != p[1][0]),
                key=lambda p: all(alone[setting] is not None for setting in p),
            )
        )

    def rows(self) -> Iterator[HyperParameters]:
        """One configuration after the other, until nothing is left to cover."""
        while self.uncovered:
            pair = next(iter(self.uncovered))
            self.uncovered.pop(pair)
            found = self._alone(pair)
            if found is not None:
                row, parameters = self._filled(found, dict(pair))
                for covered in combinations(row.items(), 2):
                    self.uncovered.pop(covered, None)
                yield parameters

    def _alone(self, some: tuple[Setting, ...]) -> Accepted | None:
        """With the defaults of all others, or None, and the reason is kept."""
        row = {address: values[0] for address, values in self.values.items()} | dict(some)
        # Which numbers of rounds give the verifier the last turn depends on the other settings.
        fixed = self.rounds is None or self.rounds in dict(some)
        rounds = [row.get(self.rounds)] if fixed else self.values[self.rounds]
        messages = []
        for number in rounds:
            tried = row if self.rounds is None else {**row, self.rounds: number}
            try:
                return tried, configuration(self.protocol, tried)
            except SettingsError as error:
                messages.append(str(error))
                if "max_message_rounds" not in str(error):
                    break
        self.refusals[some] = messages[0]
        return None

    def _filled(self, accepted: Accepted, chosen: Row) -> Accepted:
        """With as many more uncovered pairs as a greedy choice finds and the settings allow."""
        row = dict(chosen)
        for address, values in self.playable.items():
            if address not in row:
                row[address] = max(values, key=lambda v: self._gain(row, (address, v)))
        return self._changed(accepted, [s for s in row.items() if s[0] not in chosen])

    def _changed(self, accepted: Accepted, changes: list[Setting]) -> Accepted:
        """With those of the `changes` that are allowed together, found by halving."""
        if not changes:
            return accepted
        tried = {**accepted[0], **dict(changes)}
        try:
            return tried, configuration(self.protocol, tried)
        except SettingsError:
            if len(changes) == 1:
                return accepted
        half = len(changes) // 2
        return self._changed(self._changed(accepted, changes[:half]), changes[half:])

    def _gain(self, row: Row, setting: Setting) -> int:
        return sum(
            (s, setting) in self.uncovered or (setting, s) in self.uncovered for s in row.items()
        )


# What is promised


@pytest.mark.parametrize("protocol", protocol_names() if THOROUGH else FEW)
async def test_every_pair_of_settings_plays_or_is_refused_by_name(protocol: str) -> None:
    covering = Covering(protocol)
    players, count = Players(), 0
    async with scripted_server(players) as server:
        for parameters in covering.rows():
            players.parameters, players.seen = parameters, Counter()
            first = len(server.bodies)
            specs = plan_episodes(parameters, problems(2), "train", 0)
            played = await play_at(server.url, parameters, specs)
            check(played, server.bodies[first:])
            count += 1
    assert count > 20
    for refused, message in covering.refusals.items():
        names = [address.rpartition(".")[2] for address, _ in refused]
        if any(name == "random" for name in names):
            names += ["random", "is_random", "agents"]
        assert any(re.search(rf"\b{name}\b", message) for name in names), (refused, message)


def every_value(
    model: type[BaseModel] = HyperParameters, place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Value]]:
    """Each value of each setting of the whole tree that has a short list of them."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if name == "agents":
            yield from every_value(PureTextAgentParameters, ("agents", "_default"))
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from every_value(inner, (*place, name))
        else:
            for value in values_of(Annotated[inner, *field.metadata, None]) or ():
                yield (*place, name), value


def test_every_value_of_every_setting_is_taken_or_refused_by_name() -> None:
    taken, refused = 0, 0
    for (*groups, name), value in every_value():
        settings: dict[str, Any] = {"run_name": "a", "dataset": "x"}
        place = settings
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
        try:
            load_parameters(settings)
            taken += 1
        except SettingsError as error:
            # Where the verifier no longer has the last turn, the rounds are to be changed.
            named = re.search(rf"\b({name}|nip_protocol\.max_message_rounds)\b", str(error))
            assert named, (groups, name, value, str(error))
            refused += 1
    assert taken > 100 and refused > 10


def test_the_matrix_holds_what_the_settings_document() -> None:
    """The enumeration finds the settings that the game is known for, so that it can't run dry."""
    found = dimensions("debate")
    for address in (
        "protocol_common.verifier_first",
        "protocol_common.force_guess",
        "protocol_common.zero_knowledge",
        "protocol_common.shared_reward",
        "protocol_common.prover_invalid_response_penalty",
        "protocol_common.verifier_neither_accept_nor_reject_reward",
        "debate_protocol.sequential",
        "debate_protocol.prover0_first",
        "debate_protocol.randomize_channel_order",
        "zk_protocol.similarity",
        "code_validation.system_prompt_version",
        "agents._default.use_supervisor_message",
        "agents._default.chat_format",
    ):
        assert address in found, address
    assert len(found["protocol_common.verifier_decision_scale"]) == len(SCALES)
    assert "merlin_arthur_protocol.pay_silent_prover" in dimensions("merlin_arthur")
