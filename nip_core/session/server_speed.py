"""How fast the run's own server is, measured before the first episode.

It takes a few hundred tokens. They are no calls of the game: nothing is recorded of them, and no
cap counts them. The speed gives a guess of the run's end, until a part of it was measured, and of
the number of calls in flight at first.
"""

from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Any

from nip_core.costs.estimate import Estimate
from nip_core.parameters.derived.hosting import find_host
from nip_core.rollouts.client.call_limit import start_with
from nip_core.rollouts.client.completions import ContextLengthError, Endpoint, RequestRefusedError
from nip_core.session.session import Session

_WORDS = ("one", "two", "red", "blue", "tree", "house", "river", "stone", "light", "garden")
_PROMPT_WORDS = 160
_ANSWERS, _ANSWER_TOKENS = 8, 16
"""Several at once: that is how they are asked for in play."""
_TRAINING_PASSES = 5.0
"""The cost of a token of training, in tokens that are read. Forward, and twice that backward, would
be 3; SmolLM2 took 4.9 on two cores, LoRA on all linear layers."""
_TRAINING_START_S = 15.0
"""The time of a training before its first step: a process imports torch and loads a model."""
_QUICK_S = 1e-3


@dataclass(frozen=True)
class Speed:
    """Tokens a second."""

    prompt: float
    answer: float
    """Of several answers at once, together."""

    def seconds(self, prompt_tokens: float, answer_tokens: float) -> float:
        """Return how long so many take."""
        return prompt_tokens / self.prompt + answer_tokens / self.answer


async def measure_speed(session: Session) -> None:
    """Measure the models on the run's own server, unless they have no weights.

    Raises as a call does, where a server can't answer at all.
    """
    parameters, speeds = session.parameters, list[Speed]()
    for model, group in _models(session).items():
        endpoint = session.at(group).play
        try:
            speeds.append(await _measure(session, endpoint, model))
        except (RequestRefusedError, ContextLengthError):
            # It takes no chat of a user alone, or has a very short context: nothing is guessed.
            return
        server = session.at(group).lm_server
        status = None if server is None else await server.engine_status(model)
        session.progress.own_device = None if status is None else status.device
    if not speeds or session.estimate is None:
        return
    # Where there are several, who plays which part is not looked at: the slowest stands for all.
    slowest = min(speeds, key=lambda speed: speed.answer)
    estimate = session.estimate
    session.progress.guesses = guess_paces(estimate, slowest)
    calls = max(estimate.expected_calls, 1)
    tokens = estimate.expected_prompt_tokens / calls, estimate.expected_completion_tokens / calls
    first = start_with(parameters.rollouts.concurrency, slowest.seconds(*tokens))
    for group in parameters.groups:
        if find_host(parameters, parameters.group_parameters(group)).loads_weights:
            session.client.limit_at(session.at(group).play).start_with(first)
    session.tell(
        "speed",
        f"the models' server reads {slowest.prompt:,.0f} and writes {slowest.answer:,.0f} tokens a "
        f"second, {_ANSWERS} answers at once",
        prompt_tokens_per_s=slowest.prompt,
        answer_tokens_per_s=slowest.answer,
        calls_in_flight=first,
    )


def count_turns(estimate: Estimate) -> float | None:
    """Return how many calls an episode is expected to have."""
    episodes = _count_episodes(estimate)
    return estimate.expected_calls / episodes if episodes else None


def guess_paces(estimate: Estimate, speed: Speed) -> dict[str, float]:
    """Guess the seconds of an episode, and of a training, by name of the stage."""
    episodes = _count_episodes(estimate)
    prompt, answer = estimate.expected_prompt_tokens, estimate.expected_completion_tokens
    episode_s = speed.seconds(prompt, answer) / max(episodes, 1)
    paces = dict.fromkeys(("test", "play", "gate", "attack"), episode_s)
    training_tokens = estimate.expected_training_tokens / max(estimate.iterations, 1)
    return {**paces, "train": _TRAINING_START_S + _TRAINING_PASSES * training_tokens / speed.prompt}


def _count_episodes(estimate: Estimate) -> int:
    count = estimate.train_episodes + estimate.test_episodes
    return count + estimate.gate_episodes + estimate.apart_episodes


def _models(session: Session) -> dict[str, str]:
    """Return the base models of the run's own server, each with a group that plays with it."""
    parameters, models = session.parameters, dict[str, str]()
    for group in parameters.groups:
        agent = parameters.group_parameters(group)
        if find_host(parameters, agent).loads_weights:
            models.setdefault(session.base_model(group), group)
    return models


async def _measure(session: Session, endpoint: Endpoint, model: str) -> Speed:
    """Ask for a token after a long prompt, and for several answers to a short one."""
    # Without a seed, so that nothing joins an earlier answer; of other words each time, so that
    # no engine has read the prompt before.
    random = Random()

    async def ask(words: int, **more: Any) -> tuple[float, int, int]:
        content = " ".join(random.choices(_WORDS, k=words))
        body = {"model": model, "messages": [{"role": "user", "content": content}], **more}
        began_s = monotonic()
        async with session.client.answers(endpoint, body) as answers:
            took_s = max(monotonic() - began_s, _QUICK_S)
            generated = sum(answer.completion_tokens for answer in answers)
            return took_s, answers[0].prompt_tokens, generated

    await ask(1, max_tokens=1)  # the first request alone has more to do
    took_s, prompt_tokens, _ = await ask(_PROMPT_WORDS, max_tokens=1)
    prompt = prompt_tokens / took_s
    took_s, prompt_tokens, generated = await ask(8, max_tokens=_ANSWER_TOKENS, n=_ANSWERS)
    answer_s = max(took_s - prompt_tokens / prompt, took_s / 4)
    return Speed(prompt, max(generated, 1) / answer_s)
