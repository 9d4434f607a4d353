"""Fields of the deployments' forms."""

from typing import Annotated

from pydantic import Field

from nip_core.configurations import bundled_configs

Bundled = Annotated[str, Field(json_schema_extra={"enum": list(bundled_configs())})]
"""A configuration: in the form a choice, in Python the path of a file as well."""
