"""The same episodes for nip and for loops of others, with the same answers to the same chats.

PROTOCOLS     the protocols that are compared
make_it       the game of a protocol, in groups of two episodes
answer        what any model answers to a chat
play_it       the episodes as `play` plays them, message by message
expect        the same, as they are on record in seat_games.json
write_page    the programs of docs/howto/games-in-your-loop.md, as a reader has them
"""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from doc_blocks import ROOT, blocks

from nip_core.game.answer_rows import AnswerPlace
from nip_core.library import PlayableGame, make_game, play

FILE = Path(__file__).with_name("seat_games.json")
PAGE = ROOT / "docs" / "howto" / "games-in-your-loop.md"
PROTOCOLS = ("adp", "debate", "nip")
GROUP = 2
SETTINGS = (
    "trainer=pure_text_grpo",
    f"pure_text_grpo.group_size={GROUP}",
    "agents._default.fine_tune_from_scratch=false",
    "agents._default.num_invalid_generation_retries=2",
    "rl.rollouts_per_iteration=6",
    "rollouts.failure_threshold=1.0",
    *(f"scenario_settings.{split}_size=4" for split in ("train", "validation", "test")),
)
VERDICTS = ("Decision: accept", "Decision: reject", "Decision: reject", "I accept or reject.")
QUESTIONS = ("Is it so?", "Question for Expert_1: is it so?\nQuestion for Expert_2: why not?")


@cache
def make_it(protocol: str) -> PlayableGame:
    """An iteration has three groups."""
    return make_game(protocol=protocol, scenario="arithmetic", settings=SETTINGS)


def answer(messages: Sequence[Mapping[str, str]]) -> str:
    """An answer that follows from the chat; some are invalid, and so is each to some chats."""
    system, last = messages[0]["content"], messages[-1]["content"]
    drawn = random.Random(repr([(m["role"], m["content"]) for m in messages]))
    if "Decision: accept" not in system:
        return drawn.choice(("It is so.", "Step 2 is wrong.", "Every step is right.", ""))
    if "Expert_2:" in system + last and len(messages) < 3:
        return QUESTIONS[1]
    if "questions" in system and len(messages) < 3 and drawn.random() < 0.8:
        return QUESTIONS[0]
    return drawn.choice((*VERDICTS, *QUESTIONS[: len(messages) < 5]))


async def ask(messages: list[Mapping[str, str]], **sampling: Any) -> str:
    """The same, as a model function."""
    return answer(messages)


async def play_it(protocol: str) -> list[dict[str, Any]]:
    """Play the first iteration: its episodes, each with its calls in the order of play."""
    game, chats = make_it(protocol), {}

    async def note(messages: list[Mapping[str, str]], seed: int, **sampling: Any) -> str:
        chats[seed] = messages
        return answer(messages)

    played = await play(game, note, "train")
    calls: dict[str, list[dict[str, Any]]] = {}
    specs = {spec.key: spec for spec in game.plan("train")}
    for row in played.generations.to_pylist():
        place = AnswerPlace(row["round"], row["agent"], row["attempt"], row["exchange"])
        seed = specs[row["episode"]].generation_seed(game.parameters.seed, place)
        is_valid = row["invalid_reason"] is None
        call = {"agent": row["agent"], "messages": chats[seed], "text": row["text"]}
        calls.setdefault(row["episode"], []).append({**call, "is_valid": is_valid})
    return [
        {
            "problem": row["problem"],
            "failed": row["outcome"] == "failed",
            "rewards": {paid["agent"]: paid["reward"] for paid in row["rewards"]},
            "calls": calls[row["key"]],
        }
        for row in played.episodes.to_pylist()
    ]


@cache
def expect(protocol: str) -> list[dict[str, Any]]:
    """The episodes that `play` has played, in the order of the plan; those of a group are equal."""
    firsts = json.loads(FILE.read_text(encoding="utf-8"))[protocol]
    return [episode for episode in firsts for _ in range(GROUP)]


def list_calls(episode: Mapping[str, Any], agent: str) -> list[dict[str, Any]]:
    """The calls of an agent in an episode."""
    return [call for call in episode["calls"] if call["agent"] == agent]


def name_functions(protocol: str, trained: Sequence[str] = ()) -> dict[str, Any]:
    """Functions for the agents that are not trained."""
    agents = make_it(protocol).parameters.model_agents
    return {agent: partial(ask) for agent in agents if agent not in trained}


def write_page(folder: Path, copied: str, program: str) -> None:
    """Write the page's game, its program that imports the file `copied`, and that file."""
    shutil.copy(ROOT / "docs" / "examples" / f"{copied}.py", folder)
    texts = [block.text for block in blocks(PAGE) if block.language == "python"]
    (folder / "my_game.py").write_text(texts[0])
    [text] = [text for text in texts if f"from {copied} import" in text]
    (folder / program).write_text(text)
