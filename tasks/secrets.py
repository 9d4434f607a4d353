"""Keys from Prefect's Secret blocks, for workers that have none in their environment.

The block of OPENAI_API_KEY is called openai-api-key, and so on. A key goes from the block to the
clients that need it: it is no parameter, result, artifact or log line.
"""

import os
from typing import Any, cast

from prefect.blocks.system import Secret

from nip_core.parameters import HyperParameters
from nip_core.servers.endpoints import list_key_variables


def block_name(variable: str) -> str:
    """Name the Secret block of an environment variable."""
    return variable.lower().replace("_", "-")


async def environment_for(parameters: HyperParameters) -> dict[str, str]:
    """Make this process's environment, with keys from blocks where it lacks them."""
    environment = dict(os.environ)
    for variable in list_key_variables(parameters):
        if environment.get(variable):
            continue
        try:
            block = await Secret.aload(block_name(variable))
        except ValueError:  # there is no such block; the reader of a key says that it is missing
            continue
        environment[variable] = str(cast("Secret[Any]", block).get())
    return environment
