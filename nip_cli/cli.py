"""The command `nip`.

Exit codes: 0 done; 1 an error of nip itself; 2 wrong settings, data or
arguments (nothing was spent); 3 stopped cleanly, running again continues; 4 another runner holds
the run; 5 damaged files, running again does not help; 6 a fine-tune job ended without a model, see
--retry-failed-jobs; 7 a cap of the run's budget is reached, raising it and running again continues;
8 `nip prove`: something else answers under a name; 9 `nip prove`: it can't be told;
130 interrupted and 143 terminated, running again continues.
"""

import contextlib
import os
import signal
import sys
import threading
from typing import Annotated, Any

import typer

from nip_cli.command_table import Commands
from nip_cli.launching.stopping import Stopped
from nip_cli.printing.streams import lost_output, open_closed, survive
from nip_cli.printing.terminal import guard, say
from nip_cli.served_models import ServedModels
from nip_core import __version__
from nip_core.errors import (
    BudgetError,
    CorruptionError,
    DatasetError,
    JobError,
    LeaseError,
    NipError,
    RunConflictError,
    ServerError,
    SettingsError,
    StageError,
    StoreError,
)
from nip_core.proxies import hide_unusable, spare_this_machine

_STOPPED = {
    signal.SIGINT: "interrupted; running again continues",
    signal.SIGTERM: "terminated; running again continues",
    signal.SIGHUP: "the terminal was closed; running again continues",
}
_LEAVE_S = 25.0
_received: list[signal.Signals] = []
"""A signal other than SIGINT that asked for a stop."""


class _Stoppable(Commands):
    """Turns what a signal has become on its way up into `Stopped`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped((_received or [signal.SIGINT])[0]) from None


app = typer.Typer(
    cls=_Stoppable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={  # of every command below, too
        "help_option_names": ["--help", "-h"],
        "obj": ServedModels(),  # by which the server's commands know the names of nip's models
    },
)


def _say_version(asked: bool) -> None:
    if asked:
        say(f"nip {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version."),
    ] = False,
) -> None:
    """A durable training loop for language models that play neural interactive proofs."""


_EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (LeaseError, 4),
    (SettingsError, 2),
    (DatasetError, 2),
    (RunConflictError, 2),
    (CorruptionError, 5),
    (JobError, 6),
    (BudgetError, 7),
    (StageError, 3),
    (ServerError, 3),
    (StoreError, 3),
)


def main() -> None:
    """Run the command; turn nip's own errors into one line and an exit code."""
    # A reader that has gone ends no training, a closed descriptor has no owner, and
    # a terminal shows every text and obeys none.
    open_closed()
    survive()
    guard()
    # Nothing here may need the network; people who want the telemetry can switch it on.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Prefect's own server takes longer than its default of 20 s on a busy or slow machine.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
    # To look for plugins, of which nip has none, pydantic reads what every package says of itself.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # This process, and those that it starts, ask this machine's servers without a proxy.
    spare_this_machine(os.environ)
    hide_unusable(os.environ)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _on_termination)
    status = 1  # with a traceback
    try:
        status = _ended_with()
        if (lost_stream := lost_output()) is not None:
            say(f"nip: can't write to standard output: {lost_stream.strerror}", file=sys.stderr)
            status = status or 1
    except Stopped as stopped:
        say(f"nip: {_STOPPED[stopped.by]}", file=sys.stderr)
        _leave(128 + stopped.by)
    finally:
        if _launched("used_prefect", False):
            for number in _STOPPED:
                signal.signal(number, lambda *_: _leave(status))
            _leave_by_force(status)
    sys.exit(status)


def _ended_with() -> int:
    """Run the command; returns the exit status, with the reason on standard error."""
    try:
        app(prog_name="nip")
    except NipError as error:
        say(f"nip: {error}", file=sys.stderr)
        return exit_code(error)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        return ended.code or 0
    except Exception as error:
        if not _launched("is_unreachable", False, error):
            raise
        say(
            f"nip: {_launched('say_no_prefect', '', error)}; what is committed is kept: run again",
            file=sys.stderr,
        )
        return exit_code(ServerError(""))
    return 0


def _launched(name: str, otherwise: Any, *arguments: Any) -> Any:
    """Call this function of `nip_cli.launching.launch`, if a command has imported the module.

    Most commands have not, and it takes longer than they do.
    """
    launch = sys.modules.get("nip_cli.launching.launch")
    return getattr(launch, name)(*arguments) if launch is not None else otherwise


def _leave(status: int) -> None:
    """End this process now, without its usual end: nothing may print or wait any more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it has no reader any longer
            stream.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if (temporary := sys.modules.get("nip_cli.launching.temporary_prefect")) is not None:
        temporary.end_temporary(wait_s=0.3)
    os._exit(status)


def _leave_by_force(status: int) -> None:
    """End this process in `_LEAVE_S` seconds at the latest, in spite of waiting threads.

    Prefect's client would try for hours to send the rest of its messages to a server that is gone.
    """

    def leave() -> None:
        message = (
            f"nip: not at its end after {_LEAVE_S:.0f} s, perhaps for a Prefect server that does "
            f"not answer; left{'; running again continues' if status else ''}\n"
        )
        os.write(2, message.encode())  # another thread may hold the lock of sys.stderr
        os._exit(status)

    timer = threading.Timer(_LEAVE_S, leave)
    timer.daemon = True
    timer.start()


def _on_termination(number: int, frame: Any) -> None:
    """End like an interrupt does."""
    _received.append(signal.Signals(number))
    signal.raise_signal(signal.SIGINT)


def exit_code(error: BaseException) -> int:
    """The exit code for an error, see the module's docstring."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


if __name__ == "__main__":
    main()
