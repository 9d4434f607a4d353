"""Model calls over verifiers: requests as nip makes them, sent by the clients of a run.

SeatCalls    answers of models by agent, in the place of `ChatClient`
SeatHarness  the harness of an agent: its turn is a call of nip's, no program is started
SeatState    what a call and the rollout that carries it tell each other

An agent of the game is a rollout of verifiers that is held open turn by turn (an `Interaction`), a
turn of it one call. nip's own client posts it to the address at which verifiers intercepts the
rollout's calls: there it is counted, recorded in the trace, and sent on by the run's client.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import verifiers.v1 as vf
from pydantic import ConfigDict, Field

from nip_core.errors import NipError, ServerError, StageError
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import ChatAnswer, Endpoint, RequestRefusedError

_SEEDS = ("seed", "random_seed")  # as dialects call it


@dataclass
class SeatCall:
    """A call that is to be made in a turn, and its outcome."""

    client: ChatClient
    body: Mapping[str, Any]
    answers: list[ChatAnswer] | None = None
    error: NipError | None = None

    async def make(self, address: str, key: str) -> None:
        """Post it where verifiers intercepts the calls of the rollout."""
        # verifiers lets no call with a key enter the trace twice, however often it is tried.
        once = (("Idempotency-Key", uuid.uuid4().hex),)
        try:
            async with self.client.answers(
                Endpoint(address, key, served_as=None, headers=once), self.body
            ) as answers:
                self.answers = answers
        except NipError as error:
            self.error = error


class SeatState(vf.State):
    """The messages between a call and the rollout that carries it; they are in no trace."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    call: SeatCall | None = Field(None, exclude=True)


class _SeatSession(vf.HarnessSession):
    """The calls of one rollout."""

    async def turn(self, messages: vf.Messages | None = None) -> None:
        """Make the next call; `messages` are a part of it."""
        call = self.trace.state.call
        assert call is not None  # only `SeatCalls` takes turns
        await call.make(self.endpoint, self.secret)


class SeatHarness(vf.Harness[vf.HarnessConfig]):
    """An agent of a game: nip makes its calls, in this process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def session(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.HarnessSession:
        """Make the handle for the rollout's turns."""
        return _SeatSession(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data)

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Refuse: without a game there is nothing to say."""
        raise ValueError("nip-verifiers is a harness for its own environment alone")


@dataclass
class SeatCalls:
    """The `ChatCompletions` that an episode is played with; addresses are agents' names here."""

    client: ChatClient
    seats: Mapping[str, vf.Interaction]
    send_seeds: bool = True
    nodes: dict[str, list[int]] = field(default_factory=dict)
    """By agent, the node of its trace that each of its answers is, in the order of play."""

    @contextlib.asynccontextmanager
    async def answers(
        self, endpoint: Endpoint, body: Mapping[str, Any]
    ) -> AsyncIterator[list[ChatAnswer]]:
        """Let the agent take a turn. Raises as `ChatClient.answers` does; RequestRefusedError too
        where a limit of verifiers has ended its rollout."""
        yield await self._take_turn(endpoint.base_url, body)

    async def _take_turn(self, agent: str, body: Mapping[str, Any]) -> list[ChatAnswer]:
        seat = self.seats[agent]
        if not self.send_seeds:
            body = {name: value for name, value in body.items() if name not in _SEEDS}
        call = SeatCall(self.client, body)
        seat.trace.state.call = call
        last = body["messages"][-1]
        await seat.turn([{"role": last["role"], "content": last["content"]}])
        if call.error is not None:
            raise _named(agent, call.error)
        if call.answers is None:
            raise RequestRefusedError(
                f"{agent}: verifiers has ended its rollout ({seat.trace.stop_condition})"
            )
        self.nodes.setdefault(agent, []).append(seat.trace.calls[-1].node)
        return [replace(answer, transport_retries=0) for answer in call.answers]


def _named(agent: str, error: NipError) -> NipError:
    """The error with whose call it was; a stop of the game stays distinct from a failure of it."""
    if isinstance(error, StageError | ServerError):
        return type(error)(f"{agent}: {error}")
    return error
