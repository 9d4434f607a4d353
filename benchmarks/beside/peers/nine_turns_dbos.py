"""The game as durable workflows of DBOS: one workflow for each game, one step for each call.

    python nine_turns_dbos.py URL GAMES IN_FLIGHT DATABASE

The same command goes on after a kill: DBOS recovers the workflows that had begun, and a game that
was enqueued before is not enqueued twice, as its id is the game's. Games wait in a queue of DBOS.
It looks for work ten times a second instead of once, which is what its documentation has for those
who can't wait.
"""

import asyncio
import functools
import sys

import httpx
from dbos import DBOS, DBOSConfig, SetWorkflowID
from game_texts import SYSTEM, TURNS, problem

URL, GAMES, IN_FLIGHT, DATABASE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
QUEUE = "games"

DBOS(config=DBOSConfig(name="nine-turns", system_database_url=DATABASE, log_level="WARNING"))


@functools.cache
def client() -> httpx.AsyncClient:
    """The client of the loop in which steps run."""
    return httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))


@DBOS.step()
async def ask(messages: list[dict[str, str]]) -> str:
    """Make one call."""
    answer = await client().post(
        f"{URL}/v1/chat/completions", json={"model": "stub", "messages": messages}
    )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


@DBOS.workflow()
async def play(number: int) -> str:
    """Play one game."""
    text = problem(number)
    chats = {
        name: [{"role": "system", "content": rules}, {"role": "user", "content": text}]
        for name, rules in SYSTEM.items()
    }
    answer = ""
    for turn in range(TURNS):
        speaker, listener = ("verifier", "prover") if turn % 2 == 0 else ("prover", "verifier")
        answer = await ask(chats[speaker])
        chats[speaker].append({"role": "assistant", "content": answer})
        chats[listener].append({"role": "user", "content": answer})
    return answer


async def main() -> None:
    """Enqueue all games and wait for their ends."""
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE, worker_concurrency=IN_FLIGHT, polling_interval_sec=0.1)
    handles = []
    for number in range(GAMES):
        with SetWorkflowID(f"game-{number}"):
            handles.append(await DBOS.enqueue_workflow_async(QUEUE, play, number))
    verdicts = await asyncio.gather(*(handle.get_result() for handle in handles))
    print(len(verdicts), "games")


asyncio.run(main())
DBOS.destroy()
