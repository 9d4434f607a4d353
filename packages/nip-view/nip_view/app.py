"""The routes of the viewer, and the frame of every page.

make_app   the ASGI application
"""

from collections.abc import Callable, Collection
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from nip_core.distribution import __version__
from nip_core.errors import NipError, SettingsError
from nip_core.evaluation.episode_transcripts import judged_words
from nip_core.game.native_calls import spell_out
from nip_core.report.report import asset, report_environment
from nip_view import pages
from nip_view.asked_downloads import (
    find_episode_download,
    find_pair_download,
    read_format,
)
from nip_view.downloads import Download
from nip_view.episode_list import write_title
from nip_view.noting import JOINED, NoteDesk, RefusedNoteError, find_way_back
from nip_view.overview import run_page
from nip_view.pair_page import pair_page
from nip_view.parts.charts import Line, lay_out_chart
from nip_view.parts.queries import QueryError
from nip_view.parts.security import Guard, is_of_program
from nip_view.parts.token_chances import write_closely
from nip_view.runs import ShownRun, ShownRuns
from nip_view.side_by_side import compare_page

_STATIC = {
    "report.css": "text/css",
    "view.css": "text/css",
    "view.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_CACHED = {"Cache-Control": "max-age=3600"}


def _read_static(name: str) -> str:
    return (resources.files("nip_view") / "static" / name).read_text(encoding="utf-8")


@cache
def templates() -> Environment:
    """Load the viewer's templates and the report's, with the same ways to show values."""
    environment = report_environment(PackageLoader("nip_view", "templates"))
    environment.filters["decided"] = pages.describe_verdict
    environment.filters["judged_words"] = judged_words
    environment.filters["decision_words"] = pages.describe_decision
    environment.filters["closely"] = write_closely
    environment.filters["title"] = write_title
    environment.filters["spell_out"] = spell_out
    environment.globals["nip_version"] = __version__
    environment.globals["loss_chart"] = _draw_losses
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment


def _draw_losses(points: Any) -> Any:
    lines = [Line("training loss", "s0", [(step, loss, None) for step, loss in points])]
    return lay_out_chart("Training loss", lines, x_name="step")


def make_app(
    runs: ShownRuns,
    token: str | None,
    hosts: Collection[str] = (),
    cookie: str = "nip_view",
    *,
    takes_notes: bool = True,
) -> ASGIApp:
    """Make the viewer of these runs, behind its guard. It writes notes, and nothing else."""
    views = _Views(runs, NoteDesk(token, takes_notes))
    routes = [
        Route("/", views.runs),
        Route("/compare", views.compare),
        Route("/compare.{kind}", views.compared_rows),
        Route("/pair", views.pair),
        Route("/static/{version}/{name}", views.static),
        Route("/favicon.ico", views.icon),  # browsers ask for it on the page that takes the token
        Route("/runs/{run}", views.run),
        Route("/runs/{run}/state", views.state),
        Route("/runs/{run}/matrix", views.matrix),
        Route("/runs/{run}/episodes", views.episodes),
        Route("/runs/{run}/episodes.{kind}", views.episode_rows),
        Route("/runs/{run}/episodes/{key}", views.episode),
        Route("/runs/{run}/episodes/{key}/note", views.note, methods=["POST"]),
        Route("/runs/{run}/jobs", views.jobs),
        Route("/runs/{run}/settings", views.settings),
    ]
    handlers: dict[Any, Callable[[Request, Any], Response]] = {
        QueryError: lambda request, error: _render_error(
            request, 400, "This address is not understood", str(error)
        ),
        RefusedNoteError: lambda request, error: _render_error(
            request, 403, "The note was not kept", str(error)
        ),
        pages.NotThereError: lambda request, error: _render_error(
            request, 404, "Not there", str(error)
        ),
        404: lambda request, error: _render_error(
            request, 404, "Not there", "There is no such page."
        ),
        NipError: lambda request, error: _render_error(request, 503, "Can't be read", str(error)),
        Exception: lambda request, error: _render_error(
            request,
            500,
            "Can't be shown",
            f"{type(error).__name__}: {error}. nip verify looks at every file of a run.",
        ),
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, hosts, cookie)


def _render_page(request: Request, name: str, code: int = 200, **values: Any) -> HTMLResponse:
    run: ShownRun | None = values.get("run")
    text = (
        templates()
        .get_template(f"{name}.html.jinja")
        .render(
            here=request.url.path,
            path=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            page_name=name,
            **{"run": run, "state": "", **values},
        )
    )
    # Half a pair of code units can't be encoded; a browser shows a replacement.
    return HTMLResponse(text.encode("utf-8", "replace"), code)


def _render_error(request: Request, code: int, title: str, words: str) -> HTMLResponse:
    return _render_page(request, "sorry", code, title=title, words=words)


def _send(request: Request, download: Download) -> Response:
    """Send a file; of one that is only asked about, nothing is read."""
    headers = {"Content-Disposition": f'attachment; filename="{download.name}"'}
    parts = iter(()) if request.method == "HEAD" else download.make_parts()
    return StreamingResponse(parts, media_type=download.media_type, headers=headers)


class _Views:
    """A method for each route; each runs in a thread."""

    def __init__(self, runs: ShownRuns, desk: NoteDesk) -> None:
        self._runs, self._desk = runs, desk

    def _run(self, request: Request) -> ShownRun:
        name = request.path_params["run"]
        run = self._runs.get(name)
        if run is None:
            raise pages.NotThereError(f"there is no run {name[:60]!r} among those that are shown")
        return run

    def _live(self, run: ShownRun) -> dict[str, Any]:
        return {"run": run, "state": run.state(), "status": run.overview().status}

    def runs(self, request: Request) -> Response:
        return _render_page(request, "runs", **pages.runs_page(self._runs))

    def run(self, request: Request) -> Response:
        run, query = self._run(request), request.query_params
        unknown = {*query} - {"split", "iteration"}
        if unknown:
            raise QueryError(f"{', '.join(sorted(unknown))}: a run has split and iteration")
        values = run_page(run, **query)  # no other names, see above
        return _render_page(request, "run", **self._live(run), **values)

    def state(self, request: Request) -> Response:
        run = self._run(request)
        return JSONResponse({"state": run.state(), "status": run.overview().status})

    def matrix(self, request: Request) -> Response:
        run, query = self._run(request), request.query_params
        values = pages.matrix_page(run, query, query.multi_items())
        return _render_page(request, "matrix", **self._live(run), **values)

    def episodes(self, request: Request) -> Response:
        run = self._run(request)
        query = request.query_params
        values = pages.episodes_page(run, query.multi_items())
        desk = self._desk.of(run, query.get(JOINED, ""))
        return _render_page(request, "episodes", **self._live(run), **values, desk=desk)

    def episode_rows(self, request: Request) -> Response:
        run, kind = self._run(request), read_format(request.path_params["kind"])
        query = request.query_params.multi_items()
        return _send(request, find_episode_download(run, query, kind))

    def episode(self, request: Request) -> Response:
        run, query = self._run(request), request.query_params
        key = request.path_params["key"]
        values = pages.episode_page(run, key, query.get("tab", ""), query.multi_items())
        desk, status = self._desk.of(run, query.get(JOINED, "")), run.overview().status
        return _render_page(request, "episode", run=run, status=status, **values, desk=desk)

    async def note(self, request: Request) -> Response:
        # The guard has seen to it that the body is short, and who it is from.
        try:
            body = await request.body()
        except ClientDisconnect:  # who has hung up gets no answer, and nothing is kept
            return Response(status_code=400)
        return await run_in_threadpool(self._write_note, request, body)

    def _write_note(self, request: Request, body: bytes) -> Response:
        run, key = self._run(request), request.path_params["key"]
        note = self._desk.read(body, is_of_program(request.scope))
        episodes = run.episodes()
        episode = episodes.take([pages.find_episode(episodes, key)])[0]
        try:
            is_joined = run.notes.write(
                episode, star=note.star, note=note.note, read_mark=note.seen
            )
        except SettingsError as error:
            raise RefusedNoteError(f"{error}. Go back, and write less.") from error
        back = find_way_back(run, key, request.query_params.multi_items(), is_joined)
        return RedirectResponse(back, 303)

    def jobs(self, request: Request) -> Response:
        run = self._run(request)
        return _render_page(request, "jobs", **self._live(run), **pages.jobs_page(run))

    def settings(self, request: Request) -> Response:
        run = self._run(request)
        overview = run.overview()
        values = {**overview.values, "status": overview.status}
        return _render_page(request, "settings", run=run, overview=overview, **values)

    def compare(self, request: Request) -> Response:
        values = compare_page(self._runs, request.query_params)
        return _render_page(request, "compare", **values)

    def compared_rows(self, request: Request) -> Response:
        kind = read_format(request.path_params["kind"])
        return _send(request, find_pair_download(self._runs, request.query_params, kind))

    def pair(self, request: Request) -> Response:
        return _render_page(request, "pair", **pair_page(self._runs, request.query_params))

    def icon(self, request: Request) -> Response:
        return Response(_read_static("icon.svg"), media_type="image/svg+xml", headers=_CACHED)

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise pages.NotThereError("there is no such file")
        text = asset(name) if name == "report.css" else _read_static(name)
        return Response(text, media_type=_STATIC[name], headers=_CACHED)
