"""One model call: its request, its answers, and their records.

Player        an agent with the model that it plays with
ask           a request for one answer or several
Call          the answers to a request, and the record of each
judge_answer  the move in an answer, or why it is asked for again
random_answer the message of an agent without a model
read_again    the move in an answer that was recorded
decide_by_rule  the rejection that a rule of the game writes
request_body  a request as JSON
"""

import string
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from nip_core.errors import StageError
from nip_core.game.answer_guide import GUIDE_FIELD, write_guide
from nip_core.game.answer_rows import AnswerPlace, RecordedToken, read_tokens
from nip_core.game.answers.decisions import InvalidDecision
from nip_core.game.answers.parsing import AnswerForm, lacks_decision, parse_response
from nip_core.game.answers.reasons import NO_CONTENT, NO_DECISION_GIVEN, USED_UP
from nip_core.game.render import ChatMessage, Game, InvalidResponse
from nip_core.parameters import PureTextAgentParameters, RandomAgentParameters
from nip_core.parameters.services.dialects import find_dialect
from nip_core.protocols import Move
from nip_core.rollouts.acceptance import (
    LIKELIEST,
    ONLY_PLACES,
    PLACES,
    can_be_estimated,
    estimate_acceptance,
)
from nip_core.rollouts.client.completions import ChatAnswer, ChatCompletions, Endpoint
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.storage.table_rows import CallRecord, Generation, Timing
from nip_core.scenarios import RULE_MODEL
from nip_core.scenarios.scripts import LoadedScript
from nip_core.tools import Tool

RANDOM_MODEL = "random"  # stands where a model's name would
_LETTERS = 20
_DECIDES = 0.4  # of the turns in which a random agent may


@dataclass(frozen=True)
class Player:
    """An agent with its model; a random agent, a scripted one and a rule have none."""

    agent: str
    model: str
    endpoint: Endpoint | None
    parameters: PureTextAgentParameters | RandomAgentParameters
    record_tokens: bool = False  # keep token ids, to be trained on as they are
    record_logprobs: bool = False  # and their log-probabilities, where the engine has them
    top_logprobs: int = 0  # ask for the likeliest tokens, so many, and do without if there are none
    record_p_accept: bool = False  # of its verdicts, where the engine gives log-probabilities
    has_own_server: bool = False  # the run's, which takes fields of nip's
    script: LoadedScript | None = None  # writes its messages in the place of a model

    @property
    def gives_several(self) -> bool:
        """Say whether one request can ask for several answers."""
        if self.endpoint is None or isinstance(self.parameters, RandomAgentParameters):
            return False
        return find_dialect(self.parameters).takes_n


@dataclass(frozen=True)
class Call:
    """An answered request, with one answer or several."""

    player: Player
    form: AnswerForm
    started: datetime
    answers: Sequence[ChatAnswer]
    kept_top: int = 0  # likeliest tokens that are kept at each place; there may be more
    temperature: float | None = None  # of the request

    def record(
        self,
        number: int,
        spec: EpisodeSpec,
        place: AnswerPlace,
        key: str,
        parent: str | None,
        objection: Callable[[Move], str | None] | None = None,
    ) -> tuple[CallRecord, Move]:
        """Make the record of one of the answers, of this `key`, and read its move.

        An answer that is not valid, or to which there is an `objection`, has an empty move.
        """
        player, answer = self.player, self.answers[number]
        retries_left = player.parameters.num_invalid_generation_retries - place.attempt
        invalid: str | None = None
        try:
            move = judge_answer(answer, self.form, retries_left, objection)
        except InvalidResponse as response:
            move, invalid = Move(), response.reason
        generation = Generation(
            key=key,
            parent_key=parent,
            episode=spec.key,
            branch_path=spec.branch_path,
            round=place.round,
            agent=place.agent,
            attempt=place.attempt,
            exchange=place.exchange,
            model_asked=player.model,
            model_served=answer.model,
            text=answer.text or "",
            decision=move.decision,
            decision_value=move.value,
            p_accept=self._estimate_acceptance(answer, move),
            finish_reason=answer.finish_reason,
            invalid_reason=invalid,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            reasoning=answer.reasoning,
            reasoning_tokens=answer.reasoning_tokens,
            **_choose_tokens(player, answer, self.kept_top),
        )
        timing = Timing(
            key=generation.key,
            started_at=self.started,
            latency_s=answer.latency_s,
            transport_retries=answer.transport_retries,
            cached_tokens=answer.cached_tokens,
        )
        return CallRecord(generation, timing), move

    def _estimate_acceptance(self, answer: ChatAnswer, move: Move) -> float | None:
        if self.player.model == RULE_MODEL:
            return 0.0 if self.player.record_p_accept and can_be_estimated(self.form) else None
        tokens = read_tokens(answer.tokens)
        if not self.player.record_p_accept or tokens is None or not can_be_estimated(self.form):
            return None
        return estimate_acceptance(tokens, move.decision, self.temperature)


@asynccontextmanager
async def ask(
    game: Game,
    client: ChatCompletions,
    player: Player,
    chat: Sequence[ChatMessage],
    form: AnswerForm,
    seed: int,
    n: int = 1,
) -> AsyncIterator[Call]:
    """Ask for `n` answers to `chat`; there may be fewer, but there is one.

    The call is in flight until the block is left, and raises as ChatClient.answers does.
    """
    started = datetime.now(UTC)
    if isinstance(player.parameters, RandomAgentParameters):
        answer = ChatAnswer(random_answer(form, seed), "stop", player.model, 0, 0, 0, 0.0)
        yield Call(player, form, started, [answer])
        return
    assert player.endpoint is not None  # only random agents play without a model
    limit = game.token_limits[player.agent]
    tool = game.native_tool(player.agent)
    body = request_body(player.model, player.parameters, chat, seed, limit, n, form, tool)
    top_logprobs = game.top_logprobs(player.agent)
    kept_top = max(top_logprobs, player.top_logprobs)
    # Where nothing can be decided there is nothing to estimate, and answers are long.
    estimate_top = LIKELIEST if player.record_p_accept and can_be_estimated(form) else 0
    # A provider that refuses the field would fail every call; an attack can do without.
    takes_logprobs = find_dialect(player.parameters).takes_logprobs
    if takes_logprobs and (top_count := max(kept_top, estimate_top)):
        body |= {"logprobs": True, "top_logprobs": top_count}
        if player.has_own_server and not kept_top:
            body |= PLACES if player.record_tokens else ONLY_PLACES
    if player.record_tokens:
        # Training takes the answers for samples of the model's own distribution, so nothing may
        # change it, and a server's defaults may. Other settings that could (top_k, min_p) aren't
        # sent: an lm_server has none by default, and not every engine of it takes them.
        body |= {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
        needs_logprobs = bool(top_logprobs or estimate_top) or player.record_logprobs
        body |= {"return_token_ids": True, "logprobs": needs_logprobs}
    async with client.answers(player.endpoint, body) as answers:
        if top_logprobs and any(answer.tokens is None for answer in answers[:n]):
            raise StageError(
                f"{player.endpoint.base_url}: model {player.model} gives no log-probabilities; set "
                "zk_protocol.similarity: text or use an engine that does"
            )
        temperature = body.get("temperature")
        settled_answers = answers[:n]
        if tool is not None:  # else a call has the tokens of a template's form, not of its line
            from nip_core.rollouts.native_answers import settle_calls

            settled_answers = [settle_calls(answer, form) for answer in settled_answers]
        yield Call(player, form, started, settled_answers, kept_top, temperature)


def random_answer(form: AnswerForm, seed: int) -> str:
    """Make the valid answer of an agent without a model; it follows from the seed alone.

    An agent that may decide does so in two turns of five, with each answer of the scale equally
    likely.
    """
    random = Random(seed)
    if form.scale is not None and random.random() < _DECIDES:
        return f"Decision: {random.choice(list(form.scale.values))}"

    def letters() -> str:
        return "".join(random.choices(string.ascii_lowercase, k=_LETTERS))

    parts = [f"{form.headers.get(channel, '')} {letters()}".strip() for channel in form.channels]
    return "\n".join(parts)


def decide_by_rule(player: Player, form: AnswerForm) -> Call:
    """Write the surest rejection in the place of the player's model; see `Scenario.rejects`."""
    assert form.scale is not None  # the player may decide
    text = f"Decision: {form.scale.lowest}"
    ruling = replace(player, model=RULE_MODEL, endpoint=None, script=None)
    answer = ChatAnswer(text, "stop", RULE_MODEL, 0, 0, 0, 0.0)
    return Call(ruling, form, datetime.now(UTC), [answer])


def _choose_tokens(player: Player, answer: ChatAnswer, top: int) -> dict[str, Any]:
    """Choose the columns of an answer's tokens, with `top` of the likeliest at each place.

    Tokens that only served to estimate P(accept) are left out, so that tables are the same with
    and without the estimate. Raises StageError where tokens are to be trained on and the server
    gives none.
    """
    likeliest: list[RecordedToken] | None = None
    if top and answer.tokens is not None:
        likeliest = [{**token, "top": token["top"][:top]} for token in answer.tokens]
    if not player.record_tokens or player.endpoint is None:
        return {"token_logprobs": likeliest}
    if answer.token_ids is None or answer.prompt_token_ids is None:
        raise StageError(
            f"{player.endpoint.base_url}: model {player.model} gives no token ids, which trainer "
            "pure_text_grpo needs; use an lm_server, or nip gateway before a service of Tinker's "
            "API, or another trainer"
        )
    # All or none: a log-probability at the wrong token would be trained on as if it were right.
    logprobs = [token["logprob"] for token in answer.tokens or ()]
    has_all = bool(logprobs) and len(logprobs) == len(answer.token_ids)
    return {
        "prompt_token_ids": answer.prompt_token_ids,
        "completion_token_ids": answer.token_ids,
        "completion_logprobs": logprobs if has_all else None,
        # Otherwise the same figures would be kept twice.
        "token_logprobs": likeliest if any(t["top"] for t in likeliest or ()) else None,
    }


def request_body(
    model: str,
    parameters: PureTextAgentParameters,
    chat: Sequence[Mapping[str, str]],
    seed: int,
    max_tokens: int,
    n: int = 1,
    form: AnswerForm | None = None,
    tool: Tool | None = None,
) -> dict[str, Any]:
    """Make the JSON body of a chat completion; settings of None are left to the provider.

    It asks for `n` completions. They have one seed: a server may give the i-th of them to no seed
    alone. Where the agent is guided, they have this `form`. They may call the `tool`.
    """
    dialect = find_dialect(parameters)
    body: dict[str, Any] = {"model": model, "messages": chat, dialect.limit: max_tokens}
    if dialect.seed is not None:
        body[dialect.seed] = seed
    body |= dialect.effort_fields(parameters.reasoning_effort)
    if form is not None and parameters.guided_decoding:
        grammar = write_guide(form, max_tokens, parameters.message_tokens)
        body[GUIDE_FIELD] = {"grammar": grammar}
    if tool is not None:
        from nip_core.game.native_calls import describe_tools

        body["tools"] = describe_tools(tool)
    if n > 1:
        body["n"] = n
    for setting in ("temperature", "top_p", "repetition_penalty"):
        value = getattr(parameters, setting)
        if value is not None:
            body[setting] = value
    return body


def judge_answer(
    answer: ChatAnswer,
    form: AnswerForm,
    retries_left: int,
    objection: Callable[[Move], str | None] | None = None,
) -> Move:
    """Give the move in an answer, or raise InvalidResponse with the reason to ask again.

    `objection` may find a reason of its own in a move of a valid form. The loop and agents that
    play by hand both go by this rule.
    """
    if answer.fault is not None:
        raise InvalidResponse(answer.fault)
    if answer.finish_reason not in ("stop", "length"):
        raise InvalidResponse(f"finish reason {answer.finish_reason}")
    if answer.text is None:
        raise InvalidResponse(NO_CONTENT)
    try:
        move = parse_response(answer.text, form)
    except InvalidResponse as invalid:
        # After the last retry it stands, as a message without a decision does that nobody reads.
        if retries_left > 0 or invalid.reason != USED_UP or not form.must_decide:
            raise
        move = Move()
    if objection is not None and (reason := objection(move)) is not None:
        raise InvalidResponse(reason)
    # After the last retry a message without the decision stands: the game then ends without a
    # verdict, which the protocol pays for, while a failed episode would pay no agent.
    if retries_left > 0 and lacks_decision(move, form):
        raise InvalidDecision(NO_DECISION_GIVEN)
    return move


def read_again(generation: Generation, form: AnswerForm) -> Move:
    """Read the move in a recorded answer. Raises StageError if it is not valid any more."""
    try:
        return parse_response(generation.text, form)
    except InvalidResponse as invalid:
        if invalid.reason == USED_UP and form.must_decide:
            return Move()
        raise StageError(
            f"generation {generation.key}: an answer that counted as valid when it was recorded "
            f"is not ({invalid.reason}); another version of nip has recorded it: go on with that "
            "one, or start a new run"
        ) from None
