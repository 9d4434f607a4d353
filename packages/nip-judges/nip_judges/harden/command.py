"""`nip harden --judge judge.yaml`: the command's own part, its words and its exit code."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_cli.printing.options import Shown
from nip_cli.printing.terminal import say
from nip_core.errors import SettingsError
from nip_judges.command import show_progress
from nip_judges.harden.hardening import (
    HardenOptions,
    harden_judge,
    plan_hardening,
    prepare_hardening,
)
from nip_judges.harden.hardening_screen import write_harden_plan, write_harden_screen


def run_judge_hardening(
    path: Path,
    options: Mapping[str, Any],
    refusals: Mapping[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
    shown: Shown,
) -> int:
    """Harden the judge of a file, print the result, and return the exit code 0.

    `options` are the fields of `HardenOptions`; `refusals` are options that mean nothing here,
    which are None or empty where they are not given. Raises BudgetError (7), JobError or
    StageError.
    """
    for option, value in refusals.items():
        if value:
            raise SettingsError(f"{option} is not for --judge; leave it out")
    return asyncio.run(_run(path, HardenOptions(**options), dry_run, as_json, shown))


async def _run(
    path: Path, options: HardenOptions, dry_run: bool, as_json: bool, shown: Shown
) -> int:
    async with prepare_hardening(path, options) as prepared:
        if dry_run:
            plan = plan_hardening(prepared)
            as_text = json.dumps(plan, indent=2, ensure_ascii=False)
            say(as_text if as_json else write_harden_plan(plan))
            return 0
        for note in prepared.notes:
            say(f"nip: {note}", file=sys.stderr)
        with show_progress(shown) as progress:
            document, stopped = await harden_judge(prepared, progress.begin, progress.advance)
    as_text = json.dumps(document, indent=2, ensure_ascii=False)
    say(as_text if as_json else write_harden_screen(document))
    say(f" {prepared.folder}: harden.json, cells.parquet, round-N.jsonl", file=sys.stderr)
    if stopped is not None:
        raise stopped
    return document["exit_code"]
