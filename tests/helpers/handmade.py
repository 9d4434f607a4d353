"""Rollouts of the `nip` protocol that are written by hand, and what is chosen of them."""

import random

import pyarrow as pa
from in_memory import InMemory

from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS
from nip_core.trainers.expert_iteration import choose_examples

ACCEPT, REJECT = "Decision: accept", "Decision: reject"


def make_game(rounds=3, ei=None, text_rl=None, **more):
    return Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "x",
                "nip_protocol": {"max_message_rounds": rounds},
                "code_validation": {"system_prompt_version": "short"},
                "pure_text_ei": ei or {},
                "text_rl": text_rl or {},
                **more,
            }
        )
    )


def choice(game, group, iteration, *shards):
    """What is chosen from (episodes, generations) of each shard."""
    rollouts = InMemory(tuple(RolloutTables(*tables) for tables in shards))
    return choose_examples(game, group, iteration, rollouts, game.parameters.groups[group])


def choose(game, group, iteration, episodes, generations):
    """The examples, in the order of play."""
    return list(choice(game, group, iteration, (episodes, generations)).examples)


class Rollouts:
    """Tables of episodes of the `nip` protocol, written by hand."""

    def __init__(self, run="a"):
        self.run, self.episodes, self.generations = run, [], []

    def add(self, i, y, texts, rewards, outcome="finished", iteration=0, invalid=()):
        """`texts` round by round; `rewards` of prover and verifier; `invalid` rounds had an
        invalid answer first."""
        key = f"{self.run}-e{iteration}-{i}"
        last = texts[-1]
        self.episodes.append(
            {
                "key": key,
                "run": self.run,
                "split": "train",
                "iteration": iteration,
                "problem": f"p{i}",
                "question_id": f"q{i}",
                "sample": 0,
                "branch_path": "",
                "protocol": "nip",
                "question": f"Return x plus {i}.",
                "solution": f"x + {i}",
                "y": y,
                "difficulty": None,
                "mutation": None,
                "seed": i,
                "prover_stance": None,
                "rounds": len(texts),
                "decision": {ACCEPT: 1, REJECT: 0}.get(last, 2),
                "decision_value": {ACCEPT: 1.0, REJECT: -1.0}.get(last),
                "outcome": outcome,
                "error": "too long" if outcome == "failed" else None,
                "rewards": [
                    {"agent": "prover", "reward": rewards[0]},
                    {"agent": "verifier", "reward": rewards[1]},
                ],
            }
        )
        for r, text in enumerate(texts):
            agent = "prover" if r % 2 else "verifier"
            if r in invalid:
                self._generation(key, r, agent, 0, "", "empty answer")
            self._generation(key, r, agent, int(r in invalid), text, None)
        return self

    def _generation(self, episode, round_, agent, attempt, text, invalid_reason):
        self.generations.append(
            {
                "key": f"{episode}-g{round_}-{attempt}",
                "parent_key": None,
                "episode": episode,
                "branch_path": "",
                "round": round_,
                "agent": agent,
                "attempt": attempt,
                "model_asked": "m",
                "model_served": "m",
                "text": text,
                "decision": {ACCEPT: 1, REJECT: 0}.get(text, 2),
                "decision_value": {ACCEPT: 1.0, REJECT: -1.0}.get(text),
                "finish_reason": "stop",
                "invalid_reason": invalid_reason,
                "prompt_tokens": 1,
                "completion_tokens": 1,
            }
        )

    def tables(self, shuffle_seed=None):
        episodes, generations = list(self.episodes), list(self.generations)
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(episodes)
            random.Random(shuffle_seed).shuffle(generations)
        return (
            pa.Table.from_pylist(episodes, schema=EPISODES),
            pa.Table.from_pylist(generations, schema=GENERATIONS),
        )


def by_key(examples):
    return {example.key: example for example in examples}
