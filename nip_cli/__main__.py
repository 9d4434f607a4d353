"""The entry point of the command `nip`: it hears signals before it imports anything."""

import atexit
import gc
import os
import signal
import sys
from typing import Any

_SAID = {signal.SIGINT: b"nip: interrupted; running again continues\n"}
_SAID[signal.SIGTERM] = b"nip: terminated; running again continues\n"
_COLLECTED_AFTER = 50_000  # new objects


def main() -> None:
    """Run the command. A signal while it is imported ends the process with one line."""
    # Of a command that only looks, a fifth of the time went into searches for garbage among what
    # had just been imported, while it began and once more when it ended.
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    atexit.register(_spare_last_search)
    earlier_handlers = {number: signal.getsignal(number) for number in _SAID}
    for number, handler in earlier_handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _leave)
    from nip_cli.cli import main as command

    for number, handler in earlier_handlers.items():
        signal.signal(number, handler)
    command()


def _spare_last_search() -> None:
    """Leave everything out of the search at the end, unless others' files may hang on it."""
    if "prefect" not in sys.modules:
        gc.freeze()


def _leave(number: int, frame: Any) -> None:
    os.write(2, _SAID[signal.Signals(number)])
    os._exit(128 + number)


if __name__ == "__main__":
    main()
