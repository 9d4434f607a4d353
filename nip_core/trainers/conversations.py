"""An agent's side of an episode as conversations that are trained on, each as the agent was asked.

A hint stands in the chat of one try and in no later one. So no chat holds an answer that was given
after a hint and the answers after it, as all of them were asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nip_core.game.answer_rows import place_of
from nip_core.game.render import ChatMessage, Game, Situation, Turn
from nip_core.trainers.episodes import PlayedAnswer, PlayedEpisode


@dataclass(frozen=True)
class Conversation:
    """Messages of which some are learned."""

    messages: tuple[ChatMessage, ...]
    learned: tuple[PlayedAnswer, ...]  # in order
    hinted_round: int | None  # of the only answer learned, if it was given after a hint
    thoughts: tuple[str | None, ...] | None
    """By message, its author's thoughts before it; None: thoughts are not trained."""
    weights: tuple[int | None, ...] | None
    """By message, 1 if it is learned, 0 if not, None if another one wrote it; None: all of the
    agent's are learned."""

    @property
    def tokens(self) -> int | None:
        """Count about as many tokens as training reads in it; None: not reported."""
        # Thoughts stand in no later prompt, so each answer that has some is trained by itself.
        is_apart = self.thoughts is not None and any(self.thoughts)
        tokens = [answer.tokens for answer in (self.learned if is_apart else self.learned[-1:])]
        counts = [n for n in tokens if n is not None]
        return sum(counts) if len(counts) == len(tokens) else None


def keeps_reasoning(game: Game, agent: str) -> bool:
    """Tell whether the agent's thoughts are trained."""
    return game.parameters.model_agents[agent].train_reasoning == "keep"


def keeps_hints(game: Game, agent: str) -> bool:
    """Tell whether the agent's answers after hints are trained behind these."""
    return game.parameters.model_agents[agent].train_hints == "keep"


def render_own_side(
    game: Game,
    agent: str,
    situation: Situation,
    turns: Sequence[Turn],
    round_: int,
    label: int | None = None,
) -> list[ChatMessage]:
    """Render the chat of `agent` until its last answer, to be trained on; empty if it never spoke.

    With a true `label` (1 correct, 0 buggy) that answer becomes the right decision, as sure as the
    scale allows and without the reasoning before it, which may have argued for the other one.
    """
    messages = game.render(agent, situation, turns, round_)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if messages and label is not None:
        verdict = game.protocol.scale.right_answer(label)
        messages[-1] = {"role": "assistant", "content": f"Decision: {verdict}"}
    return messages


def align_thoughts(
    messages: Sequence[ChatMessage], thoughts: Sequence[str | None], *, is_replaced: bool = False
) -> tuple[str | None, ...]:
    """Give the agent's thoughts before each message of its side; None for messages of others.

    `thoughts` has the thoughts before each of its answers, in order. Where the last answer
    `is_replaced` by the true label, the thoughts before it may have argued for the other one.
    """
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    by_message = dict(zip(answers, thoughts, strict=True))
    if is_replaced and answers:
        del by_message[answers[-1]]
    return tuple(by_message.get(i) for i in range(len(messages)))


def make_conversations(
    game: Game, agent: str, episode: PlayedEpisode, label: int | None = None
) -> list[Conversation]:
    """Make the conversations of the agent's side; none if it never spoke.

    With a true `label`, see `render_own_side`. An answer in its place was given after no hint, so
    it is learned for the plain chat.
    """
    answers = episode.list_answers(agent)
    hinted = [keeps_hints(game, agent) and answer.wrong is not None for answer in answers]
    if hinted and label is not None:
        hinted[-1] = False
    whole = _make_plain(game, agent, episode, label, hinted)
    behind_hints = [
        _make_hinted(game, episode, answer)
        for answer, is_hinted in zip(answers, hinted, strict=True)
        if is_hinted
    ]
    return [*([] if whole is None else [whole]), *behind_hints]


def _make_plain(
    game: Game, agent: str, episode: PlayedEpisode, label: int | None, hinted: Sequence[bool]
) -> Conversation | None:
    """Make the chat of the whole side, of which answers after hints are not learned.

    It ends with the last one that is learned; None if there is none.
    """
    answers = episode.list_answers(agent)
    indices = [i for i, is_hinted in enumerate(hinted) if not is_hinted]
    if not indices:
        return None
    situation, turns, last = episode.situation, episode.turns, episode.rounds - 1
    messages = render_own_side(game, agent, situation, turns, last, label)
    thoughts = None
    if keeps_reasoning(game, agent):
        own_thoughts = [
            None if is_hinted else answer.reasoning
            for answer, is_hinted in zip(answers, hinted, strict=True)
        ]
        thoughts = align_thoughts(messages, own_thoughts, is_replaced=label is not None)
    weights = None
    if any(hinted):
        own = iter(hinted)
        weights = [
            int(not next(own)) if message["role"] == "assistant" else None for message in messages
        ]
        end = len(weights) - weights[::-1].index(1)
        messages, weights = messages[:end], weights[:end]
        thoughts = None if thoughts is None else thoughts[:end]
    return Conversation(
        messages=tuple(messages),
        learned=tuple(answers[i] for i in indices),
        hinted_round=None,
        thoughts=thoughts,
        weights=None if weights is None else tuple(weights),
    )


def _make_hinted(game: Game, episode: PlayedEpisode, answer: PlayedAnswer) -> Conversation:
    """Make the chat of one answer as it was asked for, with the hint; it alone is learned."""
    prompt = game.render_at(place_of(answer), episode.situation, episode.turns, answer.wrong)
    weights = [0 if message["role"] == "assistant" else None for message in prompt]
    keeps = keeps_reasoning(game, answer.agent)
    return Conversation(
        messages=(*prompt, {"role": "assistant", "content": answer.text}),
        learned=(answer,),
        hinted_round=answer.round,
        thoughts=(*(None for _ in prompt), answer.reasoning) if keeps else None,
        weights=(*weights, 1),
    )
