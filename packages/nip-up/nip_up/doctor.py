"""`nip doctor`: the engines and services that can run on this machine."""

import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from nip_cli.printing.options import AsJson
from nip_cli.printing.terminal import say

if TYPE_CHECKING:
    from nip_up.doctor_checks import Finding


ForVllm = Annotated[
    bool,
    typer.Option("--vllm", help="Print the commands that build an environment with vLLM."),
]


def doctor(for_vllm: ForVllm = False, as_json: AsJson = False) -> None:
    """Tell what is installed, which engines can run, and what is missing."""
    from nip_cli.printing.plans_and_runs import print_json
    from nip_up.doctor_checks import examine, summary

    if for_vllm:
        _show_vllm_commands(as_json)
        return
    findings = examine()
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        _print(findings)
        # Whole lines, once each, to be copied.
        for remedy in dict.fromkeys(finding.remedy for finding in findings if finding.remedy):
            lacking = [finding.what for finding in findings if finding.remedy == remedy]
            say(f"\nfor {', '.join(lacking)}:\n  {remedy}")
        say(f"\n{summary(findings)}")
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(1)


def _show_vllm_commands(as_json: bool) -> None:
    """Print what builds an environment with vLLM: for CUDA where there is a device."""
    from nip_base.machine.devices import has_cuda
    from nip_cli.printing.plans_and_runs import print_json
    from nip_up.doctor_checks import vllm_commands

    is_for_cuda = has_cuda(os.environ)
    commands = vllm_commands(is_for_cuda)
    if as_json:
        print_json(commands)
        return
    # As comments, so that all of it can be given to a shell.
    if is_for_cuda:
        say(
            "# vLLM for CUDA, in an environment of its own: gigabytes. nip's tests have not run it."
        )
    else:
        say(
            "# There is no NVIDIA device here, so this is vLLM's CPU build: 3.4 GB. The same folder"
        )
        say("# has build_vllm_cuda.sh, for a machine with one.")
    for command in commands:
        say(command)


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
