"""``nip-lm-server``: a server in this process, until a signal or its parent's end; or a proof.

Programs say ``--spec JSON`` (see `spec.Start`). People give the options of `command.serve`,
``prove`` and the options of `prove_command.prove`, or ``models`` and a command of
`models_command`. ``python -m nip_lm_server`` is the same.
"""

import sys
from collections.abc import Sequence
from difflib import get_close_matches

from nip_base.errors import CorruptionError, NipError, ServerError, SettingsError, StoreError
from nip_base.spec import Start

_MORE = (
    "`nip-lm-server prove URL MODEL` says which weights answer under a name, at any server; "
    "`nip-lm-server models add NAME` brings a published model here."
)
_COMMANDS = ("serve", "prove", "models")
_STATUSES: tuple[tuple[type[NipError], int], ...] = (
    (SettingsError, 2),
    (CorruptionError, 5),
    (StoreError, 3),
    (ServerError, 3),
)
"""As `nip` ends with these errors."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server, or prove one. Returns the exit status, see `server.run`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--spec"] and len(arguments) == 2:
        from nip_lm_server.server import run

        return run(Start.from_json(arguments[1]))
    return _run_command(arguments)


def _run_command(arguments: list[str]) -> int:
    """Run the command of a person's arguments; without a name it is `serve`."""
    import typer

    from nip_lm_server.command import serve
    from nip_lm_server.models_command import models
    from nip_lm_server.prove_command import prove
    from nip_lm_server.terminal import say

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("serve", epilog=_MORE)(serve)
    app.command("prove")(prove)
    app.add_typer(models, name="models")
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        near = get_close_matches(arguments[0], _COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_COMMANDS)}"
        say(f"nip-lm-server: there is no command {arguments[0]!r}; {hint}", file=sys.stderr)
        return 2
    if not arguments or arguments[0].startswith("-"):
        arguments = ["serve", *arguments]
    try:
        app(arguments, prog_name="nip-lm-server")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except NipError as error:
        say(f"nip-lm-server: {error}", file=sys.stderr)
        return next((status for kind, status in _STATUSES if isinstance(error, kind)), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
