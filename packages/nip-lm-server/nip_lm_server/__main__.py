"""``python -m nip_lm_server``: a server in this process, until SIGTERM, SIGINT or its parent's end.

Programs say ``--spec JSON`` (see `spec.Start`), people what `command.serve` takes.
"""

import sys
from collections.abc import Sequence

from nip_base.spec import Start


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server. Returns the exit status, see `server.run`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--spec"] and len(arguments) == 2:
        from nip_lm_server.server import run

        return run(Start.from_json(arguments[1]))
    from nip_lm_server.command import command_line

    return command_line(arguments)


if __name__ == "__main__":
    sys.exit(main())
