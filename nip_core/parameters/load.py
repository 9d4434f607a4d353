"""Reading a configuration: a YAML file, with single values overridden by ``a.b=c``.

The errors name the file, the setting, what was got and, for a name that is nearly right, the
name that was probably meant.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from nip_base.formats.bounds import ReadError
from nip_core.configurations import config_file
from nip_core.errors import SettingsError
from nip_core.parameters.basis.base import Parameters, groups_in, may_hold
from nip_core.parameters.basis.plain import PlainDict
from nip_core.parameters.blocks.agents import AGENT_KINDS
from nip_core.parameters.blocks.tracking import TrackerParameters, Trackers
from nip_core.parameters.hyper_parameters import HyperParameters
from nip_core.parameters.named_files import find_beside
from nip_core.parameters.unknown import guess_setting

_MOST_KEYS = 64  # in the address of a setting


def load_parameters(
    config: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()
) -> HyperParameters:
    """Settings from a YAML file, with overrides like ``"rl.lr=0.001"`` on top.

    `config` is the file's path, the name of a bundled configuration, or the settings themselves.
    An override's value is read as YAML, so ``null``, ``true``, numbers and ``[a, b]`` work; for a
    setting that is text, ``2024`` and ``1e5`` stay text. No message shows an address that was
    given, as it may hold a password.

    Raises SettingsError; nothing has been spent then.
    """
    # 1. The file, and the overrides on top.
    overrides = tuple(overrides)
    if isinstance(config, Mapping):
        place, file, in_file = "configuration", None, dict(config)
    else:
        # Read once: of a pipe there is nothing left for a second time.
        place, file = str(config), config_file(config)
        in_file = read_yaml(file)
    values = _merge_found(in_file, overrides, file)
    # 2. Check all of it.
    try:
        return HyperParameters.model_validate(values)
    except ValidationError as error:
        lines = _lines(error)
    # 3. Say where the fault is: an error without the overrides stands in the file.
    of_file = lines if not overrides else _find_problems(in_file, file)
    of_overrides = [line for line in lines if line not in of_file]
    if of_overrides:  # an error without them as well may be the one that they were to mend
        raise SettingsError("--set: " + "; ".join(of_overrides))
    raise SettingsError(f"{place}: " + "; ".join(lines))


def merge_settings(config: str | Path, overrides: Iterable[str] = ()) -> PlainDict:
    """The settings of a file with overrides on top, as `load_parameters` checks them.

    Paths are as they are found: beside the file, or in the working directory. Raises SettingsError.
    """
    file = config_file(config)
    return _merge_found(read_yaml(file), tuple(overrides), file)


def _merge_found(in_file: PlainDict, overrides: Sequence[str], file: Path | None) -> PlainDict:
    values = _merge(in_file, overrides)
    return values if file is None else find_beside(values, str(file), _merge({}, overrides))


def _merge(values: PlainDict, overrides: Iterable[str]) -> PlainDict:
    for override in overrides:
        values = _with_override(values, override)
    return values


def load_trackers(values: Any, place: str) -> tuple[TrackerParameters, ...]:
    """Read trackers from a list like ``tracking``. Raises SettingsError, naming `place`."""
    try:
        trackers: tuple[TrackerParameters, ...] = TypeAdapter(Trackers).validate_python(values)
    except ValidationError as error:
        raise SettingsError(f"{place}: " + "; ".join(_lines(error))) from None
    return trackers


def _find_problems(in_file: PlainDict, file: Path | None) -> list[str]:
    try:
        HyperParameters.model_validate(_merge_found(in_file, (), file))
    except ValidationError as error:
        return _lines(error)
    except SettingsError:  # a path that an override replaces
        return []
    return []


def _lines(error: ValidationError) -> list[str]:
    return list(dict.fromkeys(_explain(detail) for detail in error.errors()))


@lru_cache(maxsize=16)  # a sweep reads the same file for each of its runs
def _parse(text: str) -> Any:
    from nip_base.formats.untrusted import parse_yaml  # with YAML, which few commands read

    return parse_yaml(text)


def read_yaml(path: Path) -> PlainDict:
    """The mapping in a file, within the limits of `parse_yaml`. Raises SettingsError."""
    from nip_base.formats.untrusted import read_text

    try:
        values = deepcopy(_parse(read_text(path)))
    except ReadError as error:
        raise SettingsError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: a mapping of settings is needed, got {type(values).__name__}")
    return values


def _with_override(values: PlainDict, override: str) -> PlainDict:
    from nip_base.formats.untrusted import parse_yaml

    address, equals, text = override.partition("=")
    if not equals or not address.strip():
        raise SettingsError(f"--set {_shown(override)}: write it as a.b=c")
    keys = address.strip().split(".")
    if len(keys) > _MOST_KEYS:
        raise SettingsError(f"--set {_shown(override)}: no setting is {len(keys)} levels deep")
    is_text = _is_text(keys)
    try:
        value = parse_yaml(text, plain_numbers=not is_text)
    except ReadError as error:
        raise SettingsError(f"--set {address}: the value {error}") from None
    if is_text:
        if value is not None and not isinstance(value, str | list | dict):
            value = text.strip()
    elif isinstance(value, str) and (number := _as_number(value)) is not None:
        value = number

    def put(node: Any, depth: int) -> PlainDict:
        if node is None:
            node = {}
        if not isinstance(node, dict):
            raise SettingsError(f"--set {address}: {'.'.join(keys[:depth])} holds a plain value")
        inner = value if depth == len(keys) - 1 else put(node.get(keys[depth]), depth + 1)
        return {**node, keys[depth]: inner}

    return put(values, 0)


def _is_text(keys: list[str]) -> bool:
    """Return whether the setting at this address takes text, and no number or truth value."""
    annotations: list[Any] = [HyperParameters]
    for key in keys:
        inner: list[Any] = []
        for annotation in annotations:
            if get_origin(annotation) is dict:
                inner.append(get_args(annotation)[1])
            else:
                fields = (kind.model_fields.get(key) for kind in groups_in(annotation))
                inner += [field.annotation for field in fields if field is not None]
        annotations = inner
    return any(
        get_origin(kind) is not dict and may_hold(kind, str) and not may_hold(kind, int, float)
        for kind in annotations
    )


def _shown(value: Any) -> str:
    """A value for a message; one with an address in it may hold a password."""
    text = repr(value)
    return "a value with an address in it" if "://" in text or "@" in text else text[:200]


def _as_number(text: str) -> float | None:
    """YAML 1.1 reads ``1e-3`` as text; people mean the number."""
    try:
        return float(text) if any(c.isdigit() for c in text) else None
    except ValueError:
        return None


def _explain(detail: ErrorDetails) -> str:
    kind, place = detail["type"], detail["loc"]
    location = ".".join(str(part) for part in _places(place))
    if kind == "extra_forbidden":
        name = str(place[-1])
        neighbours = _field_names(_places(place[:-1]))
        hint = guess_setting(name, neighbours)
        if name in neighbours:  # known of a model's agent
            hint = "; a random agent has no model and so none of a model's settings"
        return f"{location}: unknown setting{hint}"
    if kind == "value_error":
        message = str(detail["ctx"]["error"])
        return f"{location}: {message}" if location else message
    if kind == "missing":
        return f"{location}: is missing"
    return f"{location}: {detail['msg']} (got {_shown(detail.get('input'))})"


def _places(location: tuple[Any, ...]) -> tuple[Any, ...]:
    """Take the kind of an agent's settings out of a location, so an address is left."""
    is_agent = len(location) > 2 and location[0] == "agents" and location[2] in AGENT_KINDS
    return (*location[:2], *location[3:]) if is_agent else location


def list_settings_below(keys: tuple[str, ...]) -> dict[str, str | None]:
    """The settings at this address by name: the default as one writes it, None of a group."""
    if keys == ("agents",):
        return dict.fromkeys(("_default", "prover", "verifier"))
    kinds: tuple[type[Parameters], ...] = (HyperParameters,)
    for key in keys:
        fields = [kind.model_fields[key] for kind in kinds if key in kind.model_fields]
        if fields:  # otherwise the key of a mapping, with values of these kinds
            kinds = tuple(k for field in fields for k in groups_in(field.annotation))
    return {
        name: None if groups_in(field.annotation) else _as_written(field.default)
        for kind in kinds
        for name, field in kind.model_fields.items()
    }


def _as_written(default: Any) -> str:
    """Write a default as YAML in a line; "…" for one without a plain value."""
    import yaml

    is_plain = default is None or isinstance(default, str | int | float | bool)
    return yaml.safe_dump(default).splitlines()[0] if is_plain else "…"


def _field_names(location: tuple[Any, ...]) -> list[str]:
    """List the settings at this address."""
    kinds: tuple[type[Parameters], ...] = (HyperParameters,)
    for part in location:
        fields = [kind.model_fields[part] for kind in kinds if part in kind.model_fields]
        # A name that is no field is a key of a mapping, with values of these kinds.
        kinds = tuple(k for f in fields for k in groups_in(f.annotation)) if fields else kinds
    return [name for kind in kinds for name in kind.model_fields]
