"""The command `nip blocks`: the trainings of a run at a service of Tinker's API."""

import math
from typing import Annotated, Any

import typer

from nip_cli.printing.options import AsJson, Overrides
from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say


def blocks(
    config: Annotated[str, typer.Argument(help="A configuration.", show_default=False)],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show steps, blocks and price of the trainings that CONFIG's run has at a service of Tinker's
    API, at most; start nothing. nip train --dry-run shows the rest."""
    from nip_core.parameters import load_parameters
    from nip_core.session.prepare import plan_run

    parameters, estimate, _ = plan_run(load_parameters(config, list(overrides or [])))
    rows = _list(parameters)
    if as_json:
        print_json({"run": parameters.run_name, "groups": rows})
        return
    for row in rows:
        usd = "" if row["training_usd"] is None else _price(row, estimate)
        say(
            f"{row['group']}: at most {row['steps']:,} steps in {row['jobs']} jobs, of "
            f"{row['batch_size']} examples each; the first block of a job has {row['first_steps']} "
            f"steps, later ones take {row['block_minutes']:g} min{usd}"
        )
    if not rows:
        say("no group is trained at a service of Tinker's API")


def _price(row: dict[str, Any], estimate: Any) -> str:
    price = row["training_usd"]
    usd = estimate.expected_training_tokens * price / 1e6
    cap = "" if row["block_usd"] is None else f", and cost ${row['block_usd']:g} at most"
    return f"{cap}; ${usd:,.2f} are expected for all training of the run"


def _list(parameters: Any) -> list[dict[str, Any]]:
    """List the groups that are trained there, with their steps at most."""
    from nip_core.parameters.services.providers import Tinker
    from nip_tinker.options import read_options

    rows = []
    for group in parameters.trainable_groups:
        agent = parameters.group_parameters(group)
        if not issubclass(agent.provider, Tinker):
            continue
        options = read_options(agent.provider)
        jobs = [
            len(parameters.training_agents(group, iteration))
            for iteration in range(parameters.rl.num_iterations)
        ]
        episodes = parameters.rollouts_per_iteration or 0
        epochs = agent.num_epochs or parameters.rl.num_epochs
        size = agent.per_device_train_batch_size
        price = parameters.prices.get(agent.model_name)
        rows.append(
            {
                "group": group,
                "jobs": sum(map(bool, jobs)),
                "steps": sum(epochs * math.ceil(episodes * agents / size) for agents in jobs),
                "batch_size": size,
                "first_steps": options.first_steps,
                "block_minutes": options.block_minutes,
                "block_usd": options.block_usd,
                "training_usd": None if price is None else price.training_usd,
            }
        )
    return rows
