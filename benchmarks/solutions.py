"""How many solutions the scenario `solutions` labels per second, and whether the labels are right.

    python benchmarks/solutions.py --out docs/results/solutions.json

A thousand solutions with small tests: those of the bundled problems, whose labels are on record,
and some that are hostile (tests/security/hostile_solutions.py), which must all be wrong.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "security"))
import hostile_solutions
from measured_commit import describe_commit

from nip_core.scenarios import find_scenario
from nip_problems import examine


async def label_all(works, workers):
    """The labels of all, and the seconds that they took together."""
    kind = find_scenario("solutions")
    scenario = kind(kind.Settings(workers=workers, seconds_per_solution=2))
    started = time.perf_counter()
    made = await asyncio.gather(*(scenario.label_written(texts) for texts, _ in works))
    return made, time.perf_counter() - started


def measure(works, workers):
    made, seconds = asyncio.run(label_all(works, workers))
    wrong = sum(label.y != y for label, (_, y) in zip(made, works, strict=True))
    return {
        "solutions": len(works),
        "wrong_labels": wrong,
        "seconds": round(seconds, 2),
        "per_second": round(len(works) / seconds, 1),
        "sandbox_seconds_each": round(sum(label.seconds for label in made) / len(made), 4),
        "kinds": dict(sorted(Counter(label.mutation or "right" for label in made).items())),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = {"entry_point": hostile_solutions.ENTRY_POINT, "tests": hostile_solutions.TESTS}
    with tempfile.TemporaryDirectory() as outside:
        attacks = hostile_solutions.hostile(9, "/etc/shadow", outside)
    hostile = [({"solution": text, **names}, 0) for text in attacks.values()]
    works = hostile_solutions.labelled(1000 - len(hostile))
    isolation, missing = examine()
    result = {
        "commit": describe_commit(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "isolation": vars(isolation) | {"missing": missing},
        "workers": options.workers,
        "small_tests": measure(works, options.workers),
        "hostile": measure(hostile, options.workers),
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
