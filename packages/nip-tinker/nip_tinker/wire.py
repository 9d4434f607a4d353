"""Requests of Tinker's API: sent, sent again where that is safe, and their results fetched.

TinkerClient    the calls; each knows its route
Send            a numbered request of a model: its route, body, and digest
RequestFailed   the service did a request, and it failed; with the category that it names
NeedsPayment    HTTP 402: nothing was done, and nothing will be until the account has money

A request that gets no answer is sent again with the same number and key for `patience_s`, as the
SDK does it. The number makes this safe for gradients and steps; a named state that is saved again
may be refused as there already, and a model made again costs nothing.
"""

import asyncio
import hashlib
import itertools
import json
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import numpy as np
import numpy.typing as npt

from nip_core.errors import SettingsError
from nip_core.jobs.job import Busy, NoAnswer, Refused
from nip_core.parameters.services.providers import Tinker
from nip_core.proxies import proxy_for
from nip_core.redaction import redact, show_address
from nip_lm_server.client import parse

PROTOBUF = "application/x-protobuf"
SDK_VERSION = "0.38.0"
"""Whose wire this is; the service is told it."""
PATIENCE_S = 300.0
"""How long an unanswered request is sent again."""
_SILENCE_S = 10.0
"""A silence that is worth a word."""
_PAGE = 100
_LONGEST_PAUSE_S = 10.0
_FIRST_PAUSE_S = 0.1
_LARGEST_ANSWER = 256 * 1024 * 1024

Floats = npt.NDArray[np.float64]
Json = dict[str, Any]


class RequestFailed(Refused):
    """A request was taken, and failed when it was done. `category`: whose fault that is."""

    def __init__(self, message: str, category: str) -> None:
        super().__init__(message, 422)
        self.category = category


class NeedsPayment(Refused):
    """The account has no money for it; nothing happened."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 402)


@dataclass(frozen=True)
class Send:
    """A numbered request of a model, as it is sent: the same again after a death."""

    route: str
    body: bytes
    is_protobuf: bool = False

    @property
    def digest(self) -> str:
        """Digest its bytes."""
        return hashlib.sha256(self.route.encode() + b"\n" + self.body).hexdigest()[:24]


def json_send(route: str, body: Mapping[str, Any]) -> Send:
    """Make a request of JSON; equal bodies are equal bytes."""
    return Send(route, json.dumps(body, sort_keys=True).encode())


@dataclass(frozen=True)
class Checkpoint:
    """A named state at the service."""

    path: str
    kind: str
    """``weights``, with the optimizer's state; or ``sampler_weights``."""
    time: str
    metadata: Mapping[str, str]
    bytes: int | None = None
    expires_at: str | None = None

    @property
    def run(self) -> str:
        """Its training run: the model that saved it."""
        return split_path(self.path)[0]

    @property
    def name(self) -> str:
        """The last part of its path."""
        return split_path(self.path)[1]


def identify_state(path: str) -> tuple[str, str, str]:
    """Identify a state by kind, training run and name: a service may have two paths for one."""
    return ("weights" if "/weights/" in path else "sampler_weights", *split_path(path))


def split_path(path: str) -> tuple[str, str]:
    """Split the path of a state: its training run, and its name.

    Between them stands its kind, which SkyRL leaves out for samplers.
    """
    run, *_, name = path.removeprefix("tinker://").split("/")
    return run, name


class TinkerClient:
    """Calls to a service at its address, without the path of the API."""

    def __init__(
        self,
        address: str,
        key: str,
        *,
        patience_s: float = PATIENCE_S,
        timeout_s: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Sends nothing. `patience_s`: how long an unanswered request is sent again."""
        self.address = address.rstrip("/")
        self._key, self._patience_s, self._timeout_s = key, patience_s, timeout_s
        self._sleep = sleep
        self._http: aiohttp.ClientSession | None = None
        self._silence: tuple[float, str] | None = None  # since when, and the newest reason

    def describe_silence(self) -> str | None:
        """Say for how long no call has had an answer; None: not for long."""
        if self._silence is None:
            return None
        seconds = asyncio.get_running_loop().time() - self._silence[0]
        return f"{self._silence[1]}, for {seconds:.0f} s now" if seconds > _SILENCE_S else None

    @property
    def shown(self) -> str:
        """The address without what is secret in it."""
        return show_address(self.address)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    # Sessions and models

    async def configure(self) -> None:
        """Say which wire is spoken here; a service of another one refuses, or has no such route."""
        await self.call("POST", "client/config", {"sdk_version": SDK_VERSION})

    async def check_wire(self, setting: str) -> None:
        """Raise SettingsError unless the service speaks this wire and takes the key.

        `setting` names the place of the address, for the error. Raises Busy or NoAnswer, too.
        """
        try:
            await self.configure()
        except Refused as error:
            if error.status in (401, 403):
                raise SettingsError(
                    f"the service at {self.shown} refuses the key (HTTP {error.status}): set the "
                    f"environment variable {Tinker.key_variable} to one of its keys"
                ) from None
            if error.status == 402:
                raise
            raise SettingsError(
                f"the service at {self.shown} does not speak Tinker's API ({error}): name its base "
                f"without a path of the API, by {setting}"
            ) from None

    async def list_bases(self) -> list[str]:
        """List the base models that the service has."""
        answer = await self.call("GET", "get_server_capabilities")
        models = answer.get("supported_models") or []
        return [str(model.get("model_name")) for model in models if model.get("trainable", True)]

    async def create_session(self, metadata: Mapping[str, str]) -> str:
        """Begin a session; returns its id."""
        body = {"tags": ["nip"], "user_metadata": dict(metadata), "sdk_version": SDK_VERSION}
        answer = await self.call("POST", "create_session", {**body, "type": "create_session"})
        return _text(answer, "session_id")

    async def beat(self, session: str) -> None:
        """Say that a session is in use. Raises Refused for one that is gone."""
        await self.call(
            "POST", "session_heartbeat", {"session_id": session, "type": "session_heartbeat"}
        )

    async def finish_session(self, session: str, reason: str) -> None:
        """End a session: "success", "errored" or "interrupted"."""
        await self.call("POST", f"sessions/{quote(session, safe='')}/finish", _finish(reason))

    async def submit(self, send: Send, *, again: bool = True) -> str:
        """Send a numbered request; returns the id by which its result is fetched.

        Without `again` one that may have arrived is not sent again: NoAnswer is raised at once.
        """
        answer = await self.call(
            "POST", send.route, raw=send.body, is_protobuf=send.is_protobuf, again=again
        )
        return _text(answer, "request_id")

    # Results

    async def fetch_json(self, request_id: str) -> Json:
        """Wait for a request and return its result. Raises RequestFailed."""
        answer = await self._fetch(request_id)
        if isinstance(answer, bytes):
            raise Refused(f"{request_id}: the result is protobuf, expected JSON")
        return answer

    async def fetch_output(self, request_id: str) -> tuple[dict[str, float], list[Floats]]:
        """Wait for a gradient; returns its metrics, and log-probabilities by datum."""
        answer = await self._fetch(request_id)
        if not isinstance(answer, bytes):
            raise Refused(
                f"{request_id}: the result is JSON, expected protobuf: the service speaks an older "
                "wire of Tinker's than that of 0.25 and later"
            )
        return _read_output(answer)

    async def fetch_prompt_logprobs(self, request_id: str) -> list[float | None]:
        """Wait for a sample; returns the log-probabilities of its prompt's tokens."""
        answer = await self._fetch(request_id)
        if not isinstance(answer, bytes):
            raise Refused(f"{request_id}: the sample is JSON, expected protobuf")
        values = np.frombuffer(parse("SampleResponse", answer).prompt_logprobs, "<f4")
        return [None if math.isnan(value) else float(value) for value in values]

    async def _fetch(self, request_id: str) -> Json | bytes:
        """Ask for a result until it is there."""
        body = {"request_id": request_id, "allow_metadata_only": False}
        pause_s = _FIRST_PAUSE_S
        while True:
            status, kind, raw = await self._ask("POST", "retrieve_future", body)
            if status == 408:  # the long poll is over, the request is not
                await self._sleep(_FIRST_PAUSE_S)  # a service may say so at once
                continue
            if status == 200 and kind == PROTOBUF:
                return raw
            answer = _read_json(raw)
            if status == 400:  # SkyRL says so of every request that has failed
                words = redact(str(answer.get("detail") or raw[:300]), self._key)[:1000]
                raise RequestFailed(words, "unknown")
            if status != 200:
                self._raise(status, answer, raw, "retrieve_future")
            if answer.get("type") == "try_again":
                await self._sleep(pause_s)
                pause_s = min(pause_s * 1.5, 2.0)
                continue
            if "error" in answer and "category" in answer:
                words = redact(str(answer["error"]), self._key)[:1000]
                raise RequestFailed(words, str(answer["category"]))
            return answer

    # Named states

    async def look_up_state(self, path: str) -> tuple[str, int]:
        """Return base model and rank of a named state. Raises Refused if it is not there."""
        answer = await self.call("POST", "weights_info", {"tinker_path": path})
        return _text(answer, "base_model"), int(answer.get("lora_rank") or 32)

    async def list_run_states(self, run: str) -> list[Checkpoint]:
        """List the states that a training run has saved; none of a run that is not known."""
        route = f"training_runs/{quote(run, safe='')}/checkpoints"
        try:
            return _checkpoints(await self.call("GET", route))
        except Refused as error:
            if error.status in (404, 410):
                return []
            raise

    async def list_all_states(self) -> list[Checkpoint] | None:
        """List all states of the key's owner; None where the service has no such list."""
        states: list[Checkpoint] = []
        while True:
            route = f"checkpoints?limit={_PAGE}&offset={len(states)}"
            try:
                answer = await self.call("GET", route)
            except Refused as error:
                if error.status in (404, 405, 501):
                    return None
                raise
            page = _checkpoints(answer)
            states += page
            total = (answer.get("cursor") or {}).get("total_count")
            if not page or (isinstance(total, int) and len(states) >= total):
                return states

    async def delete_state(self, path: str) -> None:
        """Delete a state; one that is gone is no error."""
        try:
            await self.call("DELETE", _state_route(path))
        except Refused as error:
            if error.status not in (404, 410):
                raise

    async def renew_state(self, path: str, ttl_s: int | None) -> None:
        """Keep a state for so long from now on; None: for ever."""
        body = {} if ttl_s is None else {"ttl_seconds": ttl_s}
        await self.call("PUT", _state_route(path) + "/ttl", body)

    # Samplers

    async def create_sampler(self, session: str, number: int, **weights: str) -> str:
        """Begin a sampler of `base_model` or `model_path`; returns its id."""
        body = {"session_id": session, "sampling_session_seq_id": number, **weights}
        answer = await self.call("POST", "create_sampling_session", body)
        return _text(answer, "sampling_session_id")

    # The wire

    async def call(
        self,
        verb: str,
        route: str,
        body: Mapping[str, Any] | None = None,
        *,
        raw: bytes | None = None,
        is_protobuf: bool = False,
        again: bool = True,
    ) -> Json:
        """Make a call; one without an answer is made again. Raises Refused, Busy or NoAnswer."""
        status, _, answer = await self._ask(
            verb, route, body, raw=raw, is_protobuf=is_protobuf, again=again
        )
        parsed = {} if status == 204 else _read_json(answer)
        if status >= 300:
            self._raise(status, parsed, answer, route)
        return parsed

    async def _ask(
        self,
        verb: str,
        route: str,
        body: Mapping[str, Any] | None = None,
        *,
        raw: bytes | None = None,
        is_protobuf: bool = False,
        again: bool = True,
    ) -> tuple[int, str, bytes]:
        """Send until there is an answer that says something: status, kind of content, content."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers = {
            "X-API-Key": self._key,
            "X-Idempotency-Key": secrets.token_hex(16),
            "Accept": f"{PROTOBUF}, application/json",
            "Content-Type": PROTOBUF if is_protobuf else "application/json",
        }
        loop = asyncio.get_running_loop()
        end_s, pause_s = loop.time() + self._patience_s, _FIRST_PAUSE_S
        while True:
            trouble: Busy | NoAnswer
            has_arrived = True  # perhaps
            try:
                status, kind, answer, asked_s = await self._send(verb, route, data, headers)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                words = redact(f"{type(error).__name__}: {error}", self._key)
                trouble, asked_s = NoAnswer(f"{self.shown}: no answer ({words})"), None
                has_arrived = not isinstance(error, aiohttp.ClientConnectorError)
            else:
                if status == 429:
                    trouble = Busy(f"{self.shown}/{route}: too many requests", asked_s)
                elif status == 409 and "already exists" not in answer[:2000].decode(
                    "utf-8", "replace"
                ):
                    trouble = Busy(f"{self.shown}/{route}: HTTP 409", asked_s)
                elif status >= 500 and status not in (501, 507):
                    trouble = NoAnswer(f"{self.shown}/{route}: HTTP {status}", asked_s)
                else:
                    self._silence = None
                    return status, kind, answer
            if isinstance(trouble, NoAnswer):
                since_s = loop.time() if self._silence is None else self._silence[0]
                self._silence = since_s, trouble.message
            wait_s = max(pause_s, asked_s or 0.0)
            may_count = has_arrived and isinstance(trouble, NoAnswer)
            if loop.time() + wait_s > end_s or (may_count and not again):
                raise trouble
            await self._sleep(wait_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    async def _send(
        self, verb: str, route: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, str, bytes, float | None]:
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(self._timeout_s))
        url = f"{self.address}/api/v1/{route}"
        async with self._http.request(
            verb,
            url,
            data=data,
            headers=headers,
            proxy=proxy_for(url),
            allow_redirects=False,
        ) as response:
            answer = bytearray()
            async for chunk in response.content.iter_chunked(1 << 20):
                answer += chunk
                if len(answer) > _LARGEST_ANSWER:
                    most = f"{_LARGEST_ANSWER:,} bytes"
                    raise Refused(f"{self.shown}/{route}: the answer has more than {most}")
            pause = response.headers.get("Retry-After", "")
            asked_s = float(pause) if pause.replace(".", "", 1).isdigit() else None
            return response.status, response.content_type, bytes(answer), asked_s

    def _raise(self, status: int, answer: Json, raw: bytes, route: str) -> None:
        reason = answer.get("error") or answer.get("detail") or answer.get("message")
        if isinstance(reason, Mapping):
            reason = reason.get("message")
        words = " ".join(
            redact(str(reason or raw[:200].decode("utf-8", "replace")), self._key).split()
        )
        message = f"{self.shown}: {route.partition('?')[0]}: HTTP {status}: {words[:500]}"
        raise NeedsPayment(message) if status == 402 else Refused(message, status)


def _finish(reason: str) -> Json:
    return {"reason": {"type": reason}}


def _state_route(path: str) -> str:
    run, name = split_path(path)
    kind = identify_state(path)[0]
    return f"training_runs/{quote(run, safe='')}/checkpoints/{kind}/{quote(name, safe='')}"


_KINDS = {"training": "weights", "sampler": "sampler_weights"}


def _checkpoints(answer: Json) -> list[Checkpoint]:
    rows = answer.get("checkpoints") or []
    return [
        Checkpoint(
            path=str(row.get("tinker_path")),
            kind=_KINDS.get(str(row.get("checkpoint_type")), ""),
            time=str(row.get("time")),
            metadata=row.get("user_metadata") or {},
            bytes=row.get("size_bytes"),
            expires_at=row.get("expires_at"),
        )
        for row in rows
        if str(row.get("tinker_path")).startswith("tinker://")
    ]


def _text(answer: Json, name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"the service's answer has no {name} (got {str(answer)[:200]})")
    return value


def _read_json(raw: bytes) -> Json:
    try:
        value = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_output(body: bytes) -> tuple[dict[str, float], list[Floats]]:
    """Read a ForwardBackwardOutput. Raises Refused for other bytes."""
    try:
        output = parse("ForwardBackwardOutput", body)
        logprobs: list[Floats] = []
        for record in output.loss_fn_outputs:
            for entry in record.fields:
                if entry.key != "logprobs":
                    continue
                values = np.frombuffer(entry.value.data, "<f4").astype(np.float64)
                cuts = np.frombuffer(entry.value.offsets, "<i8") // 4
                logprobs += [values[a:b] for a, b in itertools.pairwise(cuts)]
    except ValueError as error:
        raise Refused(f"the service's answer can't be read: {error}") from None
    return {entry.key: float(entry.value) for entry in output.metrics}, logprobs
