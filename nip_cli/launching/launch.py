"""Flows as commands: they look first, start servers beside the rest, and show what they do.

A flow that a Prefect worker starts opens its session itself; here that is opened before, so that
the models' server, Prefect's server and the imports come up at the same time.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any, cast

from nip_cli.launching.stopping import Stop, stoppable
from nip_cli.printing.console import make_console
from nip_cli.printing.live import watch
from nip_cli.printing.options import Shown
from nip_cli.printing.terminal import say
from nip_core.errors import ServerError, SettingsError
from nip_core.parameters import HyperParameters
from nip_core.progress.board import Progress
from nip_core.proxies import prepare_proxies
from nip_core.redaction import check_address, remove_users, show_address

_PLACES = ("PREFECT_HOME", "PREFECT_PROFILES_PATH")
_START_S = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
_used_prefect: list[bool] = []


def used_prefect() -> bool:
    """Return whether a client of Prefect's may still have something to tell its server."""
    return bool(_used_prefect)


def with_view(
    parameters: HyperParameters,
    progress: Progress,
    work: Callable[[Stop], Any],
    as_json: bool,
    display: Shown = Shown.auto,
) -> Any:
    """The result of `work`, whose progress is shown. Raises stopping.Stopped after a signal."""
    # With --json standard output carries the result alone.
    with watch(parameters, progress, make_console(stderr=as_json), display) as end_view:

        def tell() -> None:
            end_view()
            say("nip: stopping, what is finished is kept", file=sys.stderr, flush=True)

        return stoppable(work, tell)


def run_flow(
    parameters: HyperParameters,
    look: Callable[[Any], Any | None],
    import_flow: Callable[[], Callable[[], Coroutine[Any, Any, Any]]],
    *,
    as_json: bool,
    verbose: bool,
    retry_failed_jobs: bool = False,
    display: Shown = Shown.auto,
) -> Any:
    """The result of the flow, or the finding of `look` in the prepared run, if it has one.

    `import_flow` makes the flow: importing Prefect takes seconds.
    """
    progress = Progress()

    def work(stop: Stop) -> Any:
        # 1. The part without a server: nothing may be left to do.
        with progress.doing("checking the settings and the problems"):
            from nip_core.session.opening import open_session
            from nip_core.session.prepare import prepare

            prepared = prepare(parameters)
            result = look(prepared)
        if result is not None:
            return result
        prefect = ExitStack()

        async def in_session(wait_for_prefect: Callable[[], None]) -> Any:
            importing = asyncio.ensure_future(asyncio.to_thread(import_flow))
            async with open_session(
                parameters,
                progress=progress,
                retry_failed_jobs=retry_failed_jobs,
                prepared=prepared,
            ) as session:
                flow = await importing
                await asyncio.to_thread(wait_for_prefect)
                prefect.close()
                from nip_prefect.tasks.runtime import offer

                with offer(session):
                    return await flow()

        # 2. Prefect's server, the models' server and the imports come up at the same time.
        prefect.enter_context(progress.starting("Prefect"))
        with with_prefect(verbose) as wait_for_prefect:
            return stop.run(lambda: in_session(wait_for_prefect))

    return with_view(parameters, progress, work, as_json, display)


@contextmanager
def with_prefect(verbose: bool) -> Iterator[Callable[[], None]]:
    """Give this process a Prefect server: the named one, or a temporary one in the making. Yields a
    function to wait for it. Raises ServerError if the named one is not there.
    """
    from nip_cli.launching.temporary_prefect import TemporaryPrefect

    _used_prefect.append(True)
    if not verbose:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # Started before it is known whether a profile names a server, which takes seconds of imports.
    temporary = None if os.environ.get("PREFECT_API_URL") else TemporaryPrefect()
    try:
        import_prefect()
    except SettingsError:
        if temporary is not None:
            temporary.stop()
        raise
    import prefect.context
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        if temporary is not None:
            temporary.stop()
        _check_prefect()
        yield lambda: None
        return
    assert temporary is not None
    os.environ["PREFECT_API_URL"] = temporary.url
    prefect.context.refresh_global_settings_context()
    timeout_s = float(os.environ.get(_START_S) or 300)
    yield lambda: temporary.wait(timeout_s)


def import_prefect() -> None:
    """Import Prefect. Raises SettingsError if Prefect does not understand its own settings."""
    if address := os.environ.get("PREFECT_API_URL"):
        check_address("PREFECT_API_URL", address)
    try:
        with redirect_stderr(cast(Any, _Told(sys.stderr))):
            import prefect.context  # noqa: F401
    except ImportError:
        raise
    except Exception as error:  # any error of a parser or a check, in a file or a variable
        if variables := _find_faulty_variables():
            messages = [
                f"Prefect can't read {name} ({reason})" for name, reason in variables.items()
            ]
            raise SettingsError(
                f"environment: {', and '.join(messages)}; mend or unset it"
            ) from None
        home = os.environ.get("PREFECT_HOME") or "~/.prefect"
        file = os.environ.get("PREFECT_PROFILES_PATH") or f"{home}/profiles.toml"
        raise SettingsError(
            f"Prefect can't read its own settings ({type(error).__name__}: {_say_why(error)}); "
            f"mend {file}, or the variables PREFECT_... of the environment"
        ) from None


class _Told:
    """Standard error without what Prefect prints of settings that are about to be refused here."""

    def __init__(self, stream: Any):
        self._stream, self._is_left_out = stream, False

    def write(self, text: str) -> int:
        """Leave the line out, and its end too: `print` writes the end by itself."""
        is_end = self._is_left_out and text == "\n"
        self._is_left_out = text.startswith("Failed to initialize plugins: ")
        if not (is_end or self._is_left_out):
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _find_faulty_variables() -> dict[str, str]:
    """Name the environment's variables unreadable for Prefect, each with the reason.

    Each is tried without the others; none is at fault where it fails without any of them. Values
    are not shown, as they may be secret.
    """
    from prefect.settings import Settings

    all_variables = {
        name: os.environ[name] for name in sorted(os.environ) if name.startswith("PREFECT_")
    }
    places = {name: all_variables[name] for name in _PLACES if name in all_variables}

    def reason(variables: dict[str, str]) -> str | None:
        for name in all_variables:
            os.environ.pop(name, None)
        os.environ.update(variables)
        try:
            Settings()
        except Exception as error:  # any error of a parser or a check
            return _say_why(error)
        return None

    try:
        if reason(places) is not None:
            return {}
        reasons = {name: reason({**places, name: value}) for name, value in all_variables.items()}
    finally:
        os.environ.update(all_variables)
    return {name: cause for name, cause in reasons.items() if cause is not None}


def _say_why(error: Exception) -> str:
    """Say the first problem in a line, without the value."""
    message = str(error)
    if callable(details := getattr(error, "errors", None)) and (all_ := details()):
        message = all_[0]["msg"].removeprefix("Value error, ")
    return remove_users((message.strip().splitlines() or [""])[0][:200])


def _check_prefect() -> None:
    from prefect import get_client
    from prefect.settings import PREFECT_API_URL

    address = PREFECT_API_URL.value() or ""
    check_address("PREFECT_API_URL", address)
    prepare_proxies(address)
    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
    if error is not None and is_unreachable(error):
        raise ServerError(f"{say_no_prefect(error)}; start it, or unset the address")


def is_unreachable(error: BaseException) -> bool:
    """Tell whether Prefect's client got no answer from its server."""
    # Another thread may be in the middle of importing it.
    transport_error = getattr(sys.modules.get("httpx"), "TransportError", None)
    return transport_error is not None and isinstance(error, transport_error)


def say_no_prefect(error: BaseException) -> str:
    """Name the silent server."""
    from prefect.settings import PREFECT_API_URL

    address = show_address(PREFECT_API_URL.value() or "")
    return f"PREFECT_API_URL {address}: no Prefect server answers ({remove_users(str(error))})"
