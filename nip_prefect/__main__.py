"""The entry point of the command `nip`: it hears signals before it imports anything."""

import os
import signal
from typing import Any

_SAID = {signal.SIGINT: b"nip: interrupted; running again continues\n"}
_SAID[signal.SIGTERM] = b"nip: terminated; running again continues\n"


def main() -> None:
    """Run the command. A signal while it is imported ends the process with one line."""
    before = {number: signal.getsignal(number) for number in _SAID}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _leave)
    from nip_prefect.flows.cli import main as command

    for number, handler in before.items():
        signal.signal(number, handler)
    command()


def _leave(number: int, frame: Any) -> None:
    os.write(2, _SAID[signal.Signals(number)])
    os._exit(128 + number)


if __name__ == "__main__":
    main()
