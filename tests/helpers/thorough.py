"""How much is tried of what could be tried without end: a part in `make test`, all in `make test-long`."""

import os

THOROUGH = os.environ.get("NIP_THOROUGH") == "1"


def examples(count: int) -> int:
    """So many drawn examples; a fifth of them where there is little time."""
    return count if THOROUGH else count // 5
