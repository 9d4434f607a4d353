"""The setting that a user probably meant who wrote one that does not exist."""

import difflib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import get_origin

from nip_core.parameters.basis.base import Parameters, groups_in
from nip_core.parameters.hyper_parameters import HyperParameters

_NEAR, _NEAR_ELSEWHERE = 0.6, 0.8
"""How alike a name must be beside the place where it was written, and in another group."""
_WORDS_OF_IT = 0.96
"""How alike a name counts that is whole words of another, as "iterations" of num_iterations."""
_BESIDE = 0.1
"""How much nearer a neighbour is."""
_MOST_SHOWN = 3


def guess_setting(name: str, neighbours: Sequence[str]) -> str:
    """``; did you mean 'rl.num_iterations'?``, or "" where no setting has such a name and there
    are more beside it than can be listed.

    `neighbours`: the settings of the group in which `name` was written. Settings of other groups
    are suggested by their whole address: if they have this very name, or are nearer than any
    neighbour.
    """
    elsewhere = _addresses()
    alike = {place: _likeness(name, place) for place in elsewhere}
    likely = [place for place, score in alike.items() if score >= _NEAR_ELSEWHERE]
    likely += [place for place in neighbours if _likeness(name, place) >= _NEAR]
    best = max(
        likely,
        key=lambda place: _likeness(name, place) + (_BESIDE if place in neighbours else 0.0),
        default=None,
    )
    if best is None:
        return f"; there are {' and '.join(neighbours)}" if len(neighbours) <= _MOST_SHOWN else ""
    places = [best] if best in neighbours else elsewhere[best][:_MOST_SHOWN]
    return f"; did you mean {' or '.join(map(repr, places))}?"


def _likeness(name: str, setting: str) -> float:
    """Compare `name` with a setting's name, or with as many words of it; from 0 to 1."""
    words, count = setting.split("_"), len(name.split("_"))
    parts = ("_".join(words[i : i + count]) for i in range(len(words) - count + 1))
    of_parts = max((_ratio(name, part) for part in parts), default=0.0)
    return max(_ratio(name, setting), _WORDS_OF_IT * of_parts)


def _ratio(name: str, candidate: str) -> float:
    return difflib.SequenceMatcher(None, candidate, name).ratio()


@lru_cache(maxsize=1)
def _addresses() -> dict[str, list[str]]:
    """The addresses of all settings, by their last part."""
    addresses: dict[str, list[str]] = {}
    for address in dict.fromkeys(_below(HyperParameters, "")):
        addresses.setdefault(address.rpartition(".")[2], []).append(address)
    return addresses


def _below(kind: type[Parameters], prefix: str) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        yield f"{prefix}{name}"
        groups = groups_in(field.annotation)
        if groups and get_origin(field.annotation) is tuple:
            continue  # a list, whose entries have no address
        # Of settings that each agent, or model, has: the one for all, or any.
        key = {"agents": "_default.", "prices": "MODEL."}.get(name, "") if groups else ""
        for group in groups:
            yield from _below(group, f"{prefix}{name}.{key}")
