"""`nip quickstart`: the bundled configuration of that name."""

from nip_cli.commands.train import train
from nip_cli.printing.options import AsJson, Overrides, Shown, ShownAs, Verbose


def quickstart(
    overrides: Overrides = None,
    as_json: AsJson = False,
    display: ShownAs = Shown.auto,
    verbose: Verbose = False,
) -> None:
    """Train the bundled tiny model on bundled problems, on a CPU, in minutes.

    The same as nip train quickstart. It writes to runs/quickstart; again, it goes on where it
    stopped, or shows what is finished.
    """
    train("quickstart", overrides, as_json=as_json, display=display, verbose=verbose)
