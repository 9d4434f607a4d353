"""Random games of any protocol, played by its pure functions: rows as the engine makes them.

`play` says besides what happened, so that a test can compare without asking the code under test.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from nip_core.game.answer_rows import read_tokens
from nip_core.game.render import Game, InvalidResponse
from nip_core.hashing import derive_key
from nip_core.parameters import load_parameters
from nip_core.protocols import NO_DECISION, Move, Turn
from nip_core.rollouts.model_call import random_answer
from nip_core.rollouts.storage.row_tables import Tables, build_tables
from nip_core.rollouts.storage.table_rows import Episode, Generation, RoundReward, Timing

PROMPT = Path(__file__).with_name("bare_prompt.txt")


def game(**changes: Any) -> Game:
    default = {
        "model_provider": "SelfHosted",
        "model_name": "m",
        "system_prompt_template_path": str(PROMPT),
    }
    agents = {"_default": default, **changes.pop("agents", {})}
    return Game(load_parameters({"run_name": "a", "dataset": "x", "agents": agents, **changes}))


@dataclass
class Played:
    """Rows as the engine makes them, and what happened, told independently of the batch."""

    episodes: list[Episode] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    turns: list[list[Turn]] = field(default_factory=list)
    pay: list[list[Mapping[str, float]]] = field(default_factory=list)  # by episode and round
    ends: list[tuple[bool, bool]] = field(default_factory=list)  # done, terminated
    asked: dict[tuple[int, int, str], int] = field(default_factory=dict)  # calls of a turn

    @property
    def tables(self) -> Tables:
        timings = [
            Timing(
                key=row.key,
                started_at=datetime(2026, 1, 1, second=row.round, tzinfo=UTC),
                latency_s=0.25 * row.completion_tokens,
                transport_retries=row.attempt,
            )
            for row in self.generations
        ]
        return build_tables(self.episodes, self.generations, timings)


def play(game: Game, seed: int, episodes: int, script: Any = None) -> Played:
    """Random games, in which some answers are invalid and some requests are refused.

    `script` gives answers instead: ``script(round, agent, attempt)``, None where it is silent.
    """
    played = Played()
    for n in range(episodes):
        _play_one(game, Random(f"{seed} {n}"), n, played, script)
    return played


def _play_one(game: Game, rng: Random, n: int, played: Played, script: Any) -> None:
    protocol = game.protocol
    common = protocol.common
    may_be_silent = common.prover_invalid_response_penalty is not None
    key, seed, y = derive_key("episode", n), rng.randrange(2**31), rng.randrange(2)
    stance = rng.randrange(2) if common.randomize_prover_stance else None
    turns: list[Turn] = []
    pay: list[Mapping[str, float]] = []
    rewards = dict.fromkeys(protocol.agent_names, 0.0)
    by_round: list[RoundReward] = []
    decision, value, outcome = NO_DECISION, None, "failed"
    error, parent = None, None
    for round_ in range(protocol.max_message_rounds):
        movers = protocol.movers(round_, seed, turns)
        now: list[Turn] = []
        silent = set()
        for agent in (a for a in protocol.agent_names if a in movers):
            rows = _ask(game, rng, key, seed, round_, agent, parent, turns, script)
            played.generations += rows
            played.asked[n, round_, agent] = len(rows)
            if rows and rows[-1].invalid_reason is None:
                move = game.parse(agent, round_, seed, rows[-1].text, turns)
                tokens = read_tokens(rows[-1].token_logprobs)
                now.append(Turn(round_, agent, rows[-1].text, move, tokens))
            elif rows and protocol.is_prover(agent) and may_be_silent:
                silent.add(agent)
            else:
                error = f"{agent} gave up"
        turns += now
        mine = [row for row in played.generations if row.episode == key]
        parent = next((r.key for r in reversed(mine) if r.invalid_reason is None), None)
        if error:
            break
        result = protocol.judge(round_, seed, y, stance, turns, silent)
        pay.append(result.rewards)
        for agent, reward in result.rewards.items():
            rewards[agent] += reward
            by_round += [RoundReward(round_, agent, reward)] if reward else []
        if result.done or result.terminated:
            decision, value = result.decision, result.value
            outcome = "finished" if result.done else "terminated"
            break
    if error:
        rewards, by_round = dict.fromkeys(rewards, 0.0), []
    played.turns.append(turns)
    played.pay.append([] if error else pay)
    played.ends.append((outcome == "finished", outcome == "terminated"))
    played.episodes.append(
        Episode(
            key=key,
            run="a",
            split="train",
            iteration=3,
            problem=f"families/{n // 2}",
            question_id=f"q{n}",
            sample=n % 2,
            branch_path="",
            protocol=protocol.name,
            question=f"What is {n}? " * rng.randrange(9),
            solution="x\n  ü" * (n % 3),
            y=y,
            difficulty=rng.choice([None, "easy"]),
            mutation=rng.choice([None, "off by one"]),
            seed=seed,
            prover_stance=stance,
            rounds=round_ + 1,
            decision=decision,
            decision_value=value,
            outcome=outcome,
            error=error,
            rewards=dict(rewards),
            round_rewards=tuple(by_round),
        )
    )


def _ask(
    game: Game, rng: Random, episode: str, seed: int, round_: int, agent: str, parent: str | None,
    turns: list[Turn], script: Any,
) -> list[Generation]:  # fmt: skip
    """The generations of one turn: up to three answers, none where the request is refused."""
    rows: list[Generation] = []
    if script is None and rng.random() < 0.03:
        return rows
    form = game.form(agent, round_, seed, turns)
    for attempt in range(3):
        if script is not None:
            text = script(round_, agent, attempt) or ""
        else:
            text = "" if rng.random() < 0.25 else random_answer(form, rng.randrange(10**6))
        move, invalid = Move(), None
        try:
            move = game.parse(agent, round_, seed, text, turns)
        except InvalidResponse as response:
            invalid = response.reason
        tokens = [_token(rng) for _ in range(rng.randrange(3))]
        ids = [rng.randrange(10**5) for _ in range(rng.randrange(4))]
        with_ids, with_tokens = rng.random() < 0.5, game.top_logprobs(agent) > 0
        rows.append(
            Generation(
                key=derive_key(episode, round_, agent, attempt),
                parent_key=parent,
                episode=episode,
                branch_path="",
                round=round_,
                agent=agent,
                attempt=attempt,
                model_asked=f"m-{agent}",
                model_served=f"m-{agent}-{attempt}",
                text=text,
                decision=move.decision,
                decision_value=move.value,
                finish_reason=rng.choice(["stop", "length"]),
                invalid_reason=invalid,
                prompt_tokens=rng.randrange(9**5),
                completion_tokens=len(text),
                prompt_token_ids=ids if with_ids else None,
                completion_token_ids=ids[:1] if with_ids else None,
                completion_logprobs=[-float(i) / 7 for i in ids] if with_ids else None,
                token_logprobs=tokens if with_tokens else None,
            )
        )
        if invalid is None:
            break
    return rows


def _token(rng: Random) -> dict[str, Any]:
    top = [{"token": t, "logprob": math.log(rng.uniform(0.1, 0.3))} for t in ("a", "é")]
    return {**top[rng.randrange(2)], "top": top}
