"""An agent that asks a language model of any provider that speaks the OpenAI protocol.

The chat comes from `Game.render`, the request from `nip_core.rollouts.model_call.request_body`,
the answer is read by `Game.parse`: play by hand equals the play of the loop.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from nip_by_hand.agents.chat_types import PromptMessage
from nip_by_hand.agents.errors import (
    ContentFilterError,
    ContentIsNoneError,
    GenerationError,
    InvalidDecisionError,
    InvalidResponseError,
    NotAllActiveChannelsInResponseError,
    UnknownFinishReasonError,
)
from nip_by_hand.agents.experiment_settings import ExperimentSettings
from nip_by_hand.agents.history import read_turns
from nip_by_hand.agents.nested_array_dict import Array
from nip_by_hand.agents.prompted_whole_agent import PromptedWholeAgent, drawn_stance
from nip_by_hand.agents.protocol_handler import (
    CodeValidationAgentSpec,
    CodeValidationProtocolHandler,
    ProtocolHandler,
)
from nip_by_hand.agents.states import AgentState, OpenAiWholeAgentState, PlainState
from nip_by_hand.agents.synchronous import synchronous
from nip_by_hand.agents.whole_agent import Seeds, _ParsedChatCompletion
from nip_core.errors import SettingsError
from nip_core.game.answers.decisions import InvalidDecision, InvalidResponse, MissingPart
from nip_core.game.answers.parsing import AnswerForm
from nip_core.game.answers.reasons import Kind
from nip_core.game.render import ChatMessage, Situation, Turn
from nip_core.hashing import derive_seed
from nip_core.parameters import HyperParameters, PureTextAgentParameters
from nip_core.parameters.derived.model_names import base_name
from nip_core.proxies import blocking_http_client
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import ChatAnswer, Endpoint
from nip_core.rollouts.model_call import judge_answer, random_answer, request_body
from nip_core.servers.endpoints import Endpoints, find_group_endpoints

if TYPE_CHECKING:
    from openai import OpenAI

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class OpenAiWholeAgent(PromptedWholeAgent):
    """An agent with a model. With its setting `use_dummy_api` it answers at random instead."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        agent_name: str,
        protocol_handler: ProtocolHandler | CodeValidationProtocolHandler,
    ):
        """Open no connection. Raises SettingsError for an agent without a model, and for settings
        with a model of another run.
        """
        super().__init__(hyper_params, settings, agent_name, protocol_handler)
        check_by_hand(hyper_params)
        if agent_name not in hyper_params.model_agents:
            raise SettingsError(f"agents.{agent_name}: is_random; use RandomWholeAgent for it")
        self._own_model_name: str | None = None
        self._client: OpenAI | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Give the object's state without its client; a client can't be pickled and stays here."""
        return {**self.__dict__, "_client": None}

    # Its model.

    @property
    def agent_params(self) -> PureTextAgentParameters:
        """The agent's settings."""
        return self.hyper_params.model_agents[self.agent_name]

    @property
    def agent_spec(self) -> CodeValidationAgentSpec:
        """The agent as it appears to the others, and the parts of its prompts."""
        handler = self.protocol_handler
        if not isinstance(handler, CodeValidationProtocolHandler):
            handler = CodeValidationProtocolHandler(self.hyper_params)
        return handler.agent_spec(self.agent_name)

    @property
    def base_model_name(self) -> str:
        """Name the model before any fine-tuning."""
        return base_name(self.hyper_params, self.agent_params)

    @property
    def model_name(self) -> str:
        """Name the agent's present model."""
        if self.shared_model_group is not None:
            return self.shared_model_group.model_name
        return self._own_model_name or self.base_model_name

    @property
    def system_prompt_template(self) -> Any:
        """The template of its system prompt, a `string.Template`."""
        return self.protocol_handler.game.prompts.template(self.agent_name)

    @property
    def client(self) -> "OpenAI":
        """The OpenAI SDK's client for the agent's provider, made when first asked for.

        For your own calls: the agent's own go through `nip_core.rollouts.client.chat_client`.
        """
        if self._client is None:
            from openai import OpenAI

            endpoint = self._endpoint()
            self._client = OpenAI(
                base_url=endpoint.base_url,
                api_key=endpoint.api_key,
                http_client=blocking_http_client(endpoint.base_url),
            )
        return self._client

    def get_state_dict(self) -> PlainState:
        """Give the agent's present model, as plain values."""
        return OpenAiWholeAgentState(self._own_model_name).to_dict()

    def set_state(self, checkpoint: AgentState | PlainState) -> None:
        """Restore a state of `get_state_dict`.

        Raises ValueError for other keys, and for another model than that of the agent's group: set
        the group's state.
        """
        if not isinstance(checkpoint, AgentState):
            checkpoint = OpenAiWholeAgentState.from_dict(checkpoint)
        name = checkpoint.model_name if isinstance(checkpoint, OpenAiWholeAgentState) else None
        if name is not None and self.shared_model_group is not None and name != self.model_name:
            raise ValueError(
                f"{self.agent_name}: the checkpoint has model {name!r}, but its group plays with "
                f"{self.model_name!r}; set the state of the group"
            )
        self._own_model_name = name

    def _endpoint(self) -> Endpoint:
        group = self.agent_params.shared_model_group or self.agent_name
        return endpoints_of(self.hyper_params, group).play

    # A turn.

    def _client_for_calls(self) -> AbstractAsyncContextManager[Any]:
        rollouts = self.hyper_params.rollouts
        return ChatClient(
            concurrency=rollouts.concurrency,
            timeout_s=rollouts.request_timeout_s,
            retries=rollouts.transport_retries,
        )

    async def _answer(
        self,
        turns: Sequence[Turn],
        round_: int,
        situation: Situation,
        seeds: Seeds,
        client: ChatClient,
    ) -> _ParsedChatCompletion:
        # 1. Make its prompt, and the form that its answer must have.
        game = self.protocol_handler.game
        form = game.form(self.agent_name, round_, situation.seed, turns)
        # 2. Ask until an answer can be used, each time with a seed of its own.
        error: GenerationError | None = None
        wrong: Kind | None = None
        retries = self.agent_params.num_invalid_generation_retries
        for attempt in range(retries + 1):
            chat = game.render(self.agent_name, situation, turns, round_, wrong)
            answer = await self._ask(chat, form, seeds(attempt), client)
            try:
                move = judge_answer(answer, form, retries - attempt)
            except InvalidResponse as response:
                error = _generation_error(answer, attempt, response)
                wrong = game.find_mistake(
                    self.agent_name, answer.text or "", answer.finish_reason, response.reason
                )
            else:
                return _ParsedChatCompletion(
                    messages=dict(move.messages),
                    raw_message=answer.text,
                    decision=move.decision,
                    continuous_decision=move.value,
                    retry_count=attempt,
                    token_limit=answer.finish_reason == "length",
                )
        # 3. None could: be silent where the game allows it, or say why.
        assert error is not None
        if self.protocol_handler.may_be_silent(self.agent_name):
            return _ParsedChatCompletion(retry_count=error.num_retries)
        raise error

    async def _ask(
        self, chat: list[ChatMessage], form: AnswerForm | None, seed: int, client: ChatClient
    ) -> ChatAnswer:
        if self.agent_params.use_dummy_api:
            text = random_answer(form or self._usual_form(), seed)
            return ChatAnswer(text, "stop", self.model_name, 0, 0, 0, 0.0)
        limit = self.hyper_params.max_tokens(self.agent_name)
        body = request_body(self.model_name, self.agent_params, chat, seed, limit, form=form)
        return await client.complete(self._endpoint(), body)

    def _usual_form(self) -> AnswerForm:
        """The form of its answer in its first turn of some episode."""
        handler = self.protocol_handler
        for seed in range(handler.num_agents + 1):
            for round_ in range(handler.max_message_rounds):
                if self.agent_name in handler.protocol.movers(round_, seed, []):
                    return handler.game.form(self.agent_name, round_, seed, [])
        raise SettingsError(f"{self.agent_name} has no turn in this protocol")

    async def _agenerate_next_message_and_decision(
        self,
        message_history: Array,
        message_agent_id: Array,
        raw_message_history: Array,
        round_id: int,
        question: str,
        solution: str,
        seed: int,
        prover_stance: int,
    ) -> _ParsedChatCompletion:
        """One turn in one episode, given by its history (rounds below `round_id` count).

        `prover_stance` is the verdict drawn for the provers, 0 or 1; -1 where none was drawn.

        Raises ValueError where the agent has no turn in that round, and ContentFilterError,
        ContentIsNoneError, UnknownFinishReasonError or an InvalidResponseError for the fault of the
        last of all tries.
        """
        histories = (message_history, message_agent_id, raw_message_history)
        turns = read_turns(self.protocol_handler, histories, seed)
        turns = [turn for turn in turns if turn.round < round_id]
        if self.agent_name not in self.protocol_handler.protocol.movers(round_id, seed, turns):
            raise ValueError(f"{self.agent_name} has no turn in round {round_id}")
        seeds = partial(self._seed, seed, round_id)
        situation = Situation(question, solution, drawn_stance(prover_stance), seed)
        async with self._client_for_calls() as client:
            return await self._answer(turns, round_id, situation, seeds, client)

    _generate_next_message_and_decision = synchronous(
        _agenerate_next_message_and_decision, "_generate_next_message_and_decision"
    )

    def _seed(self, episode_seed: int, round_: int, attempt: int) -> int:
        place = (episode_seed, round_, self.agent_name, attempt)
        return derive_seed("generation", self.hyper_params.seed, *place)

    async def _amake_generation_api_call(
        self, chat_messages_prompt: list[PromptMessage]
    ) -> tuple[str | None, FinishReason]:
        """One completion of the chat and why it ended. Equal chats have equal sampling seeds."""
        chat = cast(list[ChatMessage], chat_messages_prompt)
        async with self._client_for_calls() as client:
            answer = await self._ask(chat, None, self._seed_of(chat), client)
        return answer.text, cast(FinishReason, answer.finish_reason)

    _make_generation_api_call = synchronous(_amake_generation_api_call, "_make_generation_api_call")

    def _generate_dummy_response(self, chat_messages_prompt: list[PromptMessage]) -> str:
        """A valid answer at random, by the chat and the experiment's seed alone.

        A verifier rejects in one answer of five, accepts in one, and asks in three, with a part
        for each of its channels; a prover answers.
        """
        chat = cast(list[ChatMessage], chat_messages_prompt)
        return random_answer(self._usual_form(), self._seed_of(chat))

    def _seed_of(self, chat: list[ChatMessage]) -> int:
        return derive_seed("chat", self.hyper_params.seed, self.agent_name, chat)


def endpoints_of(hyper_params: HyperParameters, group: str) -> Endpoints:
    """The group's addresses, with its key from the environment.

    Raises SettingsError if that is missing, or if it would be on a server that only a run starts.
    """
    endpoints = find_group_endpoints(hyper_params, group)
    if endpoints is None:
        raise SettingsError(
            f"group {group!r} would play on a server that only `nip train` starts; start one with "
            "`nip serve` and set lm_server.url (or agents.<name>.base_url) to its address"
        )
    return endpoints


def check_by_hand(hyper_params: HyperParameters) -> None:
    """Refuse settings for runs of the loop only. Raises SettingsError."""
    setting = next(
        (
            f"agents.{name}.load_checkpoint_and_parameters"
            for name, agent in hyper_params.model_agents.items()
            if agent.load_checkpoint_and_parameters
        ),
        None,
    )
    if hyper_params.base_run.base_run_type != "none":
        setting = "base_run.base_run_type"
    if setting is not None:
        raise SettingsError(
            f"{setting}: models of another run are taken over by `nip train` only; leave it out, "
            "and give the group its model with OpenAiSharedModelGroup.set_state"
        )


def _generation_error(
    answer: ChatAnswer, retries: int, response: InvalidResponse
) -> GenerationError:
    """Name the fault of an answer by the error class of callers by hand."""
    if answer.finish_reason == "content_filter":
        return ContentFilterError(retries)
    if answer.finish_reason not in ("stop", "length"):
        return UnknownFinishReasonError(retries, answer.finish_reason)
    if answer.text is None:
        return ContentIsNoneError(retries)
    if isinstance(response, InvalidDecision):
        return InvalidDecisionError(retries, answer.text, response.reason)
    if isinstance(response, MissingPart):
        return NotAllActiveChannelsInResponseError(retries, answer.text, response.reason)
    return InvalidResponseError(retries, answer.text, response.reason)
