"""Samples of a service of Tinker's API, with the likeliest tokens at each place.

SampleClient   calls to the service, which say so where another program answers
Choice         a sampled sequence
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from nip_core.jobs.job import Refused
from nip_core.redaction import redact, show_address
from nip_lm_server.client import parse
from nip_tinker.wire import TinkerClient

_CONNECT_S = 10.0
_NO_TOKEN = -99999.0
"""The log-probability of a cell without a token, in tables of the likeliest."""


@dataclass(frozen=True)
class Choice:
    """A sampled sequence, with the token that stopped it, and the likeliest tokens at each place,
    the first one first."""

    tokens: list[int]
    logprobs: list[float]
    stopped: bool
    """False: its tokens ran out."""
    likeliest: list[list[tuple[int, float]]] | None
    """None: the service has not given them."""


class SampleClient(TinkerClient):
    """Calls to a service, which say so where something else answers."""

    async def fetch_choices(self, request_id: str) -> tuple[list[Choice], int]:
        """Wait for a sample; returns its sequences, and how many of the prompt's tokens were read
        before. Raises Refused for one that is broken."""
        answer = await self._fetch(request_id)
        if not isinstance(answer, bytes):
            raise Refused(f"{self.shown}: the sample {request_id} is JSON, not protobuf", 502)
        try:
            sample = parse("SampleResponse", answer)
            choices = [_read_choice(one) for one in sample.sequences]
        except ValueError as error:
            words = f"{self.shown}: the sample {request_id} can't be read: {error}"
            raise Refused(words, 502) from None
        if not choices:
            raise Refused(f"{self.shown}: the sample {request_id} has no sequence", 502)
        return choices, sample.prompt_cache_hit_tokens

    async def _send(
        self, verb: str, route: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, str, bytes, float | None]:
        if self._http is None:  # a machine that is away is no reason to wait as for an answer
            timeout = aiohttp.ClientTimeout(self._timeout_s, sock_connect=_CONNECT_S)
            self._http = aiohttp.ClientSession(timeout=timeout)
        return await super()._send(verb, route, data, headers)

    async def _ask(
        self, verb: str, route: str, *rest: Any, **settings: Any
    ) -> tuple[int, str, bytes]:
        status, kind, raw = await super()._ask(verb, route, *rest, **settings)
        if 300 <= status < 400:
            raise Refused(describe_redirect(self.address, route, status, None), 502)
        if kind == "text/html":
            words = describe_page(self.address, route, status, raw)
            raise Refused(redact(words, self._key), status if status >= 400 else 502)
        return status, kind, raw


def _read_choice(sequence: Any) -> Choice:
    """Read a sequence. Raises ValueError for one whose parts don't fit together."""
    tokens = np.frombuffer(sequence.tokens, "<i4").tolist()
    logprobs = np.frombuffer(sequence.logprobs, "<f4").astype(float).tolist()
    if len(tokens) != len(logprobs) or not all(map(math.isfinite, logprobs)):
        raise ValueError(f"{len(tokens)} tokens have no log-probability each, as playing needs it")
    likeliest = None
    if sequence.HasField("topk_sampled_logprobs"):
        table = sequence.topk_sampled_logprobs
        shape = (len(tokens), table.k)
        ids = np.frombuffer(table.token_ids, "<i4").reshape(shape).tolist()
        values = np.frombuffer(table.logprobs, "<f4").astype(float).reshape(shape).tolist()
        likeliest = [
            [cell for cell in zip(*row, strict=True) if cell[1] > _NO_TOKEN]
            for row in zip(ids, values, strict=True)
        ]
    return Choice(tokens, logprobs, sequence.stop_reason == 0, likeliest)


def describe_redirect(address: str, route: str, status: int, location: str | None) -> str:
    place = f" to {show_address(location)}" if location else ""
    return (
        f"{show_address(address)}: {route}: HTTP {status}, a redirect{place}, which is not "
        "followed, as the key would go along; name the service's own address by --address"
    )


def describe_page(address: str, route: str, status: int, raw: bytes) -> str:
    text = re.sub(r"<[^>]*>", " ", raw[:4000].decode("utf-8", "replace"))
    return (
        f"{show_address(address)}: {route}: HTTP {status}, a page in the place of an answer (is a "
        f"proxy between, or is --address another server's?): {' '.join(text.split())[:200]}"
    )
