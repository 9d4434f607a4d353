"""Right files and the wrong thing served by nip's own engine: what `nip prove` says.

    python benchmarks/wrong_weights_embedded.py [--times 20] [--right 50] [--out FILE]

Adapters of the bundled tiny model, made by PEFT, are merged into copies of it, and each copy is
served by the embedded engine under an adapter's name. A proof of the right one is asked of the copy
that has it; *base* is the base model under the name, *slot* another adapter's copy under it. So the
loading of adapters is not what is tried here.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from measured_commit import describe_commit
from wrongly_served.adapters import make_adapters

from nip_base.spec import ServerSpec
from nip_core.models import BUNDLED
from nip_lm_server.proving.candidates import compute_probes, read_candidate
from nip_lm_server.proving.request import ProofRequest, prove_served

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from served_here import KEY, serve

ADAPTERS = 4
EXPECTED = {"right": "adapter", "base": "base", "slot": "another"}


def merge(base: Path, adapter: Path, place: Path) -> Path:
    """Write the base model with the adapter in its weights."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain = AutoModelForCausalLM.from_pretrained(base)
    PeftModel.from_pretrained(plain, adapter).merge_and_unload().save_pretrained(place)
    AutoTokenizer.from_pretrained(base).save_pretrained(place)
    return place


async def measure(place: Path, adapters: dict[str, Path], planned: dict[str, int]) -> list[Any]:
    """Prove each row, one served model after another."""
    base, names = BUNDLED["tiny"], list(adapters)
    rows: list[Any] = []
    for served in ("base", *names):
        weights = base if served == "base" else merge(base, adapters[served], place / served)
        spec = ServerSpec("embedded", str(weights), served_model_name="m", options={"threads": 1})
        async with serve(place / f"state-{served}", spec=spec) as here:
            for row, number, right, other in _plan(names, served, planned):
                begun = time.monotonic()
                request = ProofRequest(
                    here.url, key=KEY, model="m", directory=adapters[right],
                    among=(adapters[other],),
                )  # fmt: skip
                (verdict,) = [one async for one in prove_served(request)]
                named = verdict.kind == EXPECTED[row] and (
                    row != "slot" or any(who.endswith(f"/{other}") for who in verdict.who)
                )
                rows.append(
                    {"row": row, "number": number, "right": right, "served": served,
                     "kind": verdict.kind, "way": verdict.way, "named": named,
                     "says": verdict.says[:200].replace(str(place), "."),
                     "seconds": round(time.monotonic() - begun, 3)}
                )  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def _plan(
    names: list[str], served: str, planned: dict[str, int]
) -> list[tuple[str, int, str, str]]:
    """List the proofs that this served model is asked for: row, number, right one, other one."""
    plan = []
    for row, times in planned.items():
        for number in range(times):
            right = names[number % len(names)]
            other = names[(number + 1 + number // len(names) % (len(names) - 1)) % len(names)]
            if served == {"right": right, "base": "base", "slot": other}[row]:
                plan.append((row, number, right, other))
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=20, help="of each fault")
    parser.add_argument("--right", type=int, default=50, help="proofs of what is right")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        tiny = BUNDLED["tiny"]
        adapters = make_adapters(tiny, Path(scratch) / "adapters", ADAPTERS)
        lacking = map(read_candidate, adapters.values())
        list(compute_probes(lacking, str(tiny), str, again=False, save=True))
        planned = {"right": options.right, "base": options.times, "slot": options.times}
        rows = asyncio.run(measure(Path(scratch), adapters, planned))
    summary = {
        row: dict(Counter(one["kind"] for one in rows if one["row"] == row)) for row in planned
    }
    named = {row: sum(one["named"] for one in rows if one["row"] == row) for row in planned}
    print(summary, named)
    if options.out:
        document = {"commit": describe_commit(), "processors": os.cpu_count(), "planned": planned}
        document |= {"verdicts": summary, "named": named, "rows": rows}
        options.out.write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
