"""The library door stays small: what is loaded behind it, counted in a process that used it."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES = 25_000
USED = """
import asyncio, json, random, sys
from nip_core.library import attack, make_game, measure, play

async def ask(messages, seed, **sampling):
    return random.Random(f"{messages} {seed}").choice(["Decision: accept", "Decision: reject"])

async def main():
    for scenario, script in (("arithmetic", "right-step"), ("code_validation", None)):
        size = ["dataset_options.max_test_size=4", "dataset_options.max_train_size=4"]
        game = make_game(protocol="adp", scenario=scenario, settings=size)
        own_test = await play(game, ask)
        measure(own_test)
        await attack(game, ask, n=(1, 2), continuations=1, own_test=own_test)
        if script:
            await attack(game, ask, "script", script=script, own_test=own_test)

asyncio.run(main())
ours = {name: m.__file__ for name, m in sys.modules.items() if name.startswith("nip_")}
print(json.dumps([ours, [*sys.modules]]))
"""


def test_playing_and_attacking_loads_at_most_so_many_lines_and_no_server():
    result = subprocess.run(
        [sys.executable, "-c", USED], capture_output=True, text=True, cwd=ROOT, check=True
    )
    ours, loaded = json.loads(result.stdout)
    lines = {
        name: Path(file).read_text(encoding="utf-8").count("\n")
        for name, file in ours.items()
        if file is not None
    }
    assert lines["nip_core.library.played_games"] > 100 and lines["nip_core.rollouts.episode"] > 100
    assert sum(lines.values()) <= MOST_LINES, sorted(lines.items(), key=lambda item: -item[1])[:20]
    absent = ("prefect", "nip_prefect", "nip_lm_server", "nip_bridges", "nip_core.session", "torch")
    assert not {*absent} & {*loaded}
    assert not [name for name in loaded if name.startswith(("nip_core.run_store", "nip_core.jobs"))]
