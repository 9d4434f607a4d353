"""The lines that `nip show` prints of an attack."""

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from nip_cli.printing.terminal import say
from nip_core.attack_figures.metrics_document import Effort, MessageGallery, ShownAttack
from nip_core.attack_figures.sentences import loss_sentences
from nip_core.evaluation.figures_in_words import amount, plain_percent

if TYPE_CHECKING:
    from rich.console import Console


def show_attack(attack: dict[str, Any], console: "Console") -> None:
    """Print what an attack did to the verifier of another run."""
    method, of_run = attack.get("script") or attack["by"], attack["run"]
    console.print(
        f"attack by {method} on run {of_run}, iteration {attack['iteration']} ({attack['model']})",
        soft_wrap=True,
    )
    if start := attack.get("start_from"):
        say(f"step 1 was imitation: {amount(attack['imitated'], 'message')} of {start}")
    kind = "n" if "by_n" in attack else "step"
    if attack.get("course_on"):
        say("by step on validation problems, by which the worst prover is chosen:")
    first = "messages" if kind == "n" else "step"
    heads = (first, "soundness", "95 % interval", "fooled", "completeness", "problems", "tokens")
    rows = []
    for entry in attack[f"by_{kind}"]:
        interval, fooled, problems = (
            entry[name] for name in ("soundness_ci95", "fooled", "distinct_problems")
        )
        rows.append(
            (
                f"{entry[kind]:,}",
                plain_percent(entry["soundness"]),
                f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else "-",
                "-" if fooled is None else f"{fooled:,}",
                plain_percent(entry["completeness"]),
                "-" if problems is None else f"{problems:,}",
                _effort_cell(entry.get("effort")),
            )
        )
    # A column without a value is left out: an attack on wrong solutions alone has no completeness.
    filled = [i for i in range(len(heads)) if i == 0 or any(row[i] != "-" for row in rows)]
    table = Table(box=SIMPLE_HEAD, padding=0)
    for i in filled:
        table.add_column(heads[i], justify="right", no_wrap=True)
    for row in rows:
        if any(row[i] != "-" for i in filled[1:]):
            table.add_row(*(row[i] for i in filled))
    console.print(table)
    shown = ShownAttack.model_validate(attack)
    for sentence in loss_sentences(shown):
        say(sentence)
    if shown.gallery is not None:
        _show_gallery(shown.gallery, console)


def _effort_cell(effort: dict[str, Any] | None) -> str:
    """Return how many tokens an attack has taken until then."""
    return "-" if effort is None else f"{Effort.model_validate(effort).tokens:,}"


def _show_gallery(gallery: MessageGallery, console: "Console") -> None:
    """Print what fooled the verifier, by kind of message."""
    say(
        f"what fooled it: {gallery.fooled:,} of {gallery.played:,} messages on wrong problems, "
        "by kind:"
    )
    table = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("fooled", "played", "sampled"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("kind", overflow="fold")
    for row in gallery.kinds:
        sampled = "-" if row.sampled is None else f"{row.sampled:,}"
        table.add_row(f"{row.fooled:,}", f"{row.played:,}", sampled, Text(row.kind))
    console.print(table)
