"""An agent whose chats and training examples are made from a batch's histories."""

from typing import Any, Literal, cast

from nip_by_hand.agents.chat_types import DpoDatasetItem, PromptMessage
from nip_by_hand.agents.errors import AgentNotActiveInChannelError
from nip_by_hand.agents.history import HISTORIES, NO_STANCE, holds_text, read_situation, read_turns
from nip_by_hand.agents.nested_array_dict import Array, NestedArrayDict
from nip_by_hand.agents.whole_agent import PureTextWholeAgent
from nip_core.game.render import ChatMessage, Situation
from nip_core.trainers.conversations import render_own_side

_REPLACES_NOTHING = (
    "the last message is replaced by the true label only with "
    "ensure_last_message_is_assistant=True, as another agent may have written it otherwise"
)


class PromptedWholeAgent(PureTextWholeAgent):
    """An agent that makes the chats it sees, and those it can be trained on.

    `Game.render` makes the chats and `render_own_side` ends them for training, as in the loop.
    """

    def _build_chat_messages_prompt(
        self,
        message_history: Array,
        message_agent_id: Array,
        raw_message_history: Array,
        round_id: int,
        question: str,
        solution: str,
        prover_stance: int,
        seed: int,
        y: int | None = None,
        ensure_last_message_is_assistant: bool = False,
        replace_last_message_with_true_label: bool = False,
    ) -> list[PromptMessage]:
        """Build the agent's chat in round `round_id`, after the history (it may include this
        round).

        Args:
            message_history: (round, channel) texts.
            message_agent_id: (round, channel) numbers of their authors, -1 is none.
            raw_message_history: (round, agent) answers as they were generated.
            round_id: the round, from 0.
            question: the problem.
            solution: the proposed solution.
            prover_stance: the verdict drawn for the provers, 0 or 1; -1 where none was drawn.
            seed: of the episode.
            y: the true label, 0 or 1; needed to replace by it.
            ensure_last_message_is_assistant: leave out the messages after the agent's last answer.
            replace_last_message_with_true_label: with that, make this answer the right decision.

        Raises AgentNotActiveInChannelError if there is no answer of the agent to end with. Raises
        ValueError for a replacement without `ensure_last_message_is_assistant`, without `y`, and of
        an agent that decides nothing.
        """
        label = y if replace_last_message_with_true_label else None
        if replace_last_message_with_true_label:
            self._check_replacement(ensure_last_message_is_assistant, y)
        histories = (message_history, message_agent_id, raw_message_history)
        turns = read_turns(self.protocol_handler, histories, seed)
        situation = Situation(question, solution, drawn_stance(prover_stance), seed)
        game = self.protocol_handler.game
        if not ensure_last_message_is_assistant:
            return _messages(game.render(self.agent_name, situation, turns, round_id))
        chat = render_own_side(game, self.agent_name, situation, turns, round_id, label)
        if not chat:
            raise AgentNotActiveInChannelError(self.agent_name)
        return _messages(chat)

    def build_fine_tune_dataset(
        self,
        timesteps: NestedArrayDict,
        ensure_last_message_is_assistant: bool = True,
        replace_verifier_guess_with_true_label: bool = False,
    ) -> list[dict[Literal["messages"], list[PromptMessage]]]:
        """The agent's side of episodes, each until the timestep given.

        `timesteps` has batch size (batch,) and the keys "round", "question", "solution",
        "prover_stance", "seed" (0 where it is missing) and, below "next" or else at the top,
        "message_history", "message_agent_id" and "raw_message_history"; with
        `replace_verifier_guess_with_true_label` also "y", by which a verifier's last answer is
        replaced. A prover has no guess, and its answers stay. Episodes in which the agent never
        spoke are left out.

        Raises ValueError for timesteps of another batch size and for a replacement without "y" or
        without `ensure_last_message_is_assistant`, KeyError for another key that lacks.
        """
        # 1. Refuse columns that can't be replaced.
        _check_timesteps(timesteps)
        replaces = replace_verifier_guess_with_true_label and self.is_verifier
        if replace_verifier_guess_with_true_label and not ensure_last_message_is_assistant:
            raise ValueError(_REPLACES_NOTHING)
        if replaces and "y" not in timesteps:
            raise ValueError(
                'timesteps: "y", the true labels, by which guesses are to be replaced, is missing'
            )
        # 2. Take the agent's side of each episode in which it spoke.
        items: list[dict[Literal["messages"], list[PromptMessage]]] = []
        for place in timesteps:
            try:
                chat = self._chat_at(
                    place,
                    _after(place),
                    y=int(place["y"]) if replaces else None,
                    ensure_last_message_is_assistant=ensure_last_message_is_assistant,
                    replace_last_message_with_true_label=replaces,
                )
            except AgentNotActiveInChannelError:
                continue
            items.append({"messages": chat})
        return items

    def build_dpo_dataset(
        self, positive_examples: NestedArrayDict, negative_examples: NestedArrayDict
    ) -> list[DpoDatasetItem]:
        """Pair the agent's answers to the same chat; the chat is derived from the examples.

        Both have batch size (timestep,) and the keys of `build_fine_tune_dataset`, with the
        histories before the move at the top and those after it below "next". Equal pairs, from
        which nothing can be learned, are left out.

        Raises ValueError if the two of a pair answer different chats, or the agent did not answer.
        """
        _check_timesteps(positive_examples)
        if positive_examples.batch_size != negative_examples.batch_size:
            raise ValueError(
                f"{positive_examples.batch_size} positive and {negative_examples.batch_size} "
                "negative examples do not make pairs"
            )
        items: list[DpoDatasetItem] = []
        pairs = zip(positive_examples, negative_examples, strict=True)
        for number, (positive, negative) in enumerate(pairs):
            # 1. Both must answer one chat.
            chat, negative_chat = (self._chat_at(place, place) for place in (positive, negative))
            if chat != negative_chat:
                raise ValueError(
                    f"{self.agent_name}, pair {number}: the two examples answer different chats"
                )
            # 2. Of equal answers nothing can be learned.
            good, bad = (self._own_answer(place, number) for place in (positive, negative))
            if good != bad:
                items.append(
                    {
                        "input": {"messages": chat},
                        "preferred_output": [{"role": "assistant", "content": good}],
                        "non_preferred_output": [{"role": "assistant", "content": bad}],
                    }
                )
        return items

    def _chat_at(
        self, place: NestedArrayDict, histories: NestedArrayDict, **options: Any
    ) -> list[PromptMessage]:
        situation = read_situation(place)
        return self._build_chat_messages_prompt(
            **{key: histories[key] for key in HISTORIES},
            round_id=int(place["round"]),
            question=situation.question,
            solution=situation.solution,
            prover_stance=NO_STANCE if situation.stance is None else situation.stance,
            seed=situation.seed,
            **options,
        )

    def _check_replacement(self, ensure_last_message_is_assistant: bool, y: int | None) -> None:
        """Raises ValueError unless the last answer can become the right decision."""
        if not ensure_last_message_is_assistant:
            raise ValueError(_REPLACES_NOTHING)
        if not self.is_verifier:
            raise ValueError(
                f"{self.agent_name} is not the verifier and decides nothing, so its last message "
                "can't be replaced by the true label"
            )
        if y not in (0, 1):
            raise ValueError(
                f"the true label y, 0 or 1, is needed to replace the last message by it (got {y})"
            )

    def _own_answer(self, place: NestedArrayDict, number: int) -> str:
        raw = _after(place)["raw_message_history"][int(place["round"]), self.agent_id]
        if not holds_text(raw):
            raise ValueError(
                f"{self.agent_name}, pair {number}: it said nothing in round {int(place['round'])}"
            )
        return str(raw)


def _check_timesteps(timesteps: NestedArrayDict) -> None:
    if len(timesteps.batch_size) != 1:
        raise ValueError(f"timesteps of batch size (n,) are needed, got {timesteps.batch_size}")


def _after(place: NestedArrayDict) -> NestedArrayDict:
    """Take the histories after a timestep's move, or as far as there are any."""
    has_next = ("next", "message_history") in place
    return cast(NestedArrayDict, place["next"]) if has_next else place


def drawn_stance(prover_stance: int | None) -> int | None:
    """The drawn verdict in an array's place; None where none was drawn."""
    return None if prover_stance is None or prover_stance == NO_STANCE else int(prover_stance)


def _messages(chat: list[ChatMessage]) -> list[PromptMessage]:
    return cast(list[PromptMessage], chat)
