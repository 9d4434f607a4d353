"""The command `nip view`: a local page over runs, while they go on and afterwards."""

import contextlib
import html
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from nip_base.temporary_folders import held_folder
from nip_cli.printing.options import complete_run
from nip_cli.printing.terminal import say
from nip_core.errors import SettingsError

if TYPE_CHECKING:
    from nip_view.runs import ShownRuns


def view(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Names, or STORE/NAME; default: all of the store.",
            autocompletion=complete_run,
        ),
    ] = None,
    run_store: Annotated[
        str, typer.Option(help="Where runs are kept that are named without a path or an address.")
    ] = "runs",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    has_token: Annotated[
        bool, typer.Option("--token/--no-token", help="Let in only who has the printed address.")
    ] = True,
    takes_notes: Annotated[
        bool,
        typer.Option(
            "--notes/--no-notes", help="Take notes and stars, beside the run; never without token."
        ),
    ] = True,
    opens: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser; default: where there is a screen."),
    ] = None,
) -> None:
    """Show runs as pages in a browser: every episode, live while a run goes on."""
    # Imported here: only this command needs a web server.
    import uvicorn

    from nip_view.app import make_app
    from nip_view.parts.security import is_loopback

    if not has_token and not is_loopback(host):
        raise SettingsError(
            f"--no-token with --host {host}: whoever reaches that address would read all runs; "
            "leave the token, or listen at 127.0.0.1 and use ssh -L"
        )
    shown_runs = _choose_runs(runs or [], run_store)
    listening = _listen(host, port)
    bound = listening.getsockname()[1]
    token = secrets.token_urlsafe(24) if has_token else None
    # Browsers share cookies between the ports of a machine.
    app = make_app(
        shown_runs,
        token,
        {host, socket.gethostname()},
        f"nip_view_{bound}",
        takes_notes=takes_notes,
    )
    threading.Thread(target=_warm_up, args=(shown_runs,), daemon=True).start()
    name = f"[{host}]" if ":" in host else host
    end = f"?token={token}" if token else ""
    url = f"http://{name}:{bound}/{_first_page(runs)}{end}"
    say(f"nip view: {url}", flush=True)
    if is_loopback(host):
        user = os.environ.get("USER", "USER")
        say(
            f"from another machine: ssh -N -L {bound}:127.0.0.1:{bound} "
            f"{user}@{socket.gethostname()}, then the same address there",
            flush=True,
        )
    say("Ctrl-C ends it; runs go on", flush=True)
    is_opened = opens or (opens is None and _has_screen())
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none"
    )
    with (
        _browser_at(url) if is_opened else contextlib.nullcontext(),
        contextlib.suppress(KeyboardInterrupt),
    ):
        uvicorn.Server(config).run(sockets=[listening])


@contextlib.contextmanager
def _browser_at(url: str) -> Iterator[None]:
    """Open a browser once the server is there, by a temporary page leading to `url`.

    All users of a machine can read a program's arguments; this page only its owner can.
    """
    with held_folder("nip-view-") as folder:
        page, target = folder / "open.html", html.escape(url, quote=True)
        page.touch(mode=0o600)
        page.write_text(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>nip view</title>'
            f'<meta http-equiv="refresh" content="0;url={target}">'
            f'<p><a href="{target}">Go on to nip view</a></p></html>\n',
            encoding="utf-8",
        )
        opening = threading.Timer(0.5, webbrowser.open, [page.as_uri()])
        opening.start()
        try:
            yield
        finally:
            opening.cancel()


def _choose_runs(names: list[str], run_store: str) -> "ShownRuns":
    """List the named runs, or all of the store. Raises SettingsError."""
    from nip_core.run_store.store import is_missing, open_store
    from nip_study.compare.played import find_played_run
    from nip_view.runs import ShownRuns

    if names:
        return ShownRuns(None, [find_played_run(name, run_store).tree for name in names])
    if is_missing(run_store, "--run-store"):
        raise SettingsError(
            f"--run-store {run_store!r}: there is no such directory; name the one that nip train "
            "was told (run_store in its configuration)"
        )
    return ShownRuns(open_store(run_store, read_only=True, setting="--run-store"))


def _listen(host: str, port: int) -> socket.socket:
    """A socket at the address. Raises SettingsError if it can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # who asks before the server is ready waits, and is not refused
    except OSError as error:
        listening.close()
        raise SettingsError(
            f"--host {host} --port {port}: can't listen there ({error.strerror or error}); "
            "--port 0 takes one that is free"
        ) from error
    return listening


def _warm_up(shown_runs: "ShownRuns") -> None:
    """Read the index of each run before a user asks for it."""
    from nip_core.errors import NipError

    for run in shown_runs.all():
        with contextlib.suppress(NipError, OSError):
            run.episodes()


def _first_page(runs: list[str] | None) -> str:
    if runs and len(runs) == 1:
        return f"runs/{runs[0].rstrip('/').rpartition('/')[2]}"
    return ""


def _has_screen() -> bool:
    """Return whether a browser can be opened where the user sees it."""
    if "SSH_CONNECTION" in os.environ or "SSH_TTY" in os.environ:
        return False
    return os.name == "nt" or os.uname().sysname == "Darwin" or "DISPLAY" in os.environ
