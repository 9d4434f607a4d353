"""`nip serve` with the deterministic engine, which writes down every call that it answers.

    python counted_server.py CALLS ARGUMENTS...

A line of the file CALLS is an answered call that costs: seconds on the monotonic clock, and its
seed, which names one turn of one episode. Proofs have no seed, and are left out.
"""

import sys
import time
from pathlib import Path
from typing import Any

from nip_lm_server.__main__ import main as serve
from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine


def count_calls(path: Path) -> None:
    """Write down what the engine of this process answers from now on."""
    generate = DeterministicEngine.generate
    file = path.open("a", buffering=1)

    async def counted(self: DeterministicEngine, request: GenerationRequest) -> Any:
        answer = await generate(self, request)
        if request.seed is not None:
            file.write(f"{time.monotonic():.3f} {request.seed}\n")
        return answer

    DeterministicEngine.generate = counted  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    count_calls(Path(sys.argv[1]))
    sys.exit(serve(sys.argv[2:]))
