"""`nip doctor`: what can run on this machine."""

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

import typer

from nip_prefect.flows.options import AsJson
from nip_prefect.flows.terminal import say

if TYPE_CHECKING:
    from nip_prefect.flows.doctor import Finding


def doctor(as_json: AsJson = False) -> None:
    """Tell what is installed, which engines can run, and what is missing."""
    from nip_prefect.flows.doctor import examine, summary
    from nip_prefect.flows.printing import print_json

    findings = examine()
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        _print(findings)
        say(f"\n{summary(findings)}")
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(1)


def _print(findings: "list[Finding]") -> None:
    """A finding a line; on a terminal what is longer goes on under its own column."""
    margin = 4 + max(len(finding.what) for finding in findings) + 2
    room = sys.maxsize
    if sys.stdout.isatty():
        room = max(shutil.get_terminal_size((80, 24)).columns - margin, 30)
    for finding in findings:
        # Paths and options stay whole, to be copied.
        lines = textwrap.wrap(
            finding.detail, room, break_long_words=False, break_on_hyphens=False
        ) or [""]
        say(f"{'ok' if finding.ok else 'no':<4}{finding.what}".ljust(margin) + lines[0])
        for line in lines[1:]:
            say(" " * margin + line)
