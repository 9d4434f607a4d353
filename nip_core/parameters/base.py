"""What all settings share: unknown keys are errors, values frozen, fields documented."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Parameters(BaseModel):
    """A group of settings. Unknown keys are refused and values can't be changed afterwards."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # a value may be a secret that was put in the wrong place
    )

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
        """JSON-encodable settings, defaults included."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, values: dict[str, Any], ignore_extra_keys: bool = False) -> Self:
        """Build from a dictionary, which is not changed.

        With `ignore_extra_keys`, top-level keys that name no field are left out.
        """
        if ignore_extra_keys:
            values = {key: value for key, value in values.items() if key in cls.model_fields}
        return cls.model_validate(values)
