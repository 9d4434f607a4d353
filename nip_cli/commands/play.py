"""`nip play`: rollouts only."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_cli.printing.options import AsJson, Config, Overrides, Shown, ShownAs
from nip_cli.printing.terminal import say
from nip_core.errors import SettingsError
from nip_core.evaluation.figures_in_words import amount


def play(
    config: Config,
    out: Annotated[Path, typer.Option(help="Directory for the Parquet files.")],
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    iteration: Annotated[
        int | None, typer.Option(help="Whose models play; default: the newest.")
    ] = None,
    as_json: AsJson = False,
    display: ShownAs = Shown.auto,
) -> None:
    """Play the rollouts of one iteration and write their Parquet files to OUT.

    They are the run's own: a later `nip train` uses them instead of playing again.
    """
    from nip_cli.launching.launch import with_view
    from nip_cli.printing.plans_and_runs import print_viewer, show_result
    from nip_core.parameters import load_parameters
    from nip_core.progress.board import Progress
    from nip_core.rollouts.plan import SPLITS
    from nip_core.upkeep.export import export_rollouts

    if split not in SPLITS:
        raise SettingsError(f"--split {split!r}: use one of {', '.join(SPLITS)}")
    parameters = load_parameters(config, overrides or [])
    progress = Progress()

    async def run() -> dict[str, Any]:
        from nip_core.loop import play
        from nip_core.session.opening import open_session

        async with open_session(parameters, progress=progress) as session:
            finished = session.run.finished_iterations()
            played_iteration = finished if iteration is None else iteration
            if played_iteration > finished:
                raise SettingsError(
                    f"--iteration {played_iteration}: run {session.run.name!r} has finished "
                    f"{finished} iterations, so the models of that one are not there yet"
                )
            episodes = await play(session, played_iteration, split)
            files = export_rollouts(session.run, played_iteration, split, out)
            return {
                "run": session.run.name,
                "iteration": played_iteration,
                "split": split,
                **asdict(episodes),
                "files": [str(file) for file in files],
            }

    def show_files(result: dict[str, Any]) -> None:
        rows = result["rows"]
        say(f"{amount(rows['episodes'], 'episode')}, {amount(rows['generations'], 'generation')}")
        say(f"canonical digest {result['canonical_digest']}")
        for file in result["files"]:
            say(file)
        print_viewer(f"{parameters.run_store.rstrip('/')}/{result['run']}")

    result = with_view(parameters, progress, lambda stop: stop.run(run), as_json, display)
    show_result(result, as_json, display, show_files)
