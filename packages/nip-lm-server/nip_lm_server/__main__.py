"""``nip-lm-server``: a server in this process, until a signal or its parent's end; or a proof.

Programs say ``--spec JSON`` (see `spec.Start`). People give the options of `command.serve`, or
``prove`` and the options of `prove_command.prove`. ``python -m nip_lm_server`` is the same.
"""

import sys
from collections.abc import Sequence

from nip_base.spec import Start

_MORE = "`nip-lm-server prove URL MODEL` says which weights answer under a name, at any server."


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
    from nip_lm_server.prove_command import prove

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("serve", epilog=_MORE)(serve)
    app.command("prove")(prove)
    if arguments[:1] not in (["serve"], ["prove"]):
        arguments = ["serve", *arguments]
    try:
        app(arguments, prog_name="nip-lm-server")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
