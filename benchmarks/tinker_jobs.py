"""Jobs of `model_provider: Tinker` at SkyRL 0.4.0, other people's server of the same API.

    scripts/build_peers.sh skyrl
    .venv/bin/python benchmarks/tinker_jobs.py

A job of each method; jobs whose process is killed; jobs whose process and server are killed, after
which the server's models are gone. A line for each: its end, the steps that were paid again, its
losses, and the proof that its sampler has its weights. PEERS names the environments where they are
not those of the repository.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "packages" / "nip-tinker" / "tests"))

from beside.tinker_servers import KEY, Served, serve_skyrl
from driven_jobs import OPTIONS, Deaths, Killed, Place, make_data, make_spec

from nip_core.models import BUNDLED

RANK, AT_ONCE, ADAPTERS = 32, 4, 24
# Its sessions never end here, and each has a model: one or two of a job, one of its proof.
JOBS: Sequence[tuple[str, str | int | None, bool]] = (
    # method; where the process is killed: the first point of a name, or a number; the server, too
    ("supervised", None, False),
    ("dpo", None, False),
    ("trajectories", None, False),
    ("supervised", "after save_weights", False),
    ("supervised", "after save_weights", True),
    ("supervised", 60, True),
    ("supervised", "after save_weights_for_sampler", True),
)


async def train(
    served: Served, folder: Path, method: str, point: str | int | None, ends: bool
) -> str:
    """Train a job, killed where that is asked for, and tell how it ended."""
    name = f"{method}-{point}-{ends}".replace(" ", "-").replace("_", "-")
    place = Place(served.url, KEY, folder / name, replace(OPTIONS, settle_s=3.0))
    spec = make_spec(method, run=name, parent_model=served.base)
    spec = replace(spec, hyper_parameters={**spec.hyper_parameters, "n_epochs": 1})
    backend = place.open()
    await backend.check_jobs()
    await backend.check_model(served.base)
    job_id, began_s = await place.submit(spec, make_data(method)), time.monotonic()
    if point is not None:
        is_name = isinstance(point, str)
        deaths = Deaths(stop_after=str(point)) if is_name else Deaths(at=int(point))
        try:
            await place.drive(job_id, deaths)
        except Killed:
            if ends:
                served.kill()
                served.start()
    view = await place.drive(job_id)
    seconds, (job, blocks) = time.monotonic() - began_s, place.read(job_id)
    words = [f"{name}: {view.status}", f"level {job.level}", f"{job.steps_again} steps again"]
    words += [f"models by block {[block.tries for block in blocks]}", f"{seconds:.0f} s"]
    losses = [loss for loss in place.losses(job_id) if loss is not None]
    words += [f"loss {losses[0]:.4f} to {losses[-1]:.4f}"] if losses else []
    if view.fine_tuned_model is None:
        words.append(str(view.error))
    else:
        proof = (await backend.describe_model(view.fine_tuned_model)).proof or {}
        facts = (
            f"{proof['difference']:.2g} from the state, {proof['distance_to_base']:.2g} from base"
        )
        words.append(f"proved: {proof['matches']}, {facts}")
    await backend.aclose()
    return "; ".join(words)


def main() -> None:
    """Train all jobs at one server."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "server"
        with serve_skyrl(place, BUNDLED["tiny"], RANK, AT_ONCE, adapters=ADAPTERS) as served:
            for method, point, ends in JOBS:
                print(asyncio.run(train(served, Path(folder), method, point, ends)), flush=True)


if __name__ == "__main__":
    main()
