"""The commands `nip problems`: datasets of your own."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say
from nip_core.errors import SettingsError
from nip_core.evaluation.figures_in_words import amount
from nip_core.parameters.services.providers import ProviderName

if TYPE_CHECKING:
    from nip_problems.build_problems import Built

problems = typer.Typer(no_args_is_help=True, help="Datasets of your own.")


@problems.callback()
def _commands() -> None:
    """Datasets of your own."""  # a callback, or the only command would have no name


Source = Annotated[
    Path, typer.Argument(help="Problems with tests: a file, or a directory of Python files.")
]
Out = Annotated[Path, typer.Option(help="Directory for the dataset.")]
Licence = Annotated[str | None, typer.Option(help="Of the source, for the datasheet.")]
Variants = Annotated[
    int, typer.Option(min=1, max=50, help="Most right, and most buggy, rows of a problem.")
]
Steps = Annotated[
    int, typer.Option(min=100, help="Lines that a test of a right solution may execute.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes that run tests; default: one a core.")
]
Unfenced = Annotated[
    bool,
    typer.Option(
        "--allow-without-namespaces",
        help="Run code although this system gives its sandbox no namespaces.",
    ),
]
Model = Annotated[str | None, typer.Option(help="A model that writes bugs, too.")]
Provider = Annotated[ProviderName, typer.Option(help="Of all models.")]
BaseUrl = Annotated[str | None, typer.Option(help="Address of their API; default: the provider's.")]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="Of the model that writes.")]
Styles = Annotated[
    str | None,
    typer.Option(help="Which of boundary,edge_case,misreading,state,rewrite; default: all."),
]
Samples = Annotated[
    int, typer.Option(min=1, max=100, help="Answers of each style for each problem.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Of an answer.")]
ModelPrice = Annotated[
    str | None,
    typer.Option(metavar="IN,OUT", help="US dollars per million prompt, generated tokens."),
]
DifficultyModel = Annotated[
    str | None, typer.Option(help="A model: how many bugs it notices is the difficulty.")
]
AtMost = Annotated[float | None, typer.Option(min=0, help="Ask nothing if it may cost more.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="A setting of the models, as of a run."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace the dataset of another source in OUT.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run the tests, show size and cost; write nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@problems.command()
def build(
    source: Source,
    out: Out,
    licence: Licence = None,
    variants: Variants = 6,
    max_steps: Steps = 2_000_000,
    workers: Workers = None,
    allow_without_namespaces: Unfenced = False,
    model: Model = None,
    provider: Provider = "OpenAI",
    base_url: BaseUrl = None,
    temperature: Temperature = 1.0,
    styles: Styles = None,
    samples: Samples = 1,
    max_tokens: MaxTokens = 1500,
    price: ModelPrice = None,
    difficulty_model: DifficultyModel = None,
    difficulty_price: ModelPrice = None,
    at_most_usd: AtMost = None,
    overrides: Overrides = None,
    replace: Replace = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a dataset of SOURCE: right solutions, and variants that their tests prove wrong."""
    from nip_problems import build_problems
    from nip_problems.asked_model import AskedModelOptions
    from nip_problems.written_bugs import STYLES

    def asked(name: str | None, usd: tuple[float, float] | None, heat: float | None) -> Any:
        more = tuple(overrides or ())
        return name and AskedModelOptions(name, provider, base_url, heat, max_tokens, usd, more)

    options = build_problems.BuildOptions(
        out=out,
        licence=licence,
        variants=variants,
        max_steps=max_steps,
        workers=workers,
        allow_without_namespaces=allow_without_namespaces,
        writer=asked(model, _price("--price", price), temperature),
        styles=tuple(STYLES) if styles is None else tuple(styles.split(",")),
        samples=samples,
        verifier=asked(difficulty_model, _price("--difficulty-price", difficulty_price), None),
        at_most_usd=at_most_usd,
        replace=replace,
        dry_run=dry_run,
    )
    result = build_problems.build(
        source, options, lambda line: say(f"nip: {line}", file=sys.stderr)
    )
    if as_json:
        print_json(result.to_dict())
        return
    _show(result)


def _show(built: "Built") -> None:
    splits = {} if built.sheet is None else built.sheet.splits
    for split, counts in splits.items():
        say(
            f"{split}: {amount(counts.problems, 'problem')}, {counts.correct:,} correct and "
            f"{amount(counts.buggy, 'buggy row')}"
        )
    for file in built.files:
        say(str(file))


def _price(option: str, text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        prompt, completion = (float(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"{option} {text!r}: write it as 0.15,0.60") from None
    if not (0 <= prompt < float("inf") and 0 <= completion < float("inf")):
        raise SettingsError(f"{option} {text!r}: prices are at least 0")
    return prompt, completion
