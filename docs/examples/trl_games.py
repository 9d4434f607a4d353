"""nip's games in TRL's GRPOTrainer: docs/howto/games-in-your-loop.md. Copy it."""

import asyncio
from contextlib import AsyncExitStack
from itertools import groupby, takewhile

from datasets import Dataset

from nip_core.library import LiveEpisode, ModelAnswer


class Row:  # of TRL's: a game's chat, and tokens behind it, each (id, mask, log-probability)
    def __init__(self, episode):
        self.episode, self.chat, self.tokens, self.last = episode, [], [], []

    async def ask(self, agent, trainer):
        request = await self.episode.next_request(agent)
        if self.episode.find_mistake(agent):  # the last answer is not trained
            self.tokens[len(self.tokens) - len(self.last) :] = [(t, 0, 0) for t, _, _ in self.last]
        if request is None:
            return None
        how = {"add_generation_prompt": True, "return_dict": False, **trainer.chat_template_kwargs}
        chat = trainer.processing_class.apply_chat_template(request["messages"], **how)
        # Tokens stay as far as the next answer has them before it.
        pairs = zip(self.chat + [token for token, _, _ in self.tokens], chat, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not self.chat or same < len(self.chat):
            self.chat, same = chat, len(chat)
        self.tokens[same - len(self.chat) :] = [(token, 0, 0) for token in chat[same:]]
        return chat


class Games:  # in which a model is trained as `agent`, and functions, `frozen`, play the others
    def __init__(self, game, agent, frozen, iterations=1):
        self.game, self.agent, self.frozen, self.runner = game, agent, frozen, asyncio.Runner()
        plan = [spec for number in range(iterations) for spec in game.plan("train", number)]
        groups = groupby(plan, key=lambda spec: f"{spec.problem.id} {spec.seed}")
        self.groups = {name: [*specs] for name, specs in groups}
        self.dataset = Dataset.from_dict({"prompt": [*self.groups]})

    def rollout(self, names, trainer):
        first = trainer.accelerator.process_index * len(names)  # other processes play those before
        specs = [self.groups[n][i % len(self.groups[n])] for i, n in enumerate(names, first)]
        return self.runner.run(self.play(specs, trainer))

    async def play(self, specs, trainer):
        agent, tokenizer, eos = self.agent, trainer.processing_class, trainer.eos_token_ids[0]
        async with AsyncExitStack() as stack:
            live = [LiveEpisode(self.game, spec, [agent], self.frozen) for spec in specs]
            rows = [Row(await stack.enter_async_context(episode)) for episode in live]
            while chats := {row: chat for row in rows if (chat := await row.ask(agent, trainer))}:
                ids, logprobs = trainer._generate_single_turn([*chats.values()], None, {}, 1)
                for i, row in enumerate(chats):
                    old = logprobs[i] if logprobs else [0] * len(ids[i])
                    row.last = [(t, 1, p) for t, p in zip(ids[i], old, strict=True)]
                    row.tokens += row.last
                    text = tokenizer.decode(ids[i], skip_special_tokens=True)
                    reason = "stop" if {*ids[i][-1:]} & {*trainer.eos_token_ids} else "length"
                    row.episode.answer(agent, ModelAnswer(text, reason))
            ends = [await episode.finish() for episode in live]
        columns = [[[t[k] for t in row.tokens or [(eos, 0, 0)]] for row in rows] for k in range(3)]
        return {
            "prompt_ids": [row.chat or [eos] for row in rows],
            "completion_ids": columns[0],
            "env_mask": columns[1],
            "logprobs": columns[2] if trainer.use_vllm else None,
            "paid": [None if end.failed else end.rewards[agent] for end in ends],
        }


def pay(paid, **_):
    return paid
