"""Engines of a user's own: a class in a file or package outside of this one, by its address.

load_engine         the class at an address, checked
find_capabilities   the abilities of any engine, before it is made

An address stands in the configuration of a server, which its owner writes; no request has one. The
class is imported in the server's process and in the run's, with all rights of the user.
"""

from collections.abc import Mapping
from inspect import Parameter, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, cast

from nip_base.importing import import_object
from nip_base.spec import ENGINES, Capabilities, check_engine_name

if TYPE_CHECKING:
    from nip_lm_server.engines.base import Engine

_ANSWERS = ("generate", "tokenize")
_NEEDED = {
    "trains": ("load_adapter", "unload_adapter", "loaded_adapters", "prove"),
    "trains_resident": ("score_prompt",),
    "scores_given_tokens": ("score_prompt",),
    "sleep": ("sleep", "wake"),
}
"""By ability, the methods without which an engine does not have it."""


def find_capabilities(engine: str) -> Capabilities:
    """The abilities of an engine, by its name or address. Raises ValueError as `load_engine`."""
    ours = ENGINES.get(check_engine_name(engine))
    return cast(Capabilities, load_engine(engine).capabilities) if ours is None else ours


def load_engine(address: str) -> type["Engine"]:
    """Import the engine at an address. Raises ValueError, naming its missing parts."""
    from nip_lm_server.engines.base import Engine  # late: our engines don't need it here

    kind = import_object(address)
    if not (isinstance(kind, type) and issubclass(kind, Engine)):
        raise ValueError(f"{address!r} is not a subclass of nip_lm_server.engines.base.Engine")
    # 1. The values that are read before an engine is made.
    abilities = getattr(kind, "capabilities", None)
    if not isinstance(abilities, Capabilities):
        raise ValueError(
            f"the engine {address!r} has no capabilities as a value of its class, such as "
            "`capabilities = Capabilities()` of nip_lm_server.engines.base"
        )
    if not isinstance(getattr(kind, "name", None), str):
        raise ValueError(f'the engine {address!r} has no name, such as `name = "mine"`')
    if abilities.trains and not abilities.has_weights:
        raise ValueError(
            f"the engine {address!r} trains and has no weights: jobs train a model; take one of "
            "both out of its capabilities"
        )
    # 2. The methods that its abilities need.
    names = [
        name
        for ability, methods in _NEEDED.items()
        if getattr(abilities, ability)
        for name in methods
    ]
    names += _ANSWERS if kind.upstream is Engine.upstream else ()
    inherited_names = {name for name in names if getattr(kind, name) is getattr(Engine, name)}
    if gaps := sorted(kind.__abstractmethods__ | inherited_names):
        raise ValueError(
            f"the engine {address!r} lacks {', '.join(gaps)}, which its capabilities promise or "
            "each engine has; see nip_lm_server.engines.base.Engine"
        )
    # 3. The methods that are awaited.
    blockers = [
        name
        for name, function in vars(Engine).items()
        if iscoroutinefunction(function) and not iscoroutinefunction(getattr(kind, name))
    ]
    if blockers:
        raise ValueError(
            f"the engine {address!r} has to have `async def` for {', '.join(sorted(blockers))}"
        )
    return kind


def check_arguments(kind: type["Engine"], address: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError where an engine can't be made of (path, name) and these options."""
    try:
        signature(kind).bind("", "", **options)
    except TypeError as error:
        parameters = list(signature(kind).parameters.values())[2:]
        option_names = [p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD]
        raise ValueError(
            f"the engine {address!r} is made of a model's path, the name that it serves, and its "
            f"options, which can't be {sorted(options)} ({error}); it has "
            f"{', '.join(option_names) or 'none'}"
        ) from None
