"""Whether a sampler answers with the weights that were saved: asked of the service itself.

The state that was saved with the sampler's weights is loaded as a model, and a fixed text is scored
by that model, by the sampler, and by a sampler of the base model. The trained two have to agree,
and to be nearer to each other than to the base, unless training has changed nothing that can be
told.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from nip_core.jobs.job import BackendTrouble, NoAnswer, Refused
from nip_tinker.datums import make_probe
from nip_tinker.states import describe_model, load_state
from nip_tinker.wire import Json, TinkerClient, json_send, split_path

PROBE: tuple[int, ...] = tuple(range(5, 69))
"""Tokens that every vocabulary has. Their sense is none: unlikely texts tell weights apart best."""
NOISE = 0.05
"""Two computations of one weight may differ by so much in a log-probability, on average."""
_TRIES = 5
LONGEST_S = 1800.0
"""So long a service may take for a model, two samplers and three texts."""


async def prove(client: TinkerClient, sampler_path: str) -> dict[str, Any]:
    """Compare a sampler with the state of its name; returns the proof as a document.

    Raises Refused if one of them is gone, NoAnswer after `LONGEST_S`.
    """
    try:
        async with asyncio.timeout(LONGEST_S):
            return await _compare(client, sampler_path)
    except TimeoutError:
        raise NoAnswer(f"{client.shown}: no proof within {LONGEST_S:.0f} s") from None


async def _compare(client: TinkerClient, sampler_path: str) -> dict[str, Any]:
    state = state_of(sampler_path)
    base, rank = await client.look_up_state(state)
    session = await client.create_session({"nip": "proof"})
    try:
        model, seq = await load_state(client, session, describe_model(base, rank), state, False)
        send = make_probe(PROBE).send(model, seq, forward_only=True)
        _, outputs = await client.fetch_output(await client.submit(send))
        of_state = [float(value) for value in outputs[0]]
        of_sampler = await score(client, session, 0, PROBE, model_path=sampler_path)
        of_base = await score(client, session, 1, PROBE, base_model=base)
    finally:
        with contextlib.suppress(BackendTrouble):  # SkyRL has no such call: it ends by itself
            await client.finish_session(session, "success")
    difference = float(np.abs(np.subtract(of_sampler, of_state)).mean())
    distance = float(np.abs(np.subtract(of_base, of_state)).mean())
    return {
        "matches": difference <= NOISE and (distance <= NOISE or difference < distance / 2),
        "compared": "sampler and saved state, by log-probabilities of a text",
        "difference": difference,
        "distance_to_base": distance,
        "tokens": len(PROBE),
        "state": state,
    }


def state_of(sampler_path: str) -> str:
    """Name the state that was saved with a sampler's weights."""
    run, name = split_path(sampler_path)
    return f"tinker://{run}/weights/{name}"


async def score(
    client: TinkerClient, session: str, number: int, tokens: Sequence[int], **weights: str
) -> list[float]:
    """Score a text by a sampler: the log-probability of each token but the first."""
    sampler = await client.create_sampler(session, number, **weights)
    for seq in range(_TRIES):
        body: Json = {
            "sampling_session_id": sampler,
            "seq_id": seq,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(tokens)}]},
            "sampling_params": {"max_tokens": 1, "temperature": 1.0},
            "prompt_logprobs": True,
            "type": "sample",
        }
        try:
            values = await client.fetch_prompt_logprobs(
                await client.submit(json_send("asample", body))
            )
            # The first token has none; SkyRL leaves its place out.
            return [value for value in values if value is not None][1 - len(tokens) :]
        except Refused as error:
            # The service has lost this sample, not the weights: it is drawn under a new number.
            if error.status != 410 or seq == _TRIES - 1:
                raise
    raise AssertionError("unreachable")
