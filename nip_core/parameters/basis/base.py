"""The base of all settings: unknown keys are errors, values frozen, fields documented."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, get_args, get_origin
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from nip_core.parameters.basis.not_for_text import NOT_FOR_TEXT
from nip_core.parameters.basis.plain import PlainDict, PlainMapping
from nip_core.parameters.basis.update_schedule import SCHEDULES, AgentUpdateSchedule

OTHER_CLASS_NAMES = {"CodeValidationAgentParameters": "PureTextAgentParameters"}
"""Names that `_type` may also have."""


class Parameters(BaseModel):
    """A group of settings. Unknown keys are refused and values can't be changed afterwards."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # a value may be a secret that was put in the wrong place
    )

    earlier_names: ClassVar[Mapping[str, str]] = {}
    """Other names of fields, and the names they have now."""
    marks: ClassVar[frozenset[str]] = frozenset()
    """Keys that `to_dict` may add to the fields of an object, beside the keys that all have."""

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        """Take `_type`, other names of fields, settings without a meaning for text; None as {}."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        # 1. `_type`, which says what these settings are for.
        kind = cls._get_param_class_from_dict(values)
        if kind is not None and not issubclass(kind, cls):
            raise ValueError(f"_type is {kind.__name__}, but {cls.__name__} belong here")
        values.pop("_type", None)
        # 2. Names of earlier versions, and of the ancestor.
        for old, new in cls.earlier_names.items():
            if old in values:
                value = values.pop(old)
                if values.setdefault(new, value) != value:
                    raise ValueError(f"{old} is another name of {new}; set one")
        for name, field in cls.model_fields.items():
            # 3. A block in YAML of which every line is commented out is an empty one.
            if name in values and values[name] is None and _is_block(field):
                del values[name]
        # 4. A setting without a meaning for text may have the value that changes nothing.
        for name, unused in NOT_FOR_TEXT.get(cls.__name__, {}).items():
            if name not in values:
                continue
            value = values.pop(name)
            if not unused.allows(value.to_dict() if isinstance(value, Parameters) else value):
                raise ValueError(f"{name} can't be set: {unused.reason}; {unused.advice}")
            if name in cls.model_fields:
                values[name] = unused.default
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a yes or no for a number: it would count as 1 or 0."""
        if isinstance(value, bool):
            annotation = cls.model_fields[str(info.field_name)].annotation
            if may_hold(annotation, int, float) and not may_hold(annotation, bool):
                raise ValueError(f"a number is needed (got {value})")
        return value

    def get(self, address: str) -> Any:
        """The value at a dot-separated address such as ``"rl.lr"``.

        Raises KeyError when the address does not exist.
        """
        value: Any = self
        for part in address.split("."):
            if isinstance(value, Parameters) and part in type(value).model_fields:
                value = getattr(value, part)
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                raise KeyError(address)
        return value

    def to_dict(self) -> dict[str, Any]:
        """JSON-encodable settings, defaults included, each group with its class as `_type`."""
        # Not by `model_dump`, which would build the serializer of each class that is asked.
        set_ = (name for name in type(self).model_fields if name in self.__dict__)
        fields = {name: _as_plain(getattr(self, name)) for name in set_}
        return self._tags() | fields | self._marks()

    @classmethod
    def from_dict(cls, params_dict: PlainMapping, ignore_extra_keys: bool = False) -> Self:
        """Build from a dictionary such as `to_dict` gives; it is not changed.

        With `ignore_extra_keys`, keys that name no setting are left out, at any depth. Raises
        pydantic's ValidationError, a ValueError.
        """
        settings = (
            change_groups(cls, params_dict, _only_known) if ignore_extra_keys else params_dict
        )
        return cls.model_validate(dict(settings))

    @classmethod
    def construct_test_params(cls) -> Self:
        """Settings for tests: the defaults."""
        return cls()

    @classmethod
    def _get_param_class_from_dict(
        cls, param_dict: PlainMapping
    ) -> "type[Parameters] | type[AgentUpdateSchedule] | None":
        """Find the class named by the `_type` of serialised settings; None without one.

        Raises ValueError if it is no class of settings.
        """
        if "_type" not in param_dict:
            return None
        name = param_dict["_type"]
        if isinstance(name, str):
            name = OTHER_CLASS_NAMES.get(name, name)
            kinds = {kind.__name__: kind for kind in _subclasses(Parameters)}
            if name in kinds or name in SCHEDULES:
                return kinds.get(name) or SCHEDULES[name]
        raise ValueError(f"_type is {name!r}, which is no class of settings")

    @classmethod
    def _tags(cls) -> PlainDict:
        """Return what `to_dict` adds to the fields of every object of the class."""
        return {"_type": cls.__name__}

    def _marks(self) -> PlainDict:
        """Return the keys that it adds besides to the fields of this object."""
        return {}


def _is_block(field: FieldInfo) -> bool:
    """Return whether the field holds settings of its own, by default or by name."""
    return isinstance(field.default, Parameters) or field.default_factory is dict


def may_hold(annotation: Any, *kinds: type) -> bool:
    """Tell whether an annotation speaks of one of the types."""
    return annotation in kinds or any(may_hold(part, *kinds) for part in get_args(annotation))


def _subclasses(kind: type[Parameters]) -> list[type[Parameters]]:
    return [kind, *(inner for child in kind.__subclasses__() for inner in _subclasses(child))]


def _as_plain(value: Any) -> Any:
    """Give a value as JSON has it."""
    if isinstance(value, Parameters | AgentUpdateSchedule):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _as_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        # Groups in a list have no `_type`: all entries are of one kind.
        return [
            {name: entry for name, entry in _as_plain(inner).items() if name not in inner._tags()}
            if isinstance(inner, Parameters)
            else _as_plain(inner)
            for inner in value
        ]
    return to_jsonable_python(value)


def groups_in(annotation: Any) -> tuple[type[Parameters], ...]:
    """List the classes of settings in this annotation of a field."""
    if isinstance(annotation, type) and issubclass(annotation, Parameters):
        return (annotation,)
    return tuple(kind for part in get_args(annotation) for kind in groups_in(part))


def group_for(kinds: tuple[type[Parameters], ...], values: PlainMapping) -> type[Parameters]:
    """Choose the class these values say they are for; else the first."""
    for kind in kinds:
        if all(values.get(tag, value) == value for tag, value in kind._tags().items()):
            return kind
    return kinds[0]


def change_groups(
    kind: type[Parameters],
    values: PlainMapping,
    change: Callable[[type[Parameters], PlainMapping], PlainMapping],
) -> PlainDict:
    """`values` after `change(class, values)` of it and then of every group of settings inside."""

    def inside(kinds: tuple[type[Parameters], ...], inner: Any) -> Any:
        if not kinds or not isinstance(inner, Mapping):
            return inner
        return change_groups(group_for(kinds, inner), inner, change)

    result = dict(change(kind, values))
    for name, kinds, is_table in _list_holding_fields(kind):
        inner = result.get(name)
        if is_table and isinstance(inner, Mapping):
            result[name] = {key: inside(kinds, value) for key, value in inner.items()}
        elif name in result:
            result[name] = inside(kinds, inner)
    return result


_HoldingField = tuple[str, tuple[type[Parameters], ...], bool]
"""The name of a field, the groups that it may hold, and whether it is a table."""
_holding_fields: WeakKeyDictionary[type[Parameters], list[_HoldingField]] = WeakKeyDictionary()


def _list_holding_fields(kind: type[Parameters]) -> list[_HoldingField]:
    """List the fields of a class that are tables or hold groups; annotations are searched once."""
    if kind not in _holding_fields:
        fields = [
            (name, groups_in(field.annotation), get_origin(field.annotation) is dict)
            for name, field in kind.model_fields.items()
        ]
        _holding_fields[kind] = [field for field in fields if field[1] or field[2]]
    return _holding_fields[kind]


def _only_known(kind: type[Parameters], values: PlainMapping) -> PlainDict:
    known_names = {*kind.model_fields, *kind.earlier_names, *kind._tags(), *kind.marks}
    return {key: value for key, value in values.items() if key in known_names}
