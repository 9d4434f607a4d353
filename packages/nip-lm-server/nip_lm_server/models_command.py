"""`nip models`, `nip-lm-server models`: published models, from a package index, by a name."""

import json
import sys
import time
from difflib import get_close_matches
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nip_base.errors import SettingsError
from nip_base.published.known_models import KNOWN, KnownModel
from nip_lm_server.bundled import NamedModels, ServerModels
from nip_lm_server.terminal import printable, say

if TYPE_CHECKING:
    from nip_base.published.added_models import Looked
    from nip_lm_server.published.add_model import Step

_SAY_EVERY_S = 10.0
_MB = 1e6

models = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Published models, by name: brought here from a package index.",
)


@models.callback()
def _commands() -> None:
    """Published models, by name: brought here from a package index."""


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in KNOWN if name.startswith(incomplete)]


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Name = Annotated[
    str,
    typer.Argument(
        help=f"One of {', '.join(KNOWN)}.", show_default=False, autocompletion=_complete_name
    ),
]


@models.command()
def add(context: typer.Context, name: Name) -> None:
    """Download a published model with pip, check it, and write it as safetensors.

    It may be stopped at any time; again, it goes on. A model that is here already stays as it is.
    """
    from nip_lm_server.published.add_model import add_model

    model = _find_known(context, name)
    say(
        f"nip: {model.name} is {model.title}, under {model.license}: {_describe(model)}",
        file=sys.stderr,
    )
    start = time.monotonic()
    with _Steps() as steps:
        looked, is_new = add_model(model, steps.show)
    if not is_new:
        say(f"{model.name} is here already, and whole: {looked.path}")
        return
    assert looked.document is not None  # it was just written
    took = time.monotonic() - start
    say(f"{model.name} is here, after {took:.0f} s: {looked.path}")
    say(f"its digest is {looked.document.content_digest[:16]}…")
    if context.obj is None:  # the server alone, which has no settings
        say(f"nip-lm-server serves it by `--model {model.name}`")
    else:
        say(f"settings name it by\n  model_provider: SelfHosted\n  model_name: {model.name}")


@models.command("list")
def list_models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models that have a name here, and whether those that were added are whole."""
    from nip_base.published.added_models import look_at

    bundled = _names_of(context).bundled
    looks = [look_at(model) for model in KNOWN.values()]
    if as_json:
        lines = [{"name": name, "state": "bundled", "path": str(p)} for name, p in bundled.items()]
        say(json.dumps([*lines, *map(_as_json, looks)], indent=2, ensure_ascii=False))
    else:
        width = max(map(len, (*bundled, *KNOWN))) + 2
        for name, path in bundled.items():
            state = "bundled" if path.is_dir() else "only in nip's repository"
            say(f"{name:<{width}}{state}")
        for looked in looks:
            model = looked.model
            say(f"{model.name:<{width}}{_describe_state(looked)}")
            say(f"{'':<{width}}{model.title}, {model.license}, {_describe(model)}")
    if any(looked.flaw is not None for looked in looks):
        raise typer.Exit(5)


@models.command()
def path(context: typer.Context, name: Name) -> None:
    """Print the directory of a model that was added, and is whole, or of a bundled one."""
    from nip_base.published.added_models import look_at

    names = _names_of(context)
    say(
        names.find(name) if name in names.bundled else look_at(_find_known(context, name)).require()
    )


@models.command()
def remove(context: typer.Context, name: Name) -> None:
    """Delete a model that was added, and the rest of a download of it."""
    from nip_base.published.added_models import remove_model

    model = _find_known(context, name)
    freed = remove_model(model)
    say(f"{model.name}: {f'removed, {freed / _MB:.1f} MB' if freed else 'is not here'}")


def _names_of(context: typer.Context) -> NamedModels:
    names: NamedModels = context.obj or ServerModels()
    return names


def _find_known(context: typer.Context, name: str) -> KnownModel:
    """Return the known model of this name. Raises SettingsError."""
    if name in KNOWN:
        return KNOWN[name]
    if name in _names_of(context).bundled:
        raise SettingsError(f"{name}: comes with nip, there is nothing to add or to remove")
    similar_names = get_close_matches(name.lower(), KNOWN, n=1)
    hint = f"did you mean {similar_names[0]!r}? " if similar_names else ""
    raise SettingsError(
        f"{name}: no published model of this name; {hint}there are {', '.join(KNOWN)}; settings "
        "name any other by its directory or its name on the Hugging Face Hub"
    )


def _describe(model: KnownModel) -> str:
    return (
        f"{model.parameters / 1e6:.1f} million parameters, {model.context} tokens of context, "
        f"{model.template}, {model.added_bytes / _MB:.0f} MB "
        f"(download {model.wheel_bytes / _MB:.0f})"
    )


def _describe_state(looked: "Looked") -> str:
    rest = f"; {looked.left_bytes / _MB:.0f} MB are downloaded" if looked.left_bytes else ""
    if looked.flaw is not None:
        return f"damaged: {looked.flaw}; `{looked.model.command}` makes it anew{rest}"
    if looked.document is None:
        return f"not here: {looked.model.command}{rest}"
    return f"added, whole: {looked.path}"


def _as_json(looked: "Looked") -> dict[str, Any]:
    state = "damaged" if looked.flaw else "added" if looked.document else "not here"
    return {
        "name": looked.model.name,
        "state": state,
        "path": str(looked.path),
        "flaw": looked.flaw,
        "downloaded_bytes": looked.left_bytes,
        "title": looked.model.title,
        "license": looked.model.license,
        "document": None if looked.document is None else looked.document.model_dump(),
    }


class _Steps:
    """Shows steps on standard error: the one that goes on, live in a terminal; lines elsewhere."""

    def __init__(self) -> None:
        self._what, self._text, self._said_at = "", "", 0.0
        from rich.console import Console

        self._console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._status = self._console.status("") if is_live else None

    def __enter__(self) -> "_Steps":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._say_done()

    def show(self, step: "Step") -> None:
        """Show what is being done now."""
        is_new, self._what = step.what != self._what, step.what
        text = printable(f"{step.what}{_count(step)}")
        if self._status is not None:
            if is_new:
                self._say_done()
            self._status.update(text)
        else:
            now = time.monotonic()
            if is_new or now - self._said_at >= _SAY_EVERY_S:
                self._said_at = now
                say(f"nip: {text}", file=sys.stderr, flush=True)
        self._text = text

    def _say_done(self) -> None:
        """Leave a line of the step that has just ended above the live one."""
        if self._text:
            self._console.print(f"nip: {self._text}", soft_wrap=True)
        self._text = ""


def _count(step: "Step") -> str:
    if step.done_bytes is None or step.of_bytes is None:
        return ""
    return f": {step.done_bytes / _MB:.1f} of {step.of_bytes / _MB:.1f} MB"
